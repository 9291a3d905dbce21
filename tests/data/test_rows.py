"""From what the user named to clean rows, labels and a split."""

from __future__ import annotations

import errno
import io
import json
from collections import Counter
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from conftest import write_reviews

from tightfit.data import row_file
from tightfit.data.rows import find_labels, load_rows
from tightfit.data.split import held_out_rows, save_split, split_rows
from tightfit.errors import DataError


def test_empty_rows_are_dropped_and_counted(tmp_path: Path) -> None:
    (tmp_path / "a.csv").write_text("label,review\n1,good\n0,  \n1,\n,no label\n0,bad\n", "utf-8")
    rows, _ = load_rows(str(tmp_path / "a.csv"))
    assert list(rows.dataset["text"]) == ["good", "bad"]
    assert [note.split(": ")[1] for note in rows.notes] == [
        "2 rows without text dropped (lines 3, 4)",
        "1 row without a label dropped (line 5)",
    ]


def test_broken_rows_are_mended_or_dropped_and_named(tmp_path: Path) -> None:
    """Each as the note says; none reaches the model."""
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
    found, _ = load_rows(str(tmp_path / "a.jsonl"))
    texts = list(found.dataset["text"])
    assert [text[:12] for text in texts] == ["good", "a b c\n\td", "half ?", "long long lo", "True", "12.5"]
    assert len(texts[3]) == 100_000
    assert [note.split(": ")[1] for note in found.notes] == [
        "1 row whose text is a list, an object or bytes dropped (line 2)",
        "1 row whose label is a list, an object or bytes dropped (line 3)",
        "1 row with control characters, which are read as spaces (line 4)",
        "1 row with half a character (a lone surrogate), which is read as '?' (line 5)",
        "1 row of more than 100,000 characters, of which the first are read (line 6)",
    ]


def test_a_number_that_is_none_is_no_text(tmp_path: Path) -> None:
    (tmp_path / "a.jsonl").write_text('{"label": 1, "text": "good"}\n{"label": 0, "text": NaN}\n', "utf-8")
    rows, _ = load_rows(str(tmp_path / "a.jsonl"))
    assert list(rows.dataset["text"]) == ["good"]
    assert "1 row without text dropped (line 2)" in rows.notes[0]


def test_a_disk_that_is_full_when_rows_are_kept_is_no_mistake_of_the_library(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    class Full(io.BytesIO):
        """As a file without a buffer on a disk that has room for one byte more."""

        def write(self, content: Any) -> int:
            return super().write(content[:1])

    (tmp_path / "a.csv").write_text("label,review\n1,good\n0,bad\n", "utf-8")
    monkeypatch.setattr(row_file, "_file_without_name", Full)
    with pytest.raises(OSError, match="No space left") as raised:
        load_rows(str(tmp_path / "a.csv"))
    assert raised.value.errno == errno.ENOSPC


def test_many_lines_are_not_all_named(tmp_path: Path) -> None:
    lines = "".join(f"{number % 2},{'' if number > 3 else 'text'}\n" for number in range(20))
    (tmp_path / "a.csv").write_text("label,review\n" + lines, "utf-8")
    found, _ = load_rows(str(tmp_path / "a.csv"))
    assert found.notes[0].endswith("16 rows without text dropped (lines 6, 7, 8, 9, 10 and 11 more)")


def test_labels_of_every_kind(tmp_path: Path) -> None:
    rows = [
        {"text": "a", "label": 1},
        {"text": "b", "label": 1.0},
        {"text": "c", "label": "1.0"},
        {"text": "d", "label": float("nan")},
        {"text": "e", "label": None},
        {"text": "f", "label": 10},
        {"text": "g", "label": 9},
        {"text": "\ud83d half an emoji", "label": 9},
        {"text": ["a", "list"], "label": 9},
    ]
    (tmp_path / "a.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows), "utf-8")
    found, _ = load_rows(str(tmp_path / "a.jsonl"))
    assert list(found.dataset["label"]) == ["1", "1", "1", "10", "9", "9"]
    assert find_labels(found, will_be_split=False).names == ("1", "9", "10")


def test_words_as_labels_are_in_the_alphabets_order(tmp_path: Path) -> None:
    (tmp_path / "a.csv").write_text("label,review\npos,good\nneg,bad\nneutral,so\n", "utf-8")
    rows, _ = load_rows(str(tmp_path / "a.csv"))
    assert find_labels(rows, will_be_split=False).ids == {"neg": 0, "neutral": 1, "pos": 2}


@pytest.mark.parametrize(
    ("content", "says"),
    [
        ("label,review\n1,a\n1,b\n", "at least two labels"),
        ("label,review\n1,a\n1,b\n0,c\n", "'0' appears only once, on line 4"),
    ],
)
def test_labels_that_cannot_be_learnt(tmp_path: Path, content: str, says: str) -> None:
    (tmp_path / "a.csv").write_text(content, "utf-8")
    rows, _ = load_rows(str(tmp_path / "a.csv"))
    with pytest.raises(DataError, match=says):
        find_labels(rows, will_be_split=True)


def test_none_is_a_label_like_any_other(tmp_path: Path) -> None:
    (tmp_path / "a.csv").write_text("label,review\nnone,a\nnull,b\nNaN,c\n", "utf-8")
    rows, _ = load_rows(str(tmp_path / "a.csv"))
    assert list(rows.dataset["label"]) == ["none", "null", "NaN"]


def test_every_file_of_a_folder_needs_the_columns(tmp_path: Path) -> None:
    write_reviews(tmp_path / "a.csv", 4)
    (tmp_path / "b.jsonl").write_text('{"text": "a", "label": 1}\n', "utf-8")
    with pytest.raises(DataError, match=r"No text column|b\.jsonl has no column"):
        load_rows(str(tmp_path))


def test_what_is_left_alone_is_said(tmp_path: Path) -> None:
    write_reviews(tmp_path / "train.csv", 4)
    write_reviews(tmp_path / "test.csv", 4)
    (tmp_path / "readme.txt").write_text("about the data")
    rows, _ = load_rows(str(tmp_path))
    assert len(rows) == 4
    assert "test.csv is left alone" in rows.notes[0]


def test_a_guessed_encoding_is_said(tmp_path: Path) -> None:
    (tmp_path / "a.csv").write_text("label,review\n1,干净\n", "gb18030")
    rows, _ = load_rows(str(tmp_path / "a.csv"))
    assert "read as gb18030" in rows.notes[0]


def test_a_folder_with_named_files(tmp_path: Path) -> None:
    write_reviews(tmp_path / "train.csv", 20)
    write_reviews(tmp_path / "dev.csv", 6, seed=1)
    write_reviews(tmp_path / "test.csv", 4, seed=2)
    rows, validation = load_rows(str(tmp_path))
    assert validation is not None
    assert (len(rows), len(validation)) == (20, 6)


def test_a_folder_of_parts_is_read_as_one(tmp_path: Path) -> None:
    write_reviews(tmp_path / "part1.csv", 4)
    write_reviews(tmp_path / "part2.csv", 6)
    rows, validation = load_rows(str(tmp_path))
    assert (len(rows), validation) == (10, None)


def test_a_folder_of_classes(tmp_path: Path) -> None:
    for label in ("neg", "pos"):
        (tmp_path / label).mkdir()
        for number in range(3):
            (tmp_path / label / f"{number}.txt").write_text(f"a {label} text", "utf-8")
    rows, _ = load_rows(str(tmp_path))
    assert Counter(rows.dataset["label"]) == {"neg": 3, "pos": 3}


def test_a_data_set_on_disk_with_class_names(tmp_path: Path) -> None:
    from datasets import ClassLabel, Dataset, Features, Value

    features = Features({"sentence": Value("string"), "label": ClassLabel(names=["neg", "pos"])})
    data = Dataset.from_dict({"sentence": ["a", "b", "c"], "label": [0, 1, -1]}, features=features)
    data.save_to_disk(str(tmp_path / "set"))
    rows, _ = load_rows(str(tmp_path / "set"))
    assert list(rows.dataset["label"]) == ["neg", "pos"]


def test_numbered_columns_for_files_without_names(tmp_path: Path) -> None:
    (tmp_path / "a.tsv").write_text("good\t1\nbad\t0\n", "utf-8")
    rows, _ = load_rows(str(tmp_path / "a.tsv"), ("1",), "2")
    assert list(rows.dataset["text"]) == ["good", "bad"]


def test_a_changed_file_is_read_anew(tmp_path: Path) -> None:
    path = tmp_path / "a.csv"
    path.write_text("label,review\n1,old\n", "utf-8")
    first, _ = load_rows(str(path))
    path.write_text("label,review\n1,new\n", "utf-8")
    second, _ = load_rows(str(path))
    assert [list(rows.dataset["text"]) for rows in (first, second)] == [["old"], ["new"]]
    assert first.digest != second.digest


def test_the_split_is_a_stratified_tenth_and_repeats(reviews: Path) -> None:
    rows, _ = load_rows(str(write_reviews(reviews, 200)))
    split = split_rows(rows, None, seed=1)
    assert (len(split.train), len(split.validation)) == (180, 20)
    assert Counter(split.validation["label"]) == {"0": 10, "1": 10}
    assert not set(split.train["line"]) & set(split.validation["line"])
    assert split_rows(rows, None, seed=1).validation["line"] == split.validation["line"]
    assert split_rows(rows, None, seed=2).validation["line"] != split.validation["line"]


def test_the_saved_split_keeps_training_rows_out(tmp_path: Path) -> None:
    rows, _ = load_rows(str(write_reviews(tmp_path / "all.csv", 100)))
    split = split_rows(rows, None, seed=3)
    save_split(tmp_path, split)
    same, note = held_out_rows(tmp_path, rows)
    assert list(same["line"]) == list(split.validation["line"])
    assert "90 of 100 rows were trained on" in note[0]

    text = (tmp_path / "all.csv").read_text("utf-8")
    (tmp_path / "copy.csv").write_text(text + "1,a row of its own\n", "utf-8")
    copy, _ = load_rows(str(tmp_path / "copy.csv"))
    kept, _ = held_out_rows(tmp_path, copy)
    trained = set(split.train["text"])
    assert len(kept) == 11
    assert not trained & set(kept["text"])


def test_rows_on_both_sides_are_said_aloud(tmp_path: Path) -> None:
    lines = "".join(f"{i % 2},the same text\n" for i in range(40))
    (tmp_path / "a.csv").write_text("label,review\n" + lines, "utf-8")
    rows, _ = load_rows(str(tmp_path / "a.csv"))
    assert "4 of 4 validation rows" in split_rows(rows, None, seed=0).notes[0]


def test_small_data_still_splits(tmp_path: Path) -> None:
    rows, _ = load_rows(str(write_reviews(tmp_path / "a.csv", 6)))
    split = split_rows(rows, None, seed=0)
    assert len(split.validation) == 2
    assert np.unique(split.validation["label"]).size == 2
