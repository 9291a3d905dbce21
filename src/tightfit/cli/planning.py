"""The plan command, and plan files as input of other commands."""

from __future__ import annotations

import shlex
import sys
from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from tightfit.activity import PLANNING
from tightfit.api import plan
from tightfit.cli.output import print_json
from tightfit.cli.startup import command_terminal
from tightfit.device import NONE, Budget, find_gpu
from tightfit.errors import BadInput, DoesNotFit, OutputError
from tightfit.i18n import render
from tightfit.job import Job, job_values, load_yaml
from tightfit.messages import clauses, msg
from tightfit.planning.export import write_script
from tightfit.planning.plan import Plan
from tightfit.planning.plan_file import PlanHeader, changes, parse_header, write_plan


@dataclass(frozen=True)
class Request:
    """Memory options of a command line; None for those not given."""

    budget: str | None = None
    device: str | None = None
    use: Sequence[str] | None = None
    avoid: Sequence[str] | None = None
    allow: str | None = None
    prefer: str | None = None

    def merged_with(self, file: Path | None, specs: Sequence[str], *, allow_absent_gpu: bool = False) -> Request:
        """Fill missing options from a file: from a plan all its constraints, from a job file its `use`."""
        header = read_plan_header(file) if file else None
        defaults = _from_header(header, allow_absent_gpu=allow_absent_gpu) if header else Request(use=specs)
        return replace(defaults, **{name: value for name, value in vars(self).items() if value is not None})

    @property
    def constraints(self) -> dict[str, Any]:
        """Keyword arguments for `plan` and `train`."""
        return {
            "use": self.use or (),
            "avoid": self.avoid or (),
            "allow": self.allow or "close",
            "prefer": self.prefer or "exact",
        }

    @property
    def has_constraints(self) -> bool:
        """Whether the options may require another recipe than the planned one."""
        return any(given is not None for given in (self.use, self.avoid, self.allow, self.prefer))


def run_plan(
    job: Job, request: Request, *, take: int | None, out: Path | None, export: Path | None, quiet: bool
) -> Plan:
    """Make a plan and write it to the requested files; a plan that does not fit is returned but not written."""
    _check_names(out, export)
    if request.budget == NONE:
        raise BadInput(
            msg("A plan needs a budget: give a size such as 4GB, or leave --budget out for what is free now.")
        )
    terminal, budget = command_terminal(quiet=quiet), Budget.of(request.budget, request.device)
    if budget.warning:
        terminal.log(budget.warning)
    try:
        with terminal.status(PLANNING):
            made = plan(job, budget, take=take, **request.constraints)
    except DoesNotFit as error:
        if error.plan is None:
            if quiet:
                print_json({"fits": False, "budget_bytes": budget.size, "suggestions": [error.message]})
            raise
        return error.plan
    for note in made.notes:
        if note != budget.warning:  # logged above
            terminal.log(note)
    if out:
        write_plan(out, made)
        terminal.log(msg("{file} written", file=out))
    if export:
        with terminal.status(msg("Measuring the process of the exported script")):
            script = write_script(export, made)
        for note in script.notes:
            terminal.log(note)
        terminal.log(msg("{file} written: python {file}", file=export))
    return made


def next_command(made: Plan, request: Request, *, take: int | None, out: Path | None) -> str:
    """The command that trains the plan; only a plan file keeps which alternative was taken."""
    assert made.job is not None
    if out is None and take is None:
        trained_here = made.budget.device.is_here  # `train` knows no other devices
        return shlex.join(["tightfit", "train", *_options(made.job, request, with_device=trained_here)])
    train = shlex.join(["tightfit", "train", str(out or _PLAN)])
    if out is not None:
        return train
    options = _options(made.job, request, with_device=True)
    return f"{shlex.join(['tightfit', 'plan', *options, '--take', str(take), '--out', _PLAN])} && {train}"


_PLAN = "plan.yaml"


def _options(job: Job, request: Request, *, with_device: bool) -> list[str]:
    """The options of a command for the job that was planned, with the same constraints."""
    options = {**job_values(job), "budget": request.budget, "device": request.device if with_device else None}
    unset = Job(model=job.model, data=job.data)
    defaults = {name: value for name, value in job_values(unset).items() if name not in ("model", "data")}
    changed = {name: value for name, value in options.items() if value is not None and defaults.get(name) != value}
    arguments = [word for name, value in changed.items() for word in _option(name, value)]
    arguments += [word for spec in request.use or () for word in ("--use", spec)]
    arguments += [word for name in request.avoid or () for word in ("--avoid", name)]
    arguments += ("--allow", request.allow) if request.allow else ()
    return [*arguments, *(("--prefer", request.prefer) if request.prefer else ())]


def _option(name: str, value: Any) -> tuple[str, ...]:
    if isinstance(value, list):
        return tuple(word for each in value for word in (f"--{name}", each))
    return (f"--{name}",) if value is True else (f"--{name}", f"{value:g}" if isinstance(value, float) else str(value))


def planned_recipe(file: Path | None, job: Job, specs: list[str]) -> list[str] | None:
    """The recipe of a plan file; None if it is not a plan or its data has changed."""
    header = read_plan_header(file) if file else None
    if file is None or header is None:
        return None
    changed = changes(header, job)
    if changed:
        line = msg("{changes} since {file} was written; planning again", changes=clauses(*changed), file=file)
        sys.stderr.write(f"· {render(line)}\n")
    return None if changed else specs


def read_plan_header(file: Path) -> PlanHeader | None:
    """The value of `plan` in a YAML file; None if it is not a plan file."""
    content = load_yaml(file).get("plan")
    return None if content is None else parse_header(file, content)


def _from_header(header: PlanHeader, *, allow_absent_gpu: bool) -> Request:
    """The options a plan was made with; without its GPU, unless a GPU known by name is enough."""
    known = header.device == "cpu" or (allow_absent_gpu and find_gpu(header.device) is not None)
    device = header.device if known else None
    return Request(header.budget, device, header.use, header.avoid, header.allow, header.prefer)


def _check_names(out: Path | None, export: Path | None) -> None:
    for path, endings in ((out, (".yaml", ".yml")), (export, (".py",))):
        if path is None:
            continue
        if path.suffix.lower() not in endings:
            raise BadInput(msg("'{path}' should end in {ending}: rename it.", path=path, ending=endings[0]))
        if path.is_dir():
            raise OutputError(msg("'{path}' is a folder: give the name of a file.", path=path))
