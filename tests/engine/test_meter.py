"""The meter against memory that is really allocated."""

from __future__ import annotations

import sys
import threading
import time

import numpy as np
import pytest
from parts import CPU

from tightfit.engine.meter import Meter, ResidentProbe, SampledProbe, meter_for
from tightfit.simulation.process_size import process_bytes

MIB = 1 << 20


class FixedProbe:
    """A probe with given peaks."""

    def __init__(self, *peaks: int) -> None:
        self.peaks = list(peaks)

    def now(self) -> int:
        return self.peaks[0]

    def pop_peak(self) -> int:
        return self.peaks.pop(0)


def test_every_instant_belongs_to_one_phase() -> None:
    meter = Meter(FixedProbe(0, 5, 7, 9, 6, 2))
    with meter.phase("forward"), meter.phase("save"):  # 5 belongs to load, 7 to forward
        pass  # 9 to save
    assert meter.peak == 9  # 6 to forward, again; then 2 to load
    assert meter.phases == {"load": 5, "forward": 7, "save": 9}


def test_a_phase_ends_when_it_raises() -> None:
    meter = Meter(FixedProbe(0, 1, 2, 3, 4))
    with pytest.raises(RuntimeError), meter.phase("forward"):
        raise RuntimeError
    meter.begin("step")
    assert meter.phases == {"load": 3, "forward": 2}


@pytest.mark.skipif(sys.platform != "linux", reason="only Linux has a high-water mark that can be reset")
def test_the_high_water_mark_includes_freed_memory() -> None:
    probe = ResidentProbe()
    before = probe.now()
    block = np.ones(64 * MIB, dtype=np.uint8)
    del block
    assert probe.pop_peak() - before == pytest.approx(64 * MIB, abs=4 * MIB)
    assert probe.pop_peak() - probe.now() < 4 * MIB


@pytest.mark.skipif(sys.platform != "linux", reason="only Linux has a high-water mark that can be reset")
def test_measuring_the_process_does_not_reset_a_running_meter(monkeypatch: pytest.MonkeyPatch) -> None:
    """There is one high-water mark per process, and a training run measures its process size while its meter runs."""
    monkeypatch.setattr("tightfit.simulation.process_size.warm_up", lambda loads_weights: None)
    meter = meter_for(CPU)
    before = meter.probe.now()
    block = np.ones(128 * MIB, dtype=np.uint8)
    del block
    size = process_bytes(CPU)
    assert size == pytest.approx(meter.probe.now(), abs=4 * MIB)
    assert meter.peak - before > 100 * MIB


def test_excluded_memory_belongs_to_no_phase() -> None:
    meter = Meter(FixedProbe(0, 3, 9, 5))
    with meter.excluded():  # 3 was before it, 9 is inside
        pass
    assert meter.peak == 5
    assert meter.phases == {"load": 5}


def test_sampling_measures_memory_that_is_held_for_some_time() -> None:
    probe = SampledProbe(every=0.002)
    before = probe.now()
    block = np.ones(64 * MIB, dtype=np.uint8)
    time.sleep(0.1)
    del block
    assert probe.pop_peak() - before > 56 * MIB
    [thread] = [thread for thread in threading.enumerate() if thread.name == "tightfit-meter"]
    del probe
    thread.join(10)
    assert not thread.is_alive()
