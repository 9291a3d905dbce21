"""What is remembered of operations is what torch would say again."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch._subclasses.fake_tensor import FakeTensorMode

from tightfit.simulation.fake_ops import FakeOpCache

_aten = torch.ops.aten
CASES: dict[str, Callable[[], tuple[Any, tuple[Any, ...], dict[str, Any]]]] = {
    "new": lambda: (_aten.mm.default, (torch.ones(3, 4), torch.ones(4, 5)), {}),
    "view": lambda: (_aten.t.default, (torch.ones(3, 4),), {}),
    "view that does not say so": lambda: (_aten._unsafe_view.default, (torch.ones(3, 4), [12]), {}),
    "several": lambda: (_aten.native_layer_norm.default, (torch.ones(3, 4), [4], None, None, 1e-5), {}),
    "views": lambda: (_aten.split.Tensor, (torch.ones(6, 4), 2), {}),
    "in place": lambda: (_aten.add_.Tensor, (torch.ones(3), torch.ones(3)), {}),
    "into another": lambda: (_aten.mul.out, (torch.ones(3), torch.ones(3)), {"out": torch.empty(3)}),
    "another type": lambda: (_aten._to_copy.default, (torch.ones(3),), {"dtype": torch.bfloat16}),
    "from nothing": lambda: (_aten.full.default, ([2, 3], 1.5), {"dtype": torch.float64, "layout": torch.strided}),
}


def about(tensor: torch.Tensor) -> tuple[object, ...]:
    storage = tensor.untyped_storage().nbytes()
    return tensor.shape, tensor.stride(), tensor.storage_offset(), tensor.dtype, tensor.device, storage


def flat(out: Any) -> list[torch.Tensor]:
    return [one for one in out if one is not None] if isinstance(out, (tuple, list)) else [out]


@pytest.mark.parametrize("name", list(CASES))
def test_the_second_time_is_like_the_first(name: str) -> None:
    outcomes = FakeOpCache()
    with FakeTensorMode():
        seen = []
        for _ in range(3):
            func, args, kwargs = CASES[name]()
            out = outcomes.of(func, args, kwargs)
            given = {tensor.untyped_storage()._cdata for tensor in (*args, *kwargs.values()) if torch.is_tensor(tensor)}
            shares = [tensor.untyped_storage()._cdata in given for tensor in flat(out)]
            seen.append(([about(tensor) for tensor in flat(out)], shares))
    assert seen[0] == seen[1] == seen[2]
    assert len(outcomes._known) == 1


def test_numbers_of_another_type_are_another_operation() -> None:
    outcomes = FakeOpCache()
    with FakeTensorMode():
        whole, half = (outcomes.of(_aten.mul.Tensor, (torch.ones(3, dtype=torch.int64), n), {}) for n in (1, 1.0))
    assert (whole.dtype, half.dtype) == (torch.int64, torch.float32)


def test_what_looks_at_data_is_left_to_torch() -> None:
    outcomes = FakeOpCache()
    with FakeTensorMode(), pytest.raises(Exception, match="nonzero"):
        outcomes.of(_aten.nonzero.default, (torch.ones(3),), {})
    assert not outcomes._known


def test_what_has_no_type_of_its_own_follows_the_default() -> None:
    """A model in 16 bits is built with another default than the one before it."""
    outcomes, before = FakeOpCache(), torch.get_default_dtype()
    with FakeTensorMode():
        try:
            for dtype in (torch.float16, torch.float32):
                torch.set_default_dtype(dtype)
                assert outcomes.of(_aten.empty.memory_format, ([2, 3],), {}).dtype == dtype
        finally:
            torch.set_default_dtype(before)
