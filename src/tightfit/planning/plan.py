"""Plan: a recipe, its bill, its time, and why."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np

from tightfit.device import Budget, Device
from tightfit.display import Display
from tightfit.job import Job
from tightfit.planning.constraints import Constraints
from tightfit.simulation.estimate import Estimate
from tightfit.strategies import STRATEGIES
from tightfit.strategies.base import Result, Strategy
from tightfit.strategies.recipe import Recipe
from tightfit.units import format_bytes, format_seconds

if TYPE_CHECKING:
    from tightfit.planning.planner import Planner

    pass


_MIN_RATIO = 1.08  # times foretold closer than this may well be the other way round


@dataclass(frozen=True, kw_only=True)
class CandidateEstimate:
    """As much of a recipe as puts it in order: a bill takes longer to write."""

    recipe: Recipe
    seconds_per_step: float
    at_least: int
    """Bytes; the peak is no less."""

    def is_like(self, other: CandidateEstimate) -> bool:
        """Whether both have the same strategies, whatever their settings, or nobody could say which takes longer."""
        mine, others = ([strategy.variant for strategy in candidate.recipe.strategies] for candidate in (self, other))
        shorter, longer = sorted((self.seconds_per_step, other.seconds_per_step))
        return mine == others or longer < _MIN_RATIO * shorter


@dataclass(frozen=True, kw_only=True)
class Option:
    """A recipe with what it takes."""

    recipe: Recipe
    estimate: Estimate
    seconds_per_step: float
    steps_per_epoch: int

    @property
    def peak(self) -> int:
        """The foretold peak."""
        return self.estimate.peak

    @property
    def at_most(self) -> int:
        """The peak with the margin that measured runs ask for."""
        return self.estimate.error_band[1]

    def keeps_to(self, budget: Budget) -> bool:
        """Whether it fits, the margin included, and so does what waits beside a card."""
        return self.at_most <= budget.size and self.estimate.fits_host

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
        return " ".join(self.recipe.specs) or "baseline"

    def to_json(self) -> dict[str, Any]:
        """The option for scripts."""
        return {
            "recipe": self.recipe.specs,
            "peak_bytes": self.peak,
            "host_bytes": self.estimate.host,
            "phase": self.estimate.phase,
            "seconds_per_epoch": round(self.seconds_per_epoch, 3),
            "seconds_per_step": round(self.seconds_per_step, 4),
            "result": self.result.value,
        }


@dataclass(frozen=True, kw_only=True)
class Plan(Display):
    """What to do with a budget. Where nothing fits it holds what comes closest, and the ways out."""

    job: Job
    budget: Budget
    constraints: Constraints
    baseline: Option
    """The way without any strategy."""
    chosen: Option
    reason_details: tuple[Reason, ...]
    """For each strategy of the recipe."""
    alternatives: tuple[Option, ...]
    rejected: tuple[str, ...]
    """What was not taken, and why."""
    advice: tuple[str, ...] = ()
    """What shorter texts would save."""
    suggestions: tuple[str, ...] = ()
    """What would make it fit, the smallest change first; empty if it fits."""
    notes: tuple[str, ...] = ()
    """What is odd about the budget, about the machine's rates, which times come from, and about the process's size."""

    @property
    def fits(self) -> bool:
        """Whether the chosen recipe keeps to the budget, the margin included."""
        return self.chosen.keeps_to(self.budget)

    @property
    def shortfall(self) -> str:
        """By how much nothing fits, and the first way out."""
        way_out = f": {self.suggestions[0]}" if self.suggestions else ""
        return f"No recipe fits {self.budget}; the closest takes {format_bytes(self.chosen.at_most)}{way_out}."

    @property
    def reasons(self) -> tuple[str, ...]:
        """One line for each strategy of the recipe."""
        return tuple(str(reason) for reason in self.reason_details)

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
            "baseline": self.baseline.to_json(),
            "reasons": list(self.reasons),
            "reason_details": [reason.to_json() for reason in self.reason_details],
            "alternatives": [option.to_json() for option in self.alternatives],
            "rejected": list(self.rejected),
            "advice": list(self.advice),
            "suggestions": list(self.suggestions),
        }


# Reasons: why each strategy is in the plan, and why others are not.


_WORTH_SAYING = 0.01  # of the peak


@dataclass(frozen=True)
class Reason:
    """Why a strategy is in a plan: what it frees, how much of that there is, and what it would be without."""

    strategy: Strategy
    share: float
    """Of the plain way's peak."""
    without: Option | None
    chosen: Option

    def __str__(self) -> str:
        share = _share(self.strategy, self.share) if self.share >= _WORTH_SAYING else ""
        return f"{self.strategy.spec}: {share}{self.strategy.summary}{_beside(self.without, self.chosen)}"

    def to_json(self) -> dict[str, Any]:
        """The reason for scripts."""
        return {
            "strategy": self.strategy.spec,
            "kinds": [kind.value for kind in self.strategy.frees] if self.share >= _WORTH_SAYING else [],
            "share": round(self.share, 4),
            "without": self.without.to_json() if self.without else None,
        }


def reasons_for(chosen: Option, baseline: Option, evaluate: Callable[[Recipe], Option | None]) -> Iterator[Reason]:
    """One for each strategy; `look` tells what it would be without."""
    kinds = baseline.estimate.phases[baseline.estimate.phase]
    for strategy in chosen.recipe.strategies:
        share = sum(kinds[kind] for kind in strategy.frees) / baseline.peak
        yield Reason(strategy, share, evaluate(chosen.recipe.without(strategy)), chosen)


def rejections(rejected: Iterable[str], chosen: Recipe, device: Device, constraints: Constraints) -> Iterator[str]:
    """What the model or the device cannot do, and what is left alone because it changes the result."""
    yield from dict.fromkeys(rejected)
    if device.kind == "cpu" and "mixed-precision" not in (s.name for s in chosen.strategies):
        yield "mixed-precision: a processor computes no faster in 16 bits; pin it with --use to try"
    for kind in STRATEGIES.values():
        if not kind.is_available():
            yield f"{kind.name}: not looked at without the package {kind.needs}; pip install {kind.needs} for it"
    changing = [name for name, kind in STRATEGIES.items() if kind.result is Result.DIFFERENT]
    if constraints.allow is not Result.DIFFERENT:
        yield f"{', '.join(changing)}: they train something else; --allow different takes them where nothing else fits"


def _share(strategy: Strategy, share: float) -> str:
    """How much of the plain way's peak is of the kinds that it frees."""
    names = " and ".join(kind.value for kind in strategy.frees)
    verb = "is" if names == "optimizer state" else "are"
    return f"{names} {verb} {share:.0%} of the plain peak; it "


def _beside(without: Option | None, chosen: Option) -> str:
    if without is None:
        return ""
    longer = without.seconds_per_epoch - chosen.seconds_per_epoch
    time = f"{format_seconds(abs(longer))} an epoch {'slower' if longer > 0 else 'faster'}"
    return f" (without it {format_bytes(without.peak)}, {time})"


# Advice: what shorter texts would lose and save, from the data's own lengths. Nothing is cut unasked.


_SHARES = (0.75, 0.5)
_WORTH_IT = 0.03  # of the peak or of the time
_WORTH_SHORTENING = 0.005


def length_advice(planner: Planner, chosen: Option) -> Iterator[str]:
    """One line for each shorter limit that would save something."""
    longest = planner.simulation.lengths.longest
    if any(strategy.name == "max-length" for strategy in chosen.recipe.strategies):
        return
    for tokens in (int(longest * share) for share in _SHARES):
        if tokens < 2 or not all(strategy.scales for strategy in chosen.recipe.strategies):
            continue
        shorter = planner.option(Recipe.parse([*chosen.recipe.specs, f"max-length:tokens={tokens}"]))
        if shorter is not None and (line := _line(planner, chosen, shorter, tokens)):
            yield line


def _line(planner: Planner, chosen: Option, shorter: Option, tokens: int) -> str | None:
    memory, time = 1 - shorter.peak / chosen.peak, 1 - shorter.seconds_per_step / chosen.seconds_per_step
    if max(memory, time) < _WORTH_IT:
        return None
    saved = [f"{time:.0%} of the time"]
    if memory >= _WORTH_SHORTENING:  # slices of so many tokens are as large whatever the texts
        saved.insert(0, format_bytes(chosen.peak - shorter.peak))
    return f"{cutting(planner, tokens)}, saves {' and '.join(saved)}"


def cutting(planner: Planner, tokens: int) -> str:
    """What shorter texts lose."""
    lengths = planner.simulation.lengths.batches
    touched = np.count_nonzero(lengths > tokens) / np.count_nonzero(lengths)
    lost = 1 - np.minimum(lengths, tokens).sum() / lengths.sum()
    return f"cutting at {tokens} tokens touches {touched:.0%} of rows, loses {lost:.0%} of tokens"


# Ways out: what would make a training fit, the gentlest change first.


_MIB = 1 << 20
_IN_REACH = 1.25  # times the budget: shorter texts do not bring more, and looking takes seconds
_SMALLER = {"xlarge": "large", "large": "base"}  # sizes that families usually have


def suggestions(planner: Planner, closest: Option, budget: Budget, constraints: Constraints) -> Iterator[str]:
    """A larger budget, other wishes, more that may be done to the result, shorter texts, a smaller model."""
    needed = -(-closest.at_most // _MIB)
    yield f"--budget {needed}MB: what the smallest recipe that is allowed takes ({closest.title})"
    if constraints.avoided or constraints.pinned:
        yield "drop --use and --avoid: what they rule out may be what fits"
    for result in (Result.CLOSE, Result.DIFFERENT):
        best = planner.if_allowed(result, budget, constraints)
        if best is not None:
            yield f"--allow {result.value}: {best.title} would fit, with {format_bytes(best.peak)}"
    yield from _shorter_texts(planner, closest, budget)
    yield from _smaller_model(planner.simulation.setup.job.model.rstrip("/").rpartition("/")[2])


def _shorter_texts(planner: Planner, closest: Option, budget: Budget) -> Iterator[str]:
    tokens = planner.simulation.lengths.longest // 2
    cut = any(strategy.name == "max-length" for strategy in closest.recipe.strategies)
    if cut or tokens < 2 or closest.at_most > _IN_REACH * budget.size:
        return
    option = planner.option(Recipe.parse([*closest.recipe.specs, f"max-length:tokens={tokens}"]))
    if option is not None and option.keeps_to(budget):
        would = f"{closest.title} would fit, with {format_bytes(option.peak)}"
        yield f"--max-length {tokens}: {cutting(planner, tokens)}; {would}"


def _smaller_model(name: str) -> Iterator[str]:
    larger = next((spec for spec in _SMALLER if spec in name.lower()), None)
    if larger:
        yield f"a smaller model of the family: {name.lower().replace(larger, _SMALLER[larger])}, if there is one"
