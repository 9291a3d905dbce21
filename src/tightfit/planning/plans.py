"""Plan: a recipe, its bill, its time, and why."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from tightfit.budget import Budget
from tightfit.job import Job
from tightfit.planning.reasons import Reason
from tightfit.planning.wishes import Wishes
from tightfit.recipe import Recipe
from tightfit.rehearsal.bill import Bill
from tightfit.strategy import Result

_APART = 1.08  # times foretold closer than this may well be the other way round


@dataclass(frozen=True, kw_only=True)
class Draft:
    """As much of a recipe as puts it in order: a bill takes longer to write."""

    recipe: Recipe
    seconds_per_step: float
    at_least: int
    """Bytes; the peak is no less."""

    def is_like(self, other: Draft) -> bool:
        """Whether both have the same strategies, whatever their settings, or nobody could say which takes longer."""
        mine, others = ([strategy.name for strategy in draft.recipe.strategies] for draft in (self, other))
        shorter, longer = sorted((self.seconds_per_step, other.seconds_per_step))
        return mine == others or longer < _APART * shorter


@dataclass(frozen=True, kw_only=True)
class Option:
    """A recipe with what it takes."""

    recipe: Recipe
    bill: Bill
    seconds_per_step: float
    steps_per_epoch: int

    @property
    def peak(self) -> int:
        """The foretold peak."""
        return self.bill.peak

    @property
    def at_most(self) -> int:
        """The peak with the margin that measured runs ask for."""
        return self.bill.error_band[1]

    def keeps_to(self, budget: Budget) -> bool:
        """Whether it fits, the margin included, and so does what waits beside a card."""
        return self.at_most <= budget.size and self.bill.fits_host

    @property
    def seconds_per_epoch(self) -> float:
        """Of training; evaluation and saving come on top."""
        return self.seconds_per_step * self.steps_per_epoch

    @property
    def result(self) -> Result:
        """What it does to the trained model."""
        return self.recipe.result

    @property
    def title(self) -> str:
        """The recipe as a person would name it."""
        return " ".join(self.recipe.words) or "plain"

    def to_json(self) -> dict[str, Any]:
        """The option for scripts."""
        return {
            "recipe": self.recipe.words,
            "peak_bytes": self.peak,
            "host_bytes": self.bill.host,
            "moment": self.bill.moment,
            "seconds_per_epoch": round(self.seconds_per_epoch, 3),
            "seconds_per_step": round(self.seconds_per_step, 4),
            "result": self.result.value,
        }


@dataclass(frozen=True, kw_only=True)
class Plan:
    """What to do with a budget. Where nothing fits it holds what comes closest, and the ways out."""

    job: Job
    budget: Budget
    wishes: Wishes
    plain: Option
    """The way without any strategy."""
    chosen: Option
    why: tuple[Reason, ...]
    """For each strategy of the recipe."""
    alternatives: tuple[Option, ...]
    refused: tuple[str, ...]
    """What was not taken, and why."""
    advice: tuple[str, ...] = ()
    """What shorter texts would save."""
    ways_out: tuple[str, ...] = ()
    """What would make it fit, the smallest change first; empty if it fits."""
    notes: tuple[str, ...] = ()
    """What is odd about the budget, and about the machine's rates, which times come from."""

    @property
    def fits(self) -> bool:
        """Whether the chosen recipe keeps to the budget, the margin included."""
        return self.chosen.keeps_to(self.budget)

    @property
    def reasons(self) -> tuple[str, ...]:
        """One line for each strategy of the recipe."""
        return tuple(str(reason) for reason in self.why)

    @property
    def recipe(self) -> Recipe:
        """The chosen recipe."""
        return self.chosen.recipe

    def to_json(self) -> dict[str, Any]:
        """The plan for scripts."""
        return {
            "fits": self.fits,
            "budget_bytes": self.budget.size,
            "notes": list(self.notes),
            "device": self.budget.device.title,
            **self.chosen.to_json(),
            "plain": self.plain.to_json(),
            "reasons": list(self.reasons),
            "why": [reason.to_json() for reason in self.why],
            "alternatives": [option.to_json() for option in self.alternatives],
            "refused": list(self.refused),
            "advice": list(self.advice),
            "ways_out": list(self.ways_out),
        }

    def __str__(self) -> str:
        from tightfit.report.plan import plan_as_text

        return plan_as_text(self)

    def _repr_html_(self) -> str:
        from tightfit.report.plan import plan_as_html

        return plan_as_html(self)
