"""Report: one run, or several side by side, as one HTML page."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

from tightfit.errors import BadInput, OutputError
from tightfit.report import figures
from tightfit.report.account import Account, read_account
from tightfit.report.page import page, templates
from tightfit.report.sections import cost, facts, next_step, opening, quality, why
from tightfit.report.words import Words
from tightfit.units import format_bytes
from tightfit.whole import write_whole

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
        "lead": opening.lead(account, say),
        "tiles": opening.tiles(account, say),
        "unfinished": opening.unfinished(account, say),
        "resumed": opening.resumed(account, say),
        "trained": facts.trained(account, say),
        "lengths": _lengths(account, say),
        "how": facts.how(account, say),
        "strategies": facts.strategies(account, say),
        "again": account.again(f"{account.folder}-again"),
        "why": why.opening(account, say),
        "reasons": why.reasons(account, say),
        "options": why.options(account, say),
        "refused": why.refused(account),
        **_cost(account, say),
        **_quality(account, say),
        "next": next_step.next_steps(account, say),
        "notes": account.notes,
        "versions": account.versions,
    }


def _lengths(account: Account, say: Words) -> figures.Picture | None:
    texts = account.beginning.texts if account.beginning else None
    return figures.lengths_picture(account, say, " ".join(facts.about_texts(texts, say))) if texts else None


def _cost(account: Account, say: Words) -> dict[str, Any]:
    measured, bill = cost.measured_moments(account), account.bill
    budget = account.beginning.budget_bytes if account.beginning else None
    caption = say("by_kind" if measured else "by_kind_only")
    return {
        "moments": cost.moments(account, say),
        "about_peak": cost.about_peak(account, say),
        "by_kind": figures.memory_picture(bill, measured, say, caption, budget) if bill else None,
        "timeline": figures.timeline_picture(account, say),
        "largest": cost.largest(account, say),
        "largest_about": say("largest_about", moment=say.moment(bill["moment"])) if bill else "",
        "times": cost.times(account, say),
    }


def _quality(account: Account, say: Words) -> dict[str, Any]:
    headings, rows = quality.table(account)
    return {
        "score_headings": headings,
        "score_rows": rows,
        "kept": quality.kept(account, say),
        "loss": figures.loss_picture(account, say),
        "scores": figures.scores_picture(account, say, quality.names(account)),
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
