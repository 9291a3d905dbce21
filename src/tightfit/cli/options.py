"""Job settings as command line options, with help texts from the fields of Job."""

from __future__ import annotations

import functools
import inspect
from collections.abc import Callable
from typing import Annotated, Any

import typer

from tightfit.errors import BadInput
from tightfit.job import Job


def setting(name: str) -> Any:
    """The option of one job setting."""
    field = Job.model_fields[name]
    default = "" if field.default is None or field.is_required() else f" [default: {field.default}]"
    return typer.Option(f"--{name.replace('_', '-')}", help=f"{field.description}{default}", show_default=False)


def with_job_settings(command: Callable[..., None]) -> Callable[..., None]:
    """Add an option for every job setting to a command, which receives the given ones as `settings`."""
    own = [p for p in inspect.signature(command, eval_str=True).parameters.values() if p.name != "settings"]
    keyword = inspect.Parameter.KEYWORD_ONLY
    settings = [
        inspect.Parameter(name, keyword, default=None, annotation=Annotated[field.annotation | None, setting(name)])
        for name, field in Job.model_fields.items()
        if field.annotation is not None
    ]

    @functools.wraps(command)
    def wrapped(**values: Any) -> None:
        given = {name: values.pop(name) for name in Job.model_fields}
        command(settings={name: value for name, value in given.items() if value is not None}, **values)

    parameters = [p.replace(kind=keyword) for p in own]
    wrapped.__signature__ = inspect.Signature([*parameters, *settings])  # type: ignore[attr-defined]
    wrapped.__annotations__ = {p.name: p.annotation for p in (*parameters, *settings)}
    del wrapped.__wrapped__  # otherwise typer reads the command's own signature
    return wrapped


def build_job(settings: dict[str, Any], verb: str) -> Job:
    """The job; raises BadInput if a required setting is missing."""
    missing = [name for name in ("model", "data") if name not in settings]
    if missing:
        raise BadInput(f"--{missing[0]} is missing: tightfit {verb} --model NAME --data FILE.")
    return Job(**settings)
