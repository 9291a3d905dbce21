"""Trainer callback: after the first steps the measured peak is compared with the predicted one."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING, Any

from transformers import TrainerCallback

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
    "features": msg("features"),
    "forward": msg("forward"),
    "backward": msg("backward"),
    "step": msg("step"),
}


class PredictionCheck(TrainerCallback):
    """Reports a prediction that the first steps show to be wrong, once."""

    def __init__(self, estimate: Estimate, meter: Meter, report: Log, reaches_peak: Callable[[], bool]) -> None:
        """`reaches_peak` tells whether the largest batch has run, and as planned; else the peak may be lower."""
        self._estimate, self._meter, self._report = estimate, meter, report
        self._reaches_peak = reaches_peak
        self._steps = 0

    def on_step_end(self, *args: Any, **kwargs: Any) -> None:
        self._steps += 1
        if self._steps == _STEPS and (line := self._difference()) is not None:
            self._report(line)

    def _difference(self) -> Message | None:
        """The line to report, if predicted and measured peak of the steps differ too much."""
        # On a GPU torch measures its own part, without the CUDA context.
        overhead = 0 if self._estimate.device.kind == "cuda" else self._estimate.overhead
        predicted = {name: overhead + sum(kinds.values()) for name, kinds in self._estimate.phases.items()}
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
