"""Columns: which columns of a file hold the text and the label."""

from __future__ import annotations

import difflib
from dataclasses import dataclass

from tightfit.errors import DataError, suggest

_TEXT_NAMES = (
    "text", "review", "sentence", "content", "comment", "document", "body", "message", "tweet", "title",
    "review_text", "review_body", "text_a", "评论", "文本", "内容", "句子",
)  # fmt: skip


_PAIR_NAMES = (
    ("sentence1", "sentence2"), ("premise", "hypothesis"), ("question1", "question2"), ("text_a", "text_b"),
    ("text1", "text2"), ("question", "passage"), ("question", "sentence"),
)  # fmt: skip


_LABEL_NAMES = (
    "label", "labels", "class", "category", "target", "sentiment", "polarity", "rating", "y", "标签", "类别", "情感",
)  # fmt: skip


@dataclass(frozen=True)
class Columns:
    """The columns that training reads."""

    text: tuple[str, ...]
    """One column, or two for text pairs."""
    label: str | None


def find_columns(
    name: str, columns: list[str], text: tuple[str, ...] | None, label: str | None, *, need_label: bool = True
) -> Columns:
    """The given columns, or those with common names, or the only remaining column."""
    for given in (*(text or ()), *([label] if label else [])):
        if given not in columns:
            raise DataError(f"{name} has no column '{given}': {suggest(given, columns)}")
    if text is not None and not 1 <= len(text) <= 2:
        raise DataError(f"--text takes one column, or two for text pairs, not {len(text)}.")
    label = label or _first(columns, _LABEL_NAMES, taken=text or ())
    text = text or _text_by_name(columns, label)
    rest = [column for column in columns if column not in text and column != label]
    if not text and len(rest) == 1:
        text = (rest.pop(),)
    if label is None and len(rest) == 1 and need_label:
        label = rest[0]
    return Columns(_check_text(name, text, columns), _check_label(name, label, columns, need_label))


def _first(columns: list[str], names: tuple[str, ...], taken: tuple[str, ...] = ()) -> str | None:
    by_lower = {column.strip().lower(): column for column in columns if column not in taken}
    return next((by_lower[name] for name in names if name in by_lower), None)


def _text_by_name(columns: list[str], label: str | None) -> tuple[str, ...]:
    by_lower = {column.strip().lower(): column for column in columns}
    for first, second in _PAIR_NAMES:
        if first in by_lower and second in by_lower:
            return by_lower[first], by_lower[second]
    found = _first(columns, _TEXT_NAMES, taken=(label,) if label else ())
    return (found,) if found else ()


def _check_text(name: str, text: tuple[str, ...], columns: list[str]) -> tuple[str, ...]:
    if not text:
        raise DataError(_not_found(name, "text", columns, _TEXT_NAMES))
    return text


def _check_label(name: str, label: str | None, columns: list[str], need: bool) -> str | None:
    if label is None and need:
        raise DataError(_not_found(name, "label", columns, _LABEL_NAMES))
    return label


def _not_found(name: str, option: str, columns: list[str], common: tuple[str, ...]) -> str:
    near = next((c for c in columns if difflib.get_close_matches(c.lower(), common, n=1, cutoff=0.75)), None)
    hint = f"name it with --{option} {near}" if near else f"name it with --{option}"
    return (
        f"No {option} column was found in {name} (columns: {', '.join(columns)}): {hint}, "
        "or by number (--text 1 --label 2) if the file has no header line."
    )
