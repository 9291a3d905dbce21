"""The run header (`start.json`): what is known before the first step, so that a failed run can be reported too.

It holds the memory estimate by phase and kind, the memory timeline of one step, the text lengths, the plan and every
attempt.
"""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

from pydantic import BaseModel, ConfigDict

from tightfit.messages import Message, as_data, from_data
from tightfit.runs.record import DataSummary
from tightfit.system.files import atomic_write

FILE = "start.json"


class _Value(BaseModel):
    model_config = ConfigDict(frozen=True, use_attribute_docstrings=True)


class Segment(_Value):
    """A phase of one step, from one point of the timeline to another."""

    phase: str
    start: int
    end: int
    micro_batch: int
    """Which of the recorded micro-batches; -1 for what belongs to none."""


class StepTimeline(_Value):
    """Live bytes of each memory kind over one step."""

    kinds: dict[str, list[int]]
    segments: list[Segment]
    micro_batches: int
    """How many a step has; at most two of them are recorded."""


class TensorGroup(_Value):
    """Tensors of one kind, owner and shape that are alive at the peak."""

    kind: str
    owner: str | None
    """The module or parameter, `*` for any layer; empty for the model itself, None if unknown."""
    shape: list[int] | None
    bytes: int
    """Of one tensor."""
    count: int


class LengthStats(_Value):
    """How long the training texts are, and how much padding and truncation that causes."""

    limit: int
    """Tokens a text is truncated to."""
    width: int
    """Tokens per bin of the histogram."""
    rows: list[int]
    """Texts in each bin: 1 to `width` tokens, the next `width`, and so on."""
    padding_factor: float
    """Tokens computed, padding included, per token of text."""
    padding_factor_unsorted: float
    """The same for shuffled batches that are padded whole."""
    truncated_rows: int
    tokens: int | None = None
    """Of all texts, after truncation."""
    truncated_tokens: int | None = None
    """None if the tokenizer does not report it."""


class SmallerRecipe(_Value):
    """A recipe with a smaller memory estimate, as predicted when the run started."""

    recipe: list[str]
    peak_bytes: int
    result: str


class Attempt(_Value):
    """One start or resume of the run."""

    started_at: str
    from_step: int = 0
    recipe: list[str] = []
    error: Message | None = None
    """The error message of an attempt that failed; None if it finished or was killed."""


class RunHeader(_Value):
    """What is known of a run before its first step."""

    recipe: list[str]
    result: str
    device: str
    max_length: int
    steps: int
    """Optimizer steps in total."""
    data: DataSummary
    parameters: int
    trainable_parameters: int
    budget_bytes: int | None = None
    notes: list[Message] = []
    versions: dict[str, str] = {}
    estimate: dict[str, Any] | None = None
    """As `estimate --json` prints it; None if memory could not be estimated."""
    seconds_per_step: float | None = None
    step: StepTimeline | None = None
    largest_tensors: list[TensorGroup] = []
    lengths: LengthStats | None = None
    plan: dict[str, Any] | None = None
    """As `plan --json` prints it, if the recipe was planned."""
    smaller_recipes: list[SmallerRecipe] = []
    attempts: list[Attempt] = []

    def save(self, folder: Path) -> None:
        """Write it atomically."""
        atomic_write(folder / FILE, json.dumps(as_data(self.model_dump()), ensure_ascii=False) + "\n")


def load_header(folder: Path) -> RunHeader | None:
    """Read the header of a run folder; None if there is none or another version wrote it."""
    try:
        return RunHeader(**json.loads((folder / FILE).read_text("utf-8"), object_hook=from_data))
    except (OSError, ValueError, TypeError, RecursionError):
        return None


def record_failure(folder: Path, reason: Message) -> None:
    """Store the error message of the last attempt in the header."""
    header = load_header(folder)
    if header is None or not header.attempts:
        return
    last = header.attempts[-1].model_copy(update={"error": reason})
    header.model_copy(update={"attempts": [*header.attempts[:-1], last]}).save(folder)
