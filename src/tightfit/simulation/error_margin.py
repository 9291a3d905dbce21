"""Error margin of estimates, derived from measured runs: what a plan adds to a predicted peak to be safe."""

from __future__ import annotations

import json
from functools import cache
from pathlib import Path

from tightfit.device import Device

FILE = Path(__file__).with_name("accuracy.json")
"""Measured accuracy of the estimates, written from committed records by `make bench-memory`."""


PROCESS_NOISE = {"cpu": 24 << 20}
"""Bytes by which the process size differs from run to run, whatever it trains."""


def accuracy_on(device: Device) -> tuple[float, float]:
    """Lowest and highest ratio of measured to predicted peak, without the outermost runs."""
    bands = _bands()
    low, high = bands.get(device.kind, bands["cuda"])
    return low, high


@cache
def _bands() -> dict[str, list[float]]:
    content: dict[str, list[float]] = json.loads(FILE.read_text("utf-8"))
    return content
