"""Rates: how fast a device does each sort of work."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass, replace

import numpy as np

from tightfit.device import GPUS, Device
from tightfit.gpus import APPLE, GPU, NVIDIA, find_family
from tightfit.ops.offload import HOST_WORK, TRANSFER
from tightfit.simulation.op_counts import (
    BMM,
    ELEMENTWISE,
    GRAD_ACCUMULATION,
    MATMUL,
    MATMUL_16BIT,
    MATMUL_BYTES,
    MEMORY_BOUND,
    OPTIMIZER,
    Table,
)
from tightfit.simulation.scaling import BatchShape, Numbers
from tightfit.simulation.simulation import TracedRecipe
from tightfit.simulation.worst_case import Lengths
from tightfit.strategies.parts import Parts

Curve = list[tuple[float, float]]
"""Sizes of one call, and the seconds that each unit of it takes then."""


@dataclass(frozen=True)
class Rates:
    """Seconds for every unit of work: a floating-point operation of products, a byte of all else."""

    curves: dict[str, Curve]
    call: float
    """Seconds that any operation takes besides."""
    optimizers: dict[str, float]
    """Seconds that each optimizer takes for a parameter; what is not listed is told from its operations."""
    overlaps: bool = False
    """Whether the calls run ahead of the work, as on a card: then only the longer of the two counts."""
    note: str | None = None
    """What is odd about them."""

    def slower(self, times: float, call: float) -> Rates:
        """All work so many times slower, and a call that takes so long; optimizers stay."""
        curves = {sort: [(size, times * price) for size, price in curve] for sort, curve in self.curves.items()}
        return replace(self, curves=curves, call=call)

    def seconds(self, sort: str, amounts: Numbers, calls: Numbers) -> Numbers:
        """Of operations of one sort, each."""
        sizes, prices = zip(*self.curves.get(sort, self.curves[ELEMENTWISE]), strict=True)
        size = amounts / np.maximum(calls, 1e-9)
        work = amounts * np.interp(np.log(np.maximum(size, 1.0)), np.log(sizes), prices)
        waiting = calls * self.call
        seconds: Numbers = np.maximum(work, waiting) if self.overlaps else work + waiting
        return seconds


# The clock: seconds of a step, slice by slice, with the padding and the second runs that a recipe really has.


_AS_PLAYED: Mapping[BatchShape, int] = {(1, 1): 1}
_FIRST_SECTIONS = 0


@dataclass(frozen=True)
class StepTime:
    """Reads a played recipe's work."""

    rates: Rates

    def forward_backward_seconds(self, traced: TracedRecipe, parts: Parts, lengths: Lengths) -> float:
        """Forward and backward of a batch, the mean over all."""
        dealt = lengths.dealt_to(parts)
        batches = dealt.some()
        work = self._slices if traced.for_all else self._pieces
        seconds = work(traced, parts, batches, dealt) / len(batches.batches)
        return seconds + self._trunk(traced, parts, lengths) / lengths.per_epoch

    def _trunk(self, traced: TracedRecipe, parts: Parts, lengths: Lengths) -> float:
        """A frozen trunk runs once; it is counted in the first epoch, the longest."""
        if not parts.feature_cache or not traced.for_all:
            return 0.0
        batches = Counter(lengths.trunk_batches(parts))
        return sum(weight * self._read(table, batches) for weight, table in traced.tables(_FIRST_SECTIONS))

    def _slices(self, traced: TracedRecipe, parts: Parts, lengths: Lengths, _: Lengths) -> float:
        slices = lengths.slices(parts)
        sections = 1 if parts.feature_cache else _FIRST_SECTIONS
        computed = sum(weight * self._read(table, Counter(slices)) for weight, table in traced.tables(sections))
        return computed + (len(slices) - len(lengths.batches)) * self._adding_up(traced)

    def _adding_up(self, traced: TracedRecipe) -> float:
        """Gradients of a slice are added to those of the slices before it."""
        return sum(
            weight * self._read(work.in_section(GRAD_ACCUMULATION), _AS_PLAYED) for weight, work in traced.training.work
        )

    def _pieces(self, traced: TracedRecipe, parts: Parts, lengths: Lengths, dealt: Lengths) -> float:
        """What was played is one slice, or the fullest batch in pieces; the others take as long as they have tokens."""
        section = 1 if parts.feature_cache else _FIRST_SECTIONS
        tables = [(weight, work.in_section(section)) for weight, work in traced.training.work]
        seconds = sum(weight * self._read(table, _AS_PLAYED) for weight, table in tables)
        if parts.layer_rows is not None:
            return seconds * lengths.tokens(parts) / dealt.fullest().tokens(parts)
        rows, length = traced.training.shapes.slices[0]
        return seconds * sum(r * n for r, n in lengths.slices(parts)) / (rows * length)

    def optimizer_seconds(self, traced: TracedRecipe, optimizer: str) -> float:
        """One step of the optimizer."""
        done = traced.training
        if optimizer in self.rates.optimizers:
            return done.trainable_parameters * self.rates.optimizers[optimizer]
        steps = len(done.shapes.slices) if done.parts.step_in_backward else 2
        return sum(w * self._read(work.in_section(OPTIMIZER), _AS_PLAYED) for w, work in done.steps) / steps

    def _read(self, table: Table, shapes: Mapping[BatchShape, int]) -> float:
        """For slices of these rows and tokens, so many of each."""
        counts = np.array(list(shapes.values()))
        seconds = [self.rates.seconds(sort, *work) for sort, *work in table.at(list(shapes))]
        return float(sum((of_sort.sum(axis=0) * counts).sum() for of_sort in seconds))


# Rates of cards, from their makers' tables. None of them was measured here.
#
# A card reaches its published figures only in large products and long passes; the shares below are what trainings of
# transformers usually come to.


_REACHED_PRODUCTS, _REACHED_MEMORY = 0.55, 0.75
_PCIE = 12e9  # bytes a second between a card and pinned memory, with 16 lanes of the third generation
_HOST = 10e9  # bytes a second that a host's processor goes through
_UNKNOWN = "there are no published rates of {} here, so times are those of {}, which has about as much memory"
_LAUNCH = 8e-6  # seconds: Python, autograd and the driver, for one kernel


def gpu_rates(device: Device) -> Rates:
    """Of the card by its name; a card that is not listed is taken for one of about its memory's size."""
    listed = find_family(device.title)
    gpu = listed or _nearest(device)
    byte = 1 / (gpu.bandwidth * 1e9 * _REACHED_MEMORY)
    curves: dict[str, Curve] = {sort: [(1.0, byte), (2.0, byte)] for sort in MEMORY_BOUND}
    curves[MATMUL_BYTES] = [(1.0, 0.0)]  # read while the card multiplies
    for sort, speed in ((MATMUL, gpu.fp32_tflops), (BMM, gpu.fp32_tflops), (MATMUL_16BIT, gpu.fp16_tflops)):
        each = 1 / (speed * 1e12 * _REACHED_PRODUCTS)
        curves[sort] = [(1.0, each), (2.0, each)]
    # A copy counts its bytes three times: where they come from, where they go, and what it returns.
    for sort, speed in ((TRANSFER, 3 * _PCIE * _REACHED_MEMORY), (HOST_WORK, _HOST)):
        curves[sort] = [(1.0, 1 / speed), (2.0, 1 / speed)]
    note = None if listed else _UNKNOWN.format(device.title, gpu.family)
    return Rates(curves, _LAUNCH, {}, overlaps=True, note=note)


def _nearest(device: Device) -> GPU:
    """The slowest of the listed ones that come closest in memory."""
    memory = device.memory or 0
    of_kind = NVIDIA if device.kind == "cuda" else APPLE
    return min(of_kind, key=lambda gpu: (abs((GPUS[gpu.title].memory or 0) - memory), *gpu[3:]))
