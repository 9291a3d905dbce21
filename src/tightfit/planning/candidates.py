"""Candidate recipes: the combinations of strategies worth estimating for a device and a batch size.

A candidate makes one choice per purpose: micro-batch size, gradient checkpointing, optimizer, optimizer in backward,
precision. Combinations that clash are dropped here or rejected by `Recipe` itself.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from itertools import product

from tightfit.device import Device
from tightfit.errors import RecipeError
from tightfit.planning.constraints import Constraints
from tightfit.strategies import STRATEGIES
from tightfit.strategies.recipe import Recipe, parse_strategy

_SMALLEST_OPTIMIZER, _IN_BACKWARD, _BUCKETING = "adafactor", "optimizer-in-backward", "length-bucketing"
# Pairs of optimizer and row order; later pairs need less memory and time. Length bucketing lowers the F1 of optimizers
# with a long moving average (docs/log.md), so it is combined with an AdamW variant only if the user pins both.
_LEAN_OPTIMIZERS = (
    ("adamw-16bit", ""),
    ("adamw-8bit", ""),
    (_SMALLEST_OPTIMIZER, ""),
    (_SMALLEST_OPTIMIZER, _BUCKETING),
)
RESULT_CHANGING = ("lora", "freeze")  # the strategies of `result_changing`
_CHUNKS, _MOST_CHUNKS = 4, 16  # chunked-layers: a quarter of the batch, or the smallest chunk that still saves memory


def candidates(
    device: Device, batch: int, constraints: Constraints, *, attention: bool, longest: int
) -> Iterator[Recipe]:
    """Recipes that leave the result the same or close; `longest` is the length of the longest text in tokens."""
    kernels = "tiled-attention" if attention else ""
    lean = _lean_optimizers(constraints)
    for precision, pair in product(_precisions(device), (*_exact_optimizers(device), *lean)):
        in_backward = _in_backward(device, batch) if pair in lean[-1:] else ()
        for specs in (*_after_backward(_micro_batches(batch, longest, constraints)), *in_backward):
            recipe = _recipe((kernels, precision, *pair, *specs), constraints)
            if recipe is not None:
                yield recipe


def last_resorts(device: Device, batch: int, constraints: Constraints, *, attention: bool) -> Iterator[list[Recipe]]:
    """Groups of recipes with less memory and more time; each needs less memory and takes longer to run and simulate."""
    kernels = "tiled-attention" if attention else ""
    bf16_weights = ("bf16-weights",) if device.kind == "cuda" and device.bf16 else ()
    optimizer = [("", ""), *_lean_optimizers(constraints)][-1]
    for group in _chunked(device, batch):
        recipes = [
            _recipe((kernels, precision, *optimizer, *specs, _IN_BACKWARD), constraints)
            for precision, specs in product((*_precisions(device), *bf16_weights), group)
        ]
        yield [recipe for recipe in recipes if recipe is not None]


def _chunked(device: Device, batch: int) -> Iterator[list[tuple[str, ...]]]:
    """Layers run in large or small chunks, two layers per group (halves the saved hidden states), or offloaded."""
    large, small = (f"chunked-layers:size={max(1, batch // chunks)}" for chunks in (_CHUNKS, _MOST_CHUNKS))
    if device.kind == "cpu":
        yield [(large,), (f"{large},layers=2",)]
    yield [(small,), (f"{small},layers=2",)]
    if device.kind == "cuda":
        yield [(small, "offload-activations", "offload-optimizer")]


def result_changing(layers: int | None, batch: int, constraints: Constraints, *, attention: bool) -> Iterator[Recipe]:
    """Recipes that train fewer parameters: LoRA, the upper layers, or the new head alone."""
    kernels = "tiled-attention" if attention else ""
    freezing = [f"freeze:layers={layers * share // 4}" for share in (2, 3)] if layers and layers >= 4 else []
    helpers = [
        spec
        for spec in (f"micro-batch:size={-(-batch // 8)}", "gradient-checkpointing")
        if _available([_name(spec)], constraints)
    ]
    for spec in ("lora", *freezing, "freeze"):
        for optimizer in ("", _SMALLEST_OPTIMIZER):
            recipe = _recipe((kernels, *helpers, optimizer, spec), constraints)
            if recipe is not None:
                yield recipe


def _after_backward(micro_batches: Sequence[str]) -> Iterator[tuple[str, ...]]:
    """Every micro-batch size, with and without gradient checkpointing."""
    for checkpointing in ("", "gradient-checkpointing:every=2", "gradient-checkpointing"):
        yield (checkpointing,)
        yield from ((checkpointing, spec) for spec in micro_batches)


def _micro_batches(batch: int, longest: int, constraints: Constraints) -> list[str]:
    """Micro-batches by tokens: same peak as by rows, but faster; by rows if the user avoids `micro-batch:tokens`."""
    if "micro-batch:tokens" in constraints.avoided:
        return [f"micro-batch:size={size}" for size in _halving(batch)]
    return [f"micro-batch:tokens={size * longest}" for size in _halving(batch)]


def _in_backward(device: Device, batch: int) -> Iterator[tuple[str, ...]]:
    """One backward pass over the full batch: as it is (GPU only), with checkpointing, or with chunked layers.

    Offered only with the last lean optimizer: without micro-batches, padding is trimmed only by length bucketing.
    """
    if device.kind != "cpu":
        yield (_IN_BACKWARD,)
    yield "gradient-checkpointing", _IN_BACKWARD
    yield f"chunked-layers:size={max(1, batch // _CHUNKS)}", _IN_BACKWARD


def _exact_optimizers(device: Device) -> tuple[tuple[str, str], ...]:
    """AdamW, and on a GPU also AdamW with its state in host memory."""
    return (("", ""), ("offload-optimizer", "")) if device.kind == "cuda" else (("", ""),)


def _lean_optimizers(constraints: Constraints) -> list[tuple[str, str]]:
    """The available pairs; without length bucketing if another optimizer than Adafactor is pinned."""
    names = (strategy.name for strategy in constraints.pinned if strategy.exclusive == "optimizer")
    may_bucket = next(names, _SMALLEST_OPTIMIZER) == _SMALLEST_OPTIMIZER
    pairs = [pair for pair in _LEAN_OPTIMIZERS if _available(pair, constraints)]
    return [pair for pair in pairs if may_bucket or _BUCKETING not in pair]


def _name(spec: str) -> str:
    return spec.partition(":")[0]


def _available(names: Iterable[str], constraints: Constraints) -> bool:
    return all(name not in constraints.avoided and STRATEGIES[name].is_available() for name in names if name)


def _precisions(device: Device) -> tuple[str, ...]:
    """Mixed precision only on GPUs: a CPU without 16-bit instructions is slower with it."""
    return ("",) if device.kind == "cpu" else ("", "mixed-precision")


def _halving(batch: int) -> list[int]:
    """Half the batch, a quarter of it, and so on down to one row."""
    sizes = []
    while batch > 1:
        batch = -(-batch // 2)
        sizes.append(batch)
    return sizes


def _recipe(specs: tuple[str, ...], constraints: Constraints) -> Recipe | None:
    """The specs and the pinned strategies as a recipe; None if they clash or one is avoided or not available."""
    chosen = [parse_strategy(spec) for spec in specs if spec]
    if not _available([strategy.name for strategy in chosen], constraints):
        return None
    allowed = [strategy.spec for strategy in chosen if constraints.allows(strategy)]
    try:
        return Recipe.parse([*allowed, *(strategy.spec for strategy in constraints.pinned)])
    except RecipeError:
        return None
