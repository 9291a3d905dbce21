"""Cached results of fake ops equal those of torch."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch._subclasses.fake_tensor import FakeTensorMode

from tightfit.simulation.fake_op_cache import FakeOpCache

_aten = torch.ops.aten
CASES: dict[str, Callable[[], tuple[Any, tuple[Any, ...], dict[str, Any]]]] = {
    "new tensor": lambda: (_aten.mm.default, (torch.ones(3, 4), torch.ones(4, 5)), {}),
    "view": lambda: (_aten.t.default, (torch.ones(3, 4),), {}),
    "undeclared view": lambda: (_aten._unsafe_view.default, (torch.ones(3, 4), [12]), {}),
    "several results": lambda: (_aten.native_layer_norm.default, (torch.ones(3, 4), [4], None, None, 1e-5), {}),
    "views": lambda: (_aten.split.Tensor, (torch.ones(6, 4), 2), {}),
    "in place": lambda: (_aten.add_.Tensor, (torch.ones(3), torch.ones(3)), {}),
    "out argument": lambda: (_aten.mul.out, (torch.ones(3), torch.ones(3)), {"out": torch.empty(3)}),
    "another dtype": lambda: (_aten._to_copy.default, (torch.ones(3),), {"dtype": torch.bfloat16}),
    "no tensor argument": lambda: (
        _aten.full.default,
        ([2, 3], 1.5),
        {"dtype": torch.float64, "layout": torch.strided},
    ),
}


def layout_of(tensor: torch.Tensor) -> tuple[object, ...]:
    storage = tensor.untyped_storage().nbytes()
    return tensor.shape, tensor.stride(), tensor.storage_offset(), tensor.dtype, tensor.device, storage


def flat(out: Any) -> list[torch.Tensor]:
    return [one for one in out if one is not None] if isinstance(out, (tuple, list)) else [out]


@pytest.mark.parametrize("name", list(CASES))
def test_cached_results_equal_the_first_result(name: str) -> None:
    ops = FakeOpCache()
    with FakeTensorMode():
        seen = []
        for _ in range(3):
            func, args, kwargs = CASES[name]()
            out = ops.run(func, args, kwargs)
            given = {tensor.untyped_storage()._cdata for tensor in (*args, *kwargs.values()) if torch.is_tensor(tensor)}
            shares = [tensor.untyped_storage()._cdata in given for tensor in flat(out)]
            seen.append(([layout_of(tensor) for tensor in flat(out)], shares))
    assert seen[0] == seen[1] == seen[2]
    assert len(ops._known) == 1


def test_scalars_of_another_type_are_cached_separately() -> None:
    ops = FakeOpCache()
    with FakeTensorMode():
        integer, floating = (ops.run(_aten.mul.Tensor, (torch.ones(3, dtype=torch.int64), n), {}) for n in (1, 1.0))
    assert (integer.dtype, floating.dtype) == (torch.int64, torch.float32)


def test_data_dependent_ops_are_not_cached() -> None:
    ops = FakeOpCache()
    with FakeTensorMode(), pytest.raises(Exception, match="nonzero"):
        ops.run(_aten.nonzero.default, (torch.ones(3),), {})
    assert not ops._known


def test_results_without_explicit_dtype_follow_the_default_dtype() -> None:
    """A 16-bit model is built under another default dtype than the model before it."""
    ops, before = FakeOpCache(), torch.get_default_dtype()
    with FakeTensorMode():
        try:
            for dtype in (torch.float16, torch.float32):
                torch.set_default_dtype(dtype)
                assert ops.run(_aten.empty.memory_format, ([2, 3],), {}).dtype == dtype
        finally:
            torch.set_default_dtype(before)


@pytest.mark.parametrize("weight", [torch.bfloat16, torch.float32, None])
def test_statistics_of_a_norm_have_the_dtype_that_they_have_on_a_cpu(weight: torch.dtype | None) -> None:
    def dtypes(run: Callable[..., Any]) -> list[torch.dtype]:
        states, factor = torch.ones(3, 4, dtype=torch.bfloat16), weight and torch.ones(4, dtype=weight)
        return [out.dtype for out in run(_aten.native_layer_norm.default, (states, [4], factor, factor, 1e-5), {})]

    real = dtypes(lambda func, args, kwargs: func(*args, **kwargs))
    with FakeTensorMode():
        assert dtypes(FakeOpCache().run) == real
