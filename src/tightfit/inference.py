"""Inference with a trained model: predictions for new texts and evaluation on held-out rows."""

from __future__ import annotations

import csv
import itertools
import json
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeVar

import numpy as np

from tightfit.data.batches import IGNORED, RowLimits
from tightfit.data.columns import Columns
from tightfit.data.labels import Labels
from tightfit.data.row_file import RowFile
from tightfit.data.rows import Rows, load_rows
from tightfit.data.sources import Source, find_sources
from tightfit.data.split import held_out_rows
from tightfit.data.tokens import Tokens
from tightfit.device import Device, find_device
from tightfit.engine.oom import release_memory_on_error
from tightfit.engine.step import label_counts
from tightfit.errors import DataError, ModelError, OutputError
from tightfit.files import atomic_file
from tightfit.messages import Message, msg
from tightfit.models import load_config, load_model, load_tokenizer
from tightfit.runs.record import Run, load_run
from tightfit.tasks import find_task
from tightfit.tasks.base import LOSS, ModelInputs, Prediction, Task
from tightfit.training.memory_limit import limit_memory

if TYPE_CHECKING:
    from transformers import PreTrainedModel, PreTrainedTokenizerBase

    from tightfit.data.batches import Batch
    from tightfit.tasks.base import Collator

    Array = np.ndarray[Any, Any]


T = TypeVar("T")
BATCH_SIZE = 32


@dataclass(frozen=True)
class Evaluation:
    """Metrics of a run's model on rows it was not trained on."""

    task: str
    metrics: dict[str, float]
    rows: int
    notes: tuple[Message, ...] = ()


@release_memory_on_error
def predict(
    folder: str | Path, texts: str | Sequence[str | tuple[str, str]], device: str | None = None
) -> list[Prediction]:
    """Predict with a trained model for texts (or pairs of texts), in the given order."""
    texts = [texts] if isinstance(texts, str) else texts
    if not texts:
        raise DataError(msg("No text was given: give at least one."))
    run = load_run(folder)
    rows = find_task(run.job.task).rows_of([text if isinstance(text, tuple) else (text,) for text in texts])
    return _predict_rows(run, rows, device)


def _predict_rows(run: Run, rows: RowFile, device: str | None) -> list[Prediction]:
    where, task = find_device(device), find_task(run.job.task)
    model, tokenizer = _load(run, where)
    tokens = task.tokenize(rows, tokenizer, run.max_length, None)
    outputs: list[Any] = [None] * len(tokens)
    with limit_memory(where, _silent):
        for numbers, chunks in _run_batches(partial(task.infer, model), model, tokens, task.collator(tokenizer)):
            for number, output in zip(numbers, itertools.chain(*chunks), strict=True):
                outputs[number] = output
    return list(task.decode(outputs, ModelInputs(rows, tokens.dataset, tokenizer, Labels(run.data.labels))))


@release_memory_on_error
def evaluate(
    folder: str | Path,
    data: str | None = None,
    device: str | None = None,
    *,
    text: str | None = None,
    label: str | None = None,
) -> Evaluation:
    """Evaluate a trained model on its held-out rows, or on the rows of a file that it was not trained on."""
    run = load_run(folder)
    where, task, labels = find_device(device), find_task(run.job.task), Labels(run.data.labels)
    rows, held_out, notes = _rows_to_evaluate(run, data, Columns.of(text, label))
    known, unknown_notes = task.known_rows(rows.name, held_out, labels)
    if not len(known):
        raise DataError(msg("{name} has no row left to evaluate on: give a file with new rows.", name=rows.name))
    model, tokenizer = _load(run, where)
    tokens = task.tokenize(known, tokenizer, run.max_length, labels)
    with limit_memory(where, _silent):
        batches = _run_batches(partial(_score, task, model), model, tokens, task.collator(tokenizer))
        scores = [score for _, chunks in batches for score in chunks]
    return Evaluation(task.name, _metrics(task, scores, labels), len(known), (*notes, *unknown_notes))


@dataclass(frozen=True)
class _Score:
    """Some rows of an evaluation."""

    loss: float
    """The sum over their labels."""
    labels: int
    logits: Array | None
    truth: Array


def _score(task: Task, model: PreTrainedModel, batch: Batch) -> _Score:
    outputs, truth = model(**batch), batch["labels"]
    labels = sum(label_counts(model, truth))
    logits = task.keep_logits(outputs.logits, truth).cpu().numpy() if task.metrics else None
    return _Score(float(outputs.loss) * labels if labels else 0.0, labels, logits, truth.cpu().numpy())


def _metrics(task: Task, scores: list[_Score], labels: Labels) -> dict[str, float]:
    """The task's metrics, and the mean loss as in training."""
    from transformers import EvalPrediction

    found = {}
    if task.metrics:
        logits = _join([score.logits for score in scores if score.logits is not None])
        found = task.compute_metrics(EvalPrediction(logits, _join([score.truth for score in scores])), labels)
    loss = sum(score.loss for score in scores) / sum(score.labels for score in scores)
    return {**{f"eval_{name}": value for name, value in found.items()}, LOSS.key: loss}


def _join(parts: list[Array]) -> Array:
    """The rows of all parts; where they differ in length, padded with the label that is ignored, as Trainer does."""
    if parts[0].ndim == 1:
        return np.concatenate(parts)
    length = max(part.shape[1] for part in parts)
    rest = [(0, 0)] * (parts[0].ndim - 2)
    padded = [np.pad(p, [(0, 0), (0, length - p.shape[1]), *rest], constant_values=IGNORED) for p in parts]
    return np.concatenate(padded)


def _rows_to_evaluate(run: Run, data: str | None, given: Columns) -> tuple[Rows, RowFile, tuple[Message, ...]]:
    """All rows, those that were not trained on, and notes about them."""
    job = run.job
    rows, validation = load_rows_for(run, data or job.validation or job.data, given)
    if data is None and job.validation is None and validation is not None:
        rows = validation
    held_out, note = held_out_rows(Path(run.folder), rows)
    return rows, held_out, (*rows.notes, *note)


def load_rows_for(run: Run, data: str, given: Columns, *, need_label: bool = True) -> tuple[Rows, Rows | None]:
    """Rows of a file: from the given columns, else from the run's columns, else found by name."""
    trained = Columns(run.data.text_columns, run.data.label_columns)
    numbered = all(column.isdigit() for column in trained.text)
    available = set(find_sources(data, header=not numbered)[0].columns())
    text = given.text or _if_all_in(available, trained.text)
    label = given.label or _if_all_in(available, trained.label)
    columns = Columns(text, label if need_label else ())
    return load_rows(data, find_task(run.job.task), columns, need_label=need_label)


def _if_all_in(available: set[str], columns: tuple[str, ...]) -> tuple[str, ...]:
    return columns if set(columns) <= available else ()


def _load(run: Run, device: Device) -> tuple[PreTrainedModel, PreTrainedTokenizerBase]:
    folder = Path(run.folder)
    if not (folder / "config.json").is_file():
        raise ModelError(
            msg(
                "'{folder}' holds no trained model: its run did not finish. Continue it with train --resume.",
                folder=folder,
            )
        )
    head = find_task(run.job.task).head()
    model = load_model(head, str(folder), load_config(str(folder)), random_weights=False)
    return model.to(device.name).eval(), load_tokenizer(str(folder))


def _run_batches(
    run: Callable[[Batch], T], model: PreTrainedModel, tokens: Tokens, collate: Collator
) -> Iterator[tuple[list[int], list[T]]]:
    """The rows of each batch and what `run` returns for its chunks; the longest rows first, for less padding."""
    import torch

    from tightfit.training.recovery import run_in_chunks

    order = sorted(range(len(tokens)), key=lambda row: -tokens.lengths[row])
    limits = RowLimits(BATCH_SIZE)

    def on_device(batch: Batch) -> T:
        return run({name: value.to(model.device) for name, value in batch.items()})

    with torch.inference_mode():
        for start in range(0, len(order), BATCH_SIZE):
            rows = order[start : start + BATCH_SIZE]
            yield rows, run_in_chunks(on_device, dict(collate(tokens.dataset.__getitems__(rows))), limits, _silent)


def _silent(line: str) -> None:
    """Drop log lines: smaller batches after an out-of-memory do not change predictions."""


@dataclass(frozen=True)
class PredictedFile:
    """Number of predicted rows, and notes about the data."""

    rows: int
    notes: tuple[Message, ...]


@release_memory_on_error
def predict_file(
    folder: str | Path, data: str, out: Path, device: str | None = None, text: str | None = None
) -> PredictedFile:
    """Write a copy of a data file with more columns: the prediction for each row."""
    _check_output(out)
    run = load_run(folder)
    rows, _ = load_rows_for(run, data, Columns.of(text, None), need_label=False)
    predictions = _predict_rows(run, rows.dataset, device)
    table = _PredictedTable(rows.source, dict(zip(rows.dataset["row"], predictions, strict=True)))
    out.parent.mkdir(parents=True, exist_ok=True)
    with atomic_file(out) as tmp:
        _WRITERS[out.suffix.lower()](tmp, table)
    return PredictedFile(len(predictions), rows.notes)


@dataclass(frozen=True)
class _PredictedTable:
    """A data source with the predictions as more columns; rows that cannot be read get empty ones."""

    source: Source
    predictions: dict[int, Prediction]

    def columns(self) -> list[str]:
        """All columns of the source, then the new ones."""
        return list({name: None for _, row in self.source.rows() for name in row}) + list(self._new_columns().values())

    def rows(self) -> Iterator[dict[str, Any]]:
        names = self._new_columns()
        for number, (_, row) in enumerate(self.source.rows()):
            prediction = self.predictions.get(number)
            values = prediction.columns() if prediction else dict.fromkeys(names, "")
            yield {**row, **{names[name]: value for name, value in values.items()}}

    def _new_columns(self) -> dict[str, str]:
        """The columns of a prediction, and names for them that the source does not have yet."""
        own, suffix = set(self.source.columns()), ""
        names = next(iter(self.predictions.values())).columns()
        while any(f"{name}{suffix}" in own for name in names):
            suffix = f"_{int(suffix[1:] or 1) + 1}"
        return {name: f"{name}{suffix}" for name in names}


_ENCODE_ERRORS = "replace"  # lone surrogates become question marks, as when the data is read


def _write_delimited(path: Path, table: _PredictedTable, delimiter: str) -> None:
    # The byte order mark makes spreadsheet programs read the file as UTF-8; tightfit and pandas accept it.
    with path.open("w", encoding="utf-8-sig", errors=_ENCODE_ERRORS, newline="") as file:
        writer = csv.DictWriter(file, table.columns(), delimiter=delimiter, restval="")
        writer.writeheader()
        writer.writerows(table.rows())


def _write_json_lines(path: Path, table: _PredictedTable) -> None:
    with path.open("w", encoding="utf-8", errors=_ENCODE_ERRORS) as file:
        file.writelines(json.dumps(row, ensure_ascii=False, default=str) + "\n" for row in table.rows())


_WRITERS: dict[str, Callable[[Path, _PredictedTable], None]] = {
    ".csv": partial(_write_delimited, delimiter=","),
    ".tsv": partial(_write_delimited, delimiter="\t"),
    ".jsonl": _write_json_lines,
}


def _check_output(out: Path) -> None:
    if out.suffix.lower() not in _WRITERS:
        raise OutputError(msg("'{file}' has an unknown ending: use one of {known}.", file=out, known=list(_WRITERS)))
    if out.exists():
        raise OutputError(msg("'{file}' already exists: give another --out, or remove it.", file=out))
