"""Low memory: out-of-memory errors injected into the forward pass, the backward pass, the step and the evaluation.

Each error is one that a library really raises, raised where it would occur. The run has to finish with the same number
of steps, the same batches and the same losses up to rounding as the uninterrupted run. Dropout is off: with dropout
other micro-batches have other masks.
"""

from __future__ import annotations

import itertools
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any
from unittest import mock

import torch
from stress.fixtures import STEPS_PER_EPOCH, Workspace, losses

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
PHASES = ("forward", "backward", "optimizer step", "evaluation")
LAST = 2 * STEPS_PER_EPOCH - 1
STEPS = {"first": 0, "middle": 9, "last": LAST}
RECIPES = {
    "baseline": [],
    "micro-batches": ["micro-batch:size=4"],
    "checkpointed": ["micro-batch:size=4", "gradient-checkpointing"],
    "chunked layers": ["chunked-layers:size=4"],
    "optimizer in backward": ["chunked-layers:size=4", "adafactor", "optimizer-in-backward"],
    "adafactor": ["adafactor", "micro-batch:size=4"],
    "lora": ["lora", "micro-batch:size=4"],
    "frozen encoder": ["freeze"],
}
_TOLERANCE = 1e-4


@dataclass(frozen=True)
class Case:
    """Where, when and with which error memory runs out, and the recipe."""

    phase: str
    when: str
    error: str
    recipe: str


def cases() -> list[Case]:
    """Every phase, step and error; the recipes rotate."""
    recipes = itertools.cycle(RECIPES)
    return [Case(phase, when, error, next(recipes)) for phase in PHASES for when in STEPS for error in ERRORS]


class MemoryErrors:
    """Runs cases and compares each with the uninterrupted run of its recipe."""

    def __init__(self, workspace: Workspace) -> None:
        self.workspace = workspace
        self._uninterrupted: dict[str, tuple[int, list[float]]] = {}

    def run_case(self, case: Case) -> dict[str, Any]:
        steps, expected = self._expected(case.recipe)
        name = "-".join((case.phase, case.when, case.error, case.recipe)).replace(" ", "_").replace("'", "")
        with _failing(case) as failure:
            run = self.workspace.train(name, RECIPES[case.recipe])
        difference = max(abs(a - b) / abs(b) for a, b in zip(losses(run), expected, strict=True))
        messages = [note for note in run.notes if "out of memory" in note]
        passed = failure.times == 1 and run.steps == steps and difference < _TOLERANCE and len(messages) == 1
        return {**vars(case), "passed": passed, "steps": run.steps, "loss_difference": difference, "messages": messages}

    def _expected(self, recipe: str) -> tuple[int, list[float]]:
        if recipe not in self._uninterrupted:
            run = self.workspace.train(f"uninterrupted_{recipe.replace(' ', '_')}", RECIPES[recipe])
            self._uninterrupted[recipe] = (run.steps, losses(run))
        return self._uninterrupted[recipe]


class _Failure:
    """Raises its error once, at the step of the case."""

    def __init__(self, case: Case) -> None:
        self.case, self.times = case, 0
        self.trainer: Any = None
        self.preflight_done = False

    def raise_if_due(self, *, training: bool = True) -> None:
        if self.times or not self.preflight_done or training == (self.case.phase == "evaluation"):
            return
        if self.trainer.state.global_step >= self._due_step():
            self.times += 1
            raise ERRORS[self.case.error]

    def _due_step(self) -> int:
        """Evaluations follow the steps of an epoch: the first step 7, the last step 14."""
        if self.case.phase == "evaluation":
            return {"first": 0, "middle": STEPS_PER_EPOCH, "last": LAST + 1}[self.case.when]
        return STEPS[self.case.when]


@contextmanager
def _failing(case: Case) -> Iterator[_Failure]:
    failure = _Failure(case)
    on_ready, update, init = trainer.Trainer.on_ready, Adafactor.update, torch.optim.AdamW._init_group

    def then_inject(self: trainer.Trainer) -> None:
        failure.trainer = self
        on_ready(self)
        if not failure.preflight_done:
            _add_hooks(self.model, failure)
        failure.preflight_done = True

    def failing_update(self: Any, parameter: torch.Tensor, *args: Any) -> None:
        if case.phase == "optimizer step" and parameter is self.param_groups[0]["params"][1]:
            failure.raise_if_due()  # after another parameter was updated, whichever order they come in
        update(self, parameter, *args)

    def failing_init(self: Any, group: Any, *lists: Any) -> Any:
        result = init(self, group, *lists)
        if case.phase == "optimizer step" and group is self.param_groups[case.when != "last"]:
            failure.raise_if_due()  # between two groups; in the last step before the first of them
        return result

    with (
        mock.patch.object(trainer.Trainer, "on_ready", then_inject),
        mock.patch.object(Adafactor, "update", failing_update),
        mock.patch.object(torch.optim.AdamW, "_init_group", failing_init),
    ):
        yield failure


def _add_hooks(model: Any, failure: _Failure) -> None:
    """Fail in the middle of the model, in forward or backward; in the head, if the layers are frozen."""
    layer = model.bert.encoder.layer[0]
    layer = layer if any(p.requires_grad for p in layer.parameters()) else model.classifier
    if failure.case.phase in ("forward", "evaluation"):
        layer.register_forward_pre_hook(lambda module, args: failure.raise_if_due(training=module.training))
    if failure.case.phase == "backward":
        last = [parameter for parameter in layer.parameters() if parameter.requires_grad][-1]
        last.register_hook(lambda gradient: failure.raise_if_due())
