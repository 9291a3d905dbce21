"""The meter against memory that is really taken."""

from __future__ import annotations

import sys

import numpy as np
import pytest

from tightfit.meter import Meter, ResidentGauge, SampledGauge

MIB = 1 << 20


class Scripted:
    """A gauge whose peaks are known."""

    def __init__(self, *peaks: int) -> None:
        self.peaks = list(peaks)

    def now(self) -> int:
        return self.peaks[0]

    def take_peak(self) -> int:
        return self.peaks.pop(0)


def test_every_instant_belongs_to_one_moment() -> None:
    meter = Meter(Scripted(0, 5, 7, 9, 6, 2))
    with meter.moment("forward"), meter.moment("save"):  # 5 belongs to load, 7 to forward
        pass  # 9 to save
    assert meter.peak == 9  # 6 to forward, again; then 2 to load
    assert meter.moments == {"load": 5, "forward": 7, "save": 9}


def test_a_moment_ends_also_when_it_fails() -> None:
    meter = Meter(Scripted(0, 1, 2, 3, 4))
    with pytest.raises(RuntimeError), meter.moment("forward"):
        raise RuntimeError
    meter.begin("step")
    assert meter.moments == {"load": 3, "forward": 2}


@pytest.mark.skipif(sys.platform != "linux", reason="the kernel's high-water mark is Linux's")
def test_the_kernels_mark_sees_what_is_gone_again() -> None:
    gauge = ResidentGauge()
    before = gauge.now()
    block = np.ones(64 * MIB, dtype=np.uint8)
    del block
    assert gauge.take_peak() - before == pytest.approx(64 * MIB, abs=4 * MIB)
    assert gauge.take_peak() - gauge.now() < 4 * MIB


def test_sampling_sees_what_stays_a_while() -> None:
    import time

    gauge = SampledGauge(every=0.002)
    before = gauge.now()
    block = np.ones(64 * MIB, dtype=np.uint8)
    time.sleep(0.1)
    del block
    assert gauge.take_peak() - before > 56 * MIB
    gauge.stop()
