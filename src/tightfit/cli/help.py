"""Help pages: options in groups with whole descriptions, and two examples per command, in English and Chinese.

typer's own pages cut descriptions short and list all options in one group; with rich they would take a second. Lines
are broken between words, and between any two Chinese characters.
"""

from __future__ import annotations

import re
import sys
import unicodedata
from collections.abc import Iterable, Iterator, Sequence
from functools import cache
from typing import Any

from typer.core import TyperCommand, TyperGroup

from tightfit.cli.examples import EXAMPLES
from tightfit.cli.language import chosen_language
from tightfit.cli.options import setting_help
from tightfit.compat import translate_typer
from tightfit.i18n import CHINESE, current_language, render, using_language
from tightfit.job import Job
from tightfit.messages import Message, msg, name

WIDTH = 100
"""The most columns that a page takes."""
_NOT_FIRST, _NOT_LAST = "，。；：、）”？！,.;:)]?!", "（“[("  # of a line
_LONGEST_NAME = 25  # a longer one has a line of its own

_OPTION_GROUPS: tuple[tuple[Message, tuple[str, ...]], ...] = (
    (
        msg("Model and data"),
        ("model", "data", "validation", "task", "text", "label", "source_prefix", "random_weights"),
    ),
    (msg("Memory"), ("budget", "device", "use", "avoid", "allow", "prefer", "take", "probe")),
    (
        msg("Training"),
        (
            *("batch_size", "max_length", "epochs", "max_steps", "learning_rate", "lr_scheduler_type", "warmup_ratio"),
            *("warmup_steps", "weight_decay", "max_grad_norm", "label_smoothing_factor", "class_weights", "eval_steps"),
            *("save_steps", "early_stopping_patience", "seed", "metric", "positive", "set"),
        ),
    ),
)
_OTHER_OPTIONS = msg("Options")
_COMMAND_GROUPS: tuple[tuple[Message, tuple[str, ...]], ...] = (
    (msg("Train"), ("plan", "train", "demo")),
    (msg("Training memory"), ("estimate", "compare", "explain")),
    (msg("Trained models"), ("evaluate", "predict", "report")),
)
_OTHER_COMMANDS = msg("Reference")
Rows = Sequence[tuple[str, str]]


class _Help:
    """A command or group whose help is in groups, and in the language of the command line."""

    def format_help(self: Any, ctx: Any, formatter: Any) -> None:
        if current_language() == CHINESE:
            translate_typer(lambda text: render(name(text)))
            _translate(self, self.get_params(ctx))
        self.format_usage(ctx, formatter)
        _write_text(formatter, self.help)
        _write_group(formatter, msg("Arguments"), _records(ctx, self.get_params(ctx), "argument"))
        for title, verbs in _grouped(getattr(self, "commands", {}), _COMMAND_GROUPS, _OTHER_COMMANDS):
            _write_group(formatter, title, [(verb.name, _first_paragraph(verb.help)) for verb in verbs])
        options = {each.name: each for each in self.get_params(ctx) if each.param_type_name == "option"}
        for title, chosen in _grouped(options, _OPTION_GROUPS, _OTHER_OPTIONS):
            _write_group(formatter, title, _records(ctx, chosen, "option"))
        _write_examples(formatter, EXAMPLES[self.name])

    def format_usage(self: Any, ctx: Any, formatter: Any) -> None:
        pieces = " ".join(self.collect_usage_pieces(ctx))
        formatter.write_usage(ctx.command_path, pieces, prefix=render(msg("Usage: ")))


class Command(_Help, TyperCommand):
    """A command."""


class Group(_Help, TyperGroup):
    """The program: a group of commands, which runs in the language that its arguments ask for."""

    def main(self, args: Sequence[str] | None = None, *rest: Any, **options: Any) -> Any:
        with using_language(chosen_language(sys.argv[1:] if args is None else args)):
            return super().main(args, *rest, **options)

    def resolve_command(self, ctx: Any, args: list[str]) -> Any:
        try:
            return super().resolve_command(ctx, args)
        except Exception as error:
            error.unknown_command = args[0]  # type: ignore[attr-defined]  # for usage errors
            raise


def _translate(command: Any, parameters: Iterable[Any]) -> None:
    """Replace the help texts of a command, its parameters and its subcommands."""
    settings = {str(text): text for text in map(setting_help, Job.model_fields)}
    command.help = render(name(command.help))
    for parameter in parameters:
        parameter.help = render(settings.get(parameter.help) or name(parameter.help or ""))
    for verb in getattr(command, "commands", {}).values():
        verb.help = render(name(verb.help))


def _grouped(
    members: dict[str, Any], groups: Sequence[tuple[Message, tuple[str, ...]]], others: Message
) -> Iterator[tuple[Message, list[Any]]]:
    """The members of each group, and at the end those of none."""
    named = {member for _, names in groups for member in names}
    for title, names in groups:
        yield title, [members[member] for member in names if member in members]
    yield others, [member for key, member in members.items() if key not in named]


def _records(ctx: Any, parameters: Iterable[Any], kind: str) -> list[tuple[str, str]]:
    """The names and the help of parameters that are not hidden."""
    found = (each.get_help_record(ctx) for each in parameters if each.param_type_name == kind)
    return [
        (re.sub(r"list\[(\w+)\]", lambda kind: kind[1].lower(), names), text) for names, text in filter(None, found)
    ]


def _first_paragraph(text: str) -> str:
    return " ".join(text.partition("\n\n")[0].split())


# Writing


def _write_text(formatter: Any, text: str) -> None:
    for paragraph in text.split("\n\n"):
        formatter.write("\n")
        for line in _wrapped(" ".join(paragraph.split()), formatter.width - 2):
            formatter.write(f"  {line}\n")


def _write_group(formatter: Any, title: Message, rows: Rows) -> None:
    """A heading, then names on the left and their texts on the right."""
    if not rows:
        return
    _write_heading(formatter, title)
    left = max(len(first) for first, _ in rows if len(first) <= _LONGEST_NAME) + 2
    for first, text in rows:
        lines = list(_wrapped(" ".join(text.split()), formatter.width - left - 2))
        if len(first) > _LONGEST_NAME:
            lines = ["", *lines]
        for start, line in zip([first, *[""] * len(lines)], lines or [""], strict=False):
            formatter.write(f"  {start:{left}}{line}".rstrip() + "\n")


def _write_heading(formatter: Any, title: Message) -> None:
    formatter.write(f"\n{render(msg('{title}:', title=title))}\n")


def _write_examples(formatter: Any, examples: Sequence[str]) -> None:
    _write_heading(formatter, msg("Examples"))
    for example in examples:
        formatter.write("".join(f"  {line}\n" for line in _continued(example, formatter.width - 2)))


def _continued(command: str, width: int) -> Iterator[str]:
    """A command on several lines, as a shell takes it."""
    line = ""
    for word in command.split(" --"):
        option = f" --{word}" if line else word
        if line and _columns(line + option) > width - 2:
            yield f"{line} \\"
            option, line = f"   {option}", ""
        line += option
    yield line


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
    if text.isascii():
        return len(text)
    return sum(2 if _is_wide(character) else 1 for character in text)


@cache
def _is_wide(character: str) -> bool:
    return bool(character) and unicodedata.east_asian_width(character) in "WF"
