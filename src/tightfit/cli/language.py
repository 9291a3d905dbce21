"""The language of the command line: by --lang, or that of the environment."""

from __future__ import annotations

import itertools
from collections.abc import Sequence

from tightfit.i18n import check_language, language_of

_OPTION = "--lang"


def chosen_language(arguments: Sequence[str]) -> str:
    """The language of --lang, or that of the environment; BadInput for an unknown one."""
    given = list(arguments)[: arguments.index("--")] if "--" in arguments else list(arguments)
    for argument, following in itertools.pairwise([*given, ""]):
        if argument == _OPTION:
            return check_language(following)
        if argument.startswith(f"{_OPTION}="):
            return check_language(argument.partition("=")[2])
    return language_of()
