"""Options that several commands share: the job settings, with help texts from the fields of Job, and --lang."""

from __future__ import annotations

import functools
import inspect
import sys
from collections.abc import Callable
from importlib.util import find_spec
from typing import TYPE_CHECKING, Annotated, Any, get_origin

import typer

from tightfit.errors import BadInput
from tightfit.job import Job
from tightfit.messages import Message, msg, name

if TYPE_CHECKING:
    from pydantic.fields import FieldInfo

Lang = Annotated[str | None, typer.Option(help="Language: en or zh. [default: zh if LANG says so, else en]")]


def _show_version(wanted: bool) -> None:
    """The versions that a report of a problem needs; without importing the libraries."""
    if not wanted:
        return
    from importlib.metadata import version

    libraries = (name for name in ("torch", "transformers") if find_spec(name))
    versions = ", ".join(f"{name} {version(name)}" for name in libraries)
    python = ".".join(map(str, sys.version_info[:3]))
    sys.stdout.write(f"tightfit {version('tightfit')} ({versions}, Python {python})\n")
    raise typer.Exit


Version = Annotated[
    bool,
    typer.Option(
        "--version",
        help="Show the versions of tightfit, torch, transformers and Python, and exit.",
        is_eager=True,
        callback=_show_version,
    ),
]


def complete_strategy(incomplete: str) -> list[str]:
    """The strategies that begin like this, for the completion of a shell."""
    from tightfit.strategies import STRATEGIES

    names = [strategy.example() for strategy in STRATEGIES.values()]
    return [name for name in names if name.startswith(incomplete.lower())]


def setting(key: str) -> Any:
    """The option of one job setting."""
    return typer.Option(f"--{key.replace('_', '-')}", help=setting_help(key), show_default=False)


def setting_help(key: str) -> Message:
    """What a job setting is, and its default."""
    field = Job.model_fields[key]
    about = name(field.description or "")
    if field.default in (None, False, ()) or field.is_required():
        return about
    return msg("{about} [default: {default}]", about=about, default=str(field.default))


def with_language(command: Callable[..., None]) -> Callable[..., None]:
    """Add the option --lang to a command; the language is chosen before the command is called."""

    def wrapped(**values: Any) -> None:
        values.pop("lang")
        command(**values)

    own = list(inspect.signature(command, eval_str=True).parameters.values())
    lang = inspect.Parameter("lang", inspect.Parameter.KEYWORD_ONLY, default=None, annotation=Lang)
    return _with_signature(wrapped, command, [*own, lang])


def with_job_settings(command: Callable[..., None]) -> Callable[..., None]:
    """Add an option for every job setting to a command, which receives the given ones as `settings`."""
    own = [p for p in inspect.signature(command, eval_str=True).parameters.values() if p.name != "settings"]
    keyword = inspect.Parameter.KEYWORD_ONLY
    settings = [
        inspect.Parameter(key, keyword, default=None, annotation=Annotated[_option_type(field) | None, setting(key)])
        for key, field in Job.model_fields.items()
    ]

    def wrapped(**values: Any) -> None:
        given = {key: values.pop(key) for key in Job.model_fields}
        command(settings={key: value for key, value in given.items() if value is not None}, **values)

    return _with_signature(wrapped, command, [*own, *settings])


def _option_type(field: FieldInfo) -> Any:
    """Options that may be repeated are lists."""
    return list[str] if get_origin(field.annotation) is tuple else field.annotation


def _with_signature(
    function: Callable[..., None], command: Callable[..., None], parameters: list[inspect.Parameter]
) -> Callable[..., None]:
    """The function with the command's name and help, and with these parameters as typer reads them."""
    parameters = [p.replace(kind=inspect.Parameter.KEYWORD_ONLY) for p in parameters]
    functools.update_wrapper(function, command)
    function.__signature__ = inspect.Signature(parameters)  # type: ignore[attr-defined]
    function.__annotations__ = {p.name: p.annotation for p in parameters}
    del function.__wrapped__  # type: ignore[attr-defined]  # otherwise typer reads the command's own signature
    return function


def build_job(settings: dict[str, Any], verb: str) -> Job:
    """The job; raises BadInput if a required setting is missing."""
    missing = [key for key in ("model", "data") if key not in settings]
    if missing:
        raise BadInput(msg("--{key} is missing: tightfit {verb} --model NAME --data FILE.", key=missing[0], verb=verb))
    return Job(**settings)
