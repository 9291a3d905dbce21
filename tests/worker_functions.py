"""Functions that tests call in other processes, which must be able to import them."""

from __future__ import annotations

import multiprocessing
import os
import signal
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any


def kill_this_process() -> None:
    os.kill(os.getpid(), signal.SIGKILL)


def print_and_exit() -> None:
    print("a message")  # noqa: T201
    sys.stdout.flush()
    os._exit(7)


def fork_and_sleep(file: Path) -> None:
    """Fork a process that sleeps, and sleep; the file gets the ids of both."""
    child = multiprocessing.get_context("fork").Process(target=time.sleep, args=(600,))
    child.start()
    file.with_suffix(".tmp").write_text(f"{os.getpid()} {child.pid}")
    file.with_suffix(".tmp").rename(file)
    time.sleep(600)


def set_up() -> None:
    os.environ["WORKER_WAS_SET_UP"] = "1"


def public_answers(job: dict[str, Any], names: list[str]) -> dict[str, Any]:
    """Plans and estimates by name, each with the size of the process that is measured for it."""
    from tightfit import Estimate, Job, Plan, estimate, plan

    def planned(made: Plan) -> dict[str, Any]:
        options = [made.baseline, made.chosen, *made.alternatives]
        return {
            "process": made.chosen.estimate.overhead,
            "answer": [[o.recipe.specs, phases(o.estimate), o.seconds_per_step] for o in options],
        }

    def estimated(made: Estimate) -> dict[str, Any]:
        return {"process": made.overhead, "answer": [phases(made), made.worst, made.parameters]}

    def phases(made: Estimate) -> dict[str, Any]:
        return {phase: {kind.value: size for kind, size in kinds.items()} for phase, kinds in made.phases.items()}

    asked, recipe = Job(**job), ["micro-batch:size=2", "gradient-checkpointing", "adafactor"]
    answers = {
        "plan for a GPU": lambda: planned(plan(asked, "1GB", device="RTX 3050 4GB")),
        "plan for the CPU": lambda: planned(plan(asked, "2GB", device="cpu")),
        "estimate for a GPU": lambda: estimated(estimate(asked, recipe, device="T4 16GB")),
        "estimate for the CPU": lambda: estimated(estimate(asked, recipe, device="cpu")),
    }
    return {name: answers[name]() for name in names}


def build_loop() -> Callable[[], None]:
    """A training loop of one's own."""
    import torch

    model = torch.nn.Linear(64, 64)
    optimizer = torch.optim.AdamW(model.parameters())

    def step() -> None:
        model(torch.ones(8, 64)).sum().backward()
        optimizer.step()
        optimizer.zero_grad()

    return step
