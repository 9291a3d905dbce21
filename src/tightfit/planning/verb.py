"""What the command line does with plans: make one, write it down, and begin a training from one."""

from __future__ import annotations

import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from tightfit.budget import Budget
from tightfit.clock import clock_for
from tightfit.errors import BadInput, DoesNotFit, OutputError
from tightfit.job import Job, load_yaml
from tightfit.planning import plan
from tightfit.planning.plans import Plan


def run_plan(
    job: Job,
    size: str | None,
    device: str | None,
    use: Sequence[str],
    avoid: Sequence[str],
    allow: str,
    *,
    out: Path | None,
    export: Path | None,
    quiet: bool,
) -> Plan:
    """Make a plan and write what is asked for. What comes closest is a plan too, but is not written."""
    from tightfit.planning.export import plan_for_export, write_script
    from tightfit.report.screen import Screen

    _refuse_names(out, export)
    screen, budget = Screen(quiet=quiet), Budget.of(size, device)
    if budget.note:
        screen.say(budget.note)
    make = plan_for_export if export else plan
    try:
        with screen.status("Planning"):
            made = make(job, budget, use=use, avoid=avoid, allow=allow)
            odd = clock_for(budget.device).rates.note
    except DoesNotFit as error:
        return error.plan
    if odd:
        screen.say(odd)
    if out:
        from tightfit.planning.file import write_plan

        write_plan(out, made)
        screen.say(f"{out} written: tightfit train {out} --out runs/mine")
    if export:
        write_script(export, made)
        screen.say(f"{export} written: python {export}")
    return made


def from_plan(file: Path, job: Job, words: list[str], budget: str | None) -> tuple[list[str], dict[str, Any]]:
    """How to train from a file: its recipe if it is a plan, or none where the data is not what it was."""
    content = load_yaml(file).get("plan")
    if content is None:
        return words, {}
    from tightfit.planning.file import changes, read_note

    note = read_note(file, content)
    changed = changes(note, job)
    if changed:
        sys.stderr.write(f"· since {file} was made {'; '.join(changed)}: planning again\n")
        return [], {"budget": budget or note.budget}
    return words, {"budget": budget or note.budget, "planned": True}


def _refuse_names(out: Path | None, export: Path | None) -> None:
    for path, endings in ((out, (".yaml", ".yml")), (export, (".py",))):
        if path is None:
            continue
        if path.suffix.lower() not in endings:
            raise BadInput(f"'{path}' should end in {endings[0]}: give it such a name.")
        if path.is_dir():
            raise OutputError(f"'{path}' is a folder: give the name of a file.")
