"""A plan as text for a terminal and as HTML for a notebook."""

from __future__ import annotations

from collections.abc import Iterator
from html import escape
from io import StringIO

from rich.console import Console

from tightfit.planning.plans import Option, Plan
from tightfit.strategy import Kind
from tightfit.units import format_bytes, format_seconds

_WIDTH = 100
_EFFECT = {
    "same": "equal to rounding",
    "close": "other arithmetic, the same quality",
    "different": "another training",
}


def show_plan(plan: Plan, console: Console) -> None:
    """What the plain way needs, what to do instead and why, what else there is."""
    console.print(verdict(plan), style="bold", markup=False)
    console.print(f"\nThe plain way  {plain_way(plan)}", markup=False)
    for heading, lines in sections(plan):
        console.print(f"\n{heading}", style="bold", markup=False)
        for line in lines:
            console.print(f"  {line}", markup=False)
    if plan.alternatives:
        console.print("\nOther ways that fit", style="bold")
        for line in _table(plan):
            console.print(f"  {line}", markup=False)


def plan_as_text(plan: Plan) -> str:
    """The same without colours."""
    page = StringIO()
    show_plan(plan, Console(file=page, width=_WIDTH, no_color=True, soft_wrap=True))
    return page.getvalue()


def verdict(plan: Plan) -> str:
    """The plan in two sentences."""
    chosen = plan.chosen
    if not plan.fits:
        return f"It does not fit {plan.budget}. The closest is {chosen.title}: {_cost(chosen)}."
    return f"It fits {plan.budget}: {chosen.title}\n{_cost(chosen)}; result: {_effect(chosen)}."


def plain_way(plan: Plan) -> str:
    """What the plain way takes and where it goes."""
    bill = plan.plain.bill
    kinds = sorted(bill.moments[bill.moment].items(), key=lambda item: -item[1])
    shares = [f"{kind.value} {format_bytes(size)}" for kind, size in kinds if size > bill.peak / 50]
    overhead = "the process itself" if bill.device.kind == "cpu" else "the card's own"
    where = ", ".join([*shares, f"{overhead} {format_bytes(bill.overhead)}"])
    fits = "fits" if plan.plain.keeps_to(plan.budget) else "does not fit"
    return f"{_cost(plan.plain)} ({where}): {fits}"


def sections(plan: Plan) -> Iterator[tuple[str, list[str]]]:
    """Headings and their lines."""
    if plan.reasons:
        yield "Why", list(plan.reasons)
    if plan.ways_out:
        yield "Ways out", list(plan.ways_out)
    if plan.advice:
        yield "Shorter texts, if you want them (--max-length)", list(plan.advice)
    if plan.refused:
        yield "Not taken", list(plan.refused)


def plan_as_html(plan: Plan) -> str:
    """For a notebook: plain tags that take the page's own colours."""
    parts = [f"<p><b>{escape(verdict(plan)).replace(chr(10), '<br>')}</b></p>"]
    parts.append(f"<p>The plain way: {escape(plain_way(plan))}</p>")
    for heading, lines in sections(plan):
        items = "".join(f"<li>{escape(line)}</li>" for line in lines)
        parts.append(f"<details{' open' if heading == 'Why' else ''}><summary>{escape(heading)}</summary>")
        parts.append(f"<ul>{items}</ul></details>")
    rows = [_row(option) for option in (plan.chosen, *plan.alternatives, plan.plain)]
    cells = "".join("<tr>" + "".join(f"<td>{escape(cell)}</td>" for cell in row) + "</tr>" for row in rows)
    parts.append(f"<table><tr>{''.join(f'<th>{name}</th>' for name in _HEADINGS)}</tr>{cells}</table>")
    return "".join(parts)


_HEADINGS = ("peak", "an epoch", "result", "recipe")


def _table(plan: Plan) -> list[str]:
    """Narrow columns first: recipes may be longer than a terminal is wide."""
    rows = [_HEADINGS, *(_row(option) for option in plan.alternatives)]
    widths = [max(len(row[column]) for row in rows) for column in range(len(_HEADINGS) - 1)]
    return ["  ".join(cell.rjust(w) for cell, w in zip(row, [*widths, 0], strict=True)) for row in rows]


def _row(option: Option) -> tuple[str, str, str, str]:
    return format_bytes(option.peak), format_seconds(option.seconds_per_epoch), option.result.value, option.title


def _cost(option: Option) -> str:
    held = option.bill.moments[option.bill.moment][Kind.ALLOCATOR]
    aside = f", {format_bytes(held)} of it held by the allocator" if held > option.peak / 50 else ""
    time = f"about {format_seconds(option.seconds_per_epoch)} an epoch"
    host = f", {format_bytes(option.bill.host)} in the machine's own memory" if option.bill.host else ""
    return f"peak {format_bytes(option.peak)} in {option.bill.moment}{aside}{host}, {time}"


def _effect(option: Option) -> str:
    return f"{option.result.value} ({_EFFECT[option.result.value]})"
