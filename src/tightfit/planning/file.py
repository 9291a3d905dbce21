"""The plan as a file: the job, the recipe, and under `plan` what it was made for, so that it can be checked again."""

from __future__ import annotations

import hashlib
from pathlib import Path
from typing import Any

import yaml
from pydantic import BaseModel, ConfigDict, Field, ValidationError

from tightfit.errors import BadInput, shown, suggest
from tightfit.job import Job, job_values, line_of
from tightfit.planning.plans import Plan
from tightfit.units import format_bytes
from tightfit.whole import write_whole

VERSION = 1
_CHUNK = 1 << 20
_HEAD = "# Made by `tightfit plan`. `tightfit train {name}` runs it, after checking that it still fits.\n"


class PlanNote(BaseModel):
    """What a plan was made for and what it promised."""

    model_config = ConfigDict(extra="forbid", frozen=True, use_attribute_docstrings=True)

    version: int
    budget: str
    """As "4096MB"."""
    device: str
    peak_bytes: int = Field(ge=0)
    seconds_per_epoch: float = Field(ge=0)
    result: str
    data: dict[str, str] = {}
    """A fingerprint for every data file that is here."""


def write_plan(path: Path, plan: Plan) -> None:
    """Write the YAML file that `tightfit train FILE` runs."""
    job = plan.job.with_full_paths()
    note = PlanNote(
        version=VERSION,
        budget=f"{plan.budget.size >> 20}MB",
        device=plan.budget.device.title if plan.budget.device.kind != "cpu" else "cpu",
        peak_bytes=plan.chosen.peak,
        seconds_per_epoch=round(plan.chosen.seconds_per_epoch, 1),
        result=plan.chosen.result.value,
        data=fingerprints(job),
    )
    content = {**job_values(job), "use": plan.recipe.words, "plan": note.model_dump()}
    text = _HEAD.format(name=path.name) + yaml.safe_dump(content, sort_keys=False, allow_unicode=True)
    path.parent.mkdir(parents=True, exist_ok=True)
    write_whole(path, text)


def read_note(path: Path, content: Any) -> PlanNote:
    """Check what a file says under `plan`."""
    if isinstance(content, dict) and content.get("version") != VERSION:
        raise BadInput(
            f"{path}, {line_of(path, 'version')}: the plan is of version {shown(content.get('version'))} and this "
            f"tightfit reads {VERSION}: make it again with tightfit plan."
        )
    try:
        return PlanNote(**content)
    except TypeError:
        raise BadInput(f"{path}, {line_of(path, 'plan')}: 'plan' must hold 'name: value' lines.") from None
    except ValidationError as error:
        raise BadInput(_sentence(path, error)) from None


def fingerprints(job: Job) -> dict[str, str]:
    """Of every data file that is on this machine; a hub data set has none."""
    files = [Path(name) for name in (job.data, job.validation) if name is not None]
    return {file.name: _fingerprint(file) for file in files if file.is_file()}


def changes(note: PlanNote, job: Job) -> list[str]:
    """What is not as it was when the plan was made."""
    now = fingerprints(job)
    return [
        f"{name} changed from {mark} to {now[name]}"
        for name, mark in note.data.items()
        if name in now and now[name] != mark
    ]


def _fingerprint(file: Path) -> str:
    digest = hashlib.sha256()
    with file.open("rb") as content:
        while chunk := content.read(_CHUNK):
            digest.update(chunk)
    return f"{digest.hexdigest()[:16]} ({format_bytes(file.stat().st_size)})"


def _sentence(path: Path, error: ValidationError) -> str:
    item = min(error.errors(), key=lambda item: item["type"] == "missing")  # a wrong name first: it explains the other
    key = str(item["loc"][0])
    if item["type"] == "extra_forbidden":
        known = suggest(key, PlanNote.model_fields)
        return f"{path}, {line_of(path, key)}: there is no '{key}' in a plan: {known}"
    if item["type"] == "missing":
        return f"{path}, {line_of(path, 'plan')}: the plan lacks '{key}': make it again with tightfit plan."
    return f"{path}, {line_of(path, key)}: {key} is {shown(item['input'])}: {item['msg'].lower()}."
