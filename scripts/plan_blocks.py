"""The blocks about plans: printed output, devices, runs under a hard limit, choice of recipe, planning time."""

from __future__ import annotations

import re
import statistics
from typing import Any

from rich.cells import cell_len

import records
from records import record
from source import format_seconds
from tables import FINISHED, HEADINGS, PLANNING_TIMES, SCRIPTS, gib, mib, table

_COMMAND = '$ tightfit plan --model hfl/chinese-macbert-large --data reviews.csv --device "GTX 1650 4GB"'
_WIDTH = 112
_WIDE = "\u2e80-\uffef"  # Chinese characters and punctuation
_PIECES = re.compile(rf"\s*（*(?:[^\s{_WIDE}]+|[{_WIDE}])[，。；：、）]*\s*")
"""A word or a Chinese character, with the punctuation that stays beside it."""


def plan(language: str) -> str:
    """The whole printed plan."""
    return f"```\n{_command(language)}\n{records.printed_plan(language)}\n```\n"


def plan_short(language: str) -> str:
    """Recipe, baseline and reasons, wrapped as in a terminal."""
    sections = records.printed_plan(language).split("\n\n")[:3]
    lines = [wrapped for line in "\n\n".join(sections).splitlines() for wrapped in _wrapped(line)]
    return "```\n" + "\n".join([_command(language), *lines, "", "…"]) + "\n```\n"


def _command(language: str) -> str:
    return _COMMAND if language == "en" else f"{_COMMAND} --lang {language}"


def _wrapped(line: str) -> list[str]:
    """The lines of a line, broken between words and between Chinese characters, which are two columns wide."""
    indent = " " * (len(line) - len(line.lstrip()) + 2)
    lines = [""]
    for piece in _PIECES.findall(line):
        if cell_len(lines[-1] + piece.rstrip()) > _WIDTH:
            lines.append(indent)
        lines[-1] += piece
    return [each.rstrip() for each in lines]


def devices(language: str) -> str:
    """BERT-Large in 4 GB on several devices."""
    rows = [
        (
            device.plan["device"],
            gib(device.plan["budget_bytes"]),
            f"{gib(device.baseline['peak_bytes'])}, {format_seconds(device.baseline['seconds_per_epoch'])}",
            f"`{' '.join(device.plan['recipe'])}`",
            gib(device.plan["peak_bytes"]),
            format_seconds(device.plan["seconds_per_epoch"]),
            f"`{device.plan['result']}`",
        )
        for device in records.devices()
    ]
    return table(HEADINGS["devices"][language], rows)


def hard_limit(language: str) -> str:
    """Runs under a hard limit, by model."""
    runs = records.limited_runs()
    models = dict.fromkeys(run.model for run in runs)
    rows = [_limited(model, [run for run in runs if run.model == model]) for model in models]
    return table(HEADINGS["hard-limit"][language], rows)


def _limited(model: str, runs: list[records.LimitedRun]) -> tuple[str, ...]:
    done = [run for run in runs if run.finished]
    noted = [run.recoveries for run in done if run.recoveries is not None]
    recovered = f"{sum(map(bool, noted))} / {len(noted)}" if noted else "–"
    budgets = ", ".join(run.budget for run in runs)
    used, ratios = _range([run.used for run in done], 2), _range([run.ratio for run in done], 3)
    return model, str(len(runs)), str(len(runs) - len(done)), recovered, budgets, used, ratios


def tight_budget(language: str) -> str:
    """Runs in cgroups of just the budget, planning included, by model."""
    found = record("tight_budget")
    rows = []
    for model, smallest in found["smallest"].items():
        runs = [run for name, run in found["runs"].items() if name.startswith(f"{model} x ")]
        done = [run for run in runs if run["exit"] == 0]
        rows.append(
            (
                model,
                mib(smallest["peak_bytes"]),
                ", ".join(mib(run["budget_bytes"]) for run in runs),
                f"{len(done)} / {len(runs)}",
                _range([run["peak_bytes"] / run["budget_bytes"] for run in done], 2),
                _range([run["peak_bytes"] / run["predicted_bytes"] for run in done], 3),
            )
        )
    return table(HEADINGS["tight-budget"][language], rows)


def exported_scripts(language: str) -> str:
    """Exported scripts in cgroups of just their budget."""
    rows = []
    for name, run in record("exported_scripts")["runs"].items():
        kind = SCRIPTS[language][not run["is_plain"]]
        used = run["peak_bytes"] / run["budget_bytes"]
        finished = FINISHED[language][run["exit"] != 0]
        rows.append(
            (name.split()[0], kind, f"`{' '.join(run['recipe'])}`", mib(run["budget_bytes"]), finished, f"{used:.2f}")
        )
    return table(HEADINGS["exported-scripts"][language], rows)


def _range(values: list[float], digits: int) -> str:
    return f"{min(values):.{digits}f} – {max(values):.{digits}f}" if values else "–"


def plan_choice(language: str) -> str:
    """The chosen recipe beside the alternatives that fit, measured in turns and alone."""
    rows = []
    for name, case in record("plan_choice")["cases"].items():
        measured, alone = case["interleaved"], case.get("alone")
        chosen = measured["runs"][0]["recipe"]
        error = _time_error(alone) if alone else "–"
        if alone and alone["recipe"] != chosen:  # close times: planned again, it chose another recipe
            error += f" (`{' '.join(alone['recipe'])}`)"
        pairs = f"{measured['pairs_in_order']} / {measured['pairs']}" if measured["pairs"] else "–"
        slower = _slower(measured), _slower(case.get("neighbours"))
        rows.append((*name.split(), f"`{' '.join(chosen)}`", *slower, pairs, error))
    return table(HEADINGS["plan-choice"][language], rows)


def _slower(measured: dict[str, Any] | None) -> str:
    """Than the fastest with the same effect on the result; nothing where there was no alternative."""
    if not measured or len(_same_effect(measured["runs"])) < 2:
        return "–"
    return f"{measured['slower_by']:.0%}"


def _same_effect(runs: list[dict[str, Any]]) -> list[dict[str, Any]]:
    return [run for run in runs if run["result"] == runs[0]["result"]]


def _time_error(alone: dict[str, Any]) -> str:
    """The mean error, and that of each calibration of the machine."""
    errors = records.time_errors(alone)
    each = f" ({', '.join(f'{one:+.0%}' for one in errors)})" if len(errors) > 1 else ""
    return f"{statistics.mean(errors):+.0%}{each}"


def planning_time(language: str) -> str:
    """In a fresh process, and for other budgets in one that has already planned."""
    found = record("planning")
    first, fresh, again = PLANNING_TIMES[language]
    seconds = [run["seconds"] for run in found["fresh_process"]]
    rows = [(found["budget"], first, f"{found['first_use']['seconds']:.1f} s")]
    rows += [(found["budget"], fresh, f"{statistics.median(seconds):.1f} s ({min(seconds):.1f} – {max(seconds):.1f})")]
    rows += [(budget, again, f"{run['seconds']:.2f} s") for budget, run in found["other_budgets"].items()]
    return table(HEADINGS["planning-time"][language], rows)
