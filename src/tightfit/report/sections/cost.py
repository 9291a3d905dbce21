"""Cost: memory by moment, foretold beside measured; the largest tensors; time."""

from __future__ import annotations

from collections.abc import Mapping
from typing import NamedTuple

from tightfit.report.account import Account
from tightfit.report.words import Words
from tightfit.units import format_bytes

_IN_ORDER = ("load", "features", "forward", "backward", "step", "evaluate", "save", "load-best", "between")


class Moment(NamedTuple):
    """A row of the table of moments."""

    name: str
    foretold: str
    measured: str
    error: str
    is_peak: bool


def foretold_moments(account: Account) -> Mapping[str, int]:
    """Bytes, overhead included."""
    if account.run and account.run.predicted.moments:
        return account.run.predicted.moments
    bill = account.bill
    return {name: bill["overhead_bytes"] + sum(kinds.values()) for name, kinds in bill["bill"].items()} if bill else {}


def measured_moments(account: Account) -> Mapping[str, int]:
    """Bytes; nothing where the run did not finish."""
    return account.run.measured.moments if account.run else {}


def moments(account: Account, say: Words) -> list[Moment]:
    """Every moment that was foretold or measured, in the order of a training."""
    foretold, measured = foretold_moments(account), measured_moments(account)
    names = sorted({*foretold, *measured}, key=lambda name: (_place(name), name))
    peaks = measured or foretold
    return [
        Moment(
            say.moment(name),
            format_bytes(foretold[name]) if name in foretold else "–",
            format_bytes(measured[name]) if name in measured else "–",
            f"{foretold[name] / measured[name] - 1:+.1%}" if measured.get(name) and name in foretold else "–",
            peaks.get(name) == max(peaks.values()),
        )
        for name in names
    ]


def _place(name: str) -> int:
    return _IN_ORDER.index(name) if name in _IN_ORDER else len(_IN_ORDER)


def about_peak(account: Account, say: Words) -> str | None:
    """The forecast in a sentence."""
    bill = account.bill
    if bill is None:
        return None
    low, high = (format_bytes(size) for size in bill["error_band"])
    peak, moment = format_bytes(bill["peak_bytes"]), say.moment(bill["moment"])
    return say("peak_is", peak=peak, moment=moment, worst=say.worst(bill["worst"]), low=low, high=high)


class TensorRow(NamedTuple):
    """A row of the table of tensors."""

    owner: str
    kind: str
    shape: str
    each: str
    together: str


def largest(account: Account, say: Words) -> list[TensorRow]:
    """The most memory first."""
    tensors = account.beginning.largest if account.beginning else []
    return [
        TensorRow(
            say("owner_unknown") if each.owner is None else each.owner or say("owner_model"),
            say.kind(each.kind),
            " × ".join(map(str, each.shape)) if each.shape else say("unknown"),
            f"{each.count} × {format_bytes(each.bytes)}" if each.count > 1 else format_bytes(each.bytes),
            format_bytes(each.count * each.bytes),
        )
        for each in tensors
    ]


def times(account: Account, say: Words) -> list[tuple[str, str, str]]:
    """What, measured, foretold."""
    pace = account.beginning.seconds_per_step if account.beginning else None
    run = account.run
    if run is None:
        return [(say("step_time"), "–", say.seconds(pace))] if pace else []
    pace = run.predicted.seconds_per_step or pace
    rows = [(say("whole_time"), say.seconds(run.measured.seconds), "–")]
    if run.measured.seconds_per_step:
        foretold = say.seconds(pace) if pace else "–"
        rows.append((say("step_time"), say.seconds(run.measured.seconds_per_step), foretold))
    if run.measured.epochs and len(run.measured.epochs) > 1:
        rows.append((say("epoch_times"), ", ".join(say.seconds(each) for each in run.measured.epochs), "–"))
    return rows
