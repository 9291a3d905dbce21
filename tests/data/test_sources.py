"""Sources: files, folders and datasets on disk."""

from __future__ import annotations

from collections import Counter
from pathlib import Path

import pytest
from conftest import write_reviews

from tightfit.data.columns import Columns
from tightfit.data.rows import load_rows
from tightfit.errors import DataError
from tightfit.tasks.text_classification import TextClassification


def test_every_file_of_a_folder_needs_the_columns(tmp_path: Path) -> None:
    write_reviews(tmp_path / "a.csv", 4)
    (tmp_path / "b.jsonl").write_text('{"text": "a", "label": 1}\n', "utf-8")
    with pytest.raises(DataError, match=r"No text column|b\.jsonl has no column"):
        load_rows(str(tmp_path), TextClassification())


def test_a_missing_file_gets_the_similar_name_or_the_data_files_of_its_folder(tmp_path: Path) -> None:
    with pytest.raises(DataError) as error:
        load_rows(str(tmp_path / "reveiws.csv"), TextClassification())
    assert str(error.value) == f"Data file not found: '{tmp_path / 'reveiws.csv'}'. Check the path."
    write_reviews(tmp_path / "reviews.csv", 4)
    with pytest.raises(DataError, match=r"^Data file not found: '.*reveiws\.csv'\. Did you mean 'reviews\.csv'\?$"):
        load_rows(str(tmp_path / "reveiws.csv"), TextClassification())
    with pytest.raises(DataError) as error:
        load_rows(str(tmp_path / "x.parquet"), TextClassification())
    assert str(error.value).endswith(f"x.parquet'. Data files in '{tmp_path}': reviews.csv.")


def test_unused_files_get_a_note(tmp_path: Path) -> None:
    write_reviews(tmp_path / "train.csv", 4)
    write_reviews(tmp_path / "test.csv", 4)
    (tmp_path / "readme.txt").write_text("about the data")
    rows, _ = load_rows(str(tmp_path), TextClassification())
    assert len(rows) == 4
    assert "test.csv not used" in rows.notes[0]


def test_a_guessed_encoding_gets_a_note(tmp_path: Path) -> None:
    (tmp_path / "a.csv").write_text("label,review\n1,干净\n", "gb18030")
    rows, _ = load_rows(str(tmp_path / "a.csv"), TextClassification())
    assert "read as gb18030" in rows.notes[0]


def test_a_folder_with_train_and_dev_files(tmp_path: Path) -> None:
    write_reviews(tmp_path / "train.csv", 20)
    write_reviews(tmp_path / "dev.csv", 6, seed=1)
    write_reviews(tmp_path / "test.csv", 4, seed=2)
    rows, validation = load_rows(str(tmp_path), TextClassification())
    assert validation is not None
    assert (len(rows), len(validation)) == (20, 6)


def test_other_files_of_a_folder_are_read_as_one(tmp_path: Path) -> None:
    write_reviews(tmp_path / "part1.csv", 4)
    write_reviews(tmp_path / "part2.csv", 6)
    rows, validation = load_rows(str(tmp_path), TextClassification())
    assert (len(rows), validation) == (10, None)


def test_one_folder_per_class(tmp_path: Path) -> None:
    for label in ("neg", "pos"):
        (tmp_path / label).mkdir()
        for number in range(3):
            (tmp_path / label / f"{number}.txt").write_text(f"a {label} text", "utf-8")
    rows, _ = load_rows(str(tmp_path), TextClassification())
    assert Counter(rows.dataset["label"]) == {"neg": 3, "pos": 3}


def test_a_dataset_on_disk_with_class_names(tmp_path: Path) -> None:
    from datasets import ClassLabel, Dataset, Features, Value

    features = Features({"sentence": Value("string"), "label": ClassLabel(names=["neg", "pos"])})
    data = Dataset.from_dict({"sentence": ["a", "b", "c"], "label": [0, 1, -1]}, features=features)
    data.save_to_disk(str(tmp_path / "set"))
    rows, _ = load_rows(str(tmp_path / "set"), TextClassification())
    assert list(rows.dataset["label"]) == ["neg", "pos"]


def test_numbered_columns_for_files_without_a_header(tmp_path: Path) -> None:
    (tmp_path / "a.tsv").write_text("good\t1\nbad\t0\n", "utf-8")
    rows, _ = load_rows(str(tmp_path / "a.tsv"), TextClassification(), Columns(("1",), ("2",)))
    assert list(rows.dataset["text"]) == ["good", "bad"]


def test_a_changed_file_is_read_again(tmp_path: Path) -> None:
    path = tmp_path / "a.csv"
    path.write_text("label,review\n1,old\n", "utf-8")
    first, _ = load_rows(str(path), TextClassification())
    path.write_text("label,review\n1,new\n", "utf-8")
    second, _ = load_rows(str(path), TextClassification())
    assert [list(rows.dataset["text"]) for rows in (first, second)] == [["old"], ["new"]]
    assert first.digest != second.digest
