"""Options: a job's settings as options of a verb, described where the job describes them."""

from __future__ import annotations

import functools
import inspect
from collections.abc import Callable
from typing import Annotated, Any

import typer

from tightfit.errors import BadInput
from tightfit.job import Job


def setting(name: str) -> Any:
    """The option for one setting."""
    field = Job.model_fields[name]
    default = "" if field.default is None or field.is_required() else f" [default: {field.default}]"
    return typer.Option(f"--{name.replace('_', '-')}", help=f"{field.description}{default}", show_default=False)


def with_job_settings(verb: Callable[..., None]) -> Callable[..., None]:
    """Give a verb an option for every setting of a job; it gets those that were given as `settings`."""
    own = [p for p in inspect.signature(verb, eval_str=True).parameters.values() if p.name != "settings"]
    keyword = inspect.Parameter.KEYWORD_ONLY
    settings = [
        inspect.Parameter(name, keyword, default=None, annotation=Annotated[field.annotation | None, setting(name)])
        for name, field in Job.model_fields.items()
        if field.annotation is not None
    ]

    @functools.wraps(verb)
    def wrapped(**values: Any) -> None:
        given = {name: values.pop(name) for name in Job.model_fields}
        verb(settings={name: value for name, value in given.items() if value is not None}, **values)

    parameters = [p.replace(kind=keyword) for p in own]
    wrapped.__signature__ = inspect.Signature([*parameters, *settings])  # type: ignore[attr-defined]
    wrapped.__annotations__ = {p.name: p.annotation for p in (*parameters, *settings)}
    del wrapped.__wrapped__  # else the verb's own signature would be looked at
    return wrapped


def build_job(settings: dict[str, Any], verb: str) -> Job:
    """The job, or a sentence on what is missing."""
    missing = [name for name in ("model", "data") if name not in settings]
    if missing:
        raise BadInput(f"--{missing[0]} is missing: tightfit {verb} --model NAME --data FILE.")
    return Job(**settings)
