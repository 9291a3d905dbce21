"""Every sort of work by itself: a sample of it, from small to large, in memory as a training gets it."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import torch

from tightfit.chance import BITS, Chance
from tightfit.clock.noting import Noting
from tightfit.clock.products import NUMBER, measure_products
from tightfit.clock.quiet import net, one_core, quickest, times
from tightfit.clock.rates import Curve, Rates
from tightfit.rehearsal.work import CHANCE, CHANGE, CURVE, FRESH, HEADS, LOOKUP, NORM, PASS, PRODUCT, SOFTMAX

_SIZES = (1 << 12, 1 << 16, 1 << 20, 1 << 22)  # numbers in a tensor
_FEW = 1 << 16  # numbers that one core does as soon as several
_HEADS = ((12, 32), (48, 128), (384, 128))  # heads of all texts, tokens of a text
_WIDTH, _HEAD = 1024, 64
_OPTIMIZERS = ("adamw", "adamw-16bit", "adamw-8bit", "adafactor")


def measure_pieces() -> Rates:
    call = _seconds_of_a_call()
    curves = {sort: _curve(sample, call) for sort, sample in _SAMPLES.items()}
    curves[PRODUCT] = measure_products(call)
    curves[HEADS] = [_heads(shape, call) for shape in _HEADS]
    return Rates(curves, call, {name: _optimizer(name) for name in optimizers()})


def fastest(rounds: Sequence[Rates]) -> Rates:
    """Of every price the lowest: what else the machine does only makes them higher."""
    optimizers = {name: min(each.optimizers[name] for each in rounds) for name in rounds[0].optimizers}
    curves = {sort: _lowest([each.curves[sort] for each in rounds]) for sort in rounds[0].curves}
    return Rates(curves, min(each.call for each in rounds), optimizers)


def _lowest(curves: Sequence[Curve]) -> Curve:
    """Of every size the lowest price."""
    return [min(points, key=lambda point: point[1]) for points in zip(*curves, strict=True)]


def _curve(sample: Callable[[torch.Tensor], tuple[Callable[[], Any], float]], call: float) -> Curve:
    """Seconds for a byte, from small tensors to large ones."""
    points = []
    for size in _SIZES:
        run, touched = sample(torch.full((max(1, size // _WIDTH), min(size, _WIDTH)), NUMBER))
        points.append((touched, net(_undisturbed(run, size), call) / touched))
    return points


def _undisturbed(run: Callable[[], Any], size: int) -> float:
    """Threads that wait for one another make little work a thousand times dearer, and that of one core never is."""
    seconds = quickest(run)
    if size > _FEW:
        return seconds
    with one_core():
        return min(seconds, quickest(run))


def _heads(shape: tuple[int, int], call: float) -> tuple[float, float]:
    heads, tokens = shape
    left, right = torch.full((heads, tokens, _HEAD), NUMBER), torch.full((heads, _HEAD, tokens), NUMBER)
    flops, out = 2.0 * heads * tokens * tokens * _HEAD, torch.empty(heads, tokens, tokens)
    return flops, net(quickest(lambda: torch.bmm(left, right, out=out)), call) / flops


def _pass(x: torch.Tensor) -> tuple[Callable[[], Any], float]:
    """A sum, and a copy into another order, as that of heads and tokens."""
    y, heads = torch.clone(x), x.view(-1, 4, min(_HEAD, x.numel() // 16)).transpose(0, 1)
    return lambda: (x + y, heads.clone(memory_format=torch.contiguous_format)), 20.0 * x.numel()


def _change(x: torch.Tensor) -> tuple[Callable[[], Any], float]:
    y = torch.zeros_like(x)
    return lambda: y.add_(x), 8.0 * x.numel()


def _norm(x: torch.Tensor) -> tuple[Callable[[], Any], float]:
    return lambda: torch.nn.functional.layer_norm(x, x.shape[-1:]), 8.0 * x.numel()


def _lookup(x: torch.Tensor) -> tuple[Callable[[], Any], float]:
    rows = torch.randint(len(x), (len(x),))
    return lambda: torch.nn.functional.embedding(rows, x), 8.0 * x.numel()


def _bits(x: torch.Tensor) -> tuple[Callable[[], Any], float]:
    mask, chance = torch.empty(x.shape, dtype=torch.bool), Chance(1)
    return lambda: chance.keep(mask, 0.1), float(x.numel())


_SAMPLES: dict[str, Callable[[torch.Tensor], tuple[Callable[[], Any], float]]] = {
    FRESH: lambda x: (lambda: torch.zeros_like(x), 4.0 * x.numel()),
    PASS: _pass,
    CHANGE: _change,
    CURVE: lambda x: (lambda: torch.nn.functional.gelu(x), 8.0 * x.numel()),
    NORM: _norm,
    SOFTMAX: lambda x: (lambda: torch.softmax(x, -1), 8.0 * x.numel()),
    CHANCE: lambda x: (lambda: x.bernoulli_(0.9), 4.0 * x.numel()),
    LOOKUP: _lookup,
    BITS: _bits,
}


def _seconds_of_a_call() -> float:
    """A layer so small that nothing but calling takes time, forward and backward."""
    layer = torch.nn.TransformerEncoderLayer(8, 2, 8, batch_first=True)
    x = torch.randn(1, 2, 8)

    def step() -> None:
        layer(x).sum().backward()

    with Noting() as noting:
        step()
    return quickest(step) / len(noting.table.sorts)


def optimizers() -> list[str]:
    """Those whose packages are installed."""
    from tightfit.strategies import STRATEGIES

    return [name for name in _OPTIMIZERS if STRATEGIES[name].is_there()]


def _optimizer(name: str) -> float:
    """Seconds for a parameter, of a matrix that no cache holds."""
    from tightfit.recipe import parse_strategy

    weight = torch.nn.Parameter(torch.full((4 * _WIDTH, _WIDTH), NUMBER))
    weight.grad = torch.full_like(weight, NUMBER)
    optimizer = parse_strategy(name).build([{"params": [weight], "weight_decay": 0.01}], 1e-5)  # type: ignore[attr-defined]
    optimizer.step()  # which makes its state
    return min(times(optimizer.step, 2)) / weight.numel()
