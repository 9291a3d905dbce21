"""The 16-bit format that a device gets, and devices without one."""

from __future__ import annotations

from dataclasses import replace

import pytest
from parts import parts_of

from tightfit.device import Device
from tightfit.errors import RecipeError
from tightfit.strategies.mixed_precision import MixedPrecision
from tightfit.strategies.optimizer_in_backward import OptimizerInBackward
from tightfit.strategies.parts import Precision


def choose(dtype: str, *, bf16: bool, fp16: bool) -> Precision:
    parts = replace(parts_of(), device=Device("cuda:0", "a GPU", bf16=bf16, fp16=fp16))
    return MixedPrecision(dtype=dtype).apply(parts).precision  # type: ignore[arg-type]


def test_bf16_is_preferred_to_fp16() -> None:
    assert choose("auto", bf16=True, fp16=True) is Precision.BF16
    assert choose("auto", bf16=False, fp16=True) is Precision.FP16
    assert choose("fp16", bf16=True, fp16=True) is Precision.FP16


@pytest.mark.parametrize(
    ("dtype", "bf16", "fp16", "message"),
    [
        ("auto", False, False, "neither bf16 nor fp16. Leave it out."),
        ("bf16", False, True, "has no bf16. Use mixed-precision:dtype=fp16."),
        ("fp16", True, False, "has no fp16. Use mixed-precision:dtype=bf16."),
    ],
)
def test_unsupported_formats_are_rejected_with_a_suggestion(dtype: str, bf16: bool, fp16: bool, message: str) -> None:
    with pytest.raises(RecipeError, match=message):
        choose(dtype, bf16=bf16, fp16=fp16)


@pytest.mark.parametrize(
    ("bf16", "message"),
    [(True, r"Use mixed-precision:dtype=bf16\.$"), (False, r"but a GPU does not support it\.$")],
)
def test_fp16_clashes_with_optimizer_in_backward(bf16: bool, message: str) -> None:
    device = Device("cuda:0", "a GPU", bf16=bf16, fp16=True)
    parts = replace(parts_of(), device=device, precision=Precision.FP16)
    with pytest.raises(RecipeError, match=message):
        OptimizerInBackward().apply(parts)
