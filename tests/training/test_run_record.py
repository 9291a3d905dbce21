"""What a run record predicts is what it measures."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import pytest

from tightfit.training.run_record import _predicted

MIB = 1 << 20


@pytest.mark.parametrize(("libraries", "peak", "context"), [([], 700, None), ([{"name": "context"}], 300, 400)])
def test_the_context_of_a_gpu_is_not_part_of_what_is_measured(libraries: Any, peak: int, context: int | None) -> None:
    """On a CPU the whole process is measured, on a GPU what torch has reserved."""
    estimate = {"peak_bytes": 700 * MIB, "overhead_bytes": 400 * MIB, "libraries": libraries}
    phases = {"forward": {"weights": 100 * MIB}, "step": {"weights": 100 * MIB, "gradients": 200 * MIB}}
    header: Any = SimpleNamespace(estimate={**estimate, "phases": phases}, seconds_per_step=None)
    found = _predicted(header)
    assert found.peak_bytes == found.phases["step"] == peak * MIB
    assert found.phases["forward"] == (peak - 200) * MIB
    assert found.context_bytes == (context and context * MIB)
