"""Messages: what the program says, kept as a template with values, so that it can be shown in any language.

A message is its English text: it can be logged, compared, pickled and written as any string. It also keeps what the
text was made of, so that `tightfit.i18n` can show it in another language, also after it was stored in a JSON file.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Mapping
from functools import reduce
from numbers import Integral, Real
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from pydantic import GetCoreSchemaHandler
    from pydantic_core import CoreSchema

CONTEXT = "\x04"  # as in gettext: between a note that tells equal English words apart and the words
SEPARATOR = ", "
_VERBATIM = "{text}"
_LIST = "{items}"
UNTRANSLATED = (_VERBATIM, _LIST)
"""Templates that are the same in every language."""
_FIELD = re.compile(r"\{(\w+)(?::([-+,.\w%]{0,5}))?\}")  # attributes and indices of values are out of reach

Translate = Callable[[str], str]
"""Maps an English template to that of another language."""


class Message(str):
    """English text, made from a template with named fields and their values.

    A value may be a message itself, a number, a text that is the same in every language, or a list of these.
    """

    template: str
    values: Mapping[str, Any]

    def __new__(cls, template: str, values: Mapping[str, Any] | None = None) -> Message:
        values = {name: _plain(value) for name, value in (values or {}).items()}
        message = super().__new__(cls, _fill(template, values, _english))
        message.template, message.values = template, values
        return message

    def translated(self, translate: Translate) -> str:
        """The text in another language, its values included."""
        return _fill(translate(self.template), self.values, translate)

    def __reduce__(self) -> tuple[type[Message], tuple[str, Mapping[str, Any]]]:
        """Pickling support: messages cross processes."""
        return Message, (self.template, self.values)

    @classmethod
    def __get_pydantic_core_schema__(cls, source: Any, handler: GetCoreSchemaHandler) -> CoreSchema:
        """A field of this type is stored as data, and reads strings too: the words of a library."""
        from pydantic_core import core_schema

        stored = core_schema.plain_serializer_function_ser_schema(as_data)
        return core_schema.no_info_plain_validator_function(_validated, serialization=stored)


def msg(template: str, /, context: str = "", **values: Any) -> Message:
    """A message, as in msg("{rows:,} rows read", rows=1200); `context` tells equal templates of two meanings apart."""
    return Message(f"{context}{CONTEXT}{template}" if context else template, values)


def name(identifier: str) -> Message:
    """A name from a fixed list, such as a phase or a kind of memory, as a message."""
    return Message(identifier)


def verbatim(text: str) -> Message:
    """Text that is not translated, such as the words of a library."""
    return text if isinstance(text, Message) else Message(_VERBATIM, {"text": text})


def listed(items: Iterable[Any]) -> Message:
    """A list in the language's punctuation."""
    return Message(_LIST, {"items": list(items)})


def in_sequence(first: Message, *others: Message) -> Message:
    """Sentences one after the other."""
    return reduce(lambda before, after: msg("{first} {second}", first=before, second=after), others, first)


def both(first: Message, *others: Message) -> Message:
    """Joined with "and"."""
    return reduce(lambda before, after: msg("{first} and {second}", first=before, second=after), others, first)


def clauses(first: Message, *others: Message) -> Message:
    """Parts of a sentence, separated by semicolons."""
    return reduce(lambda before, after: msg("{first}; {second}", first=before, second=after), others, first)


def as_data(value: Any) -> Any:
    """JSON values: every message inside as its English text, for scripts, and its template and values."""
    if isinstance(value, Message):
        stored = _stored(value)
        return {"text": str(value), **stored} if isinstance(stored, dict) else stored
    if isinstance(value, Mapping):
        return {name: as_data(inner) for name, inner in value.items()}
    if isinstance(value, (list, tuple)):
        return [as_data(inner) for inner in value]
    return value


def _stored(value: Any) -> Any:
    """A message or a value of one, as JSON values without English text."""
    if isinstance(value, Message):
        if value.template == _VERBATIM:
            return value.values["text"]
        return {"template": value.template, "values": {name: _stored(inner) for name, inner in value.values.items()}}
    return [_stored(inner) for inner in value] if isinstance(value, list) else value


def from_data(content: dict[str, Any]) -> Any:
    """The message that a JSON object holds, or the object itself: for `json.loads(text, object_hook=from_data)`."""
    template, values = content.get("template"), content.get("values")
    named = content.keys() - {"text"} == {"template", "values"}
    if not named or not isinstance(template, str) or not isinstance(values, dict):
        return content
    try:
        return Message(template, values)
    except (ValueError, TypeError):  # a number format for a text, in a damaged file
        return content


def _validated(value: Any) -> Message:
    found = from_data(value) if isinstance(value, dict) else value
    if not isinstance(found, str):
        raise ValueError("not a message")
    return verbatim(found)


def _plain(value: Any) -> Any:
    """A value that JSON and pickle can store: numpy's numbers as Python's, paths as text; a stored message as one."""
    if isinstance(value, str | bool | None):
        return value
    if isinstance(value, dict):
        found = from_data(value)
        return found if isinstance(found, Message) else str(value)
    if isinstance(value, Integral):
        return int(value)
    if isinstance(value, Real):
        return float(value)
    return [_plain(item) for item in value] if isinstance(value, Iterable) else str(value)


def _fill(template: str, values: Mapping[str, Any], translate: Translate) -> str:
    def field(match: re.Match[str]) -> str:
        name, form = match.groups()
        return format(_shown(values[name], translate), form or "") if name in values else match[0]

    return _FIELD.sub(field, template.rpartition(CONTEXT)[2])


def _shown(value: Any, translate: Translate) -> Any:
    if isinstance(value, Message):
        return value.translated(translate)
    if isinstance(value, list):
        return translate(SEPARATOR).join(str(_shown(item, translate)) for item in value)
    return value


def _english(template: str) -> str:
    return template
