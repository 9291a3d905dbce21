"""The plan as a file: the job, the recipe, and under `plan` what it was made for, so that it can be checked again."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import yaml
from pydantic import BaseModel, ConfigDict, Field, ValidationError

from tightfit.errors import BadInput, shown, suggest
from tightfit.files import digest_of, write_whole
from tightfit.job import Job, job_values, locate_key
from tightfit.planning.plan import Plan
from tightfit.units import format_bytes

VERSION = 2
_HEAD = "# Made by `tightfit plan`. `tightfit train {name}` runs it, after checking that it still fits.\n"


class PlanHeader(BaseModel):
    """What a plan was made for and what it promised."""

    model_config = ConfigDict(extra="forbid", frozen=True, use_attribute_docstrings=True)

    version: int
    budget: str
    """As "4096MB"."""
    device: str
    use: list[str] = []
    """What was pinned, avoided and allowed, should it have to be planned again."""
    avoid: list[str] = []
    allow: str = "close"
    peak_bytes: int = Field(ge=0)
    seconds_per_epoch: float = Field(ge=0)
    result: str
    data: dict[str, str] = {}
    """Fingerprints of what is here of the data and the rows to validate on."""


def write_plan(path: Path, plan: Plan) -> None:
    """Write the YAML file that `tightfit train FILE` runs."""
    job = plan.job.resolve_paths()
    note = PlanHeader(
        version=VERSION,
        budget=f"{plan.budget.size >> 20}MB",
        device=plan.budget.device.title if plan.budget.device.kind != "cpu" else "cpu",
        **plan.constraints.specs,
        peak_bytes=plan.chosen.peak,
        seconds_per_epoch=round(plan.chosen.seconds_per_epoch, 1),
        result=plan.chosen.result.value,
        data=fingerprints(job),
    )
    content = {**job_values(job), "use": plan.recipe.specs, "plan": note.model_dump()}
    text = _HEAD.format(name=path.name) + yaml.safe_dump(content, sort_keys=False, allow_unicode=True)
    path.parent.mkdir(parents=True, exist_ok=True)
    write_whole(path, text)


def read_note(path: Path, content: Any) -> PlanHeader:
    """Check what a file says under `plan`."""
    if isinstance(content, dict) and content.get("version") != VERSION:
        raise BadInput(
            f"{path}, {locate_key(path, 'version', 'plan')}: the plan is of version {shown(content.get('version'))} "
            f"and this tightfit reads {VERSION}: make it again with tightfit plan."
        )
    try:
        return PlanHeader(**content)
    except TypeError:
        raise BadInput(f"{path}, {locate_key(path, 'plan')}: 'plan' must hold 'name: value' lines.") from None
    except ValidationError as error:
        raise BadInput(_sentence(path, error)) from None


def fingerprints(job: Job) -> dict[str, str]:
    """Of the files and folders that are on this machine; a hub data set has none."""
    named = {"data": job.data, "validation": job.validation}
    return {use: _fingerprint(Path(name)) for use, name in named.items() if name is not None and Path(name).exists()}


def changes(note: PlanHeader, job: Job) -> list[str]:
    """What is not as it was when the plan was made; nothing where it saw no data."""
    now = fingerprints(job) if note.data else {}
    return [
        f"{Path(getattr(job, use) or use).name} changed from {note.data.get(use, 'none')} to {now.get(use, 'none')}"
        for use in ("data", "validation")
        if note.data.get(use) != now.get(use)
    ]


def _fingerprint(path: Path) -> str:
    """Of a file's bytes, or of all files' in a folder."""
    files = sorted(file for file in path.rglob("*") if file.is_file()) if path.is_dir() else [path]
    return f"{digest_of(files)[:16]} ({format_bytes(sum(file.stat().st_size for file in files))})"


def _sentence(path: Path, error: ValidationError) -> str:
    item = min(error.errors(), key=lambda item: item["type"] == "missing")  # a wrong name first: it explains the other
    key = str(item["loc"][0])
    where = f"{path}, {locate_key(path, key, 'plan')}"
    if item["type"] == "extra_forbidden":
        known = suggest(key, PlanHeader.model_fields)
        return f"{where}: there is no '{key}' in a plan: {known}"
    if item["type"] == "missing":
        return f"{path}, {locate_key(path, 'plan')}: the plan lacks '{key}': make it again with tightfit plan."
    return f"{where}: {key} is {shown(item['input'])}: {item['msg'].lower()}."
