"""CoNLL files: which files are read as such, and their rows."""

from __future__ import annotations

from pathlib import Path

import pytest

from tightfit.data.columns import Columns
from tightfit.data.conll import conll_rows, is_conll
from tightfit.data.header import HeaderHints
from tightfit.data.readers import open_table
from tightfit.errors import DataError

SENTENCES = "New\tB-LOC\nYork\tI-LOC\n\n\nMarie\tB-PER\nis\tO\n"


def write(path: Path, text: str) -> Path:
    path.write_text(text, "utf-8")
    return path


def test_a_sentence_is_a_row(tmp_path: Path) -> None:
    path = write(tmp_path / "a.txt", SENTENCES)
    table = open_table(path, HeaderHints(frozenset(), Columns()))
    assert table.columns() == ["tokens", "tags"]
    assert list(table.rows()) == [
        (1, {"tokens": ["New", "York"], "tags": ["B-LOC", "I-LOC"]}),
        (5, {"tokens": ["Marie", "is"], "tags": ["B-PER", "O"]}),
    ]


def test_columns_between_the_first_and_the_last_are_numbered(tmp_path: Path) -> None:
    text = "-DOCSTART- -X- -X- O\n\nEU NNP B-NP B-ORG\nrejects VBZ B-VP O\n# a comment\n\n"
    path = write(tmp_path / "a.conll", text)
    expected = {"tokens": ["EU", "rejects"], "2": ["NNP", "VBZ"], "3": ["B-NP", "B-VP"], "tags": ["B-ORG", "O"]}
    assert list(conll_rows(path)) == [(3, expected)]
    columns = open_table(path, HeaderHints(frozenset(), Columns())).columns()
    assert Columns(("1",), ("3",)).by_position(columns) == Columns(("tokens",), ("3",))


@pytest.mark.parametrize(
    ("name", "text", "expected"),
    [
        ("a.txt", SENTENCES, True),
        ("a.tsv", SENTENCES, True),
        ("a.txt", "the DT\nroom NN\nwas VB\n\nit PRP\nwas VB\ngood JJ\n", True),  # tags without prefixes
        ("a.txt", "a\u3000\tO\n\u3000\tO\nb\tB-X\n", True),  # a token that is a space
        ("a.txt", "the room\nwas good\n\nit was bad\n", False),
        ("a.txt", "the room was clean\tgood\nit was bad\tbad\n", False),
        ("a.tsv", "text\tlabel\n好\t1\n\n坏\t0\n", False),
        ("a.bio", "anything\n", True),
    ],
)
def test_tokens_and_tags_are_told_from_texts(tmp_path: Path, name: str, text: str, expected: bool) -> None:
    assert is_conll(write(tmp_path / name, text)) is expected


def test_a_line_with_other_fields_is_named(tmp_path: Path) -> None:
    path = write(tmp_path / "a.txt", "".join(f"w{n}\tO\n" for n in range(20)) + "x\tB-X\nbroken\n")
    with pytest.raises(DataError, match=r"a.txt line 22 has 1 fields where other lines have 2: write a token and its"):
        list(conll_rows(path))
