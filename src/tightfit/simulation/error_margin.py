"""Error margin of estimates, derived from measured runs: what a plan adds to a predicted peak to be safe."""

from __future__ import annotations

import json
from functools import cache
from pathlib import Path

from tightfit.device import Device
from tightfit.messages import Message, msg
from tightfit.units import format_bytes

FILE = Path(__file__).with_name("accuracy.json")
"""Measured accuracy of the estimates, written from committed records by `make bench-memory`."""


PROCESS_NOISE = {"cpu": 24 << 20}
"""Bytes by which the process size differs from run to run, whatever it trains."""


def accuracy_on(device: Device) -> tuple[float, float]:
    """Lowest and highest ratio of measured to predicted peak, without the outermost runs."""
    bands = _bands()
    low, high = bands.get(device.kind, bands["cuda"])
    return low, high


def expected_range(device: Device, low: int, high: int) -> Message:
    """The error band in a sentence that says what was measured, and by whom."""
    lowest, highest = accuracy_on(device)
    smallest, largest = format_bytes(low), format_bytes(high)
    if device.kind == "cpu":
        return msg(
            "Peaks of CPU runs were measured at {lowest:.1%} to {highest:.1%} of the prediction, and the size of the "
            "process varies by up to {noise}: expect {low} to {high}.",
            lowest=lowest,
            highest=highest,
            noise=format_bytes(PROCESS_NOISE["cpu"]),
            low=smallest,
            high=largest,
        )
    if device.maker != "NVIDIA":
        return msg(
            "No run on a GPU by {maker} was compared with its prediction; with the error found for NVIDIA GPUs, "
            "expect {low} to {high}.",
            maker=device.maker,
            low=smallest,
            high=largest,
        )
    return msg(
        "No GPU run was measured by this project; peaks that others published for GPUs are {lowest:.0%} to "
        "{highest:.0%} of their predictions: expect {low} to {high}.",
        lowest=lowest,
        highest=highest,
        low=smallest,
        high=largest,
    )


@cache
def _bands() -> dict[str, list[float]]:
    content: dict[str, list[float]] = json.loads(FILE.read_text("utf-8"))
    return content
