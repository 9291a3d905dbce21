"""Plan: a recipe with its memory estimate, its time and the reasons for it."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from typing import Any

from tightfit.device import Budget, Device
from tightfit.display import Display
from tightfit.job import Job
from tightfit.messages import Message, both, msg, name
from tightfit.planning.constraints import Constraints
from tightfit.simulation.estimate import Estimate
from tightfit.strategies import STRATEGIES
from tightfit.strategies.base import MemoryKind, Result, Strategy
from tightfit.strategies.recipe import Recipe
from tightfit.units import format_bytes, format_seconds

_MIN_RATIO = 1.08  # predicted times closer than this may be in the opposite order when measured


@dataclass(frozen=True, kw_only=True)
class CandidateEstimate:
    """What the planner needs to sort recipes; a complete estimate takes longer to compute."""

    recipe: Recipe
    seconds_per_step: float
    lower_bound: int
    """Bytes; the peak is at least this large."""

    @property
    def severity(self) -> int:
        """Of its effect on the result."""
        return self.recipe.result.severity

    def is_similar(self, other: CandidateEstimate) -> bool:
        """Whether both have the same strategies, with any settings, or times too close to tell apart."""
        mine, others = ([strategy.variant for strategy in candidate.recipe.strategies] for candidate in (self, other))
        shorter, longer = sorted((self.seconds_per_step, other.seconds_per_step))
        return mine == others or longer < _MIN_RATIO * shorter


@dataclass(frozen=True, kw_only=True)
class Option:
    """A recipe with its memory estimate and its time."""

    recipe: Recipe
    estimate: Estimate
    seconds_per_step: float | None
    """None if the speed of the device is not known."""
    steps_per_epoch: int

    @property
    def peak(self) -> int:
        """The predicted peak in bytes."""
        return self.estimate.peak

    @property
    def upper_bound(self) -> int:
        """The peak plus the margin found in measured runs."""
        return self.estimate.error_band[1]

    def fits(self, budget: Budget) -> bool:
        """Whether the peak with its margin fits the budget, and offloaded tensors fit host memory."""
        return self.upper_bound <= budget.size and self.estimate.fits_host

    @property
    def seconds_per_epoch(self) -> float | None:
        """Training time only; evaluation and saving are extra."""
        return None if self.seconds_per_step is None else self.seconds_per_step * self.steps_per_epoch

    @property
    def and_time(self) -> Message | str:
        """Its time, as the end of a clause; empty if it is not known."""
        seconds = self.seconds_per_epoch
        return "" if seconds is None else msg(", about {time} per epoch", time=format_seconds(seconds))

    @property
    def result(self) -> Result:
        """What it does to the trained model."""
        return self.recipe.result

    @property
    def title(self) -> str:
        """The recipe's specs; `baseline` if it has none."""
        return self.recipe.title

    def to_json(self) -> dict[str, Any]:
        """The option as JSON values."""
        return {
            "recipe": self.recipe.specs,
            "peak_bytes": self.peak,
            "host_bytes": self.estimate.host,
            "overhead_bytes": self.estimate.overhead,
            "phase": self.estimate.phase,
            "seconds_per_epoch": _rounded(self.seconds_per_epoch, 3),
            "seconds_per_step": _rounded(self.seconds_per_step, 4),
            "result": self.result.value,
        }


def _rounded(seconds: float | None, digits: int) -> float | None:
    return None if seconds is None else round(seconds, digits)


@dataclass(frozen=True, kw_only=True)
class Plan(Display):
    """The recipe chosen for a budget; if none fits, the one closest to it and suggestions to make it fit."""

    job: Job | None
    """None where the model and the data are objects of the user's script."""
    budget: Budget
    constraints: Constraints
    baseline: Option
    """Training without any strategy."""
    chosen: Option
    reason_details: tuple[Reason, ...]
    """One for each strategy of the recipe."""
    alternatives: tuple[Option, ...]
    rejected: tuple[Message, ...]
    """Strategies that were not chosen, and why."""
    length_advice: tuple[Message, ...] = ()
    """What a smaller maximum length would save."""
    suggestions: tuple[Message, ...] = ()
    """Changes that would make it fit, those with less effect on the result first; empty if it fits."""
    notes: tuple[Message, ...] = ()
    """Warnings about the budget, the measured speed of the machine and the size of the process."""

    @property
    def fits(self) -> bool:
        """Whether the chosen recipe fits the budget, margin included."""
        return self.chosen.fits(self.budget)

    @property
    def speedup(self) -> float | None:
        """How many times faster the fastest alternative with more effect on the result is; None if none is faster."""
        chosen = self.chosen.seconds_per_step
        others = [o.seconds_per_step for o in self.alternatives if o.result.severity > self.chosen.result.severity]
        fastest = min((seconds for seconds in others if seconds is not None), default=None)
        return None if chosen is None or fastest is None or fastest >= chosen else chosen / fastest

    @property
    def shortfall(self) -> Message:
        """What the closest recipe needs, and the first suggestion to make it fit."""
        budget, needed = self.budget.title, format_bytes(self.chosen.upper_bound)
        if not self.suggestions:
            return msg("No recipe fits {budget}; the closest needs {needed}.", budget=budget, needed=needed)
        return msg(
            "No recipe fits {budget}; the closest needs {needed}: {suggestion}.",
            budget=budget,
            needed=needed,
            suggestion=self.suggestions[0],
        )

    @property
    def reasons(self) -> tuple[Message, ...]:
        """One line for each strategy of the recipe."""
        return tuple(reason.text for reason in self.reason_details)

    @property
    def summary(self) -> Message:
        """The chosen recipe in one line."""
        return msg(
            "{budget}: {recipe}, peak {peak}{time}, result: {result}",
            budget=self.budget.title,
            recipe=self.chosen.title,
            peak=format_bytes(self.chosen.peak),
            time=self.chosen.and_time,
            result=name(self.chosen.result.value),
        )

    @property
    def recipe(self) -> Recipe:
        """The chosen recipe."""
        return self.chosen.recipe

    def to_json(self) -> dict[str, Any]:
        """The plan as JSON values."""
        return {
            "fits": self.fits,
            "budget_bytes": self.budget.size,
            "notes": list(self.notes),
            "device": self.budget.device.label,
            **self.chosen.to_json(),
            "baseline": self.baseline.to_json(),
            "reasons": list(self.reasons),
            "reason_details": [reason.to_json() for reason in self.reason_details],
            "alternatives": [option.to_json() for option in self.alternatives],
            "speedup": None if self.speedup is None else round(self.speedup, 2),
            "rejected": list(self.rejected),
            "length_advice": list(self.length_advice),
            "suggestions": list(self.suggestions),
        }


_MIN_SHARE = 0.01  # of the peak; smaller shares are not mentioned
_MIN_DIFFERENCE = 0.01  # of the time; smaller differences are no reason for or against a strategy


@dataclass(frozen=True)
class Reason:
    """Why a strategy is in a plan: the kinds of memory it reduces, their size, and the cost without it."""

    strategy: Strategy
    share: float
    """Fraction of the baseline's peak that is of the kinds it reduces."""
    without: Option | None
    chosen: Option

    @property
    def text(self) -> Message:
        """The reason in one line."""
        return msg(
            "{spec}: {summary}{share}.{without}",
            spec=self.strategy.spec,
            summary=self.strategy.summary,
            share=_share(self.strategy, self.share) if self.share >= _MIN_SHARE else "",
            without=_cost_without(self.without, self.chosen) if self.without else "",
        )

    def to_json(self) -> dict[str, Any]:
        """The reason as JSON values."""
        return {
            "strategy": self.strategy.spec,
            "kinds": [kind.value for kind in self.strategy.frees] if self.share >= _MIN_SHARE else [],
            "share": round(self.share, 4),
            "without": self.without.to_json() if self.without else None,
        }


def reasons_for(chosen: Option, baseline: Option, evaluate: Callable[[Recipe], Option | None]) -> Iterator[Reason]:
    """One reason per strategy; `evaluate` estimates the recipe without it."""
    kinds = baseline.estimate.phases[baseline.estimate.phase]
    for strategy in chosen.recipe.strategies:
        share = sum(kinds[kind] for kind in strategy.frees) / baseline.peak
        yield Reason(strategy, share, evaluate(chosen.recipe.without(strategy)), chosen)


def rejections(
    rejected: Iterable[Message],
    chosen: Recipe,
    device: Device,
    constraints: Constraints,
    result_changing: Iterable[str],
) -> Iterator[Message]:
    """Strategies that the model, the device or the installation rules out, and those that would change the result."""
    yield from dict.fromkeys(rejected)
    for kind in STRATEGIES.values():
        reason = kind.why_not_offered(device)
        if reason and kind.name not in (s.name for s in chosen.strategies):
            yield msg("{name}: {reason}", name=kind.name, reason=reason)
    for kind in STRATEGIES.values():
        if not kind.is_available():
            package = kind.requires
            yield msg("{name}: needs the package {package}: pip install {package}", name=kind.name, package=package)
    if constraints.allow is not Result.DIFFERENT:
        names = list(result_changing)
        yield msg("{names}: they train fewer parameters; used only with --allow different", names=names)


def _share(strategy: Strategy, share: float) -> Message:
    """The part of the baseline's peak that the strategy can reduce."""
    kinds = both(*(kind.label for kind in strategy.frees))
    if strategy.frees == (MemoryKind.OPTIMIZER_STATE,):
        return msg("; {kinds} is {share:.0%} of the baseline's peak", kinds=kinds, share=share)
    return msg("; {kinds} are {share:.0%} of the baseline's peak", kinds=kinds, share=share)


def _cost_without(without: Option, chosen: Option) -> Message:
    peak = format_bytes(without.peak)
    if without.seconds_per_epoch is None or chosen.seconds_per_epoch is None:
        return msg(" Without it: peak {peak}.", peak=peak)
    longer = without.seconds_per_epoch - chosen.seconds_per_epoch
    if abs(longer) < _MIN_DIFFERENCE * chosen.seconds_per_epoch:
        if peak == format_bytes(chosen.peak):
            return msg(" Without it: about the same peak and time.")
        return msg(" Without it: peak {peak}, about the same time.", peak=peak)
    time = format_seconds(abs(longer))
    if longer > 0:
        return msg(" Without it: peak {peak}, {time} slower per epoch.", peak=peak, time=time)
    return msg(" Without it: peak {peak}, {time} faster per epoch.", peak=peak, time=time)
