"""Plan: a recipe with its memory estimate, its time and the reasons for it."""

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

_MIN_RATIO = 1.08  # predicted times closer than this may be in the opposite order when measured


@dataclass(frozen=True, kw_only=True)
class CandidateEstimate:
    """What the planner needs to sort recipes; a complete estimate takes longer to compute."""

    recipe: Recipe
    seconds_per_step: float
    lower_bound: int
    """Bytes; the peak is at least this large."""

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
    seconds_per_step: float
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
    def seconds_per_epoch(self) -> float:
        """Training time only; evaluation and saving are extra."""
        return self.seconds_per_step * self.steps_per_epoch

    @property
    def result(self) -> Result:
        """What it does to the trained model."""
        return self.recipe.result

    @property
    def title(self) -> str:
        """The recipe's specs; `baseline` if it has none."""
        return " ".join(self.recipe.specs) or "baseline"

    def to_json(self) -> dict[str, Any]:
        """The option as JSON values."""
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
    """The recipe chosen for a budget; if none fits, the one closest to it and suggestions to make it fit."""

    job: Job
    budget: Budget
    constraints: Constraints
    baseline: Option
    """Training without any strategy."""
    chosen: Option
    reason_details: tuple[Reason, ...]
    """One for each strategy of the recipe."""
    alternatives: tuple[Option, ...]
    rejected: tuple[str, ...]
    """Strategies that were not chosen, and why."""
    length_advice: tuple[str, ...] = ()
    """What a smaller maximum length would save."""
    suggestions: tuple[str, ...] = ()
    """Changes that would make it fit, the smallest first; empty if it fits."""
    notes: tuple[str, ...] = ()
    """Warnings about the budget, the measured speed of the machine and the size of the process."""

    @property
    def fits(self) -> bool:
        """Whether the chosen recipe fits the budget, margin included."""
        return self.chosen.fits(self.budget)

    @property
    def shortfall(self) -> str:
        """What the closest recipe needs, and the first suggestion to make it fit."""
        suggestion = f": {self.suggestions[0]}" if self.suggestions else ""
        return f"No recipe fits {self.budget}; the closest needs {format_bytes(self.chosen.upper_bound)}{suggestion}."

    @property
    def reasons(self) -> tuple[str, ...]:
        """One line for each strategy of the recipe."""
        return tuple(str(reason) for reason in self.reason_details)

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
            "rejected": list(self.rejected),
            "length_advice": list(self.length_advice),
            "suggestions": list(self.suggestions),
        }


_MIN_SHARE = 0.01  # of the peak; smaller shares are not mentioned


@dataclass(frozen=True)
class Reason:
    """Why a strategy is in a plan: the kinds of memory it reduces, their size, and the cost without it."""

    strategy: Strategy
    share: float
    """Fraction of the baseline's peak that is of the kinds it reduces."""
    without: Option | None
    chosen: Option

    def __str__(self) -> str:
        share = _share(self.strategy, self.share) if self.share >= _MIN_SHARE else ""
        return f"{self.strategy.spec}: {self.strategy.summary}{share}.{_cost_without(self.without, self.chosen)}"

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
    rejected: Iterable[str], chosen: Recipe, device: Device, constraints: Constraints, result_changing: Iterable[str]
) -> Iterator[str]:
    """Strategies that the model, the device or the installation rules out, and those that would change the result."""
    yield from dict.fromkeys(rejected)
    for kind in STRATEGIES.values():
        reason = kind.why_not_offered(device)
        if reason and kind.name not in (s.name for s in chosen.strategies):
            yield f"{kind.name}: {reason}"
    for kind in STRATEGIES.values():
        if not kind.is_available():
            yield f"{kind.name}: needs the package {kind.requires}: pip install {kind.requires}"
    if constraints.allow is not Result.DIFFERENT:
        yield f"{', '.join(result_changing)}: they train fewer parameters; used only with --allow different"


def _share(strategy: Strategy, share: float) -> str:
    """The part of the baseline's peak that the strategy can reduce."""
    names = " and ".join(kind.value for kind in strategy.frees)
    verb = "is" if names == "optimizer state" else "are"
    return f"; {names} {verb} {share:.0%} of the baseline's peak"


def _cost_without(without: Option | None, chosen: Option) -> str:
    if without is None:
        return ""
    longer = without.seconds_per_epoch - chosen.seconds_per_epoch
    time = f"{format_seconds(abs(longer))} {'slower' if longer > 0 else 'faster'} per epoch"
    return f" Without it: peak {format_bytes(without.peak)}, {time}."


# What a smaller maximum length would save and lose, from the lengths of the data. Texts are truncated only on request.
_LENGTH_SHARES = (0.75, 0.5)
_MIN_SAVING = 0.03  # of the peak or of the time
_MIN_MEMORY_SAVING = 0.005


def length_advice(planner: Planner, chosen: Option) -> Iterator[str]:
    """One line for each shorter maximum length that saves memory or time."""
    longest = planner.simulation.lengths.longest
    if any(strategy.name == "max-length" for strategy in chosen.recipe.strategies):
        return
    for tokens in (int(longest * share) for share in _LENGTH_SHARES):
        if tokens < 2 or not all(hints.same_ops_at_any_size for hints in chosen.recipe.hints):
            continue
        shorter = planner.option(Recipe.parse([*chosen.recipe.specs, f"max-length:tokens={tokens}"]))
        if shorter is not None and (line := _length_line(planner, chosen, shorter, tokens)):
            yield line


def _length_line(planner: Planner, chosen: Option, shorter: Option, tokens: int) -> str | None:
    memory, time = 1 - shorter.peak / chosen.peak, 1 - shorter.seconds_per_step / chosen.seconds_per_step
    if max(memory, time) < _MIN_SAVING:
        return None
    saved = [f"{time:.0%} of the time"]
    if memory >= _MIN_MEMORY_SAVING:  # micro-batches by tokens take the same memory at every text length
        saved.insert(0, format_bytes(chosen.peak - shorter.peak))
    return f"{truncation_cost(planner, tokens)}, saves {' and '.join(saved)}"


def truncation_cost(planner: Planner, tokens: int) -> str:
    """How many rows and tokens a smaller maximum length would lose."""
    lengths = planner.simulation.lengths.batches
    truncated = np.count_nonzero(lengths > tokens) / np.count_nonzero(lengths)
    lost = 1 - np.minimum(lengths, tokens).sum() / lengths.sum()
    return f"truncating at {tokens} tokens shortens {truncated:.0%} of rows, drops {lost:.0%} of tokens"


_MIB = 1 << 20
_MAX_OVERSHOOT = 1.25  # x budget; above this, halving the length is not enough, so its slow simulation is skipped
_SMALLER = {"xlarge": "large", "large": "base"}  # usual sizes of a model family


def suggestions(planner: Planner, closest: Option, budget: Budget, constraints: Constraints) -> Iterator[str]:
    """A larger budget, other constraints, a stronger effect on the result, shorter texts, a smaller model."""
    needed = -(-closest.upper_bound // _MIB)
    yield f"--budget {needed}MB: the smallest allowed recipe needs it ({closest.title})"
    if constraints.avoided or constraints.pinned:
        yield "drop --use and --avoid: a recipe that they rule out may fit"
    for result in (Result.CLOSE, Result.DIFFERENT):
        best = planner.if_allowed(result, budget, constraints)
        if best is not None:
            yield f"--allow {result.value}: {best.title} would fit in {format_bytes(best.peak)}"
    yield from _shorter_texts(planner, closest, budget)
    yield from _smaller_model(planner.simulation.setup.model.name.rstrip("/").rpartition("/")[2])


def _shorter_texts(planner: Planner, closest: Option, budget: Budget) -> Iterator[str]:
    tokens = planner.simulation.lengths.longest // 2
    shortened = any(strategy.name == "max-length" for strategy in closest.recipe.strategies)
    if shortened or tokens < 2 or closest.upper_bound > _MAX_OVERSHOOT * budget.size:
        return
    option = planner.option(Recipe.parse([*closest.recipe.specs, f"max-length:tokens={tokens}"]))
    if option is not None and option.fits(budget):
        fits = f"{closest.title} would fit in {format_bytes(option.peak)}"
        yield f"--max-length {tokens}: {truncation_cost(planner, tokens)}; {fits}"


def _smaller_model(name: str) -> Iterator[str]:
    size = next((size for size in _SMALLER if size in name.lower()), None)
    if size:
        yield f"a smaller model of the same family: {name.lower().replace(size, _SMALLER[size])}, if it exists"
