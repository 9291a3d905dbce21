"""The doctor command: shows what was found and writes it to doctor.json."""

from __future__ import annotations

import json
from collections.abc import Iterator, Sequence
from pathlib import Path

from rich.cells import cell_len

from tightfit.cli.output import print_json, stdout
from tightfit.cli.startup import command_terminal
from tightfit.doctor import Diagnosis, diagnose
from tightfit.doctor.self_check import CheckedRecipe, SelfCheck
from tightfit.errors import OutputError
from tightfit.i18n import render
from tightfit.messages import Message, msg, name
from tightfit.report.terminal import aligned, say
from tightfit.system.files import atomic_write
from tightfit.units import format_bytes, format_seconds

FILE = Path("doctor.json")


def run_doctor(device: str | None, out: Path | None, *, quick: bool, as_json: bool) -> None:
    """Examine, show and write; exit code 1 if the GPU cannot be used or the check failed."""
    found = diagnose(device, quick=quick, listener=command_terminal(quiet=as_json))
    file = out or (None if quick else FILE)
    if file is not None:
        _write(file, found)
    if as_json:
        print_json(found.to_json())
    else:
        _show(found, file)
    if not found.is_healthy:
        raise SystemExit(1)


def _write(file: Path, found: Diagnosis) -> None:
    if not file.parent.is_dir():
        raise OutputError(msg("There is no folder '{folder}' for {file}.", folder=file.parent, file=file.name))
    atomic_write(file, json.dumps(found.to_json(), indent=1, ensure_ascii=False) + "\n")


def _show(found: Diagnosis, file: Path | None) -> None:
    console = stdout()
    titles = [render(finding.title) for finding in found.findings]
    width = max(map(cell_len, titles)) + 2
    for title, finding in zip(titles, found.findings, strict=True):
        console.print(title + " " * (width - cell_len(title)) + render(finding.text), markup=False)
    for problem in found.problems:
        say(console, problem, style="bold")
    if found.check is not None:
        console.print()
        for line in _check_lines(found.check):
            console.print(line, markup=False)
    if file is not None:
        console.print()
        say(
            console,
            msg(
                "{file} written. Sent to the project, it becomes a measurement: see records/gpus/README.md.", file=file
            ),
        )


def _check_lines(check: SelfCheck) -> Iterator[str]:
    headings = (msg("predicted"), msg("measured"), msg("error"), msg("predicted"), msg("measured"))
    rows = [[*map(render, headings)], *([*map(render, _cells(row))] for row in check.recipes)]
    recipes = [render(msg("recipe")), *(render(name(row.recipe)) for row in check.recipes)]
    yield render(msg("Small model, trained here: peak memory, and time per step"))
    yield from (f"  {line}  {recipe}" for line, recipe in zip(aligned(rows), recipes, strict=True))
    yield from (f"  {render(failure)}" for failure in check.failures)
    if check.context_bytes:
        yield render(msg("CUDA context and kernels: {size}", size=format_bytes(check.context_bytes)))


def _cells(row: CheckedRecipe) -> Sequence[Message | str]:
    sizes = [format_bytes(size) if size else "–" for size in (row.predicted_bytes, row.measured_bytes)]
    error = "–" if row.error is None else f"{row.error:+.1%}"
    return [*sizes, error, *map(_step_time, (row.predicted_seconds, row.measured_seconds))]


def _step_time(seconds: float | None) -> Message | str:
    if seconds is None:
        return "–"
    return format_seconds(seconds) if seconds >= 1 else msg("{number:.0f} ms", number=1000 * seconds)
