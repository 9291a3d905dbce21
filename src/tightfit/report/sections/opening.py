"""Opening: the run in a sentence and four numbers; where it stopped and how to go on."""

from __future__ import annotations

from typing import NamedTuple

from tightfit.report.account import Account
from tightfit.report.words import Words
from tightfit.units import format_bytes, format_count

_LABELS = 6


class Tile(NamedTuple):
    """A number to see at once."""

    title: str
    value: str
    below: str


def lead(account: Account, say: Words) -> str:
    """What it is."""
    data = account.data
    shown = list(data.labels[:_LABELS]) if data else []
    labels = ", ".join(shown) + (", …" if data and len(data.labels) > _LABELS else "")
    return say(
        "lead_random" if account.job.random_weights else "lead",
        model=account.model,
        rows=f"{data.train_rows:,}" if data else "?",
        data=account.job.data.rpartition("/")[2],
        labels=labels or "?",
    )


def tiles(account: Account, say: Words) -> list[Tile]:
    """Quality, memory, time, parameters; of a run that did not finish what there is of them."""
    found = []
    if "eval_f1" in account.metrics:
        held_out = say("held_out", rows=f"{account.data.validation_rows:,}") if account.data else ""
        found.append(Tile("F1", f"{account.metrics['eval_f1']:.4f}", held_out))
    found.append(_peak(account, say))
    if account.run:
        pace = account.run.measured.seconds_per_step
        below = say("time_a_step", time=say.seconds(pace)) if pace else ""
        found.append(Tile(say("time"), say.seconds(account.run.measured.seconds), below))
    else:
        below = say("of_steps", steps=f"{account.steps:,}") if account.steps else ""
        found.append(Tile(say("step_of_steps"), f"{account.reached:,}", below))
    if account.parameters:
        trained, all_of_them = (format_count(number) for number in account.parameters)
        found.append(Tile(say("trained_parameters"), trained, say("of_all", all=all_of_them)))
    return found


def _peak(account: Account, say: Words) -> Tile:
    measured, foretold = account.measured_peak, account.foretold_peak
    if measured and foretold:
        below = say("foretold_as", size=format_bytes(foretold), error=f"{foretold / measured - 1:+.1%}")
        return Tile(say("peak"), format_bytes(measured), below)
    if measured:
        return Tile(say("peak"), format_bytes(measured), say("not_foretold"))
    return Tile(f"{say('peak')}, {say('foretold')}", format_bytes(foretold) if foretold else "–", say("not_measured"))


class Unfinished(NamedTuple):
    """Where a run stopped, what it said, and the command that goes on."""

    lines: list[str]
    heading: str
    command: str


def unfinished(account: Account, say: Words) -> Unfinished | None:
    """None where the run came to its end."""
    if account.run:
        return None
    steps = f"{account.steps:,}" if account.steps else "?"
    there = account.checkpoint is not None
    where = say("stopped_at", step=f"{account.reached:,}", steps=steps) if there else say("stopped_before")
    attempts = account.beginning.attempts if account.beginning else []
    reason = attempts[-1].ended if attempts else None
    said = say("it_said", reason=reason) if reason else say("it_said_nothing")
    return Unfinished([where, said], say("go_on" if there else "begin_again"), account.go_on)


def resumed(account: Account, say: Words) -> str | None:
    """How often it was started; None for once."""
    if account.attempts < 2:
        return None
    starts = [say("started_from", when=_day(when), step=f"{step:,}") for when, step in account.starts]
    return say("resumed", times=account.attempts, starts="; ".join(starts) or "–")


def _day(when: str) -> str:
    return when.replace("T", " ").partition("+")[0]
