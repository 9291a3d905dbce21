"""Noting: the work of something that really runs, told as a rehearsal tells it."""

from __future__ import annotations

import itertools
import statistics
from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import Any

import numpy as np
import torch

from tightfit.compat import TorchDispatchMode
from tightfit.ops.dropout import BITS, RandomBits
from tightfit.simulation.op_counts import (
    ALLOC,
    BMM,
    ELEMENTWISE,
    GATHER,
    INPLACE,
    MATMUL,
    MATMUL_BYTES,
    NORM,
    RNG,
    SOFTMAX,
    TRANSCENDENTAL,
    OpCounts,
    Table,
)
from tightfit.timing.cpu_load import net, one_core, quickest, times
from tightfit.timing.estimate import Curve, Rates

_ALL = 0


class OpRecorder(TorchDispatchMode):
    """Notes every operation, views left out."""

    def __init__(self) -> None:
        super().__init__()
        self.work = OpCounts()

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        out = func(*args, **(kwargs or {}))
        self.work.note(func, args, kwargs or {}, out, _ALL)
        return out

    @property
    def table(self) -> Table:
        """All that was noted."""
        return self.work.in_section(_ALL)


# Every sort of work by itself: a sample of it, from small to large, in memory as a training gets it.


_SIZES = (1 << 12, 1 << 16, 1 << 20, 1 << 22)  # numbers in a tensor
_FEW = 1 << 16  # numbers that one core does as soon as several
_HEADS = ((12, 32), (48, 128), (384, 128))  # heads of all texts, tokens of a text
_WIDTH, _HEAD = 1024, 64
_OPTIMIZERS = ("adamw", "adamw-16bit", "adamw-8bit", "adafactor")


def bench_ops() -> Rates:
    call = _seconds_of_a_call()
    curves = {sort: _curve(sample, call) for sort, sample in _SAMPLES.items()}
    curves[MATMUL] = measure_products(call)
    curves[BMM] = [_heads(shape, call) for shape in _HEADS]
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
    mask, chance = torch.empty(x.shape, dtype=torch.bool), RandomBits(1)
    return lambda: chance.keep(mask, 0.1), float(x.numel())


_SAMPLES: dict[str, Callable[[torch.Tensor], tuple[Callable[[], Any], float]]] = {
    ALLOC: lambda x: (lambda: torch.zeros_like(x), 4.0 * x.numel()),
    ELEMENTWISE: _pass,
    INPLACE: _change,
    TRANSCENDENTAL: lambda x: (lambda: torch.nn.functional.gelu(x), 8.0 * x.numel()),
    NORM: _norm,
    SOFTMAX: lambda x: (lambda: torch.softmax(x, -1), 8.0 * x.numel()),
    RNG: lambda x: (lambda: x.bernoulli_(0.9), 4.0 * x.numel()),
    GATHER: _lookup,
    BITS: _bits,
}


def _seconds_of_a_call() -> float:
    """A layer so small that nothing but calling takes time, forward and backward."""
    layer = torch.nn.TransformerEncoderLayer(8, 2, 8, batch_first=True)
    x = torch.randn(1, 2, 8)

    def step() -> None:
        layer(x).sum().backward()

    with OpRecorder() as noting:
        step()
    return quickest(step) / len(noting.table.sorts)


def optimizers() -> list[str]:
    """Those whose packages are installed."""
    from tightfit.strategies import STRATEGIES

    return [name for name in _OPTIMIZERS if STRATEGIES[name].is_available()]


def _optimizer(name: str) -> float:
    """Seconds for a parameter, of a matrix that no cache holds."""
    from tightfit.strategies.recipe import parse_strategy

    weight = torch.nn.Parameter(torch.full((4 * _WIDTH, _WIDTH), NUMBER))
    weight.grad = torch.full_like(weight, NUMBER)
    optimizer = parse_strategy(name).build([{"params": [weight], "weight_decay": 0.01}], 1e-5)  # type: ignore[attr-defined]
    optimizer.step()  # which makes its state
    return min(times(optimizer.step, 2)) / weight.numel()


# Products of matrices: measured with weights that no cache holds, and told by what they compute and what they read.


# Tokens, and a matrix of weights; as many operations of few tokens as of many: these read more.
_SHAPES = ((32, 384, 384), (128, 768, 768), (512, 768, 768), (128, 768, 3072), (256, 1024, 4096), (1024, 768, 3072))
_COLD = 48 << 20  # bytes of weights that no cache holds, as those of the next layer
NUMBER = 0.5  # in every tensor: drawing them would take longer than the work


def measure_products(call: float) -> Curve:
    return _products(_SHAPES, torch.float32, call)


def bench_16bit(call: float) -> Curve:
    """Of numbers of 16 bits: slow, and seldom asked for."""
    return _products(_SHAPES[:1], torch.bfloat16, call)


def fit_matmul(rates: Rates) -> Rates:
    """Products told by two prices that foretell all of them best: of an operation, and of a byte read or written."""
    flops, prices = np.array(rates.curves[MATMUL]).T
    touched = [4.0 * (tokens * inner + inner * outer + tokens * outer) for tokens, inner, outer in _SHAPES]
    shares = np.array([flops, touched]).T / (flops * prices)[:, None]
    operation, byte = np.linalg.lstsq(shares, np.ones(len(flops)))[0]
    if operation <= 0 or byte < 0:  # the machine's mood has changed between them
        operation, byte = float(np.median(prices)), 0.0
    told: dict[str, Curve] = {MATMUL: [(1.0, float(operation))], MATMUL_BYTES: [(1.0, float(byte))]}
    return replace(rates, curves={**rates.curves, **told})


def _products(shapes: Sequence[tuple[int, int, int]], dtype: torch.dtype, call: float) -> Curve:
    """Seconds for an operation, with other weights each time: a layer's own are in no cache when its turn comes."""
    weights = torch.full((_COLD // dtype.itemsize,), NUMBER, dtype=dtype)
    return [_product(shape, weights, call) for shape in shapes]


def _product(shape: tuple[int, int, int], weights: torch.Tensor, call: float) -> tuple[float, float]:
    """Forward and back."""
    tokens, inner, outer = shape
    left, right = (torch.full((tokens, width), NUMBER, dtype=weights.dtype) for width in (inner, outer))
    whole = weights.numel() // (inner * outer)
    turn = itertools.cycle(weights[: whole * inner * outer].view(whole, outer, inner))
    seconds = [
        quickest(lambda: torch.mm(left, next(turn).T, out=right)),
        quickest(lambda: torch.mm(right, next(turn), out=left)),
    ]
    flops = 2.0 * tokens * inner * outer
    return flops, net(statistics.mean(seconds), call) / flops
