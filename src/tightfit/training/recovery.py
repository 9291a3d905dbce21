"""Out-of-memory recovery: the failed batch is repeated with fewer rows per micro-batch.

The effective batch, the step and the random numbers stay the same; only the rows that go through the model together
change, for texts of that length. An optimizer step that failed after it had changed some weights cannot be undone in
memory: it raises `PartialStep`, and the trainer resumes from its last checkpoint.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING, TypeVar

import torch

from tightfit.compat import version_of
from tightfit.data.micro_batches import RowLimits, shape_of
from tightfit.engine.oom import drop_frames, free_memory, not_enough_memory
from tightfit.errors import first_line, is_out_of_memory
from tightfit.messages import Message, msg, verbatim
from tightfit.strategies.parts import Parts
from tightfit.training.rng_state import RngState

if TYPE_CHECKING:
    from tightfit.data.batches import Batch


class TensorVersions:
    """Whether a step that failed had already changed a weight or optimizer state.

    torch counts the in-place changes of every tensor, so comparing version counters takes the place of copies.
    """

    def __init__(self, optimizer: torch.optim.Optimizer) -> None:
        self._optimizer = optimizer
        self._state = {parameter: dict(values) for parameter, values in optimizer.state.items()}
        parameters = [parameter for group in optimizer.param_groups for parameter in group["params"]]
        state = [value for values in self._state.values() for value in values.values()]
        tensors = [*parameters, *(value for value in state if isinstance(value, torch.Tensor))]
        self._versions = [(tensor, version_of(tensor)) for tensor in tensors]

    def unchanged(self) -> bool:
        """Whether all weights and optimizer state are as before, and new state was allocated but not yet written."""
        new = [values for parameter, values in self._optimizer.state.items() if parameter not in self._state]
        allocated = [value for values in new for value in values.values() if isinstance(value, torch.Tensor)]
        # torch's fused kernels do not count their changes of weights, but they do count those of the step counter.
        same = all(version_of(tensor) == version for tensor, version in self._versions)
        return same and all(version_of(tensor) == 0 for tensor in allocated)

    def restore(self) -> None:
        """After a step that changed nothing: drop newly allocated state and reset the step counters."""
        self._optimizer.state.clear()
        self._optimizer.state.update({parameter: dict(values) for parameter, values in self._state.items()})


T = TypeVar("T")
WeightedMicroBatches = Iterable[tuple[float, "Batch"]]
Log = Callable[[Message], None]
_WHERE = {"layers": msg(" in each layer"), "micro_batches": ""}


class PartialStep(Exception):
    """Memory ran out after some weights had been updated and others not."""

    def __init__(self, message: Message) -> None:
        super().__init__(message)
        self.message = message


class Recovery:
    """The rows per micro-batch of this run, reduced after every out-of-memory error."""

    def __init__(self, parts: Parts, log: Log) -> None:
        self.parts, self.log = parts, log
        self.micro_batch_limits = parts.step_batching.limits()
        self.evaluation_limits = RowLimits(parts.step_batching.no_grad_rows, where="evaluation")
        self._current_shape = (0, 0)
        """Rows and tokens of the current micro-batch; 0 before the first one of a batch."""
        self._failed_step: int | None = None

    def train(self, attempt: Callable[[], T], optimizer: torch.optim.Optimizer, step: int) -> T:
        """Forward and backward of a batch, repeated with fewer rows until they fit."""
        rng = RngState()
        while True:
            versions = TensorVersions(optimizer) if self.parts.stepping.in_backward else None
            with _attempt() as outcome:
                result = attempt()
                self._current_shape = (0, 0)
                return result
            self.parts.model.zero_grad(set_to_none=True)
            free_memory()
            message = self._shrink(step, outcome.reason)
            if versions is not None:
                _check_unchanged(versions, message)
            self.log(message)
            rng.restore()

    def step(self, take: Callable[[], T], optimizer: torch.optim.Optimizer, step: int) -> T:
        """Clipping or the optimizer step, repeated once after freeing memory: they do not depend on micro-batches."""
        rng = RngState()
        while True:
            versions = TensorVersions(optimizer)
            with _attempt() as outcome:
                return take()
            free_memory()
            if self._failed_step == step:
                raise not_enough_memory(_step_too_large(step, outcome.reason), outcome.reason)
            self._failed_step = step
            message = msg(
                "out of memory in optimizer step {step}: trying again after freeing all cached memory", step=step + 1
            )
            _check_unchanged(versions, message)
            self.log(message)
            rng.restore()

    def on_other_oom(self, error: Exception, step: int) -> Message:
        """An out-of-memory error outside a batch."""
        if not is_out_of_memory(error):
            raise error
        reason = first_line(error)
        drop_frames(error)
        return self._tolerate(step, reason)

    def _tolerate(self, step: int, reason: Message) -> Message:
        """An error that fewer rows would not prevent is tolerated once per step; the second one ends the run."""
        if self._failed_step == step:
            raise not_enough_memory(_step_too_large(step, reason), reason) from None
        self._failed_step = step
        return msg("out of memory around step {step} ({reason})", step=step + 1, reason=reason)

    def evaluate(self, run: Callable[[Batch], T], batch: Batch) -> list[T]:
        """A batch without gradients, in as many chunks as memory requires."""
        return run_in_chunks(run, batch, self.evaluation_limits, self.log)

    def tracking(self, micro_batches: WeightedMicroBatches) -> Iterator[tuple[float, Batch]]:
        """The same micro-batches; the shape of the current one is stored, in case it is too large."""
        for weight, micro_batch in micro_batches:
            self._current_shape = shape_of(micro_batch)
            yield weight, micro_batch

    def found_limits(self) -> dict[str, dict[int, int]]:
        """The row limits found so far, for the checkpoint."""
        return {name: dict(limits.found) for name, limits in self._limits().items() if limits.found}

    def load_limits(self, table: dict[str, dict[str, int]]) -> None:
        """Take over the row limits of a checkpoint."""
        for name, limits in self._limits().items():
            limits.tighten({int(length): int(rows) for length, rows in table.get(name, {}).items()})

    def _limits(self) -> dict[str, RowLimits]:
        limits = (*self.parts.shrinkable, self.micro_batch_limits, self.evaluation_limits)
        return {each.where: each for each in limits}

    def _shrink(self, step: int, reason: Message) -> Message:
        """Halve the rows of the first limit that is above one row: those inside the layers before micro-batches."""
        rows, length = self._current_shape
        if not rows:
            return self._tolerate(step, reason)
        for limits in self._shrinkable():
            now = rows if limits is self.micro_batch_limits else min(rows, limits.rows_for(length))
            if limits.halve(now, length):
                if limits is self.micro_batch_limits:  # a repetition may fail before its first micro-batch
                    self._current_shape = (now // 2, length)
                return self._continuing(step, now, length, limits)
        if rows > 1 and not self._shrinkable():
            raise not_enough_memory(_batch_too_large(rows, length, reason), reason)
        raise not_enough_memory(_not_trainable(length, reason), reason)

    def _continuing(self, step: int, rows: int, length: int, limits: RowLimits) -> Message:
        return msg(
            "out of memory in step {step} with {rows} texts of {tokens} tokens{where}: "
            "continuing with {fewer}; the batch size stays {batch}",
            step=step + 1,
            rows=rows,
            tokens=length,
            where=_WHERE[limits.where],
            fewer=rows // 2,
            batch=self.parts.batching.batch_size,
        )

    def _shrinkable(self) -> list[RowLimits]:
        """A step inside the backward pass has no micro-batches."""
        return [*self.parts.shrinkable, *([] if self.parts.stepping.in_backward else [self.micro_batch_limits])]


def run_in_chunks(run: Callable[[Batch], T], batch: Batch, limits: RowLimits, log: Log) -> list[T]:
    """Run a batch without gradients in as many chunks as memory requires, and return the result of each."""
    rows, width = shape_of(batch)
    while True:
        chunk_rows = min(rows, limits.rows_for(width))
        with _attempt() as outcome:
            return [run(chunk) for chunk in _chunks(batch, chunk_rows)]
        free_memory()
        if not limits.halve(chunk_rows, width):
            raise not_enough_memory(_not_evaluable(width, outcome.reason), outcome.reason)
        log(_evaluating(chunk_rows, width))


class _Outcome:
    reason = verbatim("")


@contextmanager
def _attempt() -> Iterator[_Outcome]:
    """Suppress an out-of-memory error in the block and drop the tensors that its frames hold."""
    outcome = _Outcome()
    try:
        yield outcome
    except Exception as error:
        if not is_out_of_memory(error):
            raise
        outcome.reason = first_line(error)
        drop_frames(error)


def _check_unchanged(versions: TensorVersions, message: Message) -> None:
    if not versions.unchanged():
        raise PartialStep(message)
    versions.restore()


def _chunks(batch: Batch, rows: int) -> Iterator[Batch]:
    total, _ = shape_of(batch)
    if rows >= total:
        yield batch
        return
    for start in range(0, total, rows):
        yield {key: value[start : start + rows] for key, value in batch.items()}


def _evaluating(rows: int, length: int) -> Message:
    return msg(
        "out of memory evaluating {rows} texts of {tokens} tokens: continuing with {fewer}",
        rows=rows,
        tokens=length,
        fewer=rows // 2,
    )


def _not_trainable(length: int, reason: Message) -> Message:
    return msg(
        "There is not enough memory to train on a single text of {tokens} tokens ({reason}): "
        "use gradient-checkpointing, chunked-layers:size=1 or adafactor, a smaller --max-length, or train --budget"
        " to find a recipe that fits.",
        tokens=length,
        reason=reason,
    )


def _not_evaluable(length: int, reason: Message) -> Message:
    return msg(
        "There is not enough memory to evaluate a single text of {tokens} tokens ({reason}): "
        "use gradient-checkpointing, chunked-layers:size=1 or adafactor, a smaller --max-length, or train --budget"
        " to find a recipe that fits.",
        tokens=length,
        reason=reason,
    )


def _batch_too_large(rows: int, length: int, reason: Message) -> Message:
    return msg(
        "There is not enough memory to train on {rows} texts of {tokens} tokens ({reason}), and "
        "optimizer-in-backward needs the whole batch in one pass: add chunked-layers:size={fewer}.",
        rows=rows,
        tokens=length,
        reason=reason,
        fewer=rows // 2,
    )


def _step_too_large(step: int, reason: Message) -> Message:
    return msg(
        "There is not enough memory for optimizer step {step} ({reason}): "
        "use adafactor or adamw-16bit, with optimizer-in-backward if that is not enough.",
        step=step + 1,
        reason=reason,
    )
