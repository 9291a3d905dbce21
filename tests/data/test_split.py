"""The split: stratified, reproducible, and without training rows in the validation rows."""

from __future__ import annotations

from collections import Counter
from pathlib import Path

import numpy as np
import pytest
from conftest import write_reviews

from tightfit.data.row_file import store_rows
from tightfit.data.rows import Rows, load_rows
from tightfit.data.split import fingerprints, held_out_rows, save_split, split_rows
from tightfit.errors import DataError
from tightfit.tasks.text_classification import TextClassification


def load(path: Path) -> Rows:
    return load_rows(str(path), TextClassification())[0]


def test_the_split_is_stratified_and_reproducible(reviews: Path) -> None:
    rows = load(write_reviews(reviews, 200))
    labels = rows.dataset["label"]
    split = split_rows(rows, None, 1, labels)
    assert (len(split.train), len(split.validation)) == (180, 20)
    assert Counter(split.validation["label"]) == {"0": 10, "1": 10}
    assert not set(split.train["line"]) & set(split.validation["line"])
    assert split_rows(rows, None, 1, labels).validation["line"] == split.validation["line"]
    assert split_rows(rows, None, 2, labels).validation["line"] != split.validation["line"]


def test_without_strata_a_random_tenth_is_held_out(tmp_path: Path) -> None:
    (tmp_path / "a.csv").write_text("label,review\n" + "".join(f"{i},text {i}\n" for i in range(50)), "utf-8")
    split = split_rows(load(tmp_path / "a.csv"), None, seed=1)
    assert (len(split.train), len(split.validation)) == (45, 5)
    assert sorted(split.train["row"] + split.validation["row"]) == list(range(50))


def test_a_single_row_cannot_be_split(tmp_path: Path) -> None:
    (tmp_path / "a.csv").write_text("label,review\n1,good\n", "utf-8")
    with pytest.raises(DataError, match="one row cannot be split"):
        split_rows(load(tmp_path / "a.csv"), None, seed=0)


def test_fingerprints_tell_rows_apart_by_all_cells_but_not_by_their_place() -> None:
    rows = [("a", "b", 0.5, 1), ("a", "b", 0.5, 2), ("a", "c", 0.5, 3), ("a", "b", 0.25, 4)]
    kinds = {"text": str, "text_pair": str, "label": float, "line": int}
    stored = store_rows((dict(zip(kinds, row, strict=True)) for row in rows), kinds)
    first, same, *others = fingerprints(stored).tolist()
    assert first == same
    assert len({first, *others}) == 3


def test_the_saved_split_excludes_training_rows(tmp_path: Path) -> None:
    rows = load(write_reviews(tmp_path / "all.csv", 100))
    split = split_rows(rows, None, seed=3)
    save_split(tmp_path, split)
    same, note = held_out_rows(tmp_path, rows)
    assert list(same["line"]) == list(split.validation["line"])
    assert "90 of 100 rows were trained on" in note[0]

    text = (tmp_path / "all.csv").read_text("utf-8")
    (tmp_path / "copy.csv").write_text(text + "1,a row of its own\n", "utf-8")
    kept, _ = held_out_rows(tmp_path, load(tmp_path / "copy.csv"))
    trained = set(split.train["text"])
    assert len(kept) == 11
    assert not trained & set(kept["text"])


def test_duplicates_across_the_split_get_a_note(tmp_path: Path) -> None:
    lines = "".join(f"{i % 2},the same text\n" for i in range(40))
    (tmp_path / "a.csv").write_text("label,review\n" + lines, "utf-8")
    rows = load(tmp_path / "a.csv")
    assert "4 of 4 validation rows" in split_rows(rows, None, 0, rows.dataset["label"]).notes[0]


def test_small_data_is_split(tmp_path: Path) -> None:
    rows = load(write_reviews(tmp_path / "a.csv", 6))
    split = split_rows(rows, None, 0, rows.dataset["label"])
    assert len(split.validation) == 2
    assert np.unique(split.validation["label"]).size == 2
