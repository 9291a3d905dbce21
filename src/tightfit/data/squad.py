"""SQuAD's JSON: articles with paragraphs, each with questions; a row is a question with its context."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any


def is_squad(items: list[Any]) -> bool:
    """Whether these are the articles of a SQuAD file."""
    return bool(items) and all(isinstance(item, dict) and isinstance(item.get("paragraphs"), list) for item in items)


def squad_rows(articles: list[Any]) -> Iterator[dict[str, Any]]:
    """The questions of all articles; what is not as in SQuAD becomes an empty cell."""
    for article in articles:
        for paragraph in filter(_is_object, article["paragraphs"]):
            for question in filter(_is_object, paragraph.get("qas") or ()):
                yield {
                    "id": question.get("id"),
                    "question": question.get("question"),
                    "context": paragraph.get("context"),
                    "answers": question.get("answers") or [],
                }


def _is_object(value: Any) -> bool:
    return isinstance(value, dict)
