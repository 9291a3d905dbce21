"""Fine-tune a Hugging Face transformer inside the memory you have."""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from tightfit.api import compare, estimate, plan, train
    from tightfit.comparison.comparison import Comparison
    from tightfit.device import Budget
    from tightfit.errors import DoesNotFit, TightfitError
    from tightfit.inference import evaluate, predict
    from tightfit.job import Job
    from tightfit.planning.plan import Plan
    from tightfit.runs.record import Run, load_run
    from tightfit.simulation.estimate import Estimate
    from tightfit.strategies.freeze import freeze, frozen_parameters
    from tightfit.strategies.recipe import Recipe
    from tightfit.training.budget_trainer import MemoryBudgetMixin, Seq2SeqTrainer, Trainer
    from tightfit.training.own_loop import (
        chunked_layers,
        chunked_loss,
        meter,
        micro_batches,
        optimizer_in_backward,
        recovering,
    )

# Importing torch takes seconds, so each name is imported on first use.
_MODULES = {
    "Budget": "device",
    "Comparison": "comparison.comparison",
    "DoesNotFit": "errors",
    "Estimate": "simulation.estimate",
    "Job": "job",
    "MemoryBudgetMixin": "training.budget_trainer",
    "Plan": "planning.plan",
    "Recipe": "strategies.recipe",
    "Run": "runs.record",
    "Seq2SeqTrainer": "training.budget_trainer",
    "TightfitError": "errors",
    "Trainer": "training.budget_trainer",
    "chunked_layers": "training.own_loop",
    "chunked_loss": "training.own_loop",
    "compare": "api",
    "estimate": "api",
    "evaluate": "inference",
    "freeze": "strategies.freeze",
    "frozen_parameters": "strategies.freeze",
    "load_run": "runs.record",
    "meter": "training.own_loop",
    "micro_batches": "training.own_loop",
    "optimizer_in_backward": "training.own_loop",
    "plan": "api",
    "predict": "inference",
    "recovering": "training.own_loop",
    "train": "api",
}

__all__ = [
    "Budget",
    "Comparison",
    "DoesNotFit",
    "Estimate",
    "Job",
    "MemoryBudgetMixin",
    "Plan",
    "Recipe",
    "Run",
    "Seq2SeqTrainer",
    "TightfitError",
    "Trainer",
    "chunked_layers",
    "chunked_loss",
    "compare",
    "estimate",
    "evaluate",
    "freeze",
    "frozen_parameters",
    "load_run",
    "meter",
    "micro_batches",
    "optimizer_in_backward",
    "plan",
    "predict",
    "recovering",
    "train",
]


def __getattr__(name: str) -> Any:
    if name not in _MODULES:
        raise AttributeError(f"module 'tightfit' has no attribute '{name}'")
    return getattr(import_module(f"tightfit.{_MODULES[name]}"), name)


def __dir__() -> list[str]:
    return __all__
