"""Readers: formats, encodings, quoting and invalid files."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from tightfit.data.columns import Columns
from tightfit.data.encoding import detect_encoding
from tightfit.data.header import HeaderHints
from tightfit.data.readers import Table, open_table
from tightfit.errors import DataError


def table_of(path: Path, header: bool = True) -> Table:
    usual = frozenset({"text", "label", "review", "sentence"})
    return open_table(path, HeaderHints(usual, Columns() if header else Columns(("1",))))


def rows_of(path: Path, header: bool = True) -> list[tuple[int, dict[str, object]]]:
    return list(table_of(path, header).rows())


def write(path: Path, text: str, encoding: str = "utf-8") -> Path:
    path.write_bytes(text.encode(encoding))
    return path


@pytest.mark.parametrize("encoding", ["utf-8", "utf-8-sig", "gb18030", "utf-16"])
def test_chinese_text_in_every_encoding(tmp_path: Path, encoding: str) -> None:
    path = write(tmp_path / "a.csv", "label,review\n1,房间很干净\n0,服务差，不会再来\n", encoding)
    assert detect_encoding(path) == encoding
    assert [row["review"] for _, row in rows_of(path)] == ["房间很干净", "服务差，不会再来"]
    assert table_of(path).columns() == ["label", "review"]


def test_undecodable_bytes_are_reported_with_their_line(tmp_path: Path) -> None:
    path = tmp_path / "a.csv"
    path.write_bytes(b"label,review\n1,fine\n0,\xff\xff\xff\n")
    with pytest.raises(DataError, match="line 3"):
        detect_encoding(path)


def test_a_truncated_character_at_the_end_is_found(tmp_path: Path) -> None:
    path = tmp_path / "a.csv"
    path.write_bytes("label,review\n1,干净".encode()[:-1])
    with pytest.raises(DataError, match="line 2"):
        detect_encoding(path)


def test_quotes_line_breaks_and_commas(tmp_path: Path) -> None:
    path = write(tmp_path / "a.csv", 'label,review\n1,"a ""b"", c\nsecond line"\n0,plain\n')
    assert rows_of(path) == [
        (2, {"label": "1", "review": 'a "b", c\nsecond line'}),
        (4, {"label": "0", "review": "plain"}),
    ]


@pytest.mark.parametrize(
    ("text", "line"),
    [
        ('label,review\n1,ok\n0,"never closed\n1,next\n', 3),
        ('label,review\n1,"closed" and more\n', 2),
        ("label,review\n1,a,b,c\n", 2),
    ],
)
def test_malformed_rows_are_reported_with_their_line(tmp_path: Path, text: str, line: int) -> None:
    with pytest.raises(DataError, match=f"line {line}"):
        rows_of(write(tmp_path / "a.csv", text))


def test_semicolons_blank_lines_and_short_rows(tmp_path: Path) -> None:
    path = write(tmp_path / "a.csv", "label;review\n\n1;good, very\n;\n0\n")
    assert [row for _, row in rows_of(path)] == [
        {"label": "1", "review": "good, very"},
        {"label": "0", "review": ""},
    ]


def test_an_unquoted_tsv_keeps_its_quotes(tmp_path: Path) -> None:
    path = write(tmp_path / "a.tsv", 'sentence\tlabel\n"good" he said\t1\n"\t0\n')
    assert [row["sentence"] for _, row in rows_of(path)] == ['"good" he said', '"']


def test_a_quoted_tsv(tmp_path: Path) -> None:
    path = write(tmp_path / "a.tsv", 'sentence\tlabel\n"a\tb"\t1\n')
    assert rows_of(path)[0][1] == {"sentence": "a\tb", "label": "1"}


def test_a_file_without_a_header_line(tmp_path: Path) -> None:
    path = write(tmp_path / "a.tsv", "nice\t1\nbad\t0\n")
    assert rows_of(path, header=False) == [(1, {"1": "nice", "2": "1"}), (2, {"1": "bad", "2": "0"})]


def test_columns_that_the_first_row_omits_are_found(tmp_path: Path) -> None:
    path = write(tmp_path / "a.jsonl", '{"text": "a"}\n{"text": "b", "label": 1}\n')
    assert table_of(path).columns() == ["text", "label"]


def test_blank_lines_before_the_header(tmp_path: Path) -> None:
    path = write(tmp_path / "a.csv", "\n\nlabel,review\n1,a\n")
    assert rows_of(path) == [(4, {"label": "1", "review": "a"})]


def test_commas_do_not_split_a_tsv(tmp_path: Path) -> None:
    path = write(tmp_path / "a.tsv", "good, very, very\t1\n")
    assert rows_of(path, header=False)[0][1] == {"1": "good, very, very", "2": "1"}


def test_a_very_long_cell(tmp_path: Path) -> None:
    path = write(tmp_path / "a.csv", f"label,review\n1,{'x' * 300_000}\n")
    assert len(str(rows_of(path)[0][1]["review"])) == 300_000


@pytest.mark.parametrize(
    ("name", "content"),
    [
        ("a.json", json.dumps([{"text": "a", "label": 1}, {"text": "b", "label": 0}])),
        ("a.json", json.dumps({"version": 1, "data": [{"text": "a", "label": 1}, {"text": "b", "label": 0}]})),
        ("a.json", json.dumps({"text": ["a", "b"], "label": [1, 0]})),
        ("a.json", '{"text": "a", "label": 1}\n{"text": "b", "label": 0}\n'),
        ("a.jsonl", '{"text": "a", "label": 1}\n\n{"text": "b", "label": 0}\n'),
    ],
)
def test_json_layouts(tmp_path: Path, name: str, content: str) -> None:
    found = [row for _, row in rows_of(write(tmp_path / name, content))]
    assert found == [{"text": "a", "label": 1}, {"text": "b", "label": 0}]


@pytest.mark.parametrize("orient", ["columns", "index", "split", "records", "table"])
@pytest.mark.parametrize("index", [None, ["x", "y", "z"]])
def test_every_layout_of_pandas(tmp_path: Path, orient: str, index: list[str] | None) -> None:
    import pandas as pd

    frame = pd.DataFrame({"text": ["a", "b", "c"], "label": [1, 0, None]}, index=index)
    found = [row for _, row in rows_of(write(tmp_path / "a.json", frame.to_json(orient=orient)))]
    assert [(row["text"], row["label"]) for row in found] == [("a", 1), ("b", 0), ("c", None)]


def test_a_list_of_texts(tmp_path: Path) -> None:
    assert rows_of(write(tmp_path / "a.json", '["a", "b"]')) == [(1, {"text": "a"}), (2, {"text": "b"})]


@pytest.mark.parametrize(
    ("name", "content", "message"),
    [
        ("a.jsonl", '{"text": "a"}\n{broken\n', "line 2"),
        ("a.json", "[1, 2]", "entry 1"),
        ("a.json", '"text"', "list of objects"),
        ("a.parquet", "not parquet", "Parquet"),
    ],
)
def test_invalid_json_and_parquet(tmp_path: Path, name: str, content: str, message: str) -> None:
    with pytest.raises(DataError, match=message):
        rows_of(write(tmp_path / name, content))


def test_parquet(tmp_path: Path) -> None:
    import pyarrow as pa
    import pyarrow.parquet as pq

    pq.write_table(pa.table({"text": ["a", "b"], "label": [1, 0]}), tmp_path / "a.parquet")
    assert rows_of(tmp_path / "a.parquet")[1] == (2, {"text": "b", "label": 0})
