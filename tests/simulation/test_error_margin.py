"""What an estimate says about its accuracy: what was measured, and by whom."""

from __future__ import annotations

import pytest
from parts import CPU

from tightfit.device import Device, find_gpu
from tightfit.simulation.error_margin import PROCESS_NOISE, accuracy_on, expected_range


@pytest.mark.parametrize(
    ("device", "said"),
    [
        (CPU, "Peaks of CPU runs were measured at 100.0% to "),
        (find_gpu("T4"), "No GPU run was measured by this project; peaks that others published for GPUs are 95% to "),
        (find_gpu("Apple 16GB"), "No run on a GPU by Apple was compared with its prediction"),
    ],
)
def test_the_error_band_names_its_measurements(device: Device, said: str) -> None:
    sentence = expected_range(device, 1 << 30, 2 << 30)
    assert sentence.startswith(said)
    assert sentence.endswith("expect 1.00 GiB to 2.00 GiB.")


def test_the_range_follows_from_the_figures_in_the_sentence() -> None:
    """On a CPU the noise of the process size is added to the largest ratio."""
    lowest, highest = accuracy_on(CPU)
    noise = PROCESS_NOISE["cpu"]
    sentence = expected_range(CPU, round(lowest * (1 << 30)), round(highest * (1 << 30)) + noise)
    assert f"to {highest:.1%} of the prediction, and the size of the process varies by up to {noise >> 20}.0 MiB" in (
        sentence
    )
