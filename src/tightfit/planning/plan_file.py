"""Plan files: the job, the recipe and, under `plan`, what the plan was made for, so that it can be checked again."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import yaml
from pydantic import BaseModel, ConfigDict, Field, ValidationError

from tightfit.device import AUTO
from tightfit.errors import BadInput, short_repr, suggest, why_invalid
from tightfit.job import Job, at_key, job_values
from tightfit.messages import Message, msg
from tightfit.planning.plan import Plan
from tightfit.system.files import atomic_write, digest_of
from tightfit.units import exact_size, format_bytes

VERSION = 2
_COMMENT = "# Made by `tightfit plan`. `tightfit train {name}` checks that it still fits and runs it.\n"


class PlanHeader(BaseModel):
    """What a plan was made for and what it predicted."""

    model_config = ConfigDict(extra="forbid", frozen=True, use_attribute_docstrings=True)

    version: int
    budget: str
    """Such as "4096MB", or "auto": what the device has free when the plan is used."""
    device: str
    use: list[str] = []
    """With `avoid`, `allow` and `prefer`, the constraints to plan again with if the plan no longer fits."""
    avoid: list[str] = []
    allow: str = "close"
    prefer: str = "exact"
    peak_bytes: int = Field(ge=0)
    seconds_per_epoch: float | None = Field(ge=0)
    """None for a GPU whose speed is not known."""
    result: str
    data: dict[str, str] = {}
    """Fingerprints of the local training and validation data."""


def write_plan(path: Path, plan: Plan) -> None:
    """Write the YAML file that `tightfit train FILE` runs."""
    assert plan.job is not None  # the command line plans for jobs
    job = plan.job.resolve_paths()
    header = PlanHeader(
        version=VERSION,
        budget=AUTO if plan.budget.is_auto else exact_size(plan.budget.size),
        device=plan.budget.device.label if plan.budget.device.kind != "cpu" else "cpu",
        **plan.constraints.specs,
        peak_bytes=plan.chosen.peak,
        seconds_per_epoch=plan.chosen.to_json()["seconds_per_epoch"],
        result=plan.chosen.result.value,
        data=fingerprints(job),
    )
    content = {**job_values(job), "use": plan.recipe.specs, "plan": header.model_dump()}
    text = _COMMENT.format(name=path.name) + yaml.safe_dump(content, sort_keys=False, allow_unicode=True)
    path.parent.mkdir(parents=True, exist_ok=True)
    atomic_write(path, text)


def parse_header(path: Path, content: Any) -> PlanHeader:
    """Validate the value of `plan` in a plan file."""
    if isinstance(content, dict) and content.get("version") != VERSION:
        problem = msg(
            "the plan has version {found} and this tightfit reads {known}: make it again with tightfit plan.",
            found=short_repr(content.get("version")),
            known=VERSION,
        )
        raise BadInput(at_key(path, "version", problem, "plan"))
    try:
        return PlanHeader(**content)
    except TypeError:
        raise BadInput(at_key(path, "plan", msg("'plan' must hold 'name: value' lines."))) from None
    except ValidationError as error:
        raise BadInput(_validation_message(path, error)) from None


def fingerprints(job: Job) -> dict[str, str]:
    """Fingerprints of data files and folders on this machine; a hub dataset has none."""
    named = {"data": job.data, "validation": job.validation}
    return {role: _fingerprint(Path(name)) for role, name in named.items() if name is not None and Path(name).exists()}


def changes(header: PlanHeader, job: Job) -> list[Message]:
    """Data files that changed since the plan was made; empty if the plan has no fingerprints."""
    now = fingerprints(job) if header.data else {}
    compared = ((role, header.data.get(role), now.get(role)) for role in ("data", "validation"))
    return [
        msg(
            "{file} changed from {before} to {after}",
            file=Path(getattr(job, role) or role).name,
            before=before or msg("none"),
            after=after or msg("none"),
        )
        for role, before, after in compared
        if before != after
    ]


def _fingerprint(path: Path) -> str:
    """Digest and size of a file, or of all files in a folder."""
    files = sorted(file for file in path.rglob("*") if file.is_file()) if path.is_dir() else [path]
    return f"{digest_of(files)[:16]} ({format_bytes(sum(file.stat().st_size for file in files))})"


def _validation_message(path: Path, error: ValidationError) -> Message:
    # A misspelt key comes first: it explains the missing one.
    item = min(error.errors(), key=lambda item: item["type"] == "missing")
    key = str(item["loc"][0])
    if item["type"] == "extra_forbidden":
        known = suggest(key, PlanHeader.model_fields)
        problem = msg("there is no '{key}' in a plan: {suggestion}", key=key, suggestion=known)
        return at_key(path, key, problem, "plan")
    if item["type"] == "missing":
        problem = msg("the plan lacks '{key}': make it again with tightfit plan.", key=key)
        return at_key(path, "plan", problem)
    value = short_repr(item["input"])
    problem = msg("{name} is {value}: {reason}.", name=key, value=value, reason=why_invalid(item))
    return at_key(path, key, problem, "plan")
