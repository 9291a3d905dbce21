"""Micro-benchmarks: the speed of each op kind, of matmuls and of optimizers on this machine's CPU."""

from __future__ import annotations

import itertools
import statistics
from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import Any

import numpy as np
import torch

from tightfit.compat import TorchDispatchMode
from tightfit.device import find_device
from tightfit.ops.dropout import RNG_WORK, RandomBits
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
from tightfit.strategies import STRATEGIES
from tightfit.strategies.recipe import parse_strategy
from tightfit.timing.cpu_load import best_time, minus_overhead, one_core, time_runs
from tightfit.timing.predicted_step_time import Curve, Rates

_SECTION = 0

_SIZES = (1 << 12, 1 << 16, 1 << 20, 1 << 22)  # elements of a tensor
_ONE_CORE_SIZE = 1 << 16  # elements for which one core is as fast as several
_BMM_SHAPES = ((12, 32), (48, 128), (384, 128))  # heads of all rows, tokens of a row
_WIDTH, _HEAD = 1024, 64
_OPTIMIZERS = ("adamw", "adamw-16bit", "adamw-8bit", "adafactor")

# Tokens, and the shape of a weight. Half of the matmuls have few tokens, and so read more bytes per operation.
_MATMUL_SHAPES = (
    (32, 384, 384),
    (128, 768, 768),
    (512, 768, 768),
    (128, 768, 3072),
    (256, 1024, 4096),
    (1024, 768, 3072),
)
_UNCACHED_BYTES = 48 << 20  # of weights, more than any cache holds, like those of the next layer
FILL = 0.5  # value of every element: random numbers would take longer than the op


class OpRecorder(TorchDispatchMode):
    """Records every op that runs, except views."""

    def __init__(self) -> None:
        super().__init__()
        self.op_counts = OpCounts()

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        out = func(*args, **(kwargs or {}))
        self.op_counts.record(func, args, kwargs or {}, out, _SECTION)
        return out

    @property
    def table(self) -> Table:
        """All recorded ops."""
        return self.op_counts.in_section(_SECTION)


def bench_ops() -> Rates:
    """Time a sample of every op kind, from small to large tensors, and every optimizer."""
    call_overhead = _measure_call_overhead()
    curves = {kind: _curve(sample, call_overhead) for kind, sample in _SAMPLES.items()}
    curves[MATMUL] = bench_matmul(call_overhead)
    curves[BMM] = [_bmm(shape, call_overhead) for shape in _BMM_SHAPES]
    return Rates(curves, call_overhead, {name: _optimizer(name) for name in optimizers()})


def best_of(trials: Sequence[Rates]) -> Rates:
    """The lowest of all measurements, point by point: other work on the machine only makes them higher."""
    optimizers = {name: min(trial.optimizers[name] for trial in trials) for name in trials[0].optimizers}
    curves = {kind: _min_curve([trial.curves[kind] for trial in trials]) for kind in trials[0].curves}
    return Rates(curves, min(trial.call_overhead for trial in trials), optimizers)


def _min_curve(curves: Sequence[Curve]) -> Curve:
    return [min(points, key=lambda point: point[1]) for points in zip(*curves, strict=True)]


def _curve(sample: Callable[[torch.Tensor], tuple[Callable[[], Any], float]], call_overhead: float) -> Curve:
    """Seconds per byte, from small tensors to large ones."""
    points = []
    for size in _SIZES:
        run, bytes_moved = sample(torch.full((max(1, size // _WIDTH), min(size, _WIDTH)), FILL))
        points.append((bytes_moved, minus_overhead(_best(run, size), call_overhead) / bytes_moved))
    return points


def _best(run: Callable[[], Any], size: int) -> float:
    """Small ops are also timed on one core: threads that wait for each other can make them a thousand times slower."""
    seconds = best_time(run)
    if size > _ONE_CORE_SIZE:
        return seconds
    with one_core():
        return min(seconds, best_time(run))


def _bmm(shape: tuple[int, int], call_overhead: float) -> tuple[float, float]:
    heads, tokens = shape
    left, right = torch.full((heads, tokens, _HEAD), FILL), torch.full((heads, _HEAD, tokens), FILL)
    flops, out = 2.0 * heads * tokens * tokens * _HEAD, torch.empty(heads, tokens, tokens)
    return flops, minus_overhead(best_time(lambda: torch.bmm(left, right, out=out)), call_overhead) / flops


def _elementwise(x: torch.Tensor) -> tuple[Callable[[], Any], float]:
    """A sum, and a copy into another memory order, like that of heads and tokens."""
    y, heads = torch.clone(x), x.view(-1, 4, min(_HEAD, x.numel() // 16)).transpose(0, 1)
    return lambda: (x + y, heads.clone(memory_format=torch.contiguous_format)), 20.0 * x.numel()


def _inplace(x: torch.Tensor) -> tuple[Callable[[], Any], float]:
    y = torch.zeros_like(x)
    return lambda: y.add_(x), 8.0 * x.numel()


def _norm(x: torch.Tensor) -> tuple[Callable[[], Any], float]:
    return lambda: torch.nn.functional.layer_norm(x, x.shape[-1:]), 8.0 * x.numel()


def _gather(x: torch.Tensor) -> tuple[Callable[[], Any], float]:
    rows = torch.randint(len(x), (len(x),))
    return lambda: torch.nn.functional.embedding(rows, x), 8.0 * x.numel()


def _rng(x: torch.Tensor) -> tuple[Callable[[], Any], float]:
    mask, bits = torch.empty(x.shape, dtype=torch.bool), RandomBits(1)
    return lambda: bits.fill_dropout_mask(mask, 0.1), float(x.numel())


_SAMPLES: dict[str, Callable[[torch.Tensor], tuple[Callable[[], Any], float]]] = {
    ALLOC: lambda x: (lambda: torch.zeros_like(x), 4.0 * x.numel()),
    ELEMENTWISE: _elementwise,
    INPLACE: _inplace,
    TRANSCENDENTAL: lambda x: (lambda: torch.nn.functional.gelu(x), 8.0 * x.numel()),
    NORM: _norm,
    SOFTMAX: lambda x: (lambda: torch.softmax(x, -1), 8.0 * x.numel()),
    RNG: lambda x: (lambda: x.bernoulli_(0.9), 4.0 * x.numel()),
    GATHER: _gather,
    RNG_WORK: _rng,
}


def _measure_call_overhead() -> float:
    """Time per op of a layer so small that only the calls take time, forward and backward."""
    layer = torch.nn.TransformerEncoderLayer(8, 2, 8, batch_first=True)
    x = torch.randn(1, 2, 8)

    def step() -> None:
        layer(x).sum().backward()

    with OpRecorder() as recorder:
        step()
    return best_time(step) / len(recorder.table.kinds)


def optimizers() -> list[str]:
    """The optimizers whose packages are installed."""
    return [name for name in _OPTIMIZERS if STRATEGIES[name].is_available()]


def _optimizer(name: str) -> float:
    """Seconds per parameter, for a weight that is larger than the caches."""
    weight = torch.nn.Parameter(torch.full((4 * _WIDTH, _WIDTH), FILL))
    weight.grad = torch.full_like(weight, FILL)
    optimizer = parse_strategy(name).build([{"params": [weight], "weight_decay": 0.01}], 1e-5)  # type: ignore[attr-defined]
    optimizer.step()  # allocates its state
    return min(time_runs(optimizer.step, 2)) / weight.numel()


def bench_matmul(call_overhead: float) -> Curve:
    """Seconds per operation of fp32 matmuls."""
    return _matmul_curve(_MATMUL_SHAPES, torch.float32, call_overhead)


def bench_16bit(call_overhead: float) -> Curve:
    """Seconds per operation of bf16 matmuls; of one shape where they are slow, since they are seldom used there."""
    shapes = _MATMUL_SHAPES if find_device("cpu").bf16_products else _MATMUL_SHAPES[:1]
    return sorted(_matmul_curve(shapes, torch.bfloat16, call_overhead))


def fit_matmul(rates: Rates) -> Rates:
    """Fit the matmul timings by two rates: seconds per operation, and seconds per byte read or written."""
    flops, flop_seconds = np.array(rates.curves[MATMUL]).T
    bytes_moved = [4.0 * (tokens * inner + inner * outer + tokens * outer) for tokens, inner, outer in _MATMUL_SHAPES]
    columns = np.array([flops, bytes_moved]).T / (flops * flop_seconds)[:, None]
    flop, byte_seconds = np.linalg.lstsq(columns, np.ones(len(flops)))[0]
    if flop <= 0 or byte_seconds < 0:  # the machine's speed has changed between them
        flop, byte_seconds = float(np.median(flop_seconds)), 0.0
    fitted: dict[str, Curve] = {MATMUL: [(1.0, float(flop))], MATMUL_BYTES: [(1.0, float(byte_seconds))]}
    return replace(rates, curves={**rates.curves, **fitted})


def _matmul_curve(shapes: Sequence[tuple[int, int, int]], dtype: torch.dtype, call_overhead: float) -> Curve:
    """Seconds per operation, with other weights each time: in a model, a layer's weights are in no cache."""
    weights = torch.full((_UNCACHED_BYTES // dtype.itemsize,), FILL, dtype=dtype)
    return [_matmul_point(shape, weights, call_overhead) for shape in shapes]


def _matmul_point(shape: tuple[int, int, int], weights: torch.Tensor, call_overhead: float) -> tuple[float, float]:
    """The mean of a forward and a backward matmul."""
    tokens, inner, outer = shape
    left, right = (torch.full((tokens, width), FILL, dtype=weights.dtype) for width in (inner, outer))
    count = weights.numel() // (inner * outer)
    next_weight = itertools.cycle(weights[: count * inner * outer].view(count, outer, inner))
    seconds = [
        best_time(lambda: torch.mm(left, next(next_weight).T, out=right)),
        best_time(lambda: torch.mm(right, next(next_weight), out=left)),
    ]
    flops = 2.0 * tokens * inner * outer
    return flops, minus_overhead(statistics.mean(seconds), call_overhead) / flops
