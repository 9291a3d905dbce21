"""Op counts: the ops of a traced training run by kind, with their cost.

Each op has a kind, a cost (floating-point operations of a matmul, bytes read and written of any other op) and a number
of calls. `tightfit.timing` turns them into seconds.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from functools import cache
from typing import Any

import numpy as np
import torch

from tightfit.compat import (
    flash_attention_for_cpu,
    flop_registry,
    schema_of,
    sdpa_backward_flop_count,
    sdpa_flop_count,
)
from tightfit.data.batching import BatchShape
from tightfit.ops import fake
from tightfit.simulation.scaling import Array, NotExtrapolable, monomials_of, powers_of
from tightfit.simulation.trace import Section

MATMUL, MATMUL_BYTES, MATMUL_16BIT, BMM = "matmul", "matmul bytes", "16-bit matmul", "bmm"
ALLOC, ELEMENTWISE, INPLACE, TRANSCENDENTAL = "allocation", "elementwise", "in-place", "transcendental"
NORM, SOFTMAX, RNG, GATHER, FREE = "norm", "softmax", "random", "gather", "free"
MEMORY_BOUND = (ALLOC, ELEMENTWISE, INPLACE, TRANSCENDENTAL, NORM, SOFTMAX, RNG, GATHER)
"""Op kinds whose time is proportional to their bytes."""
OPTIMIZER, GRAD_ACCUMULATION = -2, -3  # sections for the optimizer's ops, and for adding to existing gradients
_NAMES = {
    TRANSCENDENTAL: "gelu gelu_backward tanh tanh_backward silu silu_backward sigmoid erf exp log sin cos pow relu",
    NORM: "native_layer_norm native_layer_norm_backward _fused_rms_norm _fused_rms_norm_backward",
    SOFTMAX: "_softmax _safe_softmax _softmax_backward_data _log_softmax _log_softmax_backward_data",
    RNG: "bernoulli bernoulli_ native_dropout rand_like randint_like randint rand",
    GATHER: "embedding embedding_dense_backward index index_put _index_put_impl_ gather scatter index_select",
    FREE: "_unsafe_view empty empty_like new_empty empty_strided _local_scalar_dense",
}
_KIND_OF = {name: kind for kind, names in _NAMES.items() for name in names.split()}
_aten = torch.ops.aten
_BATCHED = (_aten.bmm, _aten.baddbmm)  # attention scores, per head


@dataclass
class OpCounts:
    """The recorded ops, one list per column."""

    kinds: list[str] = field(default_factory=list)
    costs: list[float] = field(default_factory=list)
    """Floating-point operations of a matmul, bytes of any other op."""
    calls: list[float] = field(default_factory=list)
    sections: list[int] = field(default_factory=list)

    def record(self, func: Any, args: tuple[Any, ...], kwargs: dict[str, Any], out: Any, section: int) -> None:
        """Record an op unless it is free. A matmul has three costs: flops, bytes and allocated output."""
        kind = fake.context().kind or op_kind(func)
        if kind is FREE:
            return
        if kind is not MATMUL:
            in_place = schema_of(func).is_mutable  # the output is one of the inputs
            self._add(kind, _bytes((*args, *kwargs.values(), None if in_place else out)), 1, section)
            return
        kind = MATMUL_16BIT if _is_16bit(args) else BMM if func.overloadpacket in _BATCHED else MATMUL
        self._add(kind, _flops(func, args, kwargs, out), 1, section)
        if kind is MATMUL:  # one entry per operand: the weights do not scale with rows and dominate if rows are few
            for operand in (operand for operand in (*args, out) if isinstance(operand, torch.Tensor)):
                self._add(MATMUL_BYTES, _bytes((operand,)), 0, section)
        if not schema_of(func).is_mutable:  # otherwise the output is written to existing memory
            self._add(ALLOC, _bytes((out,)), 0, section)

    def _add(self, kind: str, cost: float, calls: int, section: int) -> None:
        times = fake.context().times
        self.kinds.append(kind)
        self.costs.append(cost * times)
        self.calls.append(calls * times)
        self.sections.append(section)

    def in_section(self, section: int) -> Table:
        """The ops of one section, with their traced costs."""
        chosen = [index for index, own in enumerate(self.sections) if own == section]
        costs, calls = (np.array([column[i] for i in chosen]) for column in (self.costs, self.calls))
        flat = np.zeros((len(chosen), 2), dtype=np.int64)
        return Table([self.kinds[index] for index in chosen], costs, calls, flat, flat)

    def by_shape(self, sections: Sequence[Section], pair: tuple[int, int]) -> Table:
        """The ops of a micro-batch as functions of its rows and tokens, fitted to a pair of sections."""
        here, there = (self.in_section(section) for section in pair)
        if here.kinds != there.kinds:
            raise NotExtrapolable
        shapes = [(sections[section].rows, sections[section].length) for section in pair]
        costs, calls = (
            powers_of(one, other, *shapes)[0] for one, other in ((here.costs, there.costs), (here.calls, there.calls))
        )
        rows_tokens = np.array(shapes[0], dtype=np.float64)
        return Table(
            here.kinds,
            here.costs / (rows_tokens**costs).prod(axis=1),
            here.calls / (rows_tokens**calls).prod(axis=1),
            costs,
            calls,
        )


@dataclass(frozen=True)
class Table:
    """Ops whose costs and calls may depend on rows and tokens."""

    kinds: list[str]
    costs: Array
    calls: Array
    cost_powers: Array
    call_powers: Array

    def at(self, shapes: Sequence[BatchShape]) -> Iterator[tuple[str, Array, Array]]:
        """For every op kind its costs and calls: one row per op, one column per batch shape."""
        monomials = monomials_of(shapes)
        costs, calls = (
            column[:, None] * monomials[tuple(powers.T)]
            for column, powers in ((self.costs, self.cost_powers), (self.calls, self.call_powers))
        )
        names = np.array(self.kinds)
        for kind in dict.fromkeys(self.kinds):  # in order: sums of a set's items would differ between processes
            yield kind, costs[names == kind], calls[names == kind]


@cache
def op_kind(func: Any) -> str:
    """The kind of an op."""
    packet = getattr(func, "overloadpacket", func)
    if packet in flop_registry or "flash_attention_for_cpu" in str(packet):
        return MATMUL
    if getattr(func, "is_view", False):
        return FREE
    name = str(packet).rpartition(".")[2]
    if name in _KIND_OF:
        return _KIND_OF[name]
    return INPLACE if schema_of(func).is_mutable else ELEMENTWISE


def _flops(func: Any, args: tuple[Any, ...], kwargs: dict[str, Any], out: Any) -> float:
    """Floating-point operations, as torch's FlopCounterMode counts them."""
    packet = func.overloadpacket
    if packet in flop_registry:
        return float(flop_registry[packet](*args, **kwargs, out_val=out))
    if packet is flash_attention_for_cpu:
        return float(sdpa_flop_count(*(operand.shape for operand in args[:3])))
    return float(sdpa_backward_flop_count(*(operand.shape for operand in args[:4])))


def _is_16bit(args: tuple[Any, ...]) -> bool:
    return any(isinstance(arg, torch.Tensor) and arg.dtype in (torch.bfloat16, torch.float16) for arg in args)


def _bytes(values: Iterable[Any]) -> int:
    total = 0
    for value in values:
        if isinstance(value, torch.Tensor):
            total += value.numel() * value.element_size()
        elif isinstance(value, (tuple, list)):
            total += _bytes(value)
    return total
