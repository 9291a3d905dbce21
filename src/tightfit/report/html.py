"""Page: one HTML file that needs nothing else: no network, no script; phone and desk, light and dark."""

from __future__ import annotations

import os
import sys
import webbrowser
from collections.abc import Sequence
from functools import cache
from pathlib import Path
from typing import TYPE_CHECKING, Any

from tightfit.errors import BadInput, OutputError
from tightfit.files import write_whole
from tightfit.report import figures, sections, suggestions
from tightfit.report.figures import memory_picture
from tightfit.report.i18n import Words
from tightfit.runs.folder import Account, read_account
from tightfit.runs.header import load_beginning
from tightfit.runs.record import Run
from tightfit.simulation.estimate import Bill
from tightfit.strategies.base import Kind
from tightfit.units import format_bytes, format_count, format_seconds

if TYPE_CHECKING:
    from jinja2 import Environment


def page(title: str, body: str, language: str = "en") -> str:
    """The whole file around a body of HTML, which is taken as it is."""
    from markupsafe import Markup

    return templates().get_template("page.html").render(title=title, body=Markup(body), language=language)


@cache
def templates() -> Environment:
    """The report's templates; whatever a value holds, it is text and never a tag."""
    from jinja2 import Environment, PackageLoader, StrictUndefined

    return Environment(
        loader=PackageLoader("tightfit.report"),
        autoescape=True,
        undefined=StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
    )


# Notebook: bills and runs show themselves as tables with the picture that belongs to them.


_SAY = Words("en")


def bill_as_html(bill: Bill) -> str:
    """Bytes by moment and kind."""
    kinds = [kind for kind in Kind if max(sizes.get(kind, 0) for sizes in bill.moments.values()) > bill.peak / 200]
    rows = [
        [moment, *(format_bytes(size) for size in (bill.overhead + sum(sizes.values()), *(sizes[k] for k in kinds)))]
        for moment, sizes in bill.moments.items()
    ]
    trained = f"{format_count(bill.trainable_parameters)} of {format_count(bill.parameters)} parameters train"
    return _render_fragment(
        title=f"Peak {format_bytes(bill.peak)} in {bill.moment} on {bill.device.title}; {trained}",
        headings=["moment", "all", *(kind.value for kind in kinds)],
        rows=rows,
        picture=memory_picture(bill.to_json(), {}, _SAY, _SAY("by_kind_of")),
    )


def run_as_html(run: Run) -> str:
    """What came out, and memory by moment, foretold beside measured."""
    known = load_beginning(Path(run.folder))
    bill = known.bill if known else None
    foretold = run.predicted.moments or {}
    rows = [
        [moment, format_bytes(foretold[moment]) if moment in foretold else "–", format_bytes(size)]
        for moment, size in run.measured.moments.items()
    ]
    return _render_fragment(
        title=_in_a_line(run),
        headings=["moment", "foretold", "measured"],
        rows=rows,
        picture=memory_picture(bill, run.measured.moments, _SAY, _SAY("by_kind")) if bill else None,
    )


def _in_a_line(run: Run) -> str:
    scores = [
        f"{name} {run.metrics[f'eval_{name}']:.4f}" for name in ("f1", "accuracy") if f"eval_{name}" in run.metrics
    ]
    foretold = f" (foretold {format_bytes(run.predicted.peak_bytes)})" if run.predicted.peak_bytes else ""
    memory, time = f"peak {format_bytes(run.measured.peak_bytes)}{foretold}", format_seconds(run.measured.seconds)
    return f"{run.folder}: {', '.join([*scores, memory, time])}; recipe {' '.join(run.recipe) or 'plain'}"


def _render_fragment(**values: Any) -> str:
    return templates().get_template("notebook.html").render(**values)


# Showing: a page in the browser, where somebody sits before a screen.


def open_page(page: Path) -> bool:
    """Whether it was opened; in a pipe, over ssh or on a server it is not."""
    if not somebody_is_there():
        return False
    try:
        return webbrowser.open(page.resolve().as_uri())
    except (webbrowser.Error, OSError):
        return False


def somebody_is_there() -> bool:
    """A terminal, and a display that is not at the other end of a line."""
    if not sys.stdout.isatty() or "SSH_CONNECTION" in os.environ:
        return False
    if sys.platform in ("win32", "darwin"):
        return True
    return bool(os.environ.get("DISPLAY") or os.environ.get("WAYLAND_DISPLAY"))


# Report: one run, or several side by side, as one HTML page.


FILE = "report.html"


def write_report(folders: Sequence[Path], out: Path | None = None, language: str = "en") -> Path:
    """Write the page and say where: into the run's folder, or for several runs into the current one."""
    say = Words.of(language)
    accounts = [read_account(folder) for folder in folders]
    if not accounts:
        raise BadInput("No run is given: tightfit report runs/mine, or several of them.")
    target = out or (accounts[0].folder / FILE if len(accounts) == 1 else Path(FILE))
    if target.is_dir():
        target = target / FILE
    if target.suffix.lower() not in (".html", ".htm"):
        raise OutputError(f"'{target}' should end in .html: give it such a name.")
    target.parent.mkdir(parents=True, exist_ok=True)
    write_whole(target, report_page(accounts, say))
    return target


def report_page(accounts: Sequence[Account], say: Words) -> str:
    """The whole page."""
    if len(accounts) == 1:
        title = f"{accounts[0].name}: {say('report')}"
        return page(title, _render("report.html", run=run_view(accounts[0], say), say=say), say.language)
    body = _render("runs.html", view=runs_view(accounts, say), runs=[run_view(each, say) for each in accounts], say=say)
    return page(say("runs_side_by_side", count=len(accounts)), body, say.language)


def _render(template: str, **values: Any) -> str:
    return templates().get_template(template).render(**values)


def run_view(account: Account, say: Words) -> dict[str, Any]:
    """Everything that the template shows of a run."""
    return {
        "account": account,
        "lead": sections.lead(account, say),
        "tiles": sections.tiles(account, say),
        "unfinished": sections.unfinished(account, say),
        "resumed": sections.resumed(account, say),
        "trained": sections.trained(account, say),
        "lengths": _lengths(account, say),
        "how": sections.how(account, say),
        "strategies": sections.strategies(account, say),
        "again": account.again(f"{account.folder}-again"),
        "why": sections.opening(account, say),
        "reasons": sections.reasons(account, say),
        "options": sections.options(account, say),
        "refused": sections.refused(account),
        **_cost(account, say),
        **_quality(account, say),
        "next": suggestions.next_steps(account, say),
        "notes": account.notes,
        "versions": account.versions,
    }


def _lengths(account: Account, say: Words) -> figures.Picture | None:
    texts = account.beginning.texts if account.beginning else None
    return figures.lengths_picture(account, say, " ".join(sections.about_texts(texts, say))) if texts else None


def _cost(account: Account, say: Words) -> dict[str, Any]:
    measured, bill = sections.measured_moments(account), account.bill
    budget = account.beginning.budget_bytes if account.beginning else None
    caption = say("by_kind" if measured else "by_kind_only")
    return {
        "moments": sections.moments(account, say),
        "about_peak": sections.about_peak(account, say),
        "by_kind": figures.memory_picture(bill, measured, say, caption, budget) if bill else None,
        "timeline": figures.timeline_picture(account, say),
        "largest": sections.largest(account, say),
        "largest_about": say("largest_about", moment=say.moment(bill["moment"])) if bill else "",
        "times": sections.times(account, say),
    }


def _quality(account: Account, say: Words) -> dict[str, Any]:
    headings, rows = sections.table(account)
    return {
        "score_headings": headings,
        "score_rows": rows,
        "kept": sections.kept(account, say),
        "loss": figures.loss_picture(account, say),
        "scores": figures.scores_picture(account, say, sections.names(account)),
    }


def runs_view(accounts: Sequence[Account], say: Words) -> dict[str, Any]:
    """What is shown of several runs together."""
    pictures = (
        figures.peaks_picture(accounts, say),
        figures.scatter_picture(accounts, say),
        figures.f1_picture(accounts, say),
    )
    return {"rows": [_row(each, say) for each in accounts], "pictures": [each for each in pictures if each]}


def _row(account: Account, say: Words) -> list[str]:
    run, metrics = account.run, account.metrics
    pace = run.measured.seconds_per_step if run else None
    sizes = [format_bytes(size) if size else "–" for size in (account.measured_peak, account.foretold_peak)]
    scores = [f"{metrics[key]:.4f}" if key in metrics else "–" for key in ("eval_f1", "eval_accuracy")]
    return [
        account.name,
        account.model,
        " ".join(account.recipe) or say("plain"),
        account.result,
        *scores,
        *sizes,
        say.seconds(run.measured.seconds) if run else "–",
        say.seconds(pace) if pace else "–",
        f"{account.reached:,}" if run else f"{account.reached:,} / {account.steps or '?'}",
        say("yes") if run else say("no"),
    ]
