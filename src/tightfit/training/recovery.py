"""Ledger: whether a step that failed had already changed a weight or what the optimizer remembers.

torch counts every change of a tensor, so no copies are needed: a few counters tell whether a step can simply be tried
again or was left half done.
"""

from __future__ import annotations

import random
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any, TypeVar

import numpy as np
import torch

from tightfit.compat import version_of
from tightfit.data.batches import RowLimits
from tightfit.engine.oom import forget, free_memory
from tightfit.errors import OutOfMemory, first_line, is_out_of_memory
from tightfit.strategies.parts import Parts

if TYPE_CHECKING:
    from tightfit.data.batches import Batch


class TensorVersions:
    """The counters as they were before a step."""

    def __init__(self, optimizer: torch.optim.Optimizer) -> None:
        self._optimizer = optimizer
        self._state = {parameter: dict(values) for parameter, values in optimizer.state.items()}
        parameters = [parameter for group in optimizer.param_groups for parameter in group["params"]]
        kept = [value for values in self._state.values() for value in values.values()]
        tensors = [*parameters, *(value for value in kept if isinstance(value, torch.Tensor))]
        self._versions = [(tensor, version_of(tensor)) for tensor in tensors]

    def unchanged(self) -> bool:
        """Whether every weight and every remembered tensor is as it was, and what is new was only made, not used."""
        new = [values for parameter, values in self._optimizer.state.items() if parameter not in self._state]
        made = [value for values in new for value in values.values() if isinstance(value, torch.Tensor)]
        # torch's fused kernels do not count what they do to weights, but to the number of steps they do.
        as_they_were = all(version_of(tensor) == version for tensor, version in self._versions)
        return as_they_were and all(version_of(tensor) == 0 for tensor in made)

    def restore(self) -> None:
        """After an untouched step: forget state that was just being made, and put counted steps back."""
        self._optimizer.state.clear()
        self._optimizer.state.update({parameter: dict(values) for parameter, values in self._state.items()})


# Randomness: where all generators stand, to be put back there later.


class RngState:
    """The generators of Python, numpy and torch, as they were when this was made."""

    def __init__(self) -> None:
        self._python, self._numpy, self._torch = random.getstate(), np.random.get_state(), torch.get_rng_state()
        self._cuda = torch.cuda.get_rng_state_all() if torch.cuda.is_available() else []

    def restore(self) -> None:
        """What is drawn from now on is what was drawn after this was made."""
        random.setstate(self._python)
        np.random.set_state(self._numpy)
        torch.set_rng_state(self._torch)
        if self._cuda:
            torch.cuda.set_rng_state_all(self._cuda)


# Recovery: what ran out of memory is done again with fewer rows at once.
#
# The effective batch, the step and the random numbers stay as they were; only how many rows go through the model at a
# time changes, for texts of that length. An optimizer's step that was left half done cannot be taken back in memory:
# `HalfDone` says so, and the trainer goes back to its last checkpoint.


T = TypeVar("T")
Slices = Iterable[tuple[float, "Batch"]]
Log = Callable[[str], None]


class PartialStep(Exception):
    """Memory ran out when some weights were already stepped and others not. Says what is done about it."""


class Recovery:
    """How many rows go through at once in this run, and what to do when they are too many."""

    def __init__(self, parts: Parts, log: Log) -> None:
        self.parts, self.log = parts, log
        self.slices = parts.slices
        self.evaluation = RowLimits(parts.evaluation_rows)
        self._extent = (0, 0)
        self._failed_step: int | None = None

    def train(self, attempt: Callable[[], T], optimizer: torch.optim.Optimizer, step: int) -> T:
        """Forward and backward of a batch, as often as it takes."""
        random = RngState()
        while True:
            ledger = TensorVersions(optimizer) if self.parts.step_in_backward else None
            with _attempt() as outcome:
                return attempt()
            self.parts.model.zero_grad(set_to_none=True)
            free_memory()
            done = self._shrink(step, outcome.reason)
            if ledger is not None:
                _refuse_half_done(ledger, done)
            self.log(done)
            random.restore()

    def step(self, take: Callable[[], T], optimizer: torch.optim.Optimizer, step: int) -> T:
        """The optimizer's step: a second time with all memory given back, since slices play no part in it."""
        random = RngState()
        while True:
            ledger = TensorVersions(optimizer)
            with _attempt() as outcome:
                return take()
            free_memory()
            if self._failed_step == step:
                raise OutOfMemory(_no_room_for_step(step, outcome.reason))
            self._failed_step = step
            done = f"out of memory in the optimizer's step {step + 1}: trying again with all memory given back"
            _refuse_half_done(ledger, done)
            self.log(done)
            random.restore()

    def on_other_oom(self, error: Exception, step: int) -> str:
        """Memory ran out where nothing is cut into rows: once that is bad luck, twice at one step it is too little."""
        if not is_out_of_memory(error):
            raise error
        reason = first_line(error)
        forget(error)
        if self._failed_step == step:
            raise OutOfMemory(_no_room_for_step(step, reason)) from None
        self._failed_step = step
        return f"out of memory around step {step + 1} ({reason})"

    def evaluate(self, run: Callable[[Batch], T], batch: Batch) -> list[T]:
        """A batch without gradients, in as many pieces as it takes."""
        return run_in_chunks(run, batch, self.evaluation, self.log)

    def watched(self, slices: Slices) -> Iterator[tuple[float, Batch]]:
        """The same slices; the one at hand is remembered, in case it is too large."""
        for share, chunk in slices:
            rows, length = chunk["input_ids"].shape
            self._extent = (rows, length)
            yield share, chunk

    def table(self) -> dict[str, dict[int, int]]:
        """What was learned, for the checkpoint."""
        return {name: dict(limits.learned) for name, limits in self._limits().items() if limits.learned}

    def learn(self, table: dict[str, dict[str, int]]) -> None:
        """What an earlier process learned."""
        for name, limits in self._limits().items():
            limits.learn({int(length): int(rows) for length, rows in table.get(name, {}).items()})

    def _limits(self) -> dict[str, RowLimits]:
        layers = {"layers": self._layers} if self._layers else {}
        return {"slices": self.slices, "evaluation": self.evaluation, **layers}

    @property
    def _layers(self) -> RowLimits | None:
        """None also where the layers lie in a trunk that was run before the training."""
        return None if self.parts.feature_cache else self.parts.layer_limits

    def _shrink(self, step: int, reason: str) -> str:
        """Fewer rows through a layer, where that is how the recipe cuts; else, or at one row, through the model."""
        rows, length = self._extent
        layers, where = self._layers, ""
        if layers is not None and layers.halve(now := min(rows, layers.at(length)), length):
            rows, where = now, "through each layer "
        elif self.parts.step_in_backward and layers is None and rows > 1:
            raise OutOfMemory(_no_room_for_whole_batch(rows, length, reason))
        elif self.parts.step_in_backward or not self.slices.halve(rows, length):
            raise OutOfMemory(_no_room_for_text(length, "train on", reason))
        return (
            f"out of memory in step {step + 1} with {rows} texts of {length} tokens {where}at once: "
            f"going on with {rows // 2}, batches stay {self.parts.batch_size}"
        )


def run_in_chunks(run: Callable[[Batch], T], batch: Batch, limits: RowLimits, log: Log) -> list[T]:
    """A model's answers for a batch that needs no gradients, in as many pieces as it takes."""
    rows, width = batch["input_ids"].shape
    while True:
        at_once = min(rows, limits.at(width))
        with _attempt() as outcome:
            return [run(chunk) for chunk in _pieces(batch, at_once)]
        free_memory()
        if not limits.halve(at_once, width):
            raise OutOfMemory(_no_room_for_text(width, "evaluate", outcome.reason))
        log(f"out of memory evaluating {at_once} texts of {width} tokens: going on with {at_once // 2} at once")


class _Outcome:
    reason = ""


@contextmanager
def _attempt() -> Iterator[_Outcome]:
    """Goes on behind its block if memory ran out in it, when nothing of the attempt is alive any more."""
    outcome = _Outcome()
    try:
        yield outcome
    except Exception as error:
        if not is_out_of_memory(error):
            raise
        outcome.reason = first_line(error)
        forget(error)


def _refuse_half_done(ledger: TensorVersions, done: str) -> None:
    if not ledger.unchanged():
        raise PartialStep(done)
    ledger.restore()


def _pieces(batch: Batch, rows: int) -> Iterator[Batch]:
    total = len(batch["input_ids"])
    if rows >= total:
        yield batch
        return
    for start in range(0, total, rows):
        yield {key: value[start : start + rows] for key, value in batch.items()}


def _no_room_for_text(length: int, verb: str, reason: Any) -> str:
    return (
        f"There is not enough memory to {verb} a single text of {length} tokens ({reason}): "
        "use checkpoint, chunked-layers:size=1 or adafactor, or a smaller --max-length, or let train --budget find a way."
    )


def _no_room_for_whole_batch(rows: int, length: int, reason: Any) -> str:
    return (
        f"There is not enough memory to train on {rows} texts of {length} tokens at once ({reason}), and "
        f"optimizer-in-backward alone takes a batch whole: add chunked-layers:size={rows // 2}."
    )


def _no_room_for_step(step: int, reason: Any) -> str:
    return (
        f"There is not enough memory for the optimizer's step {step + 1} ({reason}): "
        "use adafactor or adamw-16bit, with optimizer-in-backward if that is not enough."
    )
