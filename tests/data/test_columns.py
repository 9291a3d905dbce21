"""Finding the text and label columns."""

from __future__ import annotations

import pytest

from tightfit.data.columns import ColumnNames, Columns, find_columns, other_candidates
from tightfit.errors import DataError

NAMES = ColumnNames(text=(("premise", "hypothesis"), ("text",), ("review",)), label=("label", "stars"))


@pytest.mark.parametrize(
    ("columns", "expected"),
    [
        (["label", "review"], Columns(("review",), ("label",))),
        (["id", "Text", "Label"], Columns(("Text",), ("Label",))),
        (["premise", "hypothesis", "label", "text"], Columns(("premise", "hypothesis"), ("label",))),
        (["kind", "review"], Columns(("review",), ("kind",))),
        (["what they said", "label"], Columns(("what they said",), ("label",))),
    ],
)
def test_columns_are_found_by_name_or_as_the_only_one_left(columns: list[str], expected: Columns) -> None:
    assert find_columns("a.csv", columns, NAMES) == expected


@pytest.mark.parametrize(
    ("columns", "given", "notes"),
    [
        (["text", "review", "label"], Columns(), ["the text is taken from 'text', not from 'review'"]),
        (["text", "label", "Stars"], Columns(), ["the label is taken from 'label', not from 'Stars'"]),
        (["text", "review", "label"], Columns.of("review", None), []),
        (["text", "label", "stars"], Columns.of(None, "stars"), []),
        (["premise", "hypothesis", "label"], Columns(), []),
        (
            ["premise", "hypothesis", "label", "text", "review"],
            Columns(),
            ["the text is taken from 'premise' + 'hypothesis', not from 'text', 'review'"],
        ),
        (["id", "kind", "text", "label"], Columns(), []),
    ],
)
def test_other_columns_with_a_usual_name_are_noted(columns: list[str], given: Columns, notes: list[str]) -> None:
    taken = find_columns("a.csv", columns, NAMES, given)
    found = list(other_candidates("a.csv", columns, NAMES, given, taken))
    assert [note.split(": ")[1] for note in found] == notes


def test_given_columns_take_precedence() -> None:
    given = Columns.of("title", "kind")
    assert find_columns("a.csv", ["text", "title", "label", "kind"], NAMES, given) == Columns(("title",), ("kind",))
    assert find_columns("a.csv", ["text", "title", "label"], NAMES, Columns.of("title, text", None)) == Columns(
        ("title", "text"), ("label",)
    )


@pytest.mark.parametrize(
    ("text", "label", "message"),
    [
        (None, "lable", "did you mean 'label'"),
        ("revew", None, "did you mean 'review'"),
        ("label,review,id", None, "one column, or two for text pairs, not 3"),
        (None, "id,label", "--label takes one column, not 2"),
    ],
)
def test_given_columns_are_checked(text: str | None, label: str | None, message: str) -> None:
    with pytest.raises(DataError, match=message):
        find_columns("a.csv", ["id", "label", "review"], NAMES, Columns.of(text, label))


def test_a_task_may_need_no_label_or_several() -> None:
    alone = ColumnNames(text=(("text",),))
    assert find_columns("a.csv", ["text", "label"], alone) == Columns(("text",), ())
    with pytest.raises(DataError, match="--text takes one column, not 2"):
        find_columns("a.csv", ["text", "label"], alone, Columns.of("text,label", None))
    several = ColumnNames(text=(("text",),), label=("label",), max_labels=9)
    assert find_columns("a.csv", ["text", "a", "b"], several, Columns.of(None, "a,b")).label == ("a", "b")


def test_labels_are_not_looked_for_where_they_are_not_needed() -> None:
    assert find_columns("a.csv", ["text", "id"], NAMES, need_label=False) == Columns(("text",), ())


def test_the_error_lists_the_columns() -> None:
    with pytest.raises(DataError, match="columns: a, b, c"):
        find_columns("a.csv", ["a", "b", "c"], NAMES)
    with pytest.raises(DataError, match="No label column"):
        find_columns("a.csv", ["text", "b", "c"], NAMES)


def test_a_misspelt_column_is_suggested() -> None:
    with pytest.raises(DataError, match="name it with --label lable,"):
        find_columns("a.csv", ["id", "lable", "text"], NAMES)
    with pytest.raises(DataError, match="name it with --text revew,"):
        find_columns("a.csv", ["id", "label", "revew"], NAMES)
