"""Finding the text and label columns."""

from __future__ import annotations

import pytest

from tightfit.data.columns import Columns, find_columns
from tightfit.errors import DataError


@pytest.mark.parametrize(
    ("names", "text", "label"),
    [
        (["label", "review"], ("review",), "label"),
        (["id", "Text", "Label"], ("Text",), "Label"),
        (["content", "category", "url"], ("content",), "category"),
        (["idx", "sentence1", "sentence2", "label"], ("sentence1", "sentence2"), "label"),
        (["premise", "hypothesis", "label"], ("premise", "hypothesis"), "label"),
        (["stars", "review"], ("review",), "stars"),
        (["what they said", "label"], ("what they said",), "label"),
        (["评论", "标签"], ("评论",), "标签"),
    ],
)
def test_columns_are_found_by_name(names: list[str], text: tuple[str, ...], label: str) -> None:
    assert find_columns("a.csv", names, None, None) == Columns(text, label)


def test_given_columns_take_precedence() -> None:
    assert find_columns("a.csv", ["text", "title", "label"], ("title",), "label").text == ("title",)


@pytest.mark.parametrize(
    ("text", "label", "message"),
    [
        (None, "lable", "did you mean 'label'"),
        (("revew",), None, "did you mean 'review'"),
        (("label", "review", "id"), None, "one column, or two"),
    ],
)
def test_unknown_columns_get_a_suggestion(text: tuple[str, ...] | None, label: str | None, message: str) -> None:
    with pytest.raises(DataError, match=message):
        find_columns("a.csv", ["id", "label", "review"], text, label)


def test_the_error_lists_the_columns() -> None:
    with pytest.raises(DataError, match="columns: a, b, c"):
        find_columns("a.csv", ["a", "b", "c"], None, None)
    with pytest.raises(DataError, match="No label column"):
        find_columns("a.csv", ["text", "b", "c"], None, None)


def test_a_misspelt_column_is_suggested() -> None:
    with pytest.raises(DataError, match="name it with --label lable,"):
        find_columns("a.csv", ["id", "lable", "text"], None, None)
    with pytest.raises(DataError, match="name it with --text revew,"):
        find_columns("a.csv", ["id", "label", "revew"], None, None)
