"""Whole layers: what operations take within one, against what they take by themselves."""

from __future__ import annotations

import itertools
import json
import os
import platform
import statistics
import time
from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass, replace
from functools import cache
from pathlib import Path
from typing import Any

import numpy as np
import torch

from tightfit.simulation.op_counts import MATMUL_16BIT, Table
from tightfit.timing.cpu_load import CpuShare, is_idle, one_core, times
from tightfit.timing.estimate import Rates
from tightfit.timing.microbench import OpRecorder, bench_16bit, bench_ops, fastest, fit_matmul, optimizers

_HEAD = 64
SHAPES = ((2, 64, 384), (4, 128, 384), (8, 64, 768))  # from small to large: texts, tokens, width


def fit_correction(rates: Rates, layers: Sequence[tuple[Table, float]]) -> Rates:
    """Operations one by one, over and over, meet warmer caches than within a layer, and cores that are awake.

    So a few layers are timed as a whole, forward and backward, and two numbers found that foretell them all: how many
    times slower all work is there, and what a call takes.
    """
    shares = np.array([(predicted(replace(rates, call=0.0), table), table.calls.sum()) for table, _ in layers])
    shares /= np.array([[seconds] for _, seconds in layers])
    slower, call = np.linalg.lstsq(shares, np.ones(len(layers)))[0]
    if slower <= 0 or call < rates.call:  # the machine's mood has changed between them
        slower, call = float(np.median((1 - rates.call * shares[:, 1]) / shares[:, 0])), rates.call
    return rates.slower(float(slower), float(call))


def predicted(rates: Rates, table: Table) -> float:
    return float(sum(rates.seconds(sort, *work).sum() for sort, *work in table.at([(1, 1)])))


@dataclass(frozen=True)
class Layer:
    """A layer as a whole: its work, and a step through it and back."""

    table: Table
    step: Callable[[], None]

    @classmethod
    def of(cls, texts: int, tokens: int, width: int) -> Layer:
        layer = torch.nn.TransformerEncoderLayer(width, width // _HEAD, 4 * width, activation="gelu", batch_first=True)
        batch = torch.randn(texts, tokens, width)

        def step() -> None:
            layer(batch).sum().backward()
            layer.zero_grad()

        with OpRecorder() as noting:  # which makes it warm, too
            step()
        return cls(noting.table, step)

    def seconds(self) -> float:
        return min(times(self.step, 2))


# Rates of this machine's processor, measured once in a few seconds and kept for later.


_VERSION = 10
_BUSY = "the machine is busy, so times are foretold for one of its cores; plan again when it is quiet"
_LENT = (
    "others used {:.0%} of this machine's time while it was measured, so times are foretold too long; "
    "a plan made later than ten minutes from then measures it again"
)
_NOT_MUCH = 0.05
_A_WHILE = 600  # seconds: who plans again, or trains what he has planned, does not wait once more
_ROUNDS = 3  # at most, of two seconds each
_ENOUGH = 2  # rounds that nobody disturbed


@cache
def cpu_rates() -> Rates:
    """From the file that an earlier call left, if it was the same machine, torch and tightfit."""
    kept = _kept()
    if kept is not None:
        return kept
    watch = CpuShare()
    rates = measure() if is_idle() else None
    if rates is None:
        return replace(measure_on_one_core(), note=_BUSY)
    if (lent := watch.others) > _NOT_MUCH:
        rates = replace(rates, note=_LENT.format(lent))
    _keep(rates)
    return rates


def measure_on_one_core() -> Rates:
    """On a busy machine: the times are longer than they would be, but not by the hundred times that waiting brings."""
    with one_core():
        rates = measure()
    assert rates is not None  # one core waits for no other
    return rates


def measure() -> Rates | None:
    """Time a sample of every sort of work, and layers as a whole; None if somebody else's work came between.

    In rounds: the machine's mood changes within seconds, and would else make one sort slow and the next one fast.
    """
    from tightfit.system import tune_malloc

    tune_malloc()
    with torch.random.fork_rng([]):
        layers = [Layer.of(*shape) for shape in SHAPES]
        undisturbed = (found for found in (_round(layers) for _ in range(_ROUNDS)) if found is not None)
        rounds = list(itertools.islice(undisturbed, _ENOUGH))
        return _rates(layers, rounds) if len(rounds) == _ENOUGH else None


def _round(layers: Sequence[Layer]) -> tuple[Rates, list[float]] | None:
    found = bench_ops(), [layer.seconds() for layer in layers]
    return found if is_idle() else None


def _rates(layers: Sequence[Layer], rounds: Sequence[tuple[Rates, list[float]]]) -> Rates:
    pieces = fit_matmul(fastest([pieces for pieces, _ in rounds]))
    whole = replace(pieces, curves={**pieces.curves, MATMUL_16BIT: bench_16bit(pieces.call)})
    usual = [statistics.median(taken) for taken in zip(*(taken for _, taken in rounds), strict=True)]
    return fit_correction(whole, [(layer.table, seconds) for layer, seconds in zip(layers, usual, strict=True)])


def _machine() -> dict[str, Any]:
    from importlib.metadata import version

    return {
        "processor": platform.processor() or platform.machine(),
        "model": _processor_name(),
        "threads": torch.get_num_threads(),
        "torch": torch.__version__,
        "tightfit": version("tightfit"),
        "optimizers": optimizers(),
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


def _kept() -> Rates | None:
    """None if there are none yet, they are not ours, or were good for a while only."""
    try:
        kept = json.loads(_cache_file().read_text("utf-8"))
        rates = Rates(**kept["rates"])
        good = rates.note is None or 0 <= time.time() - kept["made"] < _A_WHILE
        return rates if good and kept["machine"] == _machine() else None
    except (OSError, ValueError, KeyError, TypeError):
        return None


def _keep(rates: Rates) -> None:
    file = _cache_file()
    try:
        file.parent.mkdir(parents=True, exist_ok=True)
        aside = file.with_name(f"{file.name}.{os.getpid()}")
        aside.write_text(json.dumps({"machine": _machine(), "made": time.time(), "rates": asdict(rates)}), "utf-8")
        aside.replace(file)
    except OSError:
        pass  # measured again next time
