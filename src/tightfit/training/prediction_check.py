"""Trainer callback: after the first steps measured peak and CUDA context are compared with the predicted ones."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING, Any

from transformers import TrainerCallback

from tightfit.engine.meter import context_in_use
from tightfit.gpus import remember_gpu
from tightfit.messages import Message, msg
from tightfit.units import format_bytes

if TYPE_CHECKING:
    from tightfit.engine.meter import Meter
    from tightfit.simulation.estimate import Estimate
    from tightfit.training.recovery import Log

_STEPS = 2  # the first allocates the optimizer state, the second runs beside it
_TOLERANCE = 0.05
_PHASES = {  # what has happened by then
    "load": msg("load"),
    "features": msg("frozen encoder"),
    "forward": msg("forward"),
    "backward": msg("backward"),
    "step": msg("optimizer step"),
}


class PredictionCheck(TrainerCallback):
    """Reports a prediction that the first steps show to be wrong, once."""

    def __init__(
        self,
        estimate: Estimate,
        meter: Meter,
        report: Log,
        reaches_peak: Callable[[], bool],
        on_context: Callable[[int], None] = lambda size: None,
    ) -> None:
        """`reaches_peak` tells whether the largest batch has run, and as planned; else the peak may be lower.

        `on_context` is called with the bytes that the CUDA context really takes.
        """
        self._estimate, self._meter, self._report = estimate, meter, report
        self._reaches_peak, self._on_context = reaches_peak, on_context
        self._steps = 0

    def on_step_end(self, *args: Any, **kwargs: Any) -> None:
        self._steps += 1
        if self._steps != _STEPS:
            return
        for line in (self._difference(), self._context() if self._is_cuda else None):
            if line is not None:
                self._report(line)

    @property
    def _is_cuda(self) -> bool:
        return self._estimate.device.kind == "cuda"

    def _context(self) -> Message | None:
        """Measure the CUDA context, now that the kernels are loaded, and keep it; a line if another was assumed."""
        device, assumed = self._estimate.device, self._estimate.overhead
        found = context_in_use(device)
        if found is None:
            return None
        if found.is_exact:
            remember_gpu(device.uuid, context=found.size)
        self._meter.context = found.size
        self._on_context(found.size)
        if abs(found.size - assumed) <= _TOLERANCE * self._estimate.peak:
            return None
        return msg(
            "the CUDA context takes {found} here, and {assumed} were assumed",
            found=format_bytes(found.size),
            assumed=format_bytes(assumed),
        )

    def _difference(self) -> Message | None:
        """The line to report, if predicted and measured peak of the steps differ too much."""
        total = 0 if self._is_cuda else self._estimate.overhead  # on CUDA what torch has reserved is measured
        predicted = {name: total + sum(kinds.values()) for name, kinds in self._estimate.phases.items()}
        measured = self._meter.measured
        happened = [name for name in _PHASES if name in predicted and name in measured]
        expected, found = _peak(predicted, happened), _peak(measured, happened)
        error = measured[found] / predicted[expected] - 1
        if abs(error) <= _TOLERANCE or (error < 0 and not self._reaches_peak()):
            return None
        return msg(
            "predicted {predicted} and measured {measured} ({error:+.0%}, {phase}): the prediction is wrong for this "
            "model; please report it with run.json and start.json of the run folder and the model's config.json",
            predicted=format_bytes(predicted[expected]),
            measured=format_bytes(measured[found]),
            error=error,
            phase=_PHASES[found if error > 0 else expected],
        )


def _peak(sizes: Mapping[str, int], phases: list[str]) -> str:
    """The phase with the highest peak."""
    return max(phases, key=sizes.__getitem__)
