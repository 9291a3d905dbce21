"""Fine-tune a Hugging Face transformer inside the memory you have."""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from tightfit.api import ladder, plan, rehearse, train
    from tightfit.comparison.comparison import Ladder
    from tightfit.device import Budget
    from tightfit.errors import DoesNotFit, TightfitError
    from tightfit.inference import evaluate, predict
    from tightfit.job import Job
    from tightfit.planning.plan import Plan
    from tightfit.runs.record import Run, load_run
    from tightfit.simulation.estimate import Bill
    from tightfit.strategies.freeze import freeze, frozen_parameters
    from tightfit.strategies.recipe import Recipe

# torch takes seconds to import: each name is fetched when it is first used.
_HOMES = {
    "Bill": "simulation.estimate",
    "Budget": "device",
    "DoesNotFit": "errors",
    "Job": "job",
    "Ladder": "comparison.comparison",
    "Plan": "planning.plan",
    "Recipe": "strategies.recipe",
    "Run": "runs.record",
    "TightfitError": "errors",
    "evaluate": "inference",
    "freeze": "strategies.freeze",
    "frozen_parameters": "strategies.freeze",
    "ladder": "api",
    "load_run": "runs.record",
    "plan": "api",
    "predict": "inference",
    "rehearse": "api",
    "train": "api",
}

__all__ = [
    "Bill",
    "Budget",
    "DoesNotFit",
    "Job",
    "Ladder",
    "Plan",
    "Recipe",
    "Run",
    "TightfitError",
    "evaluate",
    "freeze",
    "frozen_parameters",
    "ladder",
    "load_run",
    "plan",
    "predict",
    "rehearse",
    "train",
]


def __getattr__(name: str) -> Any:
    if name not in _HOMES:
        raise AttributeError(f"module 'tightfit' has no attribute '{name}'")
    return getattr(import_module(f"tightfit.{_HOMES[name]}"), name)


def __dir__() -> list[str]:
    return __all__
