"""Early stopping: ends a run whose evaluations no longer improve; a resumed run counts those before it too."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from transformers import EarlyStoppingCallback, TrainerControl, TrainerState, TrainingArguments

from tightfit.messages import Message, msg


class EarlyStopping(EarlyStoppingCallback):
    """transformers' callback; its count is not stored but read from the log, which every checkpoint has."""

    def __init__(self, patience: int, log: Callable[[Message], None]) -> None:
        super().__init__(patience)
        self._log = log

    def on_train_begin(
        self, args: TrainingArguments, state: TrainerState, control: TrainerControl, **kwargs: Any
    ) -> None:
        super().on_train_begin(args, state, control, **kwargs)
        self.early_stopping_patience_counter, best = 0, None
        for value in _evaluations(args, state):
            is_better = best is None or (value > best if args.greater_is_better else value < best)
            self.early_stopping_patience_counter = 0 if is_better else self.early_stopping_patience_counter + 1
            best = value if is_better else best
        self._stop_if_due(state, control)

    def on_evaluate(
        self, args: TrainingArguments, state: TrainerState, control: TrainerControl, metrics: Any, **kwargs: Any
    ) -> None:
        super().on_evaluate(args, state, control, metrics, **kwargs)
        self._stop_if_due(state, control)

    def _stop_if_due(self, state: TrainerState, control: TrainerControl) -> None:
        if self.early_stopping_patience_counter < self.early_stopping_patience or state.global_step >= state.max_steps:
            return
        control.should_training_stop = True
        self._log(
            msg(
                "stopped early after step {step} of {steps}: the last {count} evaluations were not better",
                step=state.global_step,
                steps=state.max_steps,
                count=self.early_stopping_patience_counter,
            )
        )


def _evaluations(args: TrainingArguments, state: TrainerState) -> list[float]:
    """The metric that chooses the best checkpoint, of all evaluations so far."""
    assert args.metric_for_best_model is not None
    metric = f"eval_{args.metric_for_best_model.removeprefix('eval_')}"
    return [entry[metric] for entry in state.log_history if metric in entry]
