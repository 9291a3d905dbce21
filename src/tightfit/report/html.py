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
from tightfit.i18n import ENGLISH, Render, check_language, current_language, render, renderer
from tightfit.messages import Message, msg, name
from tightfit.report import figures, quality, sections
from tightfit.report.names import memory_name, phase_name, scores_beside_constant
from tightfit.report.next_run import suggestions
from tightfit.runs.folder import RunView, read_run_folder
from tightfit.runs.header import load_header
from tightfit.runs.record import Run
from tightfit.simulation.estimate import Estimate
from tightfit.strategies.base import MemoryKind
from tightfit.system.files import atomic_write
from tightfit.tasks.classes import LABEL_HEADINGS
from tightfit.tasks.quality import Metric
from tightfit.units import format_bytes, format_count, format_seconds

if TYPE_CHECKING:
    from jinja2 import Environment

FILE = "report.html"


# The report of one run, or of several side by side.


def write_report(folders: Sequence[Path], out: Path | None = None, language: str = ENGLISH) -> Path:
    """Write the report and return its path: in the run folder, or in the current folder for several runs."""
    check_language(language)
    views = [read_run_folder(folder) for folder in folders]
    if not views:
        raise BadInput(msg("No run folder was given: tightfit report runs/mine, or several of them."))
    target = out or (views[0].folder / FILE if len(views) == 1 else Path(FILE))
    if target.is_dir():
        target = target / FILE
    if target.suffix.lower() not in (".html", ".htm"):
        raise OutputError(msg("'{file}' should end in .html: give --out such a name.", file=target))
    target.parent.mkdir(parents=True, exist_ok=True)
    atomic_write(target, report_page(views, language))
    return target


def report_page(views: Sequence[RunView], language: str = ENGLISH) -> str:
    """The report as one HTML page."""
    runs = [_run_context(view, renderer(language)) for view in views]
    if len(views) == 1:
        title = msg("{run}: report", run=views[0].name)
        return page(title, _render("report.html", language, run=runs[0]), language)
    body = _render("runs.html", language, runs=runs, **_runs_context(views, renderer(language)))
    return page(msg("{count} runs side by side", count=len(views)), body, language)


def page(title: Message, body: str, language: str = ENGLISH) -> str:
    """A complete HTML page; `body` is inserted without escaping."""
    from markupsafe import Markup

    return _render("page.html", language, title=title, body=Markup(body), language=language)


def _render(template: str, language: str, /, **values: Any) -> str:
    return _templates(language).get_template(template).render(**values)


@cache
def _templates(language: str) -> Environment:
    """The report's templates; every value is shown in the language and escaped."""
    from jinja2 import Environment, PackageLoader, StrictUndefined

    templates = Environment(
        loader=PackageLoader("tightfit.report"),
        autoescape=True,
        undefined=StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
        finalize=lambda value: render(value, language) if isinstance(value, Message) else value,
    )
    templates.globals.update(msg=msg, name=name)
    return templates


def _run_context(view: RunView, text: Render) -> dict[str, Any]:
    """The values that run.html shows."""
    return {
        "view": view,
        "memory": memory_name(view.device),
        "lead": sections.lead(view),
        "tiles": sections.tiles(view),
        "unfinished": sections.unfinished(view),
        "resumed": sections.resumed(view),
        "model_and_data": sections.model_and_data(view),
        "lengths": _lengths(view, text),
        "setup": sections.setup(view),
        "rerun": view.rerun_command(f"{view.folder}-again"),
        "plan_summary": sections.plan_summary(view),
        "strategies": sections.strategies(view),
        "reasons": sections.reasons(view),
        "alternatives": sections.alternatives(view),
        "rejected": sections.rejected(view),
        **_memory_and_time(view, text),
        **_quality(view, text),
        "suggestions": suggestions(view),
        "usage": sections.usage(view, text),
        "notes": view.notes,
        "versions": view.versions,
    }


def _lengths(view: RunView, text: Render) -> figures.Figure | None:
    stats = view.header.lengths if view.header else None
    return figures.lengths_figure(view, text, sections.about_lengths(stats)) if stats else None


def _memory_and_time(view: RunView, text: Render) -> dict[str, Any]:
    measured, estimate = sections.measured_phases(view), view.estimate
    budget = view.header.budget_bytes if view.header else None
    caption = _about_kinds(view.device, measured=bool(measured))
    return {
        "phases": sections.phases(view),
        "about_peak": sections.about_peak(view),
        "by_kind": figures.memory_figure(estimate, measured, text, caption, budget) if estimate else None,
        "timeline": figures.timeline_figure(view, text),
        "largest": sections.largest_tensors(view),
        "largest_about": _about_tensors(estimate["phase"]) if estimate else "",
        "times": sections.times(view),
    }


def _about_kinds(device: str | None, *, measured: bool) -> Message:
    memory = memory_name(device)
    if measured:
        return msg(
            "Predicted {memory} of each phase by kind; the thin bar below it is the measured peak.", memory=memory
        )
    return msg("Predicted {memory} of each phase by kind. Nothing was measured: the run did not finish.", memory=memory)


def _about_tensors(phase: str) -> Message:
    return msg(
        "Predicted, in {phase}. The same tensor of all layers is one row; * stands for the layer number.",
        phase=phase_name(phase),
    )


def _quality(view: RunView, text: Render) -> dict[str, Any]:
    headings, rows = sections.score_table(view)
    return {
        "score_headings": headings,
        "score_rows": rows,
        "constant_row": sections.constant_row(view),
        **_predictions(view),
        "kept_epoch": sections.kept_epoch(view),
        "loss": figures.loss_figure(view, text),
        "scores": figures.scores_figure(view, text, sections.score_names(view)),
    }


def _predictions(view: RunView) -> dict[str, Any]:
    """What is known of the predictions for the validation rows."""
    found = view.run.quality if view.run else None
    if found is None:
        return {"quality": None}
    return {
        "quality": found,
        "interval": quality.about_interval(found.interval, view.scoring) if found.interval else None,
        "label_headings": LABEL_HEADINGS,
        "label_rows": quality.label_rows(found),
        "about_labels": quality.about_labels(found),
        "matrix": quality.matrix(found),
        "confusions": quality.confusions(found),
        "about_mistakes": quality.about_mistakes(found),
        "mistake_headings": quality.MISTAKE_HEADINGS,
        "mistakes": quality.mistake_rows(found.mistakes),
    }


def _runs_context(views: Sequence[RunView], text: Render) -> dict[str, Any]:
    """The table and the charts that runs.html shows above the single runs."""
    charts = (
        figures.peaks_figure(views, text),
        figures.scatter_figure(views, text),
        figures.best_metric_figure(views, text),
    )
    # The two best metrics: more columns would not fit a window; each run below has all of them.
    metrics = list(dict.fromkeys((metric.key, metric.title) for view in views for metric in view.scoring.own[:2]))
    return {
        "memory": memory_name(*(view.device for view in views)),
        "folders": [str(view.folder) for view in views],
        "metrics": [title for _, title in metrics],
        "rows": [_run_row(view, metrics) for view in views],
        "figures": [chart for chart in charts if chart],
    }


def _run_row(view: RunView, metrics: Sequence[tuple[str, Message]]) -> list[str]:
    """The cells of a run; the loss of one task says nothing about another, nor F1 of one label about another's."""
    run, own = view.run, {(metric.key, metric.title): metric for metric in view.scoring.own}
    per_step = run.measured.seconds_per_step if run else None
    sizes = [format_bytes(size) if size else "–" for size in (view.measured_peak, view.predicted_peak)]
    scores = [_score_cell(view, own.get(metric)) for metric in metrics]
    return [
        view.name,
        view.model,
        " ".join(view.recipe) or msg("baseline"),
        name(view.result),
        *scores,
        *sizes,
        format_seconds(run.measured.seconds) if run else "–",
        format_seconds(per_step) if per_step else "–",
        f"{view.last_step:,}" if run else f"{view.last_step:,} / {view.steps or '?'}",
        msg("yes") if run else msg("no"),
    ]


def _score_cell(view: RunView, metric: Metric | None) -> str:
    """A score, and in brackets what always giving the same answer gets."""
    value = view.metrics.get(metric.key) if metric else None
    if metric is None or value is None:
        return "–"
    constant = view.metrics.get(metric.constant_key)
    return f"{value:.4f}" if constant is None else f"{value:.4f} ({constant:.4f})"


# Estimates and runs in a notebook: a table and the memory chart.


def estimate_as_html(estimate: Estimate) -> str:
    """Memory by phase and kind."""
    kinds = [
        kind
        for kind in MemoryKind
        if max(sizes.get(kind, 0) for sizes in estimate.phases.values()) > estimate.peak / 200
    ]
    rows = [
        [
            phase_name(phase),
            *(format_bytes(size) for size in (estimate.overhead + sum(sizes.values()), *(sizes[k] for k in kinds))),
        ]
        for phase, sizes in estimate.phases.items()
    ]
    caption = msg("Predicted {memory} of each phase by kind.", memory=memory_name(estimate.device.label))
    return _render(
        "notebook.html",
        current_language(),
        title=_estimate_title(estimate),
        headings=[msg("phase"), msg("total"), *(kind.label for kind in kinds)],
        rows=rows,
        figure=figures.memory_figure(estimate.to_json(), {}, renderer(), caption),
    )


def _estimate_title(estimate: Estimate) -> Message:
    return msg(
        "Peak {peak} in {phase} on {device}; {trained} of {all} parameters trained",
        peak=format_bytes(estimate.peak),
        phase=phase_name(estimate.phase),
        device=estimate.device.label,
        trained=format_count(estimate.trainable_parameters),
        all=format_count(estimate.parameters),
    )


def run_as_html(run: Run) -> str:
    """The scores, and predicted and measured memory by phase."""
    header = load_header(Path(run.folder))
    estimate = header.estimate if header else None
    predicted, measured = run.predicted.phases or {}, run.measured.phases
    rows = [
        [phase_name(phase), format_bytes(predicted[phase]) if phase in predicted else "–", format_bytes(size)]
        for phase, size in measured.items()
    ]
    caption = _about_kinds(run.device, measured=True)
    return _render(
        "notebook.html",
        current_language(),
        title=_run_title(run),
        headings=[msg("phase"), msg("predicted"), msg("measured")],
        rows=rows,
        figure=figures.memory_figure(estimate, measured, renderer(), caption) if estimate else None,
    )


def _run_title(run: Run) -> Message:
    scores = [scores_beside_constant(run.scoring, run.metrics, run.scoring.in_a_line(run.metrics))]
    peak = msg("peak {peak}", peak=format_bytes(run.measured.peak_bytes))
    if run.predicted.peak_bytes:
        predicted = format_bytes(run.predicted.peak_bytes)
        peak = msg("{peak} (predicted {predicted})", peak=peak, predicted=predicted)
    return msg(
        "{folder}: {facts}; recipe {recipe}",
        folder=run.folder,
        facts=[*scores, peak, format_seconds(run.measured.seconds)],
        recipe=" ".join(run.recipe) or msg("baseline"),
    )


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
