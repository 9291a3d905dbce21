"""The command line in English and Chinese: which language is asked for, help texts and usage errors.

typer writes help texts and usage errors in English. In Chinese their words come from the catalogue, and lines are
broken between any two Chinese characters.
"""

from __future__ import annotations

import itertools
import sys
import unicodedata
from collections.abc import Iterable, Iterator, Sequence
from functools import partial
from typing import Any

from typer.core import TyperCommand, TyperGroup

from tightfit.cli.options import setting_help
from tightfit.compat import translate_typer
from tightfit.errors import suggest
from tightfit.i18n import CHINESE, check_language, current_language, language_of, render, using_language
from tightfit.job import Job
from tightfit.messages import Message, msg, name

_OPTION = "--lang"
_NOT_FIRST, _NOT_LAST = "，。；：、）”？！,.;:)]?!", "（“[("  # of a line


def chosen_language(arguments: Sequence[str]) -> str:
    """The language of --lang, or that of the environment; BadInput for an unknown one."""
    given = list(arguments)[: arguments.index("--")] if "--" in arguments else list(arguments)
    for argument, following in itertools.pairwise([*given, ""]):
        if argument == _OPTION:
            return check_language(following)
        if argument.startswith(f"{_OPTION}="):
            return check_language(argument.partition("=")[2])
    return language_of()


class _Translated:
    """A command or group whose help is in the language of the command line."""

    def format_help(self: Any, ctx: Any, formatter: Any) -> None:
        if current_language() == CHINESE:
            translate_typer(lambda text: render(name(text)))
            formatter.write_heading = lambda heading: formatter.write(f"{heading}：\n")
            formatter.write_text = partial(_write_text, formatter)
            formatter.write_dl = partial(_write_rows, formatter)
            _translate(self, self.get_params(ctx))
        super().format_help(ctx, formatter)  # type: ignore[misc]

    def format_usage(self: Any, ctx: Any, formatter: Any) -> None:
        pieces = " ".join(self.collect_usage_pieces(ctx))
        formatter.write_usage(ctx.command_path, pieces, prefix=render(msg("Usage: ")))


class Command(_Translated, TyperCommand):
    """A command."""


class Group(_Translated, TyperGroup):
    """The program: a group of commands, which runs in the language that its arguments ask for."""

    def main(self, args: Sequence[str] | None = None, *rest: Any, **options: Any) -> Any:
        with using_language(chosen_language(sys.argv[1:] if args is None else args)):
            return super().main(args, *rest, **options)

    def resolve_command(self, ctx: Any, args: list[str]) -> Any:
        try:
            return super().resolve_command(ctx, args)
        except Exception as error:
            error.unknown_command = args[0]  # type: ignore[attr-defined]  # for `_problem`
            raise


def _translate(command: Any, parameters: Iterable[Any]) -> None:
    """Replace the help texts of a command, its parameters and its subcommands."""
    settings = {str(text): text for text in map(setting_help, Job.model_fields)}
    command.help = render(name(command.help))
    for parameter in parameters:
        parameter.help = render(settings.get(parameter.help) or name(parameter.help or ""))
    for verb in getattr(command, "commands", {}).values():
        verb.help = render(name(verb.help))
        verb.short_help = verb.help.partition("。")[0]


def _write_text(formatter: Any, text: str) -> None:
    indent = " " * formatter.current_indent
    for paragraph in text.split("\n\n"):
        lines = _wrapped(paragraph.replace("\n", ""), formatter.width - len(indent))
        formatter.write("".join(f"{indent}{line}\n" for line in lines))


def _write_rows(formatter: Any, rows: Sequence[tuple[str, str]], **_: Any) -> None:
    """Names on the left, their texts on the right."""
    left = max(len(first) for first, _ in rows) + 2
    for first, second in rows:
        lines = list(_wrapped(second, formatter.width - formatter.current_indent - left)) or [""]
        for start, line in zip([first, *[""] * len(lines)], lines, strict=False):
            formatter.write(f"{'':{formatter.current_indent}}{start:{left}}{line}".rstrip() + "\n")


def _wrapped(text: str, width: int) -> Iterator[str]:
    """Lines of at most `width` columns, broken at spaces or beside a Chinese character."""
    line = ""
    for piece in _pieces(text):
        if line and _columns(line + piece.rstrip()) > width:
            yield line.rstrip()
            line = ""
        line += piece if line else piece.lstrip()
    if line:
        yield line


def _pieces(text: str) -> Iterator[str]:
    """What a line may not be broken within: a Chinese character or a word, with the punctuation and space after it."""
    word = ""
    for character in text:
        before = word[-1:]
        may_break = before == " " or ((_is_wide(character) or _is_wide(before)) and before not in _NOT_LAST)
        if word and may_break and character != " " and character not in _NOT_FIRST:
            yield word
            word = ""
        word += character
    if word:
        yield word


def _columns(text: str) -> int:
    return sum(2 if _is_wide(character) else 1 for character in text)


def _is_wide(character: str) -> bool:
    return bool(character) and unicodedata.east_asian_width(character) in "WF"


def show_usage_error(error: Any) -> None:
    """What is wrong with the command line; `error` is an exception of typer."""
    context = getattr(error, "ctx", None)
    if current_language() != CHINESE or context is None or type(error).__name__ == "NoArgsIsHelpError":
        error.show()
        return
    command, option = context.command_path, context.help_option_names[0]
    hint = render(msg("Try '{command} {option}' for help.", command=command, option=option))
    problem = render(msg("Error: {problem}", problem=_problem(error)))
    sys.stderr.write(f"{context.get_usage()}\n{hint}\n\n{problem}\n")


def _problem(error: Any) -> Message:
    """The usual errors from their data; others in typer's own words."""
    if unknown := getattr(error, "unknown_command", None):
        hint = suggest(unknown, error.ctx.command.commands)
        return msg("There is no command '{name}': {suggestion}", name=unknown, suggestion=hint)
    match type(error).__name__:
        case "NoSuchOption" if error.possibilities:
            near = sorted(error.possibilities)
            return msg("No such option: {option} (Possible options: {near})", option=error.option_name, near=near)
        case "NoSuchOption":
            return msg("No such option: {option}", option=error.option_name)
        case "MissingParameter" if error.param is not None:
            return msg("Missing argument {argument}.", argument=error.param.get_error_hint())
        case "BadParameter" if error.param is not None:
            reason = name(error.message[:1].lower() + error.message[1:])
            return msg("Invalid value for {option}: {reason}", option=error.param.get_error_hint(), reason=reason)
    return name(error.format_message())
