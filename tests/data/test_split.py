"""The split: stratified, reproducible, and without training rows in the validation rows."""

from __future__ import annotations

from collections import Counter
from pathlib import Path

import numpy as np
from conftest import write_reviews

from tightfit.data.rows import load_rows
from tightfit.data.split import held_out_rows, save_split, split_rows


def test_the_split_is_stratified_and_reproducible(reviews: Path) -> None:
    rows, _ = load_rows(str(write_reviews(reviews, 200)))
    split = split_rows(rows, None, seed=1)
    assert (len(split.train), len(split.validation)) == (180, 20)
    assert Counter(split.validation["label"]) == {"0": 10, "1": 10}
    assert not set(split.train["line"]) & set(split.validation["line"])
    assert split_rows(rows, None, seed=1).validation["line"] == split.validation["line"]
    assert split_rows(rows, None, seed=2).validation["line"] != split.validation["line"]


def test_the_saved_split_excludes_training_rows(tmp_path: Path) -> None:
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


def test_duplicates_across_the_split_get_a_note(tmp_path: Path) -> None:
    lines = "".join(f"{i % 2},the same text\n" for i in range(40))
    (tmp_path / "a.csv").write_text("label,review\n" + lines, "utf-8")
    rows, _ = load_rows(str(tmp_path / "a.csv"))
    assert "4 of 4 validation rows" in split_rows(rows, None, seed=0).notes[0]


def test_small_data_is_split(tmp_path: Path) -> None:
    rows, _ = load_rows(str(write_reviews(tmp_path / "a.csv", 6)))
    split = split_rows(rows, None, seed=0)
    assert len(split.validation) == 2
    assert np.unique(split.validation["label"]).size == 2
