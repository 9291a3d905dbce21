"""Names that reports use: of phases, kinds of memory, results and memory itself."""

from __future__ import annotations

from collections.abc import Mapping

from tightfit.engine.meter import OTHER
from tightfit.messages import Message, listed, msg, name
from tightfit.strategies.base import MemoryKind
from tightfit.tasks.quality import Metric, Scores, Scoring

_PHASES = {
    "features": msg("frozen encoder"),
    "step": msg("optimizer step"),
    "load-best": msg("load best weights"),
    OTHER: msg("between phases"),
}
_KINDS = {kind.value: kind.label for kind in MemoryKind} | {
    "process": msg("process overhead"),
    "context": msg("CUDA context"),
}
_RESULTS = {
    "same": msg("same (equal up to rounding)"),
    "close": msg("close (different numbers, same quality)"),
    "different": msg("different (fewer trained parameters or shorter text)"),
}


def phase_name(phase: str) -> Message:
    """A phase; an unknown one keeps its name."""
    return _PHASES.get(phase) or name(phase)


def kind_name(kind: str) -> Message:
    """A kind of memory, `process` or `context`."""
    return _KINDS.get(kind) or name(kind)


def result_name(result: str) -> Message:
    """What `same`, `close` or `different` means for the trained model."""
    return _RESULTS.get(result) or name(result)


def memory_name(*devices: str | None) -> Message:
    """The memory of these devices, given by their labels: Chinese has one word for RAM and one for GPU memory."""
    kinds = {"CPU" in device or "Apple" in device for device in devices if device}
    if len(kinds) != 1:
        return msg("memory", context="of CPUs and GPUs")
    return msg("memory") if kinds.pop() else msg("GPU memory")


def score(metric: Metric, value: float) -> Message:
    """A metric with its value."""
    return msg("{metric} {score:.4f}", metric=metric.title, score=value)


def scores_beside_constant(scoring: Scoring, metrics: Mapping[str, float], scores: Scores) -> Message:
    """Scores in one line, and beside them those of always giving the same answer."""
    shown = listed(score(metric, value) for metric, value in scores)
    constant = scoring.of_constant(metrics, scores)
    if not constant:
        return shown
    always = listed(score(metric, value) for metric, value in constant)
    return msg("{scores} ({constant}: {always})", scores=shown, constant=scoring.constant, always=always)


def in_a_line(scoring: Scoring, metrics: Mapping[str, float]) -> Message:
    """The first metrics and the loss, beside those of always giving the same answer."""
    return scores_beside_constant(scoring, metrics, scoring.in_a_line(metrics))
