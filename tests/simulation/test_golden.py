"""Estimates and operation counts of many recipes, equal to the byte to those that were kept."""

from __future__ import annotations

import pytest
import torch
from golden.estimates import RECIPES, cases, compute, load
from parts import skip_unless_installed


@pytest.mark.parametrize(("shape", "device"), list(cases()))
def test_estimates_are_the_golden_ones(shape: str, device: str) -> None:
    golden = load()
    if torch.__version__.partition("+")[0] != golden["torch"]:
        pytest.skip(f"the golden estimates are of torch {golden['torch']}")
    skip_unless_installed("adamw-8bit")
    expected, found = golden["estimates"][f"{shape}, {device}"], compute(shape, device)
    assert found.keys() == expected.keys() == set(RECIPES)
    different = [recipe for recipe in RECIPES if found[recipe] != expected[recipe]]
    assert different == []
