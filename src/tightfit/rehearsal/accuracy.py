"""Accuracy: how far measured runs were from their bills, as committed records tell (`make bench-memory`)."""

from __future__ import annotations

import json
from functools import cache
from pathlib import Path

from tightfit.device import Device

FILE = Path(__file__).with_name("accuracy.json")


WANDERS = {"cpu": 24 << 20}
"""Bytes by which a process differs from run to run, whatever it trains."""


def accuracy_on(device: Device) -> tuple[float, float]:
    """Measured over foretold, from the lowest to the highest, the outermost runs left out."""
    bands = _bands()
    low, high = bands.get(device.kind, bands["cuda"])
    return low, high


@cache
def _bands() -> dict[str, list[float]]:
    content: dict[str, list[float]] = json.loads(FILE.read_text("utf-8"))
    return content
