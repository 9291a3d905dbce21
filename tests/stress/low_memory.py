"""Hunger: memory runs out in the forward pass, the backward pass, the optimizer's step and the evaluation.

Each failure is one that a library really raises, put where it would come from. The run has to end with the same number
of steps, the same batches and the same losses to rounding as the undisturbed one (dropout off: with it, fewer rows at
once draw other masks, as any other slice does).
"""

from __future__ import annotations

import itertools
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any
from unittest import mock

import torch
from stress.fixtures import STEPS_PER_EPOCH, Ground, losses

from tightfit.optimizers.adafactor import Adafactor
from tightfit.training import trainer

ERRORS = {
    "torch's error": torch.OutOfMemoryError("CUDA out of memory. Tried to allocate 96.00 MiB."),
    "CUDA error": RuntimeError("CUDA error: out of memory\nCUDA kernel errors might be asynchronously reported"),
    "cuBLAS": RuntimeError("CUDA error: CUBLAS_STATUS_ALLOC_FAILED when calling `cublasCreate(handle)`"),
    "CPU allocator": RuntimeError(
        "[enforce fail at alloc_cpu.cpp:127] err == 0. DefaultCPUAllocator: can't allocate memory: "
        "you tried to allocate 409600000 bytes. Error code 12 (Cannot allocate memory)"
    ),
    "MemoryError": MemoryError(),
}
PLACES = ("forward", "backward", "optimizer step", "evaluation")
LAST = 2 * STEPS_PER_EPOCH - 1
STEPS = {"first": 0, "middle": 9, "last": LAST}
RECIPES = {
    "plain": [],
    "slices": ["micro-batch:size=4"],
    "checkpointed": ["micro-batch:size=4", "gradient-checkpointing"],
    "layers": ["chunked-layers:size=4"],
    "in backward": ["chunked-layers:size=4", "adafactor", "optimizer-in-backward"],
    "adafactor": ["adafactor", "micro-batch:size=4"],
    "adapter": ["lora", "micro-batch:size=4"],
    "frozen": ["freeze"],
}
_ROUNDING = 1e-4


@dataclass(frozen=True)
class Case:
    """Where, when and how memory runs out, and with which recipe."""

    place: str
    when: str
    error: str
    recipe: str


def cases() -> list[Case]:
    """Every place, step and error text; recipes take turns."""
    turns = itertools.cycle(RECIPES)
    return [Case(place, when, error, next(turns)) for place in PLACES for when in STEPS for error in ERRORS]


class Hunger:
    """Runs cases, each beside the undisturbed run of its recipe."""

    def __init__(self, ground: Ground) -> None:
        self.ground = ground
        self._undisturbed: dict[str, tuple[int, list[float]]] = {}

    def suffer(self, case: Case) -> dict[str, Any]:
        steps, expected = self._expected(case.recipe)
        name = "-".join((case.place, case.when, case.error, case.recipe)).replace(" ", "_").replace("'", "")
        with _failing(case) as failed:
            run = self.ground.train(name, RECIPES[case.recipe])
        found = losses(run)
        difference = max(abs(a - b) / abs(b) for a, b in zip(found, expected, strict=True))
        said = [note for note in run.notes if "out of memory" in note]
        passed = failed.times == 1 and run.steps == steps and difference < _ROUNDING and len(said) == 1
        return {**vars(case), "passed": passed, "steps": run.steps, "difference": difference, "said": said}

    def _expected(self, recipe: str) -> tuple[int, list[float]]:
        if recipe not in self._undisturbed:
            run = self.ground.train(f"undisturbed_{recipe.replace(' ', '_')}", RECIPES[recipe])
            self._undisturbed[recipe] = (run.steps, losses(run))
        return self._undisturbed[recipe]


class _Failure:
    """Raises once, when the step has come."""

    def __init__(self, case: Case) -> None:
        self.case, self.times = case, 0
        self.trainer: Any = None
        self.flown = False

    def maybe(self, *, training: bool = True) -> None:
        if self.times or not self.flown or training == (self.case.place == "evaluation"):
            return
        if self.trainer.state.global_step >= self._due():
            self.times += 1
            raise ERRORS[self.case.error]

    def _due(self) -> int:
        """Evaluations come after the steps of an epoch: the first after 7, the last after 14."""
        if self.case.place == "evaluation":
            return {"first": 0, "middle": STEPS_PER_EPOCH, "last": LAST + 1}[self.case.when]
        return STEPS[self.case.when]


@contextmanager
def _failing(case: Case) -> Iterator[_Failure]:
    failure = _Failure(case)
    begin, update, init = trainer.Trainer.begin, Adafactor.update, torch.optim.AdamW._init_group

    def begun(self: trainer.Trainer) -> None:
        failure.trainer = self
        begin(self)
        if not failure.flown:
            _watch_layers(self.model, failure)
        failure.flown = True

    def half_updated(self: Any, parameter: torch.Tensor, *numbers: Any) -> None:
        if case.place == "optimizer step" and parameter is self.param_groups[0]["params"][1]:
            failure.maybe()  # another is updated before, on the way forward or back
        update(self, parameter, *numbers)

    def half_stepped(self: Any, group: Any, *lists: Any) -> Any:
        answer = init(self, group, *lists)
        if case.place == "optimizer step" and group is self.param_groups[case.when != "last"]:
            failure.maybe()  # between two groups; in the last step before the first of them
        return answer

    with (
        mock.patch.object(trainer.Trainer, "begin", begun),
        mock.patch.object(Adafactor, "update", half_updated),
        mock.patch.object(torch.optim.AdamW, "_init_group", half_stepped),
    ):
        yield failure


def _watch_layers(model: Any, failure: _Failure) -> None:
    """Fail in the middle of the model, on the way forward or back; in the head, where nothing else is left to run."""
    layer = model.bert.encoder.layer[0]
    layer = layer if any(p.requires_grad for p in layer.parameters()) else model.classifier
    if failure.case.place in ("forward", "evaluation"):
        layer.register_forward_pre_hook(lambda module, args: failure.maybe(training=module.training))
    if failure.case.place == "backward":
        last = [parameter for parameter in layer.parameters() if parameter.requires_grad][-1]
        last.register_hook(lambda gradient: failure.maybe())
