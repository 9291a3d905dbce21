"""Plan: a recipe with its memory estimate, its time and the reasons for it."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np

from tightfit.device import Budget, Device
from tightfit.display import Display
from tightfit.job import Job
from tightfit.messages import Message, both, msg, name
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
        return self.recipe.title

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
    rejected: tuple[Message, ...]
    """Strategies that were not chosen, and why."""
    length_advice: tuple[Message, ...] = ()
    """What a smaller maximum length would save."""
    suggestions: tuple[Message, ...] = ()
    """Changes that would make it fit, the smallest first; empty if it fits."""
    notes: tuple[Message, ...] = ()
    """Warnings about the budget, the measured speed of the machine and the size of the process."""

    @property
    def fits(self) -> bool:
        """Whether the chosen recipe fits the budget, margin included."""
        return self.chosen.fits(self.budget)

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
    kinds = both(*(name(kind.value) for kind in strategy.frees))
    if kinds == "optimizer state":
        return msg("; {kinds} is {share:.0%} of the baseline's peak", kinds=kinds, share=share)
    return msg("; {kinds} are {share:.0%} of the baseline's peak", kinds=kinds, share=share)


def _cost_without(without: Option, chosen: Option) -> Message:
    longer = without.seconds_per_epoch - chosen.seconds_per_epoch
    peak, time = format_bytes(without.peak), format_seconds(abs(longer))
    if longer > 0:
        return msg(" Without it: peak {peak}, {time} slower per epoch.", peak=peak, time=time)
    return msg(" Without it: peak {peak}, {time} faster per epoch.", peak=peak, time=time)


# What a smaller maximum length would save and lose, from the lengths of the data. Texts are truncated only on request.
_LENGTH_SHARES = (0.75, 0.5)
_MIN_SAVING = 0.03  # of the peak or of the time
_MIN_MEMORY_SAVING = 0.005


def length_advice(planner: Planner, chosen: Option) -> Iterator[Message]:
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


def _length_line(planner: Planner, chosen: Option, shorter: Option, tokens: int) -> Message | None:
    memory, time = 1 - shorter.peak / chosen.peak, 1 - shorter.seconds_per_step / chosen.seconds_per_step
    if max(memory, time) < _MIN_SAVING:
        return None
    saved = msg("{share:.0%} of the time", share=time)
    if memory >= _MIN_MEMORY_SAVING:  # micro-batches by tokens take the same memory at every text length
        size = format_bytes(chosen.peak - shorter.peak)
        saved = msg("{memory} and {share:.0%} of the time", memory=size, share=time)
    return msg("{cost}, saves {saved}", cost=truncation_cost(planner, tokens), saved=saved)


def truncation_cost(planner: Planner, tokens: int) -> Message:
    """How many rows and tokens a smaller maximum length would lose."""
    lengths = planner.simulation.lengths.batches
    truncated = np.count_nonzero(lengths > tokens) / np.count_nonzero(lengths)
    lost = 1 - np.minimum(lengths, tokens).sum() / lengths.sum()
    return msg(
        "truncating at {tokens} tokens shortens {rows:.0%} of rows, drops {lost:.0%} of tokens",
        tokens=tokens,
        rows=truncated,
        lost=lost,
    )


_MIB = 1 << 20
_MAX_OVERSHOOT = 1.25  # x budget; above this, halving the length is not enough, so its slow simulation is skipped
_SMALLER = {"xlarge": "large", "large": "base"}  # usual sizes of a model family


def suggestions(planner: Planner, closest: Option, budget: Budget, constraints: Constraints) -> Iterator[Message]:
    """A larger budget, other constraints, a stronger effect on the result, shorter texts, a smaller model."""
    needed = -(-closest.upper_bound // _MIB)
    yield msg(
        "--budget {needed}MB: the smallest allowed recipe needs it ({recipe})", needed=needed, recipe=closest.title
    )
    if constraints.avoided or constraints.pinned:
        yield msg("drop --use and --avoid: a recipe that they rule out may fit")
    for result in (Result.CLOSE, Result.DIFFERENT):
        best = planner.if_allowed(result, budget, constraints)
        if best is not None:
            yield msg(
                "--allow {result}: {recipe} would fit in {peak}",
                result=result.value,
                recipe=best.title,
                peak=format_bytes(best.peak),
            )
    yield from _shorter_texts(planner, closest, budget)
    yield from _smaller_model(planner.simulation.setup.model.name.rstrip("/").rpartition("/")[2])


def _shorter_texts(planner: Planner, closest: Option, budget: Budget) -> Iterator[Message]:
    tokens = planner.simulation.lengths.longest // 2
    shortened = any(strategy.name == "max-length" for strategy in closest.recipe.strategies)
    if shortened or tokens < 2 or closest.upper_bound > _MAX_OVERSHOOT * budget.size:
        return
    option = planner.option(Recipe.parse([*closest.recipe.specs, f"max-length:tokens={tokens}"]))
    if option is not None and option.fits(budget):
        yield msg(
            "--max-length {tokens}: {cost}; {recipe} would fit in {peak}",
            tokens=tokens,
            cost=truncation_cost(planner, tokens),
            recipe=closest.title,
            peak=format_bytes(option.peak),
        )


def _smaller_model(model: str) -> Iterator[Message]:
    size = next((size for size in _SMALLER if size in model.lower()), None)
    if size:
        smaller = model.lower().replace(size, _SMALLER[size])
        yield msg("a smaller model of the same family: {model}, if it exists", model=smaller)
