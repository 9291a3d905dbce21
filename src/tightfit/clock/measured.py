"""Rates of this machine's processor, measured once in a few seconds and kept for later."""

from __future__ import annotations

import contextlib
import itertools
import json
import os
import platform
import statistics
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import asdict, dataclass, replace
from functools import cache
from pathlib import Path
from typing import Any

import numpy as np
import torch

from tightfit.chance import BITS, Chance
from tightfit.clock.noting import Noting
from tightfit.clock.rates import Curve, Rates
from tightfit.rehearsal.work import (
    CHANCE,
    CHANGE,
    CURVE,
    FRESH,
    HEADS,
    LOOKUP,
    NARROW,
    NORM,
    PASS,
    PRODUCT,
    SOFTMAX,
    Table,
)

_VERSION = 6
_BUSY = "the machine is busy, so times are foretold for one of its cores; plan again when it is quiet"
_FASTER = 0.95  # of one core's time, that all of them take if they are free
_LOOKS = 3  # at the cores, each of some milliseconds: a moment's work of others says nothing
_TOO_LONG = 0.03
_LONG_ENOUGH = 0.004  # seconds for one figure in a round
_SIZES = (1 << 12, 1 << 16, 1 << 20, 1 << 22)  # numbers in a tensor
_PRODUCTS = ((32, 384, 384), (128, 768, 768), (512, 768, 768), (512, 1024, 4096), (2048, 768, 3072))
_HEADS = ((12, 32), (48, 128), (384, 128))  # heads of all texts, tokens of a text
_LAYERS = ((2, 64, 384), (4, 128, 384), (8, 64, 768))  # from small to large: texts, tokens, width
_ROUNDS = 3
_COLD = 48 << 20  # bytes of weights that no cache holds, as those of the next layer
_WIDTH, _HEAD = 1024, 64
_NUMBER = 0.5  # in every tensor: drawing them would take longer than the work
_OPTIMIZERS = ("adamw", "adamw-16bit", "adamw-8bit", "adafactor")


@cache
def rates_of_this_machine() -> Rates:
    """From the file that an earlier call left, if it was the same machine, torch and tightfit."""
    file, machine = _cache_file(), _machine()
    try:
        kept = json.loads(file.read_text("utf-8"))
        if kept["machine"] == machine:
            return Rates(**kept["rates"])
    except (OSError, ValueError, KeyError, TypeError):
        pass  # none yet, or not ours: measure
    if not is_quiet():
        return replace(measure_on_one_core(), note=_BUSY)
    rates = measure()
    if is_quiet():  # and was so all the time
        _keep(file, {"machine": machine, "rates": asdict(rates)})
    return rates


def is_quiet() -> bool:
    """Whether all cores are free. With another process on one of them threads wait for each other at every call."""
    return torch.get_num_threads() == 1 or any(_all_beat_one() for _ in range(_LOOKS))


def _all_beat_one() -> bool:
    x = torch.randn(1 << 19)
    together = _usual(lambda: torch.nn.functional.gelu(x))
    with _one_core():
        return together < _FASTER * _usual(lambda: torch.nn.functional.gelu(x))


def measure_on_one_core() -> Rates:
    """On a busy machine: the times are longer than they would be, but not by the hundred times that waiting brings."""
    with _one_core():
        return measure()


@contextlib.contextmanager
def _one_core() -> Iterator[None]:
    threads = torch.get_num_threads()
    torch.set_num_threads(1)
    try:
        yield
    finally:
        torch.set_num_threads(threads)


def _usual(run: Callable[[], Any]) -> float:
    run()
    return statistics.median(_times(run, 15))


def measure() -> Rates:
    """Time a sample of every sort of work, in memory as a training gets it.

    In rounds: the machine's mood changes within seconds, and would else make one sort slow and the next one fast.
    """
    from tightfit.allocator import give_back_freed_memory

    give_back_freed_memory()
    with torch.random.fork_rng([]):
        layers = [_Layer.of(*shape) for shape in _LAYERS]
        rounds = [(_pieces(), [layer.seconds() for layer in layers]) for _ in range(_ROUNDS)]
        pieces = fastest([pieces for pieces, _ in rounds])
        narrow = [
            _product(shape, torch.bfloat16, pieces.call) for shape in _PRODUCTS[1:4]
        ]  # slow, and seldom asked for
    usual = [statistics.median(taken) for taken in zip(*(taken for _, taken in rounds), strict=True)]
    whole = replace(pieces, curves={**pieces.curves, NARROW: narrow})
    return set_right(whole, [(layer.table, seconds) for layer, seconds in zip(layers, usual, strict=True)])


def _pieces() -> Rates:
    """Every sort of work by itself."""
    call = _seconds_of_a_call()
    curves = {sort: _curve(sample, call) for sort, sample in _SAMPLES.items()}
    curves[PRODUCT] = [_product(shape, torch.float32, call) for shape in _PRODUCTS]
    curves[HEADS] = [_heads(shape, call) for shape in _HEADS]
    return Rates(curves, call, {name: _optimizer(name) for name in _optimizers()})


def fastest(rounds: Sequence[Rates]) -> Rates:
    """Of every price the lowest: what else the machine does only makes them higher."""
    optimizers = {name: min(each.optimizers[name] for each in rounds) for name in rounds[0].optimizers}
    curves = {sort: _lowest([each.curves[sort] for each in rounds]) for sort in rounds[0].curves}
    return Rates(curves, min(each.call for each in rounds), optimizers)


def _lowest(curves: Sequence[Curve]) -> Curve:
    """Of every size the lowest price."""
    return [min(points, key=lambda point: point[1]) for points in zip(*curves, strict=True)]


def set_right(rates: Rates, layers: Sequence[tuple[Table, float]]) -> Rates:
    """Operations one by one, over and over, meet warmer caches than within a layer, and cores that are awake.

    So a few layers are timed as a whole, forward and backward, and two numbers found that foretell them all: how many
    times slower all work is there, and what a call takes.
    """
    shares = np.array([(_foretold(replace(rates, call=0.0), table), table.calls.sum()) for table, _ in layers])
    shares /= np.array([[seconds] for _, seconds in layers])
    slower, call = np.linalg.lstsq(shares, np.ones(len(layers)))[0]
    if slower <= 0 or call < rates.call:  # the machine's mood has changed between them
        slower, call = float(np.median((1 - rates.call * shares[:, 1]) / shares[:, 0])), rates.call
    return rates.slower(float(slower), float(call))


def _foretold(rates: Rates, table: Table) -> float:
    return float(sum(rates.seconds(sort, *work).sum() for sort, *work in table.at([(1, 1)])))


@dataclass(frozen=True)
class _Layer:
    """A layer as a whole: its work, and a step through it and back."""

    table: Table
    step: Callable[[], None]

    @classmethod
    def of(cls, texts: int, tokens: int, width: int) -> _Layer:
        layer = torch.nn.TransformerEncoderLayer(width, width // _HEAD, 4 * width, activation="gelu", batch_first=True)
        batch = torch.randn(texts, tokens, width)

        def step() -> None:
            layer(batch).sum().backward()
            layer.zero_grad()

        with Noting() as noting:  # which makes it warm, too
            step()
        return cls(noting.table, step)

    def seconds(self) -> float:
        return min(_times(self.step, 2))


def _curve(sample: Callable[[torch.Tensor], tuple[Callable[[], Any], float]], call: float) -> Curve:
    """Seconds for a byte, from small tensors to large ones."""
    points = []
    for size in _SIZES:
        run, touched = sample(torch.full((max(1, size // _WIDTH), min(size, _WIDTH)), _NUMBER))
        points.append((touched, _net(_time(run), call) / touched))
    return points


def _product(shape: tuple[int, int, int], dtype: torch.dtype, call: float) -> tuple[float, float]:
    """With other weights each time: a layer's own are not in the caches when its turn comes."""
    tokens, inner, outer = shape
    left, others = torch.full((tokens, inner), _NUMBER, dtype=dtype), _COLD // (inner * outer * dtype.itemsize)
    weights = torch.full((max(2, others), outer, inner), _NUMBER, dtype=dtype)
    turn, out = itertools.cycle(weights), torch.empty(tokens, outer, dtype=dtype)
    flops = 2.0 * tokens * inner * outer
    return flops, _net(_time(lambda: torch.mm(left, next(turn).T, out=out)), call) / flops


def _heads(shape: tuple[int, int], call: float) -> tuple[float, float]:
    heads, tokens = shape
    left, right = torch.full((heads, tokens, _HEAD), _NUMBER), torch.full((heads, _HEAD, tokens), _NUMBER)
    flops, out = 2.0 * heads * tokens * tokens * _HEAD, torch.empty(heads, tokens, tokens)
    return flops, _net(_time(lambda: torch.bmm(left, right, out=out)), call) / flops


def _net(seconds: float, call: float) -> float:
    return max(seconds - call, seconds / 4)


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
    return _time(step) / len(noting.table.sorts)


def _optimizers() -> list[str]:
    """Those whose packages are installed."""
    from tightfit.strategies import STRATEGIES

    return [name for name in _OPTIMIZERS if STRATEGIES[name].is_there()]


def _optimizer(name: str) -> float:
    """Seconds for a parameter, of a matrix that no cache holds."""
    from tightfit.recipe import parse_strategy

    weight = torch.nn.Parameter(torch.full((4 * _WIDTH, _WIDTH), _NUMBER))
    weight.grad = torch.full_like(weight, _NUMBER)
    optimizer = parse_strategy(name).build([{"params": [weight], "weight_decay": 0.01}], 1e-5)  # type: ignore[attr-defined]
    optimizer.step()
    return _time(optimizer.step) / weight.numel()


def _time(run: Callable[[], Any]) -> float:
    """The fastest of a few runs after one to get warm."""
    run()
    return min(_times(run, 2))


def _times(run: Callable[[], Any], count: int) -> list[float]:
    taken: list[float] = []
    while sum(taken) < _LONG_ENOUGH or (len(taken) < count and sum(taken) < _TOO_LONG):
        start = time.perf_counter()
        run()
        taken.append(time.perf_counter() - start)
    return taken


def _machine() -> dict[str, Any]:
    from importlib.metadata import version

    return {
        "processor": platform.processor() or platform.machine(),
        "model": _processor_name(),
        "threads": torch.get_num_threads(),
        "torch": torch.__version__,
        "tightfit": version("tightfit"),
        "optimizers": _optimizers(),
        "version": _VERSION,
    }


def _processor_name() -> str:
    try:
        lines = Path("/proc/cpuinfo").read_text("utf-8").splitlines()
    except OSError:
        return platform.node()
    return next((line.partition(":")[2].strip() for line in lines if line.startswith("model name")), "")


def _cache_file() -> Path:
    home = Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache")
    return home / "tightfit" / "rates.json"


def _keep(file: Path, content: dict[str, Any]) -> None:
    try:
        file.parent.mkdir(parents=True, exist_ok=True)
        aside = file.with_name(f"{file.name}.{os.getpid()}")
        aside.write_text(json.dumps(content), "utf-8")
        aside.replace(file)
    except OSError:
        pass  # measured again next time
