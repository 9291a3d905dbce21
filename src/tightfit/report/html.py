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
from tightfit.report.i18n import Strings
from tightfit.runs.folder import RunView, read_account
from tightfit.runs.header import load_header
from tightfit.runs.record import Run
from tightfit.simulation.estimate import Estimate
from tightfit.strategies.base import MemoryKind
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


_SAY = Strings("en")


def estimate_as_html(estimate: Estimate) -> str:
    """Bytes by moment and kind."""
    kinds = [
        kind
        for kind in MemoryKind
        if max(sizes.get(kind, 0) for sizes in estimate.phases.values()) > estimate.peak / 200
    ]
    rows = [
        [phase, *(format_bytes(size) for size in (estimate.overhead + sum(sizes.values()), *(sizes[k] for k in kinds)))]
        for phase, sizes in estimate.phases.items()
    ]
    trained = f"{format_count(estimate.trainable_parameters)} of {format_count(estimate.parameters)} parameters train"
    return _render_fragment(
        title=f"Peak {format_bytes(estimate.peak)} in {estimate.phase} on {estimate.device.title}; {trained}",
        headings=["phase", "all", *(kind.value for kind in kinds)],
        rows=rows,
        picture=memory_picture(estimate.to_json(), {}, _SAY, _SAY("by_kind_of")),
    )


def run_as_html(run: Run) -> str:
    """What came out, and memory by moment, foretold beside measured."""
    known = load_header(Path(run.folder))
    estimate = known.estimate if known else None
    predicted = run.predicted.phases or {}
    rows = [
        [phase, format_bytes(predicted[phase]) if phase in predicted else "–", format_bytes(size)]
        for phase, size in run.measured.phases.items()
    ]
    return _render_fragment(
        title=_in_a_line(run),
        headings=["phase", "predicted", "measured"],
        rows=rows,
        picture=memory_picture(estimate, run.measured.phases, _SAY, _SAY("by_kind")) if estimate else None,
    )


def _in_a_line(run: Run) -> str:
    scores = [
        f"{name} {run.metrics[f'eval_{name}']:.4f}" for name in ("f1", "accuracy") if f"eval_{name}" in run.metrics
    ]
    predicted = f" (foretold {format_bytes(run.predicted.peak_bytes)})" if run.predicted.peak_bytes else ""
    memory, time = f"peak {format_bytes(run.measured.peak_bytes)}{predicted}", format_seconds(run.measured.seconds)
    return f"{run.folder}: {', '.join([*scores, memory, time])}; recipe {' '.join(run.recipe) or 'plain'}"


def _render_fragment(**values: Any) -> str:
    return templates().get_template("notebook.html").render(**values)


# Showing: a page in the browser, where somebody sits before a screen.


def open_in_browser(page: Path) -> bool:
    """Whether it was opened; in a pipe, over ssh or on a server it is not."""
    if not has_display():
        return False
    try:
        return webbrowser.open(page.resolve().as_uri())
    except (webbrowser.Error, OSError):
        return False


def has_display() -> bool:
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
    strings = Strings.of(language)
    accounts = [read_account(folder) for folder in folders]
    if not accounts:
        raise BadInput("No run is given: tightfit report runs/mine, or several of them.")
    target = out or (accounts[0].folder / FILE if len(accounts) == 1 else Path(FILE))
    if target.is_dir():
        target = target / FILE
    if target.suffix.lower() not in (".html", ".htm"):
        raise OutputError(f"'{target}' should end in .html: give it such a name.")
    target.parent.mkdir(parents=True, exist_ok=True)
    write_whole(target, report_page(accounts, strings))
    return target


def report_page(accounts: Sequence[RunView], strings: Strings) -> str:
    """The whole page."""
    if len(accounts) == 1:
        title = f"{accounts[0].name}: {strings('report')}"
        return page(
            title, _render("report.html", run=run_view(accounts[0], strings), strings=strings), strings.language
        )
    body = _render(
        "runs.html",
        view=runs_view(accounts, strings),
        runs=[run_view(each, strings) for each in accounts],
        strings=strings,
    )
    return page(strings("runs_side_by_side", count=len(accounts)), body, strings.language)


def _render(template: str, **values: Any) -> str:
    return templates().get_template(template).render(**values)


def run_view(account: RunView, strings: Strings) -> dict[str, Any]:
    """Everything that the template shows of a run."""
    return {
        "account": account,
        "lead": sections.lead(account, strings),
        "tiles": sections.tiles(account, strings),
        "unfinished": sections.unfinished(account, strings),
        "resumed": sections.resumed(account, strings),
        "trained": sections.trained(account, strings),
        "lengths": _lengths(account, strings),
        "how": sections.how(account, strings),
        "strategies": sections.strategies(account, strings),
        "again": account.again(f"{account.folder}-again"),
        "why": sections.opening(account, strings),
        "reasons": sections.reasons(account, strings),
        "options": sections.options(account, strings),
        "rejected": sections.rejected(account),
        **_cost(account, strings),
        **_quality(account, strings),
        "next": suggestions.next_steps(account, strings),
        "notes": account.notes,
        "versions": account.versions,
    }


def _lengths(account: RunView, strings: Strings) -> figures.Picture | None:
    texts = account.beginning.texts if account.beginning else None
    return figures.lengths_picture(account, strings, " ".join(sections.about_texts(texts, strings))) if texts else None


def _cost(account: RunView, strings: Strings) -> dict[str, Any]:
    measured, estimate = sections.measured_moments(account), account.estimate
    budget = account.beginning.budget_bytes if account.beginning else None
    caption = strings("by_kind" if measured else "by_kind_only")
    return {
        "phases": sections.phases(account, strings),
        "about_peak": sections.about_peak(account, strings),
        "by_kind": figures.memory_picture(estimate, measured, strings, caption, budget) if estimate else None,
        "timeline": figures.timeline_picture(account, strings),
        "largest": sections.largest(account, strings),
        "largest_about": strings("largest_about", phase=strings.phase(estimate["phase"])) if estimate else "",
        "times": sections.times(account, strings),
    }


def _quality(account: RunView, strings: Strings) -> dict[str, Any]:
    headings, rows = sections.table(account)
    return {
        "score_headings": headings,
        "score_rows": rows,
        "kept": sections.kept(account, strings),
        "loss": figures.loss_picture(account, strings),
        "scores": figures.scores_picture(account, strings, sections.names(account)),
    }


def runs_view(accounts: Sequence[RunView], strings: Strings) -> dict[str, Any]:
    """What is shown of several runs together."""
    pictures = (
        figures.peaks_picture(accounts, strings),
        figures.scatter_picture(accounts, strings),
        figures.f1_picture(accounts, strings),
    )
    return {"rows": [_row(each, strings) for each in accounts], "pictures": [each for each in pictures if each]}


def _row(account: RunView, strings: Strings) -> list[str]:
    run, metrics = account.run, account.metrics
    pace = run.measured.seconds_per_step if run else None
    sizes = [format_bytes(size) if size else "–" for size in (account.measured_peak, account.predicted_peak)]
    scores = [f"{metrics[key]:.4f}" if key in metrics else "–" for key in ("eval_f1", "eval_accuracy")]
    return [
        account.name,
        account.model,
        " ".join(account.recipe) or strings("plain"),
        account.result,
        *scores,
        *sizes,
        strings.seconds(run.measured.seconds) if run else "–",
        strings.seconds(pace) if pace else "–",
        f"{account.reached:,}" if run else f"{account.reached:,} / {account.steps or '?'}",
        strings("yes") if run else strings("no"),
    ]
