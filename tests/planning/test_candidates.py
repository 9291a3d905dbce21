"""Candidates: the recipes that the strategies' offers make, against the sets of the time when a list named them all."""

from __future__ import annotations

import hashlib
import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from tightfit.device import Device, find_gpu
from tightfit.planning.candidates import candidates
from tightfit.planning.constraints import Constraints
from tightfit.strategies import base
from tightfit.strategies.base import Case, Stage

GOLDEN: list[dict[str, Any]] = json.loads((Path(__file__).parents[1] / "golden" / "candidates.json").read_text())
CPU = Device("cpu", "CPU", bf16=True, fp16=False, bf16_products=False)


@pytest.mark.parametrize("golden", GOLDEN, ids=lambda golden: golden["name"])
def test_the_offers_make_the_recipes_of_the_golden_sets(
    golden: dict[str, Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Each stage adds the same recipes to those before it; that of quantized weights came later (test_quantize.py)."""
    monkeypatch.setattr(base, "is_installed", lambda name: golden["bitsandbytes"] or name != "bitsandbytes")
    constraints = Constraints.of(**golden["constraints"])
    if not golden["attention"]:
        constraints = replace(constraints, avoided=constraints.avoided | {"tiled-attention"})
    device = find_gpu(golden["device"]) or CPU
    known: set[str] = set()
    for stage, expected in zip(list(Stage)[: Stage.FEWER_BITS], golden["stages"], strict=True):
        where = device, golden["batch_size"], 100, golden["layers"]
        case = Case(*where, stage, avoided=constraints.avoided, pinned=constraints.pinned)
        new = {" ".join(recipe.specs) for recipe in candidates(case, constraints)} - known
        assert (len(new), digest(new)) == (expected["recipes"], expected["digest"]), stage.name
        known |= new


def digest(recipes: set[str]) -> str:
    return hashlib.sha256("\n".join(sorted(recipes)).encode()).hexdigest()[:16]


def test_a_cpu_with_instructions_for_it_also_computes_in_16_bits() -> None:
    """On other CPUs the recipes are those of the golden sets, none of them in 16 bits."""
    with_products = replace(CPU, bf16_products=True)
    recipes = {device: _usual(device) for device in (CPU, with_products)}
    added = recipes[with_products] - recipes[CPU]
    assert recipes[CPU] < recipes[with_products]
    assert all("mixed-precision" in specs for specs in added)


def _usual(device: Device) -> set[str]:
    case = Case(device, 32, 128, 12, Stage.USUAL)
    return {" ".join(recipe.specs) for recipe in candidates(case, Constraints())}
