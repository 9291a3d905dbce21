"""Candidates: the recipes worth looking at, on a device, for batches of so many texts.

One choice is made for each purpose: how gradients are computed, in slices of how many rows, by which optimizer,
whether it steps in the backward pass, in how many bits. What clashes is left out here or by the recipe itself.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from itertools import product

from tightfit.device import Device
from tightfit.errors import RecipeError
from tightfit.planning.constraints import Constraints
from tightfit.strategies import STRATEGIES
from tightfit.strategies.recipe import Recipe, parse_strategy

_LEANEST, _IN_BACKWARD, _ORDER = "adafactor", "optimizer-in-backward", "length-bucketing"
# An optimizer and an order of texts, the leaner and faster the later. Batches of like texts hurt an optimizer with a
# long memory (docs/log.md, F1 of it), so AdamW's never meet them, unless somebody asks for it.
_LEAN = (("adamw-16bit", ""), ("adamw-8bit", ""), (_LEANEST, ""), (_LEANEST, _ORDER))
_SHARE_OF_A_LAYER, _SMALLEST_SHARE = 4, 16  # chunked-layers: a quarter of the batch, or as little as helps


def candidates(
    device: Device, batch: int, constraints: Constraints, *, attention: bool, longest: int
) -> Iterator[Recipe]:
    """Recipes that leave the result equal or close to what it would be; no text has more tokens than the longest."""
    kernels = "tiled-attention" if attention else ""
    lean = _lean(constraints)
    for bits, pair in product(_bits(device), (*_exact(device), *lean)):
        in_backward = _in_backward(device, batch) if pair in lean[-1:] else ()
        for specs in (*_after_backward(_slices(batch, longest, constraints)), *in_backward):
            recipe = _recipe((kernels, bits, *pair, *specs), constraints)
            if recipe is not None:
                yield recipe


def last_resorts(device: Device, batch: int, constraints: Constraints, *, attention: bool) -> Iterator[list[Recipe]]:
    """Still smaller, and slower; the later, the more so, and the longer it takes to look at them."""
    kernels = "tiled-attention" if attention else ""
    bits = (*_bits(device), "bf16-weights") if device.kind == "cuda" and device.bf16 else _bits(device)
    leanest = [("", ""), *_lean(constraints)][-1]
    for resort in _layer_by_layer(device, batch):
        recipes = [
            _recipe((kernels, form, *leanest, *specs, _IN_BACKWARD), constraints)
            for form, specs in product(bits, resort)
        ]
        yield [recipe for recipe in recipes if recipe is not None]


def _layer_by_layer(device: Device, batch: int) -> Iterator[list[tuple[str, ...]]]:
    """Pieces of some rows, or few; two layers at once, which halves the states between them; all of it elsewhere."""
    share, least = (f"chunked-layers:size={max(1, batch // part)}" for part in (_SHARE_OF_A_LAYER, _SMALLEST_SHARE))
    if device.kind == "cpu":
        yield [(share,), (f"{share},layers=2",)]
    yield [(least,), (f"{least},layers=2",)]
    if device.kind == "cuda":
        yield [(least, "offload-activations", "offload-optimizer")]


def different(layers: int | None, batch: int, constraints: Constraints, *, attention: bool) -> Iterator[Recipe]:
    """Recipes that train less: small matrices beside the weights, the upper layers, or the new head alone."""
    kernels = "tiled-attention" if attention else ""
    freezing = [f"freeze:layers={layers * share // 4}" for share in (2, 3)] if layers and layers >= 4 else []
    helpers = [
        spec
        for spec in (f"micro-batch:size={-(-batch // 8)}", "gradient-checkpointing")
        if _can_be_had([_name(spec)], constraints)
    ]
    for spec in ("lora", *freezing, "freeze"):
        for optimizer in ("", _LEANEST):
            recipe = _recipe((kernels, *helpers, optimizer, spec), constraints)
            if recipe is not None:
                yield recipe


def _after_backward(slices: Sequence[str]) -> Iterator[tuple[str, ...]]:
    """Any number of slices, with or without a second run of the layers."""
    for again in ("", "gradient-checkpointing:every=2", "gradient-checkpointing"):
        yield (again,)
        yield from ((again, spec) for spec in slices)


def _slices(batch: int, longest: int, constraints: Constraints) -> list[str]:
    """By tokens, which takes the same memory as by rows and less time; by rows where that is not wanted."""
    if "micro-batch:tokens" in constraints.avoided:
        return [f"micro-batch:size={size}" for size in _halves(batch)]
    return [f"micro-batch:tokens={size * longest}" for size in _halves(batch)]


def _in_backward(device: Device, batch: int) -> Iterator[tuple[str, ...]]:
    """One pass over the whole batch: as it is on a card, with a second run of the layers, or layer by layer.

    Only with what is leanest and fastest: a whole batch has no slices that would leave its padding out.
    """
    if device.kind != "cpu":
        yield (_IN_BACKWARD,)
    yield "gradient-checkpointing", _IN_BACKWARD
    yield f"chunked-layers:size={max(1, batch // _SHARE_OF_A_LAYER)}", _IN_BACKWARD


def _exact(device: Device) -> tuple[tuple[str, str], ...]:
    """AdamW itself. Beside a card there is a second memory for it to remember in."""
    return (("", ""), ("offload-optimizer", "")) if device.kind == "cuda" else (("", ""),)


def _lean(constraints: Constraints) -> list[tuple[str, str]]:
    """What can be had of it; beside an optimizer that somebody pinned, only the order of texts that suits it."""
    pinned = next((strategy.name for strategy in constraints.pinned if strategy.exclusive == "optimizer"), _LEANEST)
    return [pair for pair in _LEAN if _can_be_had(pair, constraints) and (pinned == _LEANEST or _ORDER not in pair)]


def _name(spec: str) -> str:
    return spec.partition(":")[0]


def _can_be_had(names: Iterable[str], constraints: Constraints) -> bool:
    return all(name not in constraints.avoided and STRATEGIES[name].is_available() for name in names if name)


def _bits(device: Device) -> tuple[str, ...]:
    """Sixteen only on cards: a processor without instructions for it takes longer."""
    return ("",) if device.kind == "cpu" else ("", "mixed-precision")


def _halves(batch: int) -> list[int]:
    """Half the batch, a quarter, and so on down to one row."""
    sizes = []
    while batch > 1:
        batch = -(-batch // 2)
        sizes.append(batch)
    return sizes


def _recipe(specs: tuple[str, ...], constraints: Constraints) -> Recipe | None:
    """With the pinned strategies in it; None where it clashes with them or is not wanted."""
    chosen = [parse_strategy(spec) for spec in specs if spec]
    if not _can_be_had([strategy.name for strategy in chosen], constraints):
        return None
    kept = [strategy.spec for strategy in chosen if constraints.allows(strategy)]
    try:
        return Recipe.parse([*kept, *(strategy.spec for strategy in constraints.pinned)])
    except RecipeError:
        return None
