"""What the command line does with plans: make one, write it to a file, and start a training from one."""

from __future__ import annotations

import sys
from collections.abc import Sequence
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from typing import Any

from tightfit.api import plan
from tightfit.device import Budget, find_gpu
from tightfit.errors import BadInput, DoesNotFit, OutputError
from tightfit.job import Job, load_yaml
from tightfit.planning.export import plan_for_export, write_script
from tightfit.planning.plan import Plan
from tightfit.planning.plan_file import PlanHeader, changes, read_note, write_plan
from tightfit.report.progress import Terminal


@dataclass(frozen=True)
class Request:
    """What a command line says of memory; None where it says nothing."""

    budget: str | None = None
    device: str | None = None
    use: Sequence[str] | None = None
    avoid: Sequence[str] | None = None
    allow: str | None = None

    def over(self, file: Path | None, specs: Sequence[str], *, cards: bool = False) -> Request:
        """With what the file says where this does not: a plan what it was made with, another file its `use`."""
        beside = _made_with(note, cards=cards) if file and (note := read_plan_header(file)) else Request(use=specs)
        return replace(beside, **{name: value for name, value in vars(self).items() if value is not None})

    @property
    def constraints(self) -> dict[str, Any]:
        """As `plan` and `train` take them."""
        return {"use": self.use or (), "avoid": self.avoid or (), "allow": self.allow or "close"}

    @property
    def has_constraints(self) -> bool:
        """Whether another recipe than a planned one may be wanted."""
        return (self.use, self.avoid, self.allow) != (None, None, None)


def run_plan(job: Job, request: Request, *, out: Path | None, export: Path | None, quiet: bool) -> Plan:
    """Make a plan and write what is asked for. What comes closest is a plan too, but is not written."""
    _refuse_names(out, export)
    terminal, budget = Terminal(quiet=quiet), Budget.of(request.budget, request.device)
    if budget.note:
        terminal.log(budget.note)
    make = partial(plan_for_export, plan) if export else plan
    try:
        with terminal.status("Planning"):
            made = make(job, budget, **request.constraints)
    except DoesNotFit as error:
        return error.plan
    for note in made.notes:
        if note != budget.note:  # which was said before
            terminal.log(note)
    if out:
        write_plan(out, made)
        terminal.log(f"{out} written: tightfit train {out} --out runs/mine")
    if export:
        write_script(export, made)
        terminal.log(f"{export} written: python {export}")
    return made


def planned_recipe(file: Path | None, job: Job, specs: list[str]) -> list[str] | None:
    """The recipe of a plan; None where the file is none, or the data is not what it was planned for."""
    note = read_plan_header(file) if file else None
    if file is None or note is None:
        return None
    changed = changes(note, job)
    if changed:
        sys.stderr.write(f"· since {file} was made {'; '.join(changed)}: planning again\n")
    return None if changed else specs


def read_plan_header(file: Path) -> PlanHeader | None:
    """What a file says under `plan`; None if it is no plan."""
    content = load_yaml(file).get("plan")
    return None if content is None else read_note(file, content)


def _made_with(note: PlanHeader, *, cards: bool) -> Request:
    """Of the device only what is here for certain, or, for a plan of it, is known by name."""
    known = note.device == "cpu" or (cards and find_gpu(note.device) is not None)
    return Request(note.budget, note.device if known else None, note.use, note.avoid, note.allow)


def _refuse_names(out: Path | None, export: Path | None) -> None:
    for path, endings in ((out, (".yaml", ".yml")), (export, (".py",))):
        if path is None:
            continue
        if path.suffix.lower() not in endings:
            raise BadInput(f"'{path}' should end in {endings[0]}: give it such a name.")
        if path.is_dir():
            raise OutputError(f"'{path}' is a folder: give the name of a file.")
