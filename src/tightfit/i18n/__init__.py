"""Languages: shows messages in English or Chinese.

English is in the source, as the templates of messages. The Chinese of each template is in `zh.py`; that of a strategy
or a task is in its own file.
"""

from __future__ import annotations

import contextlib
import os
from collections.abc import Callable, Iterator, Mapping
from functools import cache, partial

from tightfit.errors import BadInput, suggest
from tightfit.i18n import zh
from tightfit.messages import Message, msg

ENGLISH, CHINESE = "en", "zh"
LANGUAGES = (ENGLISH, CHINESE)
Render = Callable[[str], str]
_current = ENGLISH


def render(text: str, language: str | None = None) -> str:
    """A message in a language, or in that of the command line; any other text unchanged."""
    if not isinstance(text, Message) or (language or _current) == ENGLISH:
        return str(text)
    return text.translated(chinese)


def renderer(language: str | None = None) -> Render:
    """A function that shows messages in a language."""
    return partial(render, language=language or _current)


def current_language() -> str:
    """The language of the command line; English outside of it."""
    return _current


@contextlib.contextmanager
def using_language(name: str) -> Iterator[None]:
    """Show everything inside in this language; BadInput for one that does not exist."""
    global _current
    before, _current = _current, check_language(name)
    try:
        yield
    finally:
        _current = before


def check_language(name: str) -> str:
    """The name; BadInput if there is no such language."""
    if name not in LANGUAGES:
        hint = suggest(name, LANGUAGES)
        raise BadInput(msg("There is no language '{name}' for --lang: {suggestion}", name=name, suggestion=hint))
    return name


def language_of(environment: Mapping[str, str] = os.environ) -> str:
    """The language that the environment asks for, by the variables of POSIX: Chinese or else English."""
    wanted = next(filter(None, map(environment.get, ("LC_ALL", "LC_MESSAGES", "LANG"))), "")
    return CHINESE if wanted.lower().startswith("zh") else ENGLISH


def chinese(template: str) -> str:
    """The Chinese of an English template, or the template if there is none."""
    return zh.TEXTS.get(template) or _own_texts().get(template, template)


@cache
def _own_texts() -> Mapping[str, str]:
    """The texts in the files of strategies and tasks; numpy is imported with them."""
    from tightfit.strategies import STRATEGIES
    from tightfit.tasks import TASKS

    owners = (*STRATEGIES.values(), *TASKS.values())
    return {template: text for owner in owners for template, text in getattr(owner, "zh", {}).items()}
