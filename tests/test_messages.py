"""Messages: English text that keeps its template and values."""

from __future__ import annotations

import copy
import json
import pickle
from pathlib import Path

import numpy as np
import pytest
from pydantic import BaseModel, ValidationError

from tightfit.errors import BadInput, DoesNotFit, first_line, suggest
from tightfit.messages import (
    Message,
    as_data,
    both,
    clauses,
    from_data,
    in_sequence,
    listed,
    msg,
    name,
    verbatim,
)

CHINESE = {
    "{rows:,} rows of {file}: {why}": "{file} 的 {rows:,} 行：{why}",
    "too long ({share:.0%})": "过长（{share:.0%}）",
}
NESTED = msg(
    "{rows:,} rows of {file}: {why}", rows=1200, file=Path("a.csv"), why=msg("too long ({share:.0%})", share=0.25)
)


def chinese(template: str) -> str:
    return {**CHINESE, ", ": "、"}.get(template, template)


def test_a_message_is_its_english_text() -> None:
    assert NESTED == "1,200 rows of a.csv: too long (25%)"
    assert json.dumps([NESTED]) == '["1,200 rows of a.csv: too long (25%)"]'
    assert {NESTED: 1}[str(NESTED)] == 1


def test_its_values_are_translated_too() -> None:
    assert NESTED.translated(chinese) == "a.csv 的 1,200 行：过长（25%）"
    assert (
        msg("of {names}", names=["a", msg("too long ({share:.0%})", share=0.5)]).translated(chinese)
        == "of a、过长（50%）"
    )


def test_a_template_without_translation_stays_english() -> None:
    assert msg("{count} new", count=3).translated(chinese) == "3 new"


def test_braces_in_values_are_text() -> None:
    assert msg("{a} and {b}", a="{b}", b="{a.__class__}") == "{b} and {a.__class__}"


def test_only_names_are_fields() -> None:
    assert msg("{a.__class__} {a[0]} {0} {a!r} {}", a="x") == "{a.__class__} {a[0]} {0} {a!r} {}"


def test_a_context_is_not_shown() -> None:
    message = msg("memory", context="of a GPU")
    assert message == "memory"
    assert message.translated({"of a GPU\x04memory": "显存", "memory": "内存"}.__getitem__) == "显存"


@pytest.mark.parametrize("duplicate", [copy.copy, copy.deepcopy, lambda value: pickle.loads(pickle.dumps(value))])
def test_copies_keep_the_data(duplicate: object) -> None:
    found = duplicate(NESTED)  # type: ignore[operator]
    assert (type(found), found, found.template, found.values) == (Message, NESTED, NESTED.template, NESTED.values)
    assert isinstance(found.values["why"], Message)


def test_json_keeps_the_data() -> None:
    content = {"notes": [NESTED, verbatim("a library's words")], "count": 2}
    stored = json.dumps(as_data(content))
    assert json.loads(stored)["notes"][0]["text"] == NESTED
    assert json.loads(stored)["notes"][0]["values"]["why"] == {
        "template": "too long ({share:.0%})",
        "values": {"share": 0.25},
    }
    assert json.loads(stored)["notes"][1] == "a library's words"
    found = json.loads(stored, object_hook=from_data)
    assert found == content
    assert found["notes"][0].translated(chinese) == NESTED.translated(chinese)


def test_numbers_of_numpy_become_those_of_python() -> None:
    message = msg("{a:,} {b:.1f}", a=np.int64(1000), b=np.float32(0.5))
    assert message == "1,000 0.5"
    assert json.loads(json.dumps(as_data(message)))["values"] == {"a": 1000, "b": 0.5}


@pytest.mark.parametrize(
    "content",
    [
        {"template": "{a:,}", "values": {"a": "text"}},
        {"template": 3, "values": {}},
        {"template": "{a}", "values": []},
        {"template": "{a}"},
        {"template": "{a}", "values": {}, "more": 1},
    ],
)
def test_other_objects_are_not_messages(content: dict[str, object]) -> None:
    assert from_data(content) is content


class Record(BaseModel):
    notes: list[Message]
    failed: Message | None = None


def test_a_pydantic_field_is_stored_as_data() -> None:
    record = Record(notes=[NESTED, "a library's words"])  # type: ignore[list-item]
    stored = record.model_dump_json()
    assert json.loads(stored)["notes"] == [as_data(NESTED), "a library's words"]
    found = Record(**json.loads(stored))
    assert found.notes == record.notes
    assert found.notes[0].values == NESTED.values


@pytest.mark.parametrize("notes", [[3], [None], [{"template": "{a:,}", "values": {"a": "b"}}], [["a"]]])
def test_a_pydantic_field_rejects_what_is_no_message(notes: list[object]) -> None:
    with pytest.raises(ValidationError):
        Record(notes=notes)  # type: ignore[arg-type]


def test_messages_are_joined() -> None:
    assert listed(["a", "b", "c"]) == "a, b, c"
    assert in_sequence(name("a."), name("b.")) == "a. b."
    assert both(name("a"), name("b"), name("c")) == "a and b and c"
    assert clauses(name("a"), name("b")) == "a; b"


def test_an_error_carries_its_message() -> None:
    error = BadInput(msg("'{name}' is wrong: {suggestion}", name="lines\nof text", suggestion=suggest("a", ["b"])))
    assert str(error) == "'lines of text' is wrong: choose from b."
    assert error.message.values["name"] == "lines\nof text"
    again = pickle.loads(pickle.dumps(error))
    assert (type(again), again.message, again.message.values) == (BadInput, error.message, error.message.values)
    assert first_line(error) is error.message


def test_an_error_with_a_plan_crosses_processes() -> None:
    error = pickle.loads(pickle.dumps(DoesNotFit(NESTED, {"a": "plan"})))
    assert error.plan == {"a": "plan"}
    assert error.message.values == NESTED.values


def test_an_error_with_plain_text_has_a_message_too() -> None:
    assert BadInput("wrong").message.translated(chinese) == "wrong"
    assert first_line(ValueError("first\nsecond")) == "first"
