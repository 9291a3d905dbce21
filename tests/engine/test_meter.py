"""The meter against memory that is really taken."""

from __future__ import annotations

import sys

import numpy as np
import pytest
from parts import CPU

from tightfit.engine.meter import Meter, ResidentGauge, SampledGauge, meter_for
from tightfit.simulation.process_size import process_bytes

MIB = 1 << 20


class Scripted:
    """A gauge whose peaks are known."""

    def __init__(self, *peaks: int) -> None:
        self.peaks = list(peaks)

    def now(self) -> int:
        return self.peaks[0]

    def pop_peak(self) -> int:
        return self.peaks.pop(0)


def test_every_instant_belongs_to_one_moment() -> None:
    meter = Meter(Scripted(0, 5, 7, 9, 6, 2))
    with meter.phase("forward"), meter.phase("save"):  # 5 belongs to load, 7 to forward
        pass  # 9 to save
    assert meter.peak == 9  # 6 to forward, again; then 2 to load
    assert meter.phases == {"load": 5, "forward": 7, "save": 9}


def test_a_moment_ends_also_when_it_fails() -> None:
    meter = Meter(Scripted(0, 1, 2, 3, 4))
    with pytest.raises(RuntimeError), meter.phase("forward"):
        raise RuntimeError
    meter.begin("step")
    assert meter.phases == {"load": 3, "forward": 2}


@pytest.mark.skipif(sys.platform != "linux", reason="the kernel's high-water mark is Linux's")
def test_the_kernels_mark_sees_what_is_gone_again() -> None:
    gauge = ResidentGauge()
    before = gauge.now()
    block = np.ones(64 * MIB, dtype=np.uint8)
    del block
    assert gauge.pop_peak() - before == pytest.approx(64 * MIB, abs=4 * MIB)
    assert gauge.pop_peak() - gauge.now() < 4 * MIB


@pytest.mark.skipif(sys.platform != "linux", reason="the kernel's high-water mark is Linux's")
def test_measuring_the_process_does_not_reset_a_running_meter(monkeypatch: pytest.MonkeyPatch) -> None:
    """There is one high-water mark per process, and a training measures its process while its own meter runs."""
    monkeypatch.setattr("tightfit.simulation.process_size.warm_up", lambda loads_weights: None)
    meter = meter_for(CPU)
    before = meter.gauge.now()
    block = np.ones(128 * MIB, dtype=np.uint8)
    del block
    size = process_bytes(CPU)
    assert size == pytest.approx(meter.gauge.now(), abs=4 * MIB)
    assert meter.peak - before > 100 * MIB


def test_what_is_left_out_belongs_to_no_moment() -> None:
    meter = Meter(Scripted(0, 3, 9, 5))
    with meter.left_out():  # 3 was before it, 9 is inside
        pass
    assert meter.peak == 5
    assert meter.phases == {"load": 5}


def test_sampling_sees_what_stays_a_while() -> None:
    import time

    gauge = SampledGauge(every=0.002)
    before = gauge.now()
    block = np.ones(64 * MIB, dtype=np.uint8)
    time.sleep(0.1)
    del block
    assert gauge.pop_peak() - before > 56 * MIB
    gauge.stop()
