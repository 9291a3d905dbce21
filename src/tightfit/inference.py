"""Inference with a trained model: predictions for new texts and evaluation on held-out rows."""

from __future__ import annotations

import csv
import json
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from tightfit.data.batches import RowLimits
from tightfit.data.labels import Labels, unknown_label_notes
from tightfit.data.row_file import RowFile, store_rows
from tightfit.data.rows import Rows, clean, load_rows
from tightfit.data.sources import Source, find_sources
from tightfit.data.split import held_out_rows
from tightfit.data.tokens import Tokens, encode
from tightfit.device import Device, find_device
from tightfit.engine.oom import release_memory_on_error
from tightfit.errors import DataError, ModelError, OutputError
from tightfit.files import atomic_file
from tightfit.models import load_config, load_model, load_tokenizer
from tightfit.runs.record import Run, load_run
from tightfit.tasks import find_task
from tightfit.training.memory_limit import limit_memory

if TYPE_CHECKING:
    from transformers import PreTrainedModel, PreTrainedTokenizerBase

    from tightfit.data.batches import Batch

    Array = np.ndarray[Any, Any]


BATCH_SIZE = 32


@dataclass(frozen=True)
class Prediction:
    """A predicted label and the model's confidence in it (0 to 1)."""

    label: str
    confidence: float


@dataclass(frozen=True)
class Evaluation:
    """Metrics of a run's model on rows it was not trained on."""

    metrics: dict[str, float]
    rows: int
    notes: tuple[str, ...] = ()


@release_memory_on_error
def predict(
    folder: str | Path, texts: str | Sequence[str | tuple[str, str]], device: str | None = None
) -> list[Prediction]:
    """Predict the labels of texts (or pairs of texts) with a trained model, in the given order."""
    texts = [texts] if isinstance(texts, str) else texts
    if not texts:
        raise DataError("No text was given: give at least one.")
    where = find_device(device)
    model, tokenizer, limit = _load(load_run(folder), where)
    pairs = [text if isinstance(text, tuple) else (text, "") for text in texts]
    names = ("text", "text_pair") if any(second for _, second in pairs) else ("text",)
    rows = ({name: clean(text)[0] for name, text in zip(names, pair, strict=False)} for pair in pairs)
    with limit_memory(where, _silent):
        logits = _logits(model, encode(store_rows(rows, dict.fromkeys(names, str)), tokenizer, limit), tokenizer)
    probs = np.exp(logits - logits.max(axis=1, keepdims=True))
    probs /= probs.sum(axis=1, keepdims=True)
    labels = model.config.id2label
    return [Prediction(labels[int(row.argmax())], float(row.max())) for row in probs]


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
    from transformers import EvalPrediction

    run = load_run(folder)
    rows, held_out, notes = _rows_to_evaluate(run, data, text, label)
    where = find_device(device)
    model, tokenizer, limit = _load(run, where)
    labels = Labels(run.data.labels)
    known = [i for i, label in enumerate(held_out["label"]) if label in labels.ids]
    notes = (*notes, *unknown_label_notes(rows.name, held_out, labels))
    if not known:
        raise DataError(f"{rows.name} has no row left to evaluate on: give a file with new rows and known labels.")
    tokens = encode(held_out.select(known), tokenizer, limit, labels)
    with limit_memory(where, _silent):
        logits, truth = _logits(model, tokens, tokenizer), np.array(tokens.dataset["labels"])
    scores = find_task(run.job.task).metrics(EvalPrediction(predictions=logits, label_ids=truth))
    metrics = {f"eval_{name}": value for name, value in scores.items()}
    return Evaluation({**metrics, "eval_loss": _loss(logits, truth)}, len(known), notes)


def _rows_to_evaluate(
    run: Run, data: str | None, text: str | None, label: str | None
) -> tuple[Rows, RowFile, tuple[str, ...]]:
    """All rows, those that were not trained on, and notes about them."""
    job = run.job
    rows, validation = load_rows_for(run, data or job.validation or job.data, text, label)
    if data is None and job.validation is None and validation is not None:
        rows = validation
    held_out, note = held_out_rows(Path(run.folder), rows)
    return rows, held_out, (*rows.notes, *note)


def load_rows_for(
    run: Run, data: str, text: str | None = None, label: str | None = None, *, need_label: bool = True
) -> tuple[Rows, Rows | None]:
    """Rows of a file: from the given columns, else from the run's columns, else found by name."""
    numbered = all(column.isdigit() for column in run.data.text_columns)
    available = set(find_sources(data, header=not numbered)[0].columns())
    trained = run.data.text_columns if set(run.data.text_columns) <= available else None
    label = label or (run.data.label_column if run.data.label_column in available else None)
    columns = tuple(name.strip() for name in text.split(",")) if text else trained
    return load_rows(data, columns, label if need_label else None, need_label=need_label)


def _load(run: Run, device: Device) -> tuple[PreTrainedModel, PreTrainedTokenizerBase, int]:
    folder = Path(run.folder)
    if not (folder / "config.json").is_file():
        raise ModelError(f"'{folder}' holds no trained model: its run did not finish. Continue it with train --resume.")
    head = find_task(run.job.task).head()
    model = load_model(head, str(folder), load_config(str(folder)), random_weights=False)
    return model.to(device.name).eval(), load_tokenizer(str(folder)), run.max_length


def _logits(model: PreTrainedModel, tokens: Tokens, tokenizer: PreTrainedTokenizerBase) -> Array:
    """Logits in row order; rows are processed from longest to shortest to reduce padding."""
    import torch
    from transformers import DataCollatorWithPadding

    from tightfit.training.recovery import run_in_chunks

    collate = DataCollatorWithPadding(tokenizer)
    order = sorted(range(len(tokens)), key=lambda row: -tokens.lengths[row])
    out = np.empty((len(tokens), model.config.num_labels), dtype=np.float32)
    inputs = tokens.dataset.drop("labels")
    limits = RowLimits(BATCH_SIZE)

    def forward(batch: Batch) -> Array:
        on_device = {name: value.to(model.device) for name, value in batch.items()}
        return model(**on_device).logits.float().cpu().numpy()

    with torch.inference_mode():
        for start in range(0, len(order), BATCH_SIZE):
            rows = order[start : start + BATCH_SIZE]
            batch = dict(collate(inputs.__getitems__(rows)))
            out[rows] = np.concatenate(run_in_chunks(forward, batch, limits, _silent))
    return out


def _silent(line: str) -> None:
    """Drop log lines: smaller batches after an out-of-memory do not change predictions."""


def _loss(logits: Array, truth: Array) -> float:
    """The mean cross-entropy, as in training."""
    import torch

    return float(torch.nn.functional.cross_entropy(torch.from_numpy(logits), torch.from_numpy(truth)))


@dataclass(frozen=True)
class LabelledFile:
    """Number of predicted rows, and notes about the data."""

    rows: int
    notes: tuple[str, ...]


def label_file(
    run: str | Path, data: str, out: Path, device: str | None = None, text: str | None = None
) -> LabelledFile:
    """Write a copy of a data file with two more columns: the predicted label and its confidence."""
    _check_output(out)
    rows, _ = load_rows_for(load_run(run), data, text, need_label=False)
    dataset = rows.dataset
    pairs = dataset["text_pair"] if "text_pair" in dataset.column_names else [""] * len(dataset)
    predictions = predict(run, list(zip(dataset["text"], pairs, strict=True)), device)
    table = _PredictedTable(rows.source, dict(zip(dataset["row"], predictions, strict=True)))
    out.parent.mkdir(parents=True, exist_ok=True)
    with atomic_file(out) as tmp:
        _WRITERS[out.suffix.lower()](tmp, table)
    return LabelledFile(len(predictions), rows.notes)


@dataclass(frozen=True)
class _PredictedTable:
    """A data source with the predictions as two more columns; rows without text get empty ones."""

    source: Source
    predictions: dict[int, Prediction]

    def columns(self) -> list[str]:
        """All columns of the source, then the new ones."""
        return list({name: None for _, row in self.source.rows() for name in row}) + list(self._new_columns())

    def rows(self) -> Iterator[dict[str, Any]]:
        names = self._new_columns()
        for number, (_, row) in enumerate(self.source.rows()):
            prediction = self.predictions.get(number)
            values = (prediction.label, round(prediction.confidence, 4)) if prediction else ("", "")
            yield {**row, **dict(zip(names, values, strict=True))}

    def _new_columns(self) -> tuple[str, str]:
        """Names for the new columns that the source does not have yet."""
        own, suffix = set(self.source.columns()), ""
        while f"prediction{suffix}" in own or f"confidence{suffix}" in own:
            suffix = f"_{int(suffix[1:] or 1) + 1}"
        return f"prediction{suffix}", f"confidence{suffix}"


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
        raise OutputError(f"'{out}' has an unknown ending: use one of {', '.join(_WRITERS)}.")
    if out.exists():
        raise OutputError(f"'{out}' already exists: give another --out, or remove it.")
