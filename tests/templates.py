"""Every template of a message in src/tightfit: in calls of `msg`, in the report's pages, in help texts and names."""

from __future__ import annotations

import ast
import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any, NamedTuple

import tightfit
from tightfit.messages import CONTEXT

SOURCE = Path(tightfit.__file__).parent
_FIELD = re.compile(r"\{(\w+)[^{}]*\}")
_FACTORIES = {"msg"}


class Template(NamedTuple):
    """A template, the names of the values it is given, and where."""

    text: str
    values: frozenset[str] | None
    """None if they are not all named in the call."""
    place: str


def fields_of(template: str) -> set[str]:
    """The names of its fields."""
    return set(_FIELD.findall(template))


def templates_in_source() -> Iterator[Template]:
    """Those of all calls of `msg` in modules."""
    for path in sorted(SOURCE.rglob("*.py")):
        for node in ast.walk(ast.parse(path.read_text("utf-8"))):
            if isinstance(node, ast.Call) and getattr(node.func, "id", None) in _FACTORIES:
                yield _template(node, f"{path.relative_to(SOURCE)}:{node.lineno}")


def _template(call: ast.Call, place: str) -> Template:
    text = call.args[0].value if call.args and isinstance(call.args[0], ast.Constant) else None
    assert isinstance(text, str), f"{place}: the template of a message is written in its call, as a plain string"
    named = {keyword.arg: keyword.value for keyword in call.keywords}
    context = named.pop("context", None)
    if isinstance(context, ast.Constant):
        text = f"{context.value}{CONTEXT}{text}"
    return Template(text, None if None in named else frozenset(filter(None, named)), place)


def templates_in_pages() -> Iterator[Template]:
    """Those of all calls of `msg` in the report's HTML."""
    from jinja2 import Environment
    from jinja2.nodes import Call, Const, Name

    for path in sorted(SOURCE.rglob("*.html")):
        for call in Environment().parse(path.read_text("utf-8")).find_all(Call):
            if isinstance(call.node, Name) and call.node.name == "msg":
                (text,) = call.args
                assert isinstance(text, Const), path
                yield Template(text.value, frozenset(value.key for value in call.kwargs), f"{path.name}:{call.lineno}")


def help_texts() -> Iterator[str]:
    """Those of the command line, without the defaults that are added to job settings."""
    import typer

    from tightfit.cli.app import app
    from tightfit.cli.options import setting_help
    from tightfit.job import Job

    settings = {str(setting_help(key)) for key in Job.model_fields}
    group: Any = typer.main.get_command(app)
    for command in (group, *group.commands.values()):
        yield command.help
        yield from (parameter.help for parameter in command.params if parameter.help not in settings)
    yield from (field.description or "" for field in Job.model_fields.values())


def names() -> Iterator[str]:
    """Names without placeholders, translated as a whole: phases, kinds of memory, results and parts of a recipe."""
    from tightfit.engine.meter import OTHER
    from tightfit.report.names import phase_name
    from tightfit.simulation.estimate import PHASES
    from tightfit.strategies import STRATEGIES
    from tightfit.strategies.base import MemoryKind, Result

    yield from map(phase_name, (*PHASES, OTHER))
    yield from (kind.label for kind in MemoryKind)
    yield from (result.value for result in Result)
    yield from (strategy.exclusive for strategy in STRATEGIES.values() if strategy.exclusive)
