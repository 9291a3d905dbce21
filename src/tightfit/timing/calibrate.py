"""Calibration: measures the rates of this machine's CPU in a few seconds, and caches them in a file."""

from __future__ import annotations

import itertools
import json
import os
import platform
import statistics
import time
from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np
import torch

from tightfit.activity import MEASURING, activity
from tightfit.messages import Message, as_data, from_data, msg
from tightfit.simulation.op_counts import MATMUL_16BIT, Table
from tightfit.system.files import atomic_write
from tightfit.system.memory import tuned_malloc
from tightfit.timing.cpu_load import CpuShare, is_idle, one_core, time_runs
from tightfit.timing.microbench import OpRecorder, bench_16bit, bench_ops, best_of, fit_matmul, optimizers
from tightfit.timing.predicted_step_time import Rates

_HEAD = 64
SHAPES = ((2, 64, 384), (4, 128, 384), (8, 64, 768))  # from small to large: rows, tokens, width

_VERSION = 12
_BUSY = msg("the machine is busy, so times are estimated for one core; plan again when it is idle")
_MAX_SHARE = 0.05
_CACHE_TTL = 600  # seconds for which contended rates are reused, so that a second plan or a training run need not wait
_MAX_TRIALS = 3  # of two seconds each
_MIN_TRIALS = 2  # that no other process disturbed


def fit_correction(rates: Rates, layers: Sequence[tuple[Table, float]]) -> Rates:
    """Correct the rates of single ops by the time of whole layers.

    Ops that are timed one by one run with warmer caches than within a layer, and on cores at full clock speed. So a few
    layers are timed as a whole, forward and backward, and two numbers are fitted to them: a factor on all work, and the
    overhead of a call.
    """
    without_calls = replace(rates, call_overhead=0.0)
    columns = np.array([(predicted_seconds(without_calls, table), table.calls.sum()) for table, _ in layers])
    columns /= np.array([[seconds] for _, seconds in layers])
    factor, call_overhead = np.linalg.lstsq(columns, np.ones(len(layers)))[0]
    if factor <= 0 or call_overhead < rates.call_overhead:  # the machine's speed changed between the measurements
        call_overhead = rates.call_overhead
        factor = float(np.median((1 - call_overhead * columns[:, 1]) / columns[:, 0]))
    return rates.scaled(float(factor), float(call_overhead))


def predicted_seconds(rates: Rates, table: Table) -> float:
    """Estimated time of the ops in a table."""
    return float(sum(rates.seconds(kind, *work).sum() for kind, *work in table.at([(1, 1)])))


@dataclass(frozen=True)
class Layer:
    """A transformer layer: its op counts, and a forward and backward pass to time."""

    table: Table
    step: Callable[[], None]

    @classmethod
    def of(cls, rows: int, tokens: int, width: int) -> Layer:
        """A layer of this width, on a batch of this shape."""
        layer = torch.nn.TransformerEncoderLayer(width, width // _HEAD, 4 * width, activation="gelu", batch_first=True)
        batch = torch.randn(rows, tokens, width)

        def step() -> None:
            layer(batch).sum().backward()
            layer.zero_grad()

        with OpRecorder() as recorder:  # also the warm-up
            step()
        return cls(recorder.table, step)

    def seconds(self) -> float:
        """Measured time of one forward and backward pass."""
        return min(time_runs(self.step, 2))


def cpu_rates() -> Rates:
    """The rates of this CPU, from the cache file if it was written on the same machine, torch and tightfit."""
    cached = _load_cache()
    if cached is not None:
        return cached
    load, idle = CpuShare(), is_idle()
    if (known := _measured_here.valid(idle)) is not None:
        return known
    _measured_here.rates, _measured_here.created_at = _measure(idle, load), time.time()
    return _measured_here.rates


@dataclass
class _Measured:
    """The rates that this process has measured: a busy machine's, or those that the cache file could not hold."""

    rates: Rates | None = None
    created_at: float = 0.0

    def valid(self, idle: bool) -> Rates | None:
        """The rates, if they are as valid as the cache file's, and not a busy machine's on one that is idle now."""
        if self.rates is None or not _is_valid(self.rates, self.created_at):
            return None
        return None if idle and self.rates.warning == _BUSY else self.rates


_measured_here = _Measured()


def _measure(idle: bool, load: CpuShare) -> Rates:
    with activity(MEASURING):
        rates = calibrate() if idle else None
        if rates is None:
            return replace(calibrate_on_one_core(), warning=_BUSY)
    if (share := load.others) > _MAX_SHARE:
        rates = replace(rates, warning=_contended(share))
    _save_cache(rates)
    return rates


def calibrate_on_one_core() -> Rates:
    """Rates of one core, for a busy machine: several threads would wait for each other, a hundred times slower."""
    with one_core():
        rates = calibrate()
    assert rates is not None  # one core always counts as idle
    return rates


def calibrate() -> Rates | None:
    """Time samples of every op kind, and whole layers; None if other processes disturbed too many trials.

    Each trial times all op kinds: the machine's speed changes within seconds, which would otherwise make one kind slow
    and the next one fast.
    """
    with tuned_malloc(), torch.random.fork_rng([]):
        layers = [Layer.of(*shape) for shape in SHAPES]
        idle = (found for found in (_trial(layers) for _ in range(_MAX_TRIALS)) if found is not None)
        trials = list(itertools.islice(idle, _MIN_TRIALS))
        return _rates(layers, trials) if len(trials) == _MIN_TRIALS else None


def _trial(layers: Sequence[Layer]) -> tuple[Rates, list[float]] | None:
    found = bench_ops(), [layer.seconds() for layer in layers]
    return found if is_idle() else None


def _rates(layers: Sequence[Layer], trials: Sequence[tuple[Rates, list[float]]]) -> Rates:
    op_rates = fit_matmul(best_of([op_rates for op_rates, _ in trials]))
    rates = replace(op_rates, curves={**op_rates.curves, MATMUL_16BIT: bench_16bit(op_rates.call_overhead)})
    medians = [statistics.median(seconds) for seconds in zip(*(seconds for _, seconds in trials), strict=True)]
    return fit_correction(rates, [(layer.table, seconds) for layer, seconds in zip(layers, medians, strict=True)])


def _machine() -> dict[str, Any]:
    from importlib.metadata import version

    return {
        "processor": platform.processor() or platform.machine(),
        "model": processor_name(),
        "threads": torch.get_num_threads(),
        "torch": torch.__version__,
        "tightfit": version("tightfit"),
        "optimizers": optimizers(),
        "version": _VERSION,
    }


def processor_name() -> str:
    """The processor as it calls itself; empty if the system does not tell."""
    try:
        lines = Path("/proc/cpuinfo").read_text("utf-8").splitlines()
    except OSError:
        return platform.node()
    return next((line.partition(":")[2].strip() for line in lines if line.startswith("model name")), "")


def _contended(share: float) -> Message:
    return msg(
        "other processes used {share:.0%} of the CPU during calibration, so estimated times are too long; "
        "a plan made more than ten minutes later calibrates again",
        share=share,
    )


def _cache_file() -> Path:
    home = Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache")
    return home / "tightfit" / "rates.json"


def _load_cache() -> Rates | None:
    """None if there is no valid cache for this machine, or its contended rates have expired."""
    try:
        cached = json.loads(_cache_file().read_text("utf-8"), object_hook=from_data)
        rates = Rates(**cached["rates"])
        return rates if _is_valid(rates, cached["created_at"]) and cached["machine"] == _machine() else None
    except (OSError, ValueError, KeyError, TypeError):
        return None


def _is_valid(rates: Rates, created_at: float) -> bool:
    """Rates with a warning expire."""
    return rates.warning is None or 0 <= time.time() - created_at < _CACHE_TTL


def _save_cache(rates: Rates) -> None:
    file = _cache_file()
    try:
        file.parent.mkdir(parents=True, exist_ok=True)
        content = {"machine": _machine(), "created_at": time.time(), "rates": as_data(asdict(rates))}
        atomic_write(file, json.dumps(content))
    except OSError:
        pass  # calibrated again next time
