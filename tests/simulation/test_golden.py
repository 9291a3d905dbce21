"""Estimates and op counts of many recipes equal the committed golden values exactly."""

from __future__ import annotations

import pytest
import torch
from golden.estimates import RECIPES, cases, compute, load
from parts import skip_unless_installed


@pytest.mark.parametrize(("shape", "device"), list(cases()))
def test_estimates_equal_the_golden_values(shape: str, device: str) -> None:
    golden = load()
    if torch.__version__.partition("+")[0] != golden["torch"]:
        pytest.skip(f"the golden estimates were made with torch {golden['torch']}")
    skip_unless_installed("adamw-8bit")
    expected, found = golden["estimates"][f"{shape}, {device}"], compute(shape, device)
    assert found.keys() == expected.keys() == set(RECIPES)
    different = [recipe for recipe in RECIPES if found[recipe] != expected[recipe]]
    assert different == []
