"""Suggestions of a plan: what would make it fit if nothing does, and what a smaller maximum length would save."""

from __future__ import annotations

import contextlib
from collections.abc import Iterable, Iterator
from typing import TYPE_CHECKING

import numpy as np

from tightfit.device import Budget, Device
from tightfit.errors import DoesNotFit
from tightfit.messages import Message, msg, verbatim
from tightfit.planning.constraints import Constraints
from tightfit.planning.plan import Option
from tightfit.strategies.base import Result
from tightfit.strategies.recipe import Recipe
from tightfit.units import format_bytes

if TYPE_CHECKING:
    from tightfit.planning.planner import Planner
    from tightfit.simulation.job_simulation import Simulation

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
    memory = 1 - shorter.peak / chosen.peak
    if not shorter.seconds_per_step or not chosen.seconds_per_step:
        saved = verbatim(format_bytes(chosen.peak - shorter.peak))
        return _truncated(planner, tokens, saved) if memory >= _MIN_SAVING else None
    time = 1 - shorter.seconds_per_step / chosen.seconds_per_step
    if max(memory, time) < _MIN_SAVING:
        return None
    saved = msg("{share:.0%} of the time", share=time)
    if memory >= _MIN_MEMORY_SAVING:  # micro-batches by tokens take the same memory at every text length
        size = format_bytes(chosen.peak - shorter.peak)
        saved = msg("{memory} and {share:.0%} of the time", memory=size, share=time)
    return _truncated(planner, tokens, saved)


def _truncated(planner: Planner, tokens: int, saved: Message) -> Message:
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


# Budgets that no recipe can meet are refused before anything is simulated


def refuse_hopeless(simulation: Simulation, budget: Budget, formats: Iterable[Recipe]) -> None:
    """Raise DoesNotFit, without a plan, if the budget is less than the process and the weights take."""
    process, weights = simulation.process_bytes(), _least_weights(simulation, formats)
    if budget.size >= process + weights:
        return
    raise DoesNotFit(
        msg(
            "{budget} is less than {process} for {what} and {weights} for the weights: "
            "give a --budget well above {least}, or a smaller --model.",
            budget=budget.title,
            process=format_bytes(process),
            what=_process_of(budget.device),
            weights=format_bytes(weights),
            least=format_bytes(process + weights),
        ),
        None,
    )


def _least_weights(simulation: Simulation, formats: Iterable[Recipe]) -> int:
    """The weights in their smallest number format; 0 if none can be built, which simulating it explains."""
    found = []
    for recipe in formats:
        with contextlib.suppress(Exception):  # a model's own code may fail in any way on tensors without data
            found.append(simulation.setup.weight_bytes(recipe))
    return min(found, default=0)


def _process_of(device: Device) -> Message:
    return msg("the process itself") if device.kind == "cpu" else msg("the CUDA context")


_MIB = 1 << 20
_MAX_OVERSHOOT = 1.25  # x budget; above this, halving the length is not enough, so its slow simulation is skipped
_SMALLER = {"xlarge": "large", "large": "base"}  # usual sizes of a model family


def suggestions(planner: Planner, closest: Option, budget: Budget, constraints: Constraints) -> Iterator[Message]:
    """A larger budget, other constraints, a stronger effect on the result, shorter texts, a smaller model."""
    yield _more_memory(closest, budget)
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


def _more_memory(closest: Option, budget: Budget) -> Message:
    if budget.is_auto:
        missing, needed = format_bytes(closest.upper_bound - budget.size), format_bytes(closest.upper_bound)
        return msg(
            "close other programs until {missing} more are free: the smallest allowed recipe needs {needed} ({recipe})",
            missing=missing,
            needed=needed,
            recipe=closest.title,
        )
    needed_mib = -(-closest.upper_bound // _MIB)
    return msg(
        "--budget {needed}MB: the smallest allowed recipe needs it ({recipe})", needed=needed_mib, recipe=closest.title
    )


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
