"""Time estimates: the seconds of a training step from its op counts and the rates of a device."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass, replace

import numpy as np

from tightfit.data.batching import BatchShape
from tightfit.device import Device
from tightfit.gpus import TYPICAL_APPLE, TYPICAL_NVIDIA, MeasuredSpeed, Speed, find_reported_gpu, measured_gpu
from tightfit.messages import Message, msg
from tightfit.ops.offload import HOST_WORK, TRANSFER
from tightfit.simulation.job_simulation import TracedRecipe
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
from tightfit.simulation.scaling import Array
from tightfit.simulation.worst_case import Lengths
from tightfit.strategies.parts import Parts

Curve = list[tuple[float, float]]
"""Points of (cost of one call, seconds per unit of cost)."""


@dataclass(frozen=True)
class Rates:
    """Speed of a device: seconds per floating-point operation of matmuls, seconds per byte of any other op kind."""

    curves: dict[str, Curve]
    call_overhead: float
    """Seconds that any op takes in addition."""
    optimizers: dict[str, float]
    """Seconds per parameter of each optimizer; one that is not listed is estimated from its ops."""
    async_launch: bool = False
    """Whether kernels are launched asynchronously, as on a GPU: then the longer of launch and work counts."""
    warning: Message | None = None
    """Why the rates may be inaccurate."""
    source: Message | None = None
    """Where the rates are from, if they were not measured on this machine."""
    ranking_only: bool = False
    """Whether they are those of another device: they rank recipes, and no time is told."""

    def scaled(self, factor: float, call_overhead: float) -> Rates:
        """All work `factor` times slower, with this call overhead; optimizers are unchanged."""
        curves = {kind: [(size, factor * seconds) for size, seconds in curve] for kind, curve in self.curves.items()}
        return replace(self, curves=curves, call_overhead=call_overhead)

    def seconds(self, kind: str, costs: Array, calls: Array) -> Array:
        """Seconds of each of several ops of one kind."""
        sizes, unit_seconds = zip(*self.curves.get(kind, self.curves[ELEMENTWISE]), strict=True)
        size = costs / np.maximum(calls, 1e-9)
        work = costs * np.interp(np.log(np.maximum(size, 1.0)), np.log(sizes), unit_seconds)
        overhead = calls * self.call_overhead
        seconds: Array = np.maximum(work, overhead) if self.async_launch else work + overhead
        return seconds


_AS_TRACED: Mapping[BatchShape, int] = {(1, 1): 1}
_FIRST_SECTIONS = 0


@dataclass(frozen=True)
class StepTime:
    """Estimates the time of a step from a traced recipe's ops, with its real padding and recomputation."""

    rates: Rates

    def forward_backward_seconds(self, traced: TracedRecipe, parts: Parts, lengths: Lengths) -> float:
        """Mean time of the forward and backward pass of a batch."""
        recipe_lengths = lengths.for_recipe(parts)
        batches = recipe_lengths.sample()
        total_seconds = self._micro_batches if traced.is_scalable else self._chunked
        seconds = total_seconds(traced, parts, batches, recipe_lengths) / len(batches.batches)
        return seconds + self._encoder(traced, parts, lengths) / lengths.per_epoch

    def _encoder(self, traced: TracedRecipe, parts: Parts, lengths: Lengths) -> float:
        """A frozen encoder runs once for all epochs; it is counted in the first, which is the longest."""
        batches = Counter(lengths.encoder_batches(parts)) if traced.is_scalable else None
        if not batches:
            return 0.0
        return sum(weight * self._seconds(table, batches) for weight, table in traced.tables(_FIRST_SECTIONS))

    def _micro_batches(self, traced: TracedRecipe, parts: Parts, lengths: Lengths, _: Lengths) -> float:
        shapes = parts.step_batching.micro_batches(lengths.batches)
        tables = traced.tables(_step_section(parts))
        computed = sum(weight * self._seconds(table, Counter(shapes)) for weight, table in tables)
        return computed + (len(shapes) - len(lengths.batches)) * self._grad_accumulation(traced)

    def _grad_accumulation(self, traced: TracedRecipe) -> float:
        """Time to add the gradients of one micro-batch to those of the previous ones."""
        tables = [(weight, counts.in_section(GRAD_ACCUMULATION)) for weight, counts in traced.training.op_counts]
        return sum(weight * self._seconds(table, _AS_TRACED) for weight, table in tables)

    def _chunked(self, traced: TracedRecipe, parts: Parts, lengths: Lengths, recipe_lengths: Lengths) -> float:
        """One micro-batch, or the fullest batch in chunks, was traced; other times are proportional to tokens."""
        batching, section = parts.step_batching, _step_section(parts)
        tables = [(weight, counts.in_section(section)) for weight, counts in traced.training.op_counts]
        seconds = sum(weight * self._seconds(table, _AS_TRACED) for weight, table in tables)
        fullest = batching.fullest(recipe_lengths.batches)
        traced_tokens = (
            int(np.prod(traced.training.shapes.micro_batches[0]))
            if fullest is None
            else batching.computed_tokens(np.array([fullest]))
        )
        return seconds * batching.computed_tokens(lengths.batches) / traced_tokens

    def optimizer_seconds(self, traced: TracedRecipe, optimizer: str) -> float:
        """Time of one optimizer step."""
        training = traced.training
        if optimizer in self.rates.optimizers:
            return training.trainable_parameters * self.rates.optimizers[optimizer]
        steps = len(training.shapes.micro_batches) if training.parts.stepping.in_backward else 2
        tables = [(weight, counts.in_section(OPTIMIZER)) for weight, counts in training.optimizer_op_counts]
        return sum(weight * self._seconds(table, _AS_TRACED) for weight, table in tables) / steps

    def _seconds(self, table: Table, shapes: Mapping[BatchShape, int]) -> float:
        """Total time for the batch shapes, each as often as its count."""
        counts = np.array(list(shapes.values()))
        seconds = [self.rates.seconds(kind, *work) for kind, *work in table.at(list(shapes))]
        return float(sum((kind_seconds.sum(axis=0) * counts).sum() for kind_seconds in seconds))


def _step_section(parts: Parts) -> int:
    """The pair of traced sections with micro-batches; batches of an encoder that runs before training come first."""
    return _FIRST_SECTIONS if parts.source.runs_encoder else _FIRST_SECTIONS + 1


# Rates of GPUs: those that were measured on this very GPU, else from the vendors' published figures. A GPU reaches the
# published ones only in large matmuls and long memory transfers; the efficiencies are typical of transformer training.


_MATMUL_EFFICIENCY, _BANDWIDTH_EFFICIENCY = 0.55, 0.75
_PCIE = 12.0  # 10^9 bytes per second between a GPU and pinned memory, PCIe 3.0 x16
_HOST = 10e9  # bytes per second of elementwise work on the host's CPU
_LAUNCH_OVERHEAD = 8e-6  # seconds: Python, autograd and the driver, for one kernel


def gpu_rates(device: Device) -> Rates:
    """The rates of a GPU, measured or by its name; for one whose speed is not known, typical ones that only rank."""
    if measured := measured_gpu(device.uuid).speed:
        return replace(_rates(measured), source=msg("times are computed from rates that were measured on this GPU"))
    listed = find_reported_gpu(device.label, device.total_bytes)
    if listed and listed.speed:
        source = msg("times are computed from the published speed of {gpu}, not measured", gpu=listed.label)
        return replace(_rates(_reached(listed.speed)), source=source)
    name, speed = TYPICAL_NVIDIA if device.kind == "cuda" else TYPICAL_APPLE
    return replace(_rates(_reached(speed)), ranking_only=True, warning=_unknown_speed(device, name))


def _reached(published: Speed) -> MeasuredSpeed:
    """What a training is expected to reach of a published speed."""
    return MeasuredSpeed(
        fp32_tflops=published.fp32_tflops * _MATMUL_EFFICIENCY,
        fp16_tflops=published.fp16_tflops * _MATMUL_EFFICIENCY,
        bandwidth=published.bandwidth * _BANDWIDTH_EFFICIENCY,
        transfer=_PCIE * _BANDWIDTH_EFFICIENCY,
        launch_seconds=_LAUNCH_OVERHEAD,
    )


def _rates(gpu: MeasuredSpeed) -> Rates:
    byte_seconds = 1 / (gpu.bandwidth * 1e9)
    curves: dict[str, Curve] = {kind: [(1.0, byte_seconds), (2.0, byte_seconds)] for kind in MEMORY_BOUND}
    curves[MATMUL_BYTES] = [(1.0, 0.0)]  # read while the GPU computes
    for kind, speed in ((MATMUL, gpu.fp32_tflops), (BMM, gpu.fp32_tflops), (MATMUL_16BIT, gpu.fp16_tflops)):
        flop_seconds = 1 / (speed * 1e12)
        curves[kind] = [(1.0, flop_seconds), (2.0, flop_seconds)]
    # A copy op counts its bytes three times: source, destination and return value.
    for kind, speed in ((TRANSFER, 3e9 * gpu.transfer), (HOST_WORK, _HOST)):
        curves[kind] = [(1.0, 1 / speed), (2.0, 1 / speed)]
    return Rates(curves, gpu.launch_seconds, {}, async_launch=True)


def _unknown_speed(device: Device, typical: str) -> Message:
    return msg(
        "the speed of {device} is not known: no times are given, and recipes are ranked by the published rates of "
        "{typical}",
        device=device.label,
        typical=typical,
    )
