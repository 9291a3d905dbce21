"""Header lines: no first row is lost, and no header becomes a row."""

from __future__ import annotations

from pathlib import Path

import pytest

from tightfit.data.columns import Columns
from tightfit.data.rows import load_rows
from tightfit.errors import DataError
from tightfit.tasks.text_classification import TextClassification

TASK = TextClassification()


def read(path: Path, content: str, given: Columns | None = None) -> tuple[list[str], list[str], list[str]]:
    """Texts, labels and notes."""
    path.write_text(content, "utf-8")
    rows, _ = load_rows(str(path), TASK, given)
    return rows.dataset["text"], rows.dataset["label"], [note.split(": ", 1)[1] for note in rows.notes]


def texts_of(path: Path, content: str, given: Columns | None = None) -> tuple[list[str], list[str]]:
    """Texts to predict for, and notes."""
    path.write_text(content, "utf-8")
    rows, _ = load_rows(str(path), TASK, given, need_label=False)
    return rows.dataset["text"], [note.split(": ", 1)[1] for note in rows.notes]


def test_a_text_file_has_no_header_and_lines_are_not_split(tmp_path: Path) -> None:
    texts, notes = texts_of(tmp_path / "a.txt", 'good, clean; kind\n\n"bad", she said\nso, so, so\n')
    assert texts == ["good, clean; kind", '"bad", she said', "so, so, so"]
    assert notes == ["each line is read as one text"]


@pytest.mark.parametrize("header", ["review", "Text", "reviews", "review_text", "用户评论"])
@pytest.mark.parametrize("name", ["a.csv", "a.tsv", "a.txt"])
def test_a_single_column_has_a_header_if_its_name_is_a_usual_one(tmp_path: Path, name: str, header: str) -> None:
    assert texts_of(tmp_path / name, f"{header}\nclean room\nrude staff\n") == (["clean room", "rude staff"], [])


@pytest.mark.parametrize("first", ["a good review", "very clean", "满意的评论，下次再来", "a" * 40, "sauber"])
def test_the_first_row_of_a_single_column_is_kept_and_that_is_said(tmp_path: Path, first: str) -> None:
    texts, [note] = texts_of(tmp_path / "a.csv", f"{first}\nrude staff\n")
    assert texts == [first, "rude staff"]
    assert note.startswith(f"no header line, line 1 ('{first}') is read as a text; if it is the name of the column")


def test_a_single_column_has_a_header_that_the_user_names(tmp_path: Path) -> None:
    assert texts_of(tmp_path / "a.csv", "meinung\nsauber\nlaut\n", Columns(("meinung",)))[0] == ["sauber", "laut"]
    with pytest.raises(DataError, match="no column 'meinung'"):
        texts_of(tmp_path / "b.csv", "sauber\nlaut\n", Columns(("meinung",)))


def test_commas_in_quotes_do_not_divide_a_single_column(tmp_path: Path) -> None:
    assert texts_of(tmp_path / "a.csv", '"good, clean; kind"\n"rude; loud"\n')[0] == ["good, clean; kind", "rude; loud"]


ROWS = [("1", "good room"), ("0", "rude staff"), ("1", "clean, kind and warm"), ("0", "never again")]
NOTE = "no header line, line 1 is read as a row and columns are numbered from 1"


@pytest.mark.parametrize("order", [(0, 1), (1, 0)])
@pytest.mark.parametrize("labels", [{"1": "1", "0": "0"}, {"1": "pos", "0": "neg"}, {"1": "4.5", "0": "3"}])
def test_a_training_file_without_a_header_keeps_its_first_row(
    tmp_path: Path, labels: dict[str, str], order: tuple[int, int]
) -> None:
    cells = [(labels[label], f'"{text}"') for label, text in ROWS]
    content = "\n".join(",".join(row[column] for column in order) for row in cells)
    texts, found, notes = read(tmp_path / "a.csv", content)
    assert texts == [text for _, text in ROWS]
    assert found == [labels[label] for label, _ in ROWS]
    assert notes == [NOTE]


def test_a_text_file_with_a_tab_on_each_line_is_a_table(tmp_path: Path) -> None:
    content = "\n".join(f"{text}\t{label}" for label, text in ROWS)
    assert read(tmp_path / "a.txt", content) == ([text for _, text in ROWS], [label for label, _ in ROWS], [NOTE])
    with_header = read(tmp_path / "b.txt", "text\tlabel\n" + content)
    assert with_header == ([text for _, text in ROWS], [label for label, _ in ROWS], [])


@pytest.mark.parametrize("header", ["label,review", "kind,review", "stimmung,meinung"])
def test_a_header_is_not_read_as_a_row(tmp_path: Path, header: str) -> None:
    """Also if one column or both have unusual names."""
    content = header + "\n" + "".join(f'{label},"{text}"\n' for label, text in ROWS)
    given = Columns(("meinung",), ("stimmung",)) if header == "stimmung,meinung" else None
    assert read(tmp_path / "a.csv", content, given)[0] == [text for _, text in ROWS]
    if given:
        with pytest.raises(DataError, match=r"No text column was found in .* \(columns: stimmung, meinung\)"):
            read(tmp_path / "a.csv", content)


def test_a_repeated_header_is_no_row_that_it_is_like(tmp_path: Path) -> None:
    content = "stimmung,meinung\n" + "".join(
        f"{label},{text}\n" for label, text in [*ROWS[:2], ("stimmung", "meinung")]
    )
    with pytest.raises(DataError, match="columns: stimmung, meinung"):
        read(tmp_path / "a.csv", content)


@pytest.mark.parametrize("header", ["0,1", ",0,1"])
def test_columns_that_pandas_numbered_are_a_header(tmp_path: Path, header: str) -> None:
    index = header.startswith(",")
    content = header + "\n" + "".join(f'{f"{n}," if index else ""}{a},"{b}"\n' for n, (a, b) in enumerate(ROWS))
    assert read(tmp_path / "a.csv", content, Columns(("1",), ("0",)))[0] == [text for _, text in ROWS]


def test_numbers_count_the_columns_of_a_file_with_a_header(tmp_path: Path) -> None:
    content = "label,review\n" + "".join(f'{label},"{text}"\n' for label, text in ROWS)
    assert read(tmp_path / "a.csv", content, Columns(("2",), ("1",)))[0] == [text for _, text in ROWS]


@pytest.mark.parametrize(
    ("content", "message"),
    [
        ("good\tschlecht\tgut\ngood\tb\tc\n", r"line 1: 1 = 'good', 2 = 'schlecht', 3 = 'gut'\): name them by number"),
        ("Hi.\tSalut.\nHi.\tCiao.\nHello.\tBonjour.\nBye.\tAdieu.\nOh.\tAh.\n", "which column is which is not clear"),
    ],
)
def test_unclear_columns_are_asked_for(tmp_path: Path, content: str, message: str) -> None:
    with pytest.raises(DataError, match=message):
        read(tmp_path / "a.tsv", content)


def test_every_file_of_a_folder_has_its_own_header_or_none(tmp_path: Path) -> None:
    for name in ("train.tsv", "dev.tsv"):
        (tmp_path / name).write_text("\n".join(f"{text}\t{label}" for label, text in ROWS), "utf-8")
    rows, validation = load_rows(str(tmp_path), TASK)
    assert validation is not None
    assert (len(rows), len(validation)) == (4, 4)
