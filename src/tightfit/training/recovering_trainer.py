"""Base of the Trainers: optimizer steps and evaluation batches are measured, and repeated where memory runs out."""

from __future__ import annotations

import functools
from types import MethodType
from typing import TYPE_CHECKING, Any

import torch
import transformers

from tightfit.compat import nested_concat
from tightfit.data.micro_batches import is_splittable
from tightfit.engine.assembly import build_optimizer
from tightfit.engine.meter import Meter
from tightfit.engine.micro_batch_loss import label_counts
from tightfit.engine.step import evaluate_batch, optimizer_step
from tightfit.strategies.parts import Parts
from tightfit.training.recovery import Recovery

if TYPE_CHECKING:
    from tightfit.data.batches import Batch


class RecoveringTrainer(transformers.Trainer):
    """transformers.Trainer whose optimizer steps and evaluation batches are repeated after an out-of-memory error."""

    parts: Parts
    meter: Meter
    recovery: Recovery
    optimizer: torch.optim.Optimizer | None

    @property
    def inner_optimizer(self) -> torch.optim.Optimizer:
        """The optimizer without accelerate's wrapper."""
        return getattr(self.optimizer, "optimizer", self.optimizer)

    def _take_over(self, given: torch.optim.Optimizer | None) -> torch.optim.Optimizer:
        """Run the optimizer as the recipe says, and repeat a step that runs out of memory."""
        optimizer = build_optimizer(self.parts, given)
        if not self.parts.stepping.in_backward:
            self._recover_in_step(optimizer)
        return optimizer

    def _recover_in_step(self, optimizer: torch.optim.Optimizer) -> None:
        original = optimizer.step

        @functools.wraps(original)
        def step(optimizer: torch.optim.Optimizer, closure: Any = None) -> Any:
            return self.recovery.step(
                lambda: optimizer_step(lambda: original(closure), self.meter.phase), optimizer, self.state.global_step
            )

        optimizer.step = MethodType(step, optimizer)  # a method, which schedulers wrap again

    def prediction_step(
        self, model: torch.nn.Module, inputs: Batch, prediction_loss_only: bool, ignore_keys: list[str] | None = None
    ) -> Any:
        """One evaluation batch, in as many chunks as memory requires."""
        predict = super().prediction_step
        if not is_splittable(inputs):
            return predict(model, inputs, prediction_loss_only, ignore_keys)

        def forward(model: torch.nn.Module, chunk: Batch) -> tuple[Batch, Any]:
            return chunk, predict(model, chunk, prediction_loss_only, ignore_keys)

        outputs = self.recovery.evaluate(
            lambda chunk: evaluate_batch(model, chunk, self.meter.phase, forward), dict(inputs)
        )
        return outputs[0][1] if len(outputs) == 1 else self._concat(outputs)

    def _concat(self, outputs: list[tuple[Batch, Any]]) -> Any:
        """The outputs of the chunks as those of one batch; its loss is the mean over all labels."""
        counts = [self._label_count(chunk) for chunk, _ in outputs]
        losses, logits, labels = zip(*(each for _, each in outputs), strict=True)
        return _mean(losses, counts), _concat_or_none(logits), _concat_or_none(labels)

    def _label_count(self, batch: Batch) -> float:
        return sum(label_counts(self.model, batch))


def _mean(losses: tuple[Any, ...], counts: list[float]) -> Any:
    """Weighted by their labels; None without labels, and a chunk of ignored labels has no loss that counts."""
    if losses[0] is None or not any(counts):
        return losses[0]
    return sum(loss * (count / sum(counts)) for loss, count in zip(losses, counts, strict=True) if count)


def _concat_or_none(outputs: tuple[Any, ...]) -> Any:
    return None if outputs[0] is None else functools.reduce(nested_concat, outputs)
