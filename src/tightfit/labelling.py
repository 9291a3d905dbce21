"""Labelling a file: its own columns, and beside them what the model says."""

from __future__ import annotations

import csv
import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from tightfit.data.rows import load_rows
from tightfit.data.sources import find_sources
from tightfit.errors import OutputError
from tightfit.inference import Prediction, predict
from tightfit.record import load_run

_DELIMITERS = {".csv": ",", ".tsv": "\t"}
ADDED = ("prediction", "confidence")


def label_file(folder: Path, data: str, out: Path, device: str | None = None) -> int:
    """Label every row of a file and write all of it to another; returns the number of rows labelled."""
    _refuse_output(out)
    job = load_run(folder).job
    rows, _ = load_rows(data, job.text_columns, None, need_label=False)
    dataset = rows.dataset
    pairs = dataset["text_pair"] if "text_pair" in dataset.column_names else [""] * len(dataset)
    answers = predict(folder, list(zip(dataset["text"], pairs, strict=True)), device)
    by_line = dict(zip(dataset["line"], answers, strict=True))
    source, _ = find_sources(data)
    aside = out.with_name(out.name + ".part")
    _write(aside, out.suffix.lower(), _with_answers(source.rows(), by_line))
    aside.replace(out)
    return len(answers)


def _with_answers(
    rows: Iterator[tuple[int, dict[str, Any]]], by_line: dict[int, Prediction]
) -> Iterator[dict[str, Any]]:
    """Every row of the file, also the empty ones, which get no answer."""
    for line, row in rows:
        answer = by_line.get(line)
        added = (answer.label, round(answer.confidence, 4)) if answer else ("", "")
        yield {**row, **dict(zip(ADDED, added, strict=True))}


def _write(path: Path, ending: str, rows: Iterator[dict[str, Any]]) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    if ending == ".jsonl":
        path.write_text("".join(json.dumps(row, ensure_ascii=False) + "\n" for row in rows), "utf-8")
        return
    first = next(rows)
    # The mark makes spreadsheet programs read Chinese as utf-8; ours and pandas read it as well.
    with path.open("w", encoding="utf-8-sig", newline="") as file:
        writer = csv.DictWriter(file, list(first), delimiter=_DELIMITERS[ending], extrasaction="ignore")
        writer.writeheader()
        writer.writerow(first)
        writer.writerows(rows)


def _refuse_output(out: Path) -> None:
    if out.suffix.lower() not in (*_DELIMITERS, ".jsonl"):
        raise OutputError(f"'{out}' has an ending that is not known: write .csv, .tsv or .jsonl.")
    if out.exists():
        raise OutputError(f"'{out}' is there already: give another --out, or remove it.")
