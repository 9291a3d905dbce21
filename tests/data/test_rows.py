"""Clean rows."""

from __future__ import annotations

import errno
import io
import json
from pathlib import Path
from typing import Any

import pytest

from tightfit.data import row_file
from tightfit.data.columns import Columns
from tightfit.data.rows import load_rows
from tightfit.tasks.text_classification import TextClassification


def test_empty_rows_are_dropped_and_counted(tmp_path: Path) -> None:
    (tmp_path / "a.csv").write_text("label,review\n1,good\n0,  \n1,\n,no label\n0,bad\n", "utf-8")
    rows, _ = load_rows(str(tmp_path / "a.csv"), TextClassification())
    assert list(rows.dataset["text"]) == ["good", "bad"]
    assert [note.split(": ")[1] for note in rows.notes] == [
        "2 rows without text dropped (lines 3, 4)",
        "1 row without a label dropped (line 5)",
    ]


def test_broken_rows_are_repaired_or_dropped_with_a_note(tmp_path: Path) -> None:
    rows = [
        {"label": 1, "text": "good"},
        {"label": 0, "text": ["a", "list"]},
        {"label": {"an": "object"}, "text": "x"},
        {"label": 0, "text": "a\u0000b\u001bc\n\td"},
        {"label": 1, "text": "half \ud83d"},
        {"label": 0, "text": "long " * 200_000},
        {"label": 1, "text": True},
        {"label": 0, "text": 12.5},
    ]
    (tmp_path / "a.jsonl").write_text("\n".join(json.dumps(row) for row in rows), "utf-8")
    found, _ = load_rows(str(tmp_path / "a.jsonl"), TextClassification())
    texts = list(found.dataset["text"])
    assert [text[:12] for text in texts] == ["good", "a b c\n\td", "half ?", "long long lo", "True", "12.5"]
    assert len(texts[3]) == 100_000
    assert [note.split(": ")[1] for note in found.notes] == [
        "1 row whose text is a list, an object or bytes dropped (line 2)",
        "1 row whose label is a list, an object or bytes dropped (line 3)",
        "1 row with control characters, replaced by spaces (line 4)",
        "1 row with a lone surrogate (half a character), replaced by '?' (line 5)",
        "1 row longer than 100,000 characters, truncated (line 6)",
    ]


def test_a_second_column_with_a_usual_name_is_noted(tmp_path: Path) -> None:
    (tmp_path / "a.csv").write_text("label,sentence,text\n1,fine,good\n0,poor,bad\n", "utf-8")
    rows, _ = load_rows(str(tmp_path / "a.csv"), TextClassification())
    assert list(rows.dataset["text"]) == ["good", "bad"]
    [note] = rows.notes
    assert note.endswith("the text is taken from 'text', not from 'sentence': choose another column with --text")
    named, _ = load_rows(str(tmp_path / "a.csv"), TextClassification(), Columns.of("sentence", None))
    assert (list(named.dataset["text"]), named.notes) == (["fine", "poor"], ())


def test_nan_is_not_a_text(tmp_path: Path) -> None:
    (tmp_path / "a.jsonl").write_text('{"label": 1, "text": "good"}\n{"label": 0, "text": NaN}\n', "utf-8")
    rows, _ = load_rows(str(tmp_path / "a.jsonl"), TextClassification())
    assert list(rows.dataset["text"]) == ["good"]
    assert "1 row without text dropped (line 2)" in rows.notes[0]


def test_a_full_disk_raises_an_error_while_rows_are_stored(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    class Full(io.BytesIO):
        """An unbuffered file on a disk with one byte left."""

        def write(self, content: Any) -> int:
            return super().write(content[:1])

    (tmp_path / "a.csv").write_text("label,review\n1,good\n0,bad\n", "utf-8")
    monkeypatch.setattr(row_file, "_anonymous_file", Full)
    with pytest.raises(OSError, match="No space left") as raised:
        load_rows(str(tmp_path / "a.csv"), TextClassification())
    assert raised.value.errno == errno.ENOSPC


def test_only_the_first_lines_are_listed(tmp_path: Path) -> None:
    lines = "".join(f"{number % 2},{'' if number > 3 else 'text'}\n" for number in range(20))
    (tmp_path / "a.csv").write_text("label,review\n" + lines, "utf-8")
    found, _ = load_rows(str(tmp_path / "a.csv"), TextClassification())
    assert found.notes[0].endswith("16 rows without text dropped (lines 6, 7, 8, 9, 10 and 11 more)")


def test_rows_to_predict_for_are_kept_and_not_called_dropped(tmp_path: Path) -> None:
    data = tmp_path / "rows.csv"
    data.write_text("text,number\ngood,1\n ,2\n")
    rows, _ = load_rows(str(data), TextClassification(), need_label=False)
    assert [note.partition(": ")[2] for note in rows.notes] == [
        "1 row without text, kept without a prediction (line 3)"
    ]
