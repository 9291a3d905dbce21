"""The table of architectures, from records/architectures.json."""

from __future__ import annotations

from typing import Any

from records import record
from tables import percent, table

_LIMIT, _LIMIT_WITHOUT_PROCESS = 0.03, 0.05
_HEADINGS = ("architecture", "parameters", "predicted", "measured", "error", "without the process")


def block(_: str) -> str:
    """A summary, the architectures with a prediction, and what a user reads for the others."""
    found = record("architectures")
    cases: dict[str, dict[str, Any]] = found["cases"]
    predicted = {name: case for name, case in cases.items() if "predicted" in case}
    others = {name: case for name, case in cases.items() if name not in predicted}
    rows = [_row(name, case) for name, case in predicted.items()]
    parts = [_summary(predicted, others, found["known"]), table(_HEADINGS, rows)]
    if others:
        reasons = [
            (f"`{name}`", _escaped(case["sentence"]), _escaped(case.get("plain", "–"))) for name, case in others.items()
        ]
        parts.append(table(("architecture", "what a user reads", "one step in plain transformers"), reasons))
    return "\n".join(parts)


def _row(name: str, case: dict[str, Any]) -> tuple[str, ...]:
    sizes = [f"{case[key] / 2**20:,.0f} MiB" for key in ("predicted", "measured")]
    errors = [percent(round(error, 4)) for error in _errors(case)]
    return f"`{name}`", f"{case['parameters'] / 1e6:.1f} M", *sizes, *errors


def _errors(case: dict[str, Any]) -> tuple[float, float]:
    """Of the whole process, and without the size of the process itself."""
    own = case["process"]
    return case["predicted"] / case["measured"] - 1, (case["predicted"] - own) / (case["measured"] - own) - 1


def _summary(predicted: dict[str, Any], others: dict[str, Any], known: int) -> str:
    errors = [_errors(case) for case in predicted.values()]
    close = sum(abs(whole) <= _LIMIT for whole, _ in errors)
    close_without = sum(abs(without) <= _LIMIT_WITHOUT_PROCESS for _, without in errors)
    plain = sum(case.get("plain") == "trains" for case in others.values())
    tracebacks = sum(bool(case.get("traceback")) for case in others.values())
    trained = len(predicted) + sum("measured" in case for case in others.values())
    return (
        f"{len(predicted) + len(others)} of {known} architectures were tried so far: {trained} trained, "
        f"{len(predicted)} of them with a prediction. Predicted within {_LIMIT:.0%} of the whole process: {close}; "
        f"within {_LIMIT_WITHOUT_PROCESS:.0%} without the process: {close_without}. {len(others)} have no prediction; "
        f"plain transformers trains {plain} of these. Tracebacks: {tracebacks}.\n"
    )


def _escaped(text: str) -> str:
    return text.replace("|", "\\|")
