"""HTML reports: one file per report, without scripts or network access; and tables for notebooks."""

from __future__ import annotations

import os
import sys
import webbrowser
from collections.abc import Sequence
from functools import cache
from pathlib import Path
from typing import TYPE_CHECKING, Any

from tightfit.errors import BadInput, OutputError
from tightfit.files import atomic_write
from tightfit.report import figures, sections
from tightfit.report.i18n.strings import Strings
from tightfit.report.suggestions import suggestions
from tightfit.runs.folder import RunView, read_run_folder
from tightfit.runs.header import load_header
from tightfit.runs.record import Run
from tightfit.simulation.estimate import Estimate
from tightfit.strategies.base import MemoryKind
from tightfit.tasks import find_task
from tightfit.tasks.base import LOSS
from tightfit.units import format_bytes, format_count, format_seconds

if TYPE_CHECKING:
    from jinja2 import Environment

FILE = "report.html"


# The report of one run, or of several side by side.


def write_report(folders: Sequence[Path], out: Path | None = None, language: str = "en") -> Path:
    """Write the report and return its path: in the run folder, or in the current folder for several runs."""
    strings = Strings.of(language)
    views = [read_run_folder(folder) for folder in folders]
    if not views:
        raise BadInput("No run folder was given: tightfit report runs/mine, or several of them.")
    target = out or (views[0].folder / FILE if len(views) == 1 else Path(FILE))
    if target.is_dir():
        target = target / FILE
    if target.suffix.lower() not in (".html", ".htm"):
        raise OutputError(f"'{target}' should end in .html: give --out such a name.")
    target.parent.mkdir(parents=True, exist_ok=True)
    atomic_write(target, report_page(views, strings))
    return target


def report_page(views: Sequence[RunView], strings: Strings) -> str:
    """The report as one HTML page."""
    runs = [_run_context(view, strings.for_devices([view.device])) for view in views]
    if len(views) == 1:
        title = f"{views[0].name}: {strings('report')}"
        return page(title, _render("report.html", run=runs[0], strings=strings), strings.language)
    strings = strings.for_devices(view.device for view in views)
    body = _render("runs.html", runs=runs, strings=strings, **_runs_context(views, strings))
    return page(strings("runs_side_by_side", count=len(views)), body, strings.language)


def page(title: str, body: str, language: str = "en") -> str:
    """A complete HTML page; `body` is inserted without escaping."""
    from markupsafe import Markup

    return _render("page.html", title=title, body=Markup(body), language=language)


def _render(template: str, **values: Any) -> str:
    return _templates().get_template(template).render(**values)


@cache
def _templates() -> Environment:
    """The report's templates; every value is escaped."""
    from jinja2 import Environment, PackageLoader, StrictUndefined

    return Environment(
        loader=PackageLoader("tightfit.report"),
        autoescape=True,
        undefined=StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
    )


def _run_context(view: RunView, strings: Strings) -> dict[str, Any]:
    """The values that run.html shows."""
    return {
        "view": view,
        "strings": strings,
        "lead": sections.lead(view, strings),
        "tiles": sections.tiles(view, strings),
        "unfinished": sections.unfinished(view, strings),
        "resumed": sections.resumed(view, strings),
        "model_and_data": sections.model_and_data(view, strings),
        "lengths": _lengths(view, strings),
        "setup": sections.setup(view, strings),
        "rerun": view.rerun_command(f"{view.folder}-again"),
        "plan_summary": sections.plan_summary(view, strings),
        "strategies": sections.strategies(view, strings),
        "reasons": sections.reasons(view, strings),
        "alternatives": sections.alternatives(view, strings),
        "rejected": sections.rejected(view),
        **_memory_and_time(view, strings),
        **_quality(view, strings),
        "suggestions": suggestions(view, strings),
        "usage": sections.usage(view, strings),
        "notes": view.notes,
        "versions": view.versions,
    }


def _lengths(view: RunView, strings: Strings) -> figures.Figure | None:
    stats = view.header.lengths if view.header else None
    return figures.lengths_figure(view, strings, sections.about_lengths(stats, strings)) if stats else None


def _memory_and_time(view: RunView, strings: Strings) -> dict[str, Any]:
    measured, estimate = sections.measured_phases(view), view.estimate
    budget = view.header.budget_bytes if view.header else None
    caption = strings("by_kind" if measured else "by_kind_unfinished")
    return {
        "phases": sections.phases(view, strings),
        "about_peak": sections.about_peak(view, strings),
        "by_kind": figures.memory_figure(estimate, measured, strings, caption, budget) if estimate else None,
        "timeline": figures.timeline_figure(view, strings),
        "largest": sections.largest_tensors(view, strings),
        "largest_about": strings("largest_about", phase=strings.phase(estimate["phase"])) if estimate else "",
        "times": sections.times(view, strings),
    }


def _quality(view: RunView, strings: Strings) -> dict[str, Any]:
    headings, rows = sections.score_table(view, strings)
    return {
        "score_headings": headings,
        "score_rows": rows,
        "kept_epoch": sections.kept_epoch(view, strings),
        "loss": figures.loss_figure(view, strings),
        "scores": figures.scores_figure(view, strings, sections.score_names(view, strings)),
    }


def _runs_context(views: Sequence[RunView], strings: Strings) -> dict[str, Any]:
    """The table and the charts that runs.html shows above the single runs."""
    charts = (
        figures.peaks_figure(views, strings),
        figures.scatter_figure(views, strings),
        figures.best_metric_figure(views, strings),
    )
    metrics = _metrics_of(views, strings)
    return {
        "metrics": list(metrics.values()),
        "rows": [_run_row(view, strings, list(metrics)) for view in views],
        "figures": [chart for chart in charts if chart],
    }


def _metrics_of(views: Sequence[RunView], strings: Strings) -> dict[str, str]:
    """The keys and names of the metrics of all tasks; the loss of one task says nothing about another."""
    tasks = [find_task(name) for name in dict.fromkeys(view.job.task for view in views)]
    return {metric.key: strings.metric(task, metric) for task in tasks for metric in task.metrics or (task.best,)}


def _run_row(view: RunView, strings: Strings, keys: Sequence[str]) -> list[str]:
    run, metrics = view.run, view.metrics
    per_step = run.measured.seconds_per_step if run else None
    sizes = [format_bytes(size) if size else "–" for size in (view.measured_peak, view.predicted_peak)]
    scores = [f"{metrics[key]:.4f}" if key in metrics else "–" for key in keys]
    return [
        view.name,
        view.model,
        " ".join(view.recipe) or strings("baseline"),
        strings.comparison(view.result),
        *scores,
        *sizes,
        strings.seconds(run.measured.seconds) if run else "–",
        strings.seconds(per_step) if per_step else "–",
        f"{view.last_step:,}" if run else f"{view.last_step:,} / {view.steps or '?'}",
        strings("yes") if run else strings("no"),
    ]


# Estimates and runs in a notebook: a table and the memory chart.


def estimate_as_html(estimate: Estimate) -> str:
    """Memory by phase and kind."""
    strings = Strings("en").for_devices([estimate.device.label])
    kinds = [
        kind
        for kind in MemoryKind
        if max(sizes.get(kind, 0) for sizes in estimate.phases.values()) > estimate.peak / 200
    ]
    rows = [
        [phase, *(format_bytes(size) for size in (estimate.overhead + sum(sizes.values()), *(sizes[k] for k in kinds)))]
        for phase, sizes in estimate.phases.items()
    ]
    trained = f"{format_count(estimate.trainable_parameters)} of {format_count(estimate.parameters)} parameters trained"
    return _render(
        "notebook.html",
        title=f"Peak {format_bytes(estimate.peak)} in {estimate.phase} on {estimate.device.label}; {trained}",
        headings=["phase", "total", *(kind.value for kind in kinds)],
        rows=rows,
        figure=figures.memory_figure(estimate.to_json(), {}, strings, strings("by_kind_predicted")),
    )


def run_as_html(run: Run) -> str:
    """The scores, and predicted and measured memory by phase."""
    strings, header = Strings("en").for_devices([run.device]), load_header(Path(run.folder))
    estimate = header.estimate if header else None
    predicted, measured = run.predicted.phases or {}, run.measured.phases
    rows = [
        [phase, format_bytes(predicted[phase]) if phase in predicted else "–", format_bytes(size)]
        for phase, size in measured.items()
    ]
    return _render(
        "notebook.html",
        title=_run_title(run),
        headings=["phase", "predicted", "measured"],
        rows=rows,
        figure=figures.memory_figure(estimate, measured, strings, strings("by_kind")) if estimate else None,
    )


def _run_title(run: Run) -> str:
    measured = find_task(run.job.task).measured(run.metrics)
    scores = [f"{metric.title} {value:.4f}" for metric, value in measured if metric is not LOSS]
    predicted = f" (predicted {format_bytes(run.predicted.peak_bytes)})" if run.predicted.peak_bytes else ""
    memory, time = f"peak {format_bytes(run.measured.peak_bytes)}{predicted}", format_seconds(run.measured.seconds)
    return f"{run.folder}: {', '.join([*scores, memory, time])}; recipe {' '.join(run.recipe) or 'baseline'}"


# Opening a page in the browser of a desktop.


def open_in_browser(page: Path) -> bool:
    """Open a page if there is a display, and return whether it was opened."""
    if not has_display():
        return False
    try:
        return webbrowser.open(page.resolve().as_uri())
    except (webbrowser.Error, OSError):
        return False


def has_display() -> bool:
    """Whether a person is likely to see a browser window: not in a pipe, over ssh or on a server."""
    if not sys.stdout.isatty() or "SSH_CONNECTION" in os.environ:
        return False
    if sys.platform in ("win32", "darwin"):
        return True
    return bool(os.environ.get("DISPLAY") or os.environ.get("WAYLAND_DISPLAY"))
