"""Labelling a file: its own columns, and beside them what the model says."""

from __future__ import annotations

import csv
import json
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

from tightfit.data.sources import Source
from tightfit.errors import OutputError
from tightfit.inference import Prediction, load_rows_like, predict
from tightfit.record import load_run
from tightfit.whole import whole_file


@dataclass(frozen=True)
class Labelled:
    """What was written."""

    rows: int
    notes: tuple[str, ...]


def label_file(run: str | Path, data: str, out: Path, device: str | None = None, text: str | None = None) -> Labelled:
    """Label every row of a file and write all of it, answers beside it, to another."""
    _refuse_output(out)
    rows, _ = load_rows_like(load_run(run), data, text, need_label=False)
    dataset = rows.dataset
    pairs = dataset["text_pair"] if "text_pair" in dataset.column_names else [""] * len(dataset)
    answers = predict(run, list(zip(dataset["text"], pairs, strict=True)), device)
    table = _Answered(rows.source, dict(zip(dataset["row"], answers, strict=True)))
    out.parent.mkdir(parents=True, exist_ok=True)
    with whole_file(out) as aside:
        _WRITERS[out.suffix.lower()](aside, table)
    return Labelled(len(answers), rows.notes)


@dataclass(frozen=True)
class _Answered:
    """A source with two columns more. Rows without text stay and get no answer."""

    source: Source
    answers: dict[int, Prediction]

    def columns(self) -> list[str]:
        """Every column that any row has, then the answers'."""
        return list({name: None for _, row in self.source.rows() for name in row}) + list(self._added())

    def rows(self) -> Iterator[dict[str, Any]]:
        names = self._added()
        for number, (_, row) in enumerate(self.source.rows()):
            answer = self.answers.get(number)
            values = (answer.label, round(answer.confidence, 4)) if answer else ("", "")
            yield {**row, **dict(zip(names, values, strict=True))}

    def _added(self) -> tuple[str, str]:
        """Names that the file does not have yet."""
        own, suffix = set(self.source.columns()), ""
        while f"prediction{suffix}" in own or f"confidence{suffix}" in own:
            suffix = f"_{int(suffix[1:] or 1) + 1}"
        return f"prediction{suffix}", f"confidence{suffix}"


_HALF_A_CHARACTER = "replace"  # by a question mark, as it is read


def _write_delimited(path: Path, table: _Answered, delimiter: str) -> None:
    # The mark makes spreadsheet programs read Chinese as utf-8; ours and pandas read it as well.
    with path.open("w", encoding="utf-8-sig", errors=_HALF_A_CHARACTER, newline="") as file:
        writer = csv.DictWriter(file, table.columns(), delimiter=delimiter, restval="")
        writer.writeheader()
        writer.writerows(table.rows())


def _write_json_lines(path: Path, table: _Answered) -> None:
    with path.open("w", encoding="utf-8", errors=_HALF_A_CHARACTER) as file:
        file.writelines(json.dumps(row, ensure_ascii=False, default=str) + "\n" for row in table.rows())


_WRITERS: dict[str, Callable[[Path, _Answered], None]] = {
    ".csv": partial(_write_delimited, delimiter=","),
    ".tsv": partial(_write_delimited, delimiter="\t"),
    ".jsonl": _write_json_lines,
}


def _refuse_output(out: Path) -> None:
    if out.suffix.lower() not in _WRITERS:
        raise OutputError(f"'{out}' has an ending that is not known: write {', '.join(_WRITERS)}.")
    if out.exists():
        raise OutputError(f"'{out}' is there already: give another --out, or remove it.")
