"""Work: what there is to compute, operation by operation, noted while a training is played.

An operation is told by its sort, its floating-point operations or the bytes it goes through, and how often it is
called. Clocks turn that into seconds.
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
from tightfit.ops import fake
from tightfit.simulation.scaling import BatchShape, NotExtrapolable, Numbers, monomials_of, powers_of
from tightfit.simulation.trace import Section

MATMUL, MATMUL_BYTES, MATMUL_16BIT, BMM, ALLOC, ELEMENTWISE, INPLACE, TRANSCENDENTAL, NORM, SOFTMAX, RNG, GATHER, VIEW = (
    "matmul", "matmul bytes", "16-bit matmul", "bmm",
    "allocation", "elementwise", "in-place", "transcendental", "norm", "softmax", "random",
    "gather", "view",
)  # fmt: skip
MEMORY_BOUND = (
    ALLOC,
    ELEMENTWISE,
    INPLACE,
    TRANSCENDENTAL,
    NORM,
    SOFTMAX,
    RNG,
    GATHER,
)  # what takes as long as its bytes
OPTIMIZER, GRAD_ACCUMULATION = -2, -3  # sections of their own: what an optimizer does, and gradients of a second slice
_NAMES = {
    TRANSCENDENTAL: "gelu gelu_backward tanh tanh_backward silu silu_backward sigmoid erf exp log sin cos pow relu",
    NORM: "native_layer_norm native_layer_norm_backward _fused_rms_norm _fused_rms_norm_backward",
    SOFTMAX: "_softmax _safe_softmax _softmax_backward_data _log_softmax _log_softmax_backward_data",
    RNG: "bernoulli bernoulli_ native_dropout rand_like randint_like randint rand",
    GATHER: "embedding embedding_dense_backward index index_put _index_put_impl_ gather scatter index_select",
    VIEW: "_unsafe_view empty empty_like new_empty empty_strided _local_scalar_dense",
}
_SORT_OF = {name: sort for sort, names in _NAMES.items() for name in names.split()}
_aten = torch.ops.aten
_HEADS = (_aten.bmm, _aten.baddbmm)  # attention, head by head


@dataclass
class OpCounts:
    """A column for each operation's numbers."""

    sorts: list[str] = field(default_factory=list)
    amounts: list[float] = field(default_factory=list)
    """Floating-point operations of a product, else bytes."""
    calls: list[float] = field(default_factory=list)
    sections: list[int] = field(default_factory=list)

    def note(self, func: Any, args: tuple[Any, ...], kwargs: dict[str, Any], out: Any, section: int) -> None:
        """One operation more; views take no time worth counting. A product computes, reads and fills new memory."""
        sort = fake.now.sort or op_kind(func)
        if sort is VIEW:
            return
        if sort is not MATMUL:
            in_place = schema_of(func).is_mutable  # what comes out is what went in
            self._add(sort, _bytes((*args, *kwargs.values(), None if in_place else out)), 1, section)
            return
        sort = MATMUL_16BIT if _is_narrow(args) else BMM if func.overloadpacket in _HEADS else MATMUL
        self._add(sort, _flops(func, args, kwargs, out), 1, section)
        if sort is MATMUL:  # one by one: with few rows the weights are as large as with many, and count for most
            for side in (side for side in (*args, out) if isinstance(side, torch.Tensor)):
                self._add(MATMUL_BYTES, _bytes((side,)), 0, section)
        if not schema_of(func).is_mutable:  # else it goes where something was
            self._add(ALLOC, _bytes((out,)), 0, section)

    def _add(self, sort: str, amount: float, calls: int, section: int) -> None:
        self.sorts.append(sort)
        self.amounts.append(amount * fake.now.times)
        self.calls.append(calls * fake.now.times)
        self.sections.append(section)

    def in_section(self, section: int) -> Table:
        """The operations of one section, as they were played."""
        chosen = [index for index, place in enumerate(self.sections) if place == section]
        amounts, calls = (np.array([column[i] for i in chosen]) for column in (self.amounts, self.calls))
        flat = np.zeros((len(chosen), 2), dtype=np.int64)
        return Table([self.sorts[index] for index in chosen], amounts, calls, flat, flat)

    def by_shape(self, sections: Sequence[Section], pair: tuple[int, int]) -> Table:
        """The operations of a slice as functions of its rows and tokens, learnt from two slices."""
        here, there = (self.in_section(section) for section in pair)
        if here.sorts != there.sorts:
            raise NotExtrapolable
        shapes = [(sections[section].rows, sections[section].length) for section in pair]
        amounts, calls = (
            powers_of(one, other, *shapes)[0]
            for one, other in ((here.amounts, there.amounts), (here.calls, there.calls))
        )
        rows_tokens = np.array(shapes[0], dtype=np.float64)
        return Table(
            here.sorts,
            here.amounts / (rows_tokens**amounts).prod(axis=1),
            here.calls / (rows_tokens**calls).prod(axis=1),
            amounts,
            calls,
        )


@dataclass(frozen=True)
class Table:
    """Operations with amounts and calls that may depend on rows and tokens."""

    sorts: list[str]
    amounts: Numbers
    calls: Numbers
    amount_powers: Numbers
    call_powers: Numbers

    def at(self, shapes: Sequence[BatchShape]) -> Iterator[tuple[str, Numbers, Numbers]]:
        """For every sort the amounts and the calls: a row for each operation, a column for each extent."""
        monomials = monomials_of(shapes)
        amounts, calls = (
            column[:, None] * monomials[tuple(powers.T)]
            for column, powers in ((self.amounts, self.amount_powers), (self.calls, self.call_powers))
        )
        names = np.array(self.sorts)
        for sort in set(self.sorts):
            yield sort, amounts[names == sort], calls[names == sort]


@cache
def op_kind(func: Any) -> str:
    """What sort of work an operation is."""
    packet = getattr(func, "overloadpacket", func)
    if packet in flop_registry or "flash_attention_for_cpu" in str(packet):
        return MATMUL
    if getattr(func, "is_view", False):
        return VIEW
    name = str(packet).rpartition(".")[2]
    if name in _SORT_OF:
        return _SORT_OF[name]
    return INPLACE if schema_of(func).is_mutable else ELEMENTWISE


def _flops(func: Any, args: tuple[Any, ...], kwargs: dict[str, Any], out: Any) -> float:
    """As torch's own counter counts them."""
    packet = func.overloadpacket
    if packet in flop_registry:
        return float(flop_registry[packet](*args, **kwargs, out_val=out))
    if packet is flash_attention_for_cpu:
        return float(sdpa_flop_count(*(side.shape for side in args[:3])))
    return float(sdpa_backward_flop_count(*(side.shape for side in args[:4])))


def _is_narrow(args: tuple[Any, ...]) -> bool:
    return any(isinstance(arg, torch.Tensor) and arg.dtype in (torch.bfloat16, torch.float16) for arg in args)


def _bytes(values: Iterable[Any]) -> int:
    total = 0
    for value in values:
        if isinstance(value, torch.Tensor):
            total += value.numel() * value.element_size()
        elif isinstance(value, (tuple, list)):
            total += _bytes(value)
    return total
