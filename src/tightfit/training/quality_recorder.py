"""Quality recorder: scores evaluations, and keeps what is known of the predictions until the best one is known."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Any

from pydantic import BaseModel, ValidationError
from transformers import TrainerCallback, TrainerControl, TrainerState, TrainingArguments

from tightfit.system.files import atomic_write
from tightfit.tasks.base import ModelInputs, Task
from tightfit.tasks.quality import Quality

if TYPE_CHECKING:
    from transformers import EvalPrediction

FILE = "quality.json"


class _Kept(BaseModel):
    """The quality after a step, as a file."""

    step: int
    quality: Quality


class QualityRecorder(TrainerCallback):
    """`compute_metrics` of a Trainer, and a callback of it.

    Which evaluation is the best is known only after it, and in a resumed run it may be one of an earlier process: the
    quality after the best step so far is in a file of the run folder, written with the checkpoint.
    """

    def __init__(self, task: Task, inputs: ModelInputs, folder: Path) -> None:
        self.task, self.inputs, self.file = task, inputs, folder / FILE
        self._last: Quality | None = None
        self._by_step: dict[int, Quality] = {}

    def __call__(self, prediction: EvalPrediction) -> dict[str, float]:
        """The metrics of an evaluation."""
        self._last = self.task.assess(prediction, self.inputs)
        return self.task.score(prediction, self.inputs)

    def on_evaluate(self, args: TrainingArguments, state: TrainerState, control: TrainerControl, **kwargs: Any) -> None:
        if self._last is not None:
            self._by_step[state.global_step] = self._last

    def on_save(self, args: TrainingArguments, state: TrainerState, control: TrainerControl, **kwargs: Any) -> None:
        step = state.global_step
        if state.best_global_step == step and step in self._by_step:
            atomic_write(self.file, _Kept(step=step, quality=self._by_step[step]).model_dump_json())

    def take(self, step: int | None) -> Quality | None:
        """The quality after this step, for the record of the run, which replaces the file."""
        kept = self._by_step.get(step or 0) or self._kept(step)
        self.file.unlink(missing_ok=True)
        return kept

    def _kept(self, step: int | None) -> Quality | None:
        try:
            kept = _Kept.model_validate_json(self.file.read_text("utf-8"))
        except (OSError, ValidationError, ValueError):
            return None
        return kept.quality if kept.step == step else None
