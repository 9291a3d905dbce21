"""Selection of the recipe in a process of its own, where memory is short.

Planning takes memory beside the libraries that training needs as well. In a container with little more than a run
itself needs, both at once would be killed. So the recipe is selected in a fresh process, which ends before this one
loads those libraries.
"""

from __future__ import annotations

import sys
from dataclasses import dataclass

from tightfit.device import AUTO, Budget, find_device
from tightfit.errors import ModelError
from tightfit.job import Job
from tightfit.models import quiet_transformers
from tightfit.optional_imports import is_slim, slim_process
from tightfit.planning.constraints import Constraints
from tightfit.planning.selection import Selection
from tightfit.strategies.recipe import Recipe
from tightfit.system.memory import usable_memory
from tightfit.system.processes import Worker, be_killed_first
from tightfit.units import parse_bytes

_SHORT = 1 << 30  # with more, planning fits beside this process, and a second start of the libraries is saved


@dataclass(frozen=True)
class Request:
    """What a recipe is selected for."""

    job: Job
    budget: str | int
    device: str | None
    constraints: Constraints
    planned: Recipe | None


def select_apart(request: Request) -> Selection | None:
    """Select in a fresh process; None if that saves nothing, and the process of the training may do it itself."""
    if sys.platform != "linux" or "torch" in sys.modules:
        return None
    usable, given = usable_memory(), request.budget
    size = usable if given == AUTO else parse_bytes(given) if isinstance(given, str) else given
    if min(size, usable) > _SHORT:
        return None
    with Worker(_start_slim if is_slim() else be_killed_first) as worker:
        return worker.call(_select, request, size)


def _start_slim() -> None:
    be_killed_first()
    slim_process()


def _select(request: Request, size: int) -> Selection | None:
    """In the fresh process. None on a GPU, whose memory planning does not take, or if the model cannot be simulated."""
    with quiet_transformers():
        import tightfit.training.trainer  # noqa: F401, a training run loads it too: part of the process size
    from tightfit.planning.planner import Planner
    from tightfit.planning.training_recipe import Selector

    device = find_device(request.device)
    if device.kind != "cpu":
        return None
    budget = Budget(size, device, is_auto=request.budget == AUTO)
    selector = Selector(budget, request.constraints, request.planned)
    try:
        return selector.select_with(Planner.of(request.job, device))
    except ModelError:
        if not selector.tries_baseline:
            raise
        return None  # trained without a prediction
