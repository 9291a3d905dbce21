"""Failing allocations: memory runs out at one allocation of a training step, in turn at each of them.

An allocation is an op whose result is in new memory. The run has to finish with the weights of the undisturbed run, up
to rounding: from the same step, or from the last checkpoint if the optimizer had begun to change weights.
"""

from __future__ import annotations

import gc
import os
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any
from unittest import mock

import torch
from stress.fixtures import Workspace
from stress.low_memory import ERRORS
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves
from transformers import TrainerCallback

from tightfit.training.trainer import Trainer

RECIPES = {
    "micro-batches": ["micro-batch:size=4"],
    "chunked layers": ["chunked-layers:size=4", "adafactor"],
    "optimizer in backward": ["chunked-layers:size=4", "optimizer-in-backward"],
}
STEPS = 3
_TOLERANCE = 1e-5
# Keys are compared by the softmax, which no bias of theirs changes: its gradient is rounding, which AdamW scales up.
_WITHOUT_EFFECT = "key.bias"


class FailingAllocation(TorchDispatchMode):
    """Counts allocations, and fails the n-th of them, or all from there on."""

    def __init__(self, fail_at: int, *, always: bool = False) -> None:
        super().__init__()
        self.fail_at, self.always, self.count = fail_at, always, 0

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        out = func(*args, **(kwargs or {}))
        if func.__name__.startswith("_foreach_") and func._schema.is_mutable:
            torch.autograd.graph.increment_version(args[0])  # below a mode, torch leaves that out
        if _storages(out) - _storages((args, kwargs)):
            self.count += 1
            if self.count == self.fail_at or (self.always and self.count > self.fail_at):
                raise ERRORS["CPU allocator"]
        return out


def _storages(values: Any) -> set[int]:
    return {each.untyped_storage().data_ptr() for each in tree_leaves(values) if isinstance(each, torch.Tensor)}


class _DuringStep(TrainerCallback):
    """Allocations count from the start of one step to its end."""

    def __init__(self, mode: FailingAllocation, step: int) -> None:
        self.mode, self.step, self.is_on = mode, step, False

    def on_step_begin(self, args: Any, state: Any, *_: Any, **kwargs: Any) -> None:
        if state.global_step == self.step and not self.is_on:
            self._switch(on=True)

    def on_step_end(self, *args: Any, **kwargs: Any) -> None:
        if self.is_on:
            self._switch(on=False)

    def _switch(self, *, on: bool) -> None:
        self.is_on = on
        self.mode.__enter__() if on else self.mode.__exit__(None, None, None)


@contextmanager
def failing_allocation(mode: FailingAllocation, step: int) -> Iterator[None]:
    """The next run uses this mode in one of its steps."""
    during, on_ready = _DuringStep(mode, step), Trainer.on_ready

    def then_count(self: Trainer) -> None:
        on_ready(self)
        if during not in self.callback_handler.callbacks:
            self.add_callback(during)

    try:
        with mock.patch.object(Trainer, "on_ready", then_count):
            yield
    finally:
        during.on_step_end()


class Allocations:
    """Runs a recipe with one failing allocation, and compares it with the undisturbed run."""

    def __init__(self, workspace: Workspace) -> None:
        self.workspace = workspace
        self._undisturbed: dict[tuple[str, int], tuple[int, dict[str, torch.Tensor]]] = {}

    def count(self, recipe: str, step: int) -> int:
        """The allocations of the step."""
        return self._expected(recipe, step)[0]

    def undisturbed(self, recipe: str, step: int) -> dict[str, torch.Tensor]:
        """The weights of a run in which no allocation fails."""
        return self._expected(recipe, step)[1]

    def run_case(self, recipe: str, step: int, fail_at: int) -> dict[str, Any]:
        """What became of the run."""
        _, expected = self._expected(recipe, step)
        name = f"{recipe}-{step}-{fail_at}".replace(" ", "_")
        notes = self._train(name, recipe, step, FailingAllocation(fail_at))
        difference = _difference(self.workspace.weights(name), expected)
        said = [note for note in notes if "out of memory" in note]
        resumed = any("training resumes from" in note for note in said)
        passed = len(said) == 1 and difference < _TOLERANCE
        where = {"recipe": recipe, "step": step + 1, "fail_at": fail_at}
        return {**where, "passed": passed, "resumed": resumed, "difference": difference, "said": said}

    def _train(self, name: str, recipe: str, step: int, mode: FailingAllocation) -> list[str]:
        with failing_allocation(mode, step), mock.patch.object(os, "fsync"):
            run = self.workspace.train(name, RECIPES[recipe], max_steps=STEPS, preflight=False, save_every="1 steps")
        assert run.steps == STEPS
        return [str(note) for note in run.notes]

    def _expected(self, recipe: str, step: int) -> tuple[int, dict[str, torch.Tensor]]:
        if (recipe, step) not in self._undisturbed:
            name, mode = f"{recipe}-{step}".replace(" ", "_"), FailingAllocation(0)
            self._train(name, recipe, step, mode)
            gc.freeze()  # a recovery collects garbage, which takes longer than these runs if it looks at all libraries
            self._undisturbed[recipe, step] = mode.count, self.workspace.weights(name)
        return self._undisturbed[recipe, step]


def _difference(one: dict[str, torch.Tensor], other: dict[str, torch.Tensor]) -> float:
    assert one.keys() == other.keys()
    return max(float((one[name] - other[name]).abs().max()) for name in one if not name.endswith(_WITHOUT_EFFECT))
