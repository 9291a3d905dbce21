"""Usage errors: what is wrong with a command line, and the corrected command where what was meant is known."""

from __future__ import annotations

import sys
from typing import Any

from tightfit.errors import suggest
from tightfit.i18n import CHINESE, current_language, render
from tightfit.messages import Message, msg, name


def show_usage_error(error: Any) -> None:
    """What is wrong with the command line; `error` is an exception of typer."""
    context = getattr(error, "ctx", None)
    if type(error).__name__ == "NoSuchOption" and context is not None and _show_correction(context):
        return
    if current_language() != CHINESE or context is None or type(error).__name__ == "NoArgsIsHelpError":
        error.show()
        return
    command, option = context.command_path, context.help_option_names[0]
    hint = render(msg("Try '{command} {option}' for help.", command=command, option=option))
    problem = render(msg("Error: {problem}", problem=_problem(error)))
    sys.stderr.write(f"{context.get_usage()}\n{hint}\n\n{problem}\n")


def _show_correction(context: Any) -> bool:
    """Whether options are known from elsewhere; then the command as it has to be written, on a line of its own."""
    from tightfit.cli.foreign_options import corrected_command

    verb, arguments = _split(context, sys.argv[1:])
    options = {
        option: not (parameter.is_flag or parameter.count)
        for parameter in verb.params
        if parameter.param_type_name == "option"
        for option in parameter.opts
    }
    found = corrected_command(verb.name, arguments, options)
    if found is None:
        return False
    problem = msg("{verb} has no {options}: write it like this.", verb=verb.name, options=found.unknown)
    if found.left_out:
        problem = msg(
            "{verb} has no {options}: write it like this, without {left_out}, which tightfit does not have.",
            verb=verb.name,
            options=found.unknown,
            left_out=found.left_out,
        )
    sys.stderr.write(f"tightfit: {render(problem)}\n  {found.command}\n")
    return True


def _split(context: Any, arguments: list[str]) -> tuple[Any, list[str]]:
    """The command and its arguments; `train` if only options were given."""
    commands = getattr(context.command, "commands", None)
    if commands:
        return commands["train"], arguments
    start = arguments.index(context.command.name)
    return context.command, [*arguments[:start], *arguments[start + 1 :]]


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
