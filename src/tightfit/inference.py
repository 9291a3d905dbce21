"""Inference: what a trained model says of new texts, and how good it is on rows it never saw."""

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
from tightfit.data.row_file import RowFile, store_rows
from tightfit.data.rows import Labels, Rows, about_unknown_labels, clean, load_rows
from tightfit.data.sources import Source, find_sources
from tightfit.data.split import held_out_rows
from tightfit.data.tokens import Tokens, encode
from tightfit.device import Device, find_device
from tightfit.engine.oom import release_memory_on_error
from tightfit.errors import DataError, ModelError, OutputError
from tightfit.files import atomic_file
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
    """A label, and how sure the model is of it (0 to 1)."""

    label: str
    confidence: float


@dataclass(frozen=True)
class Evaluation:
    """How good a run's model is on rows it did not train on."""

    metrics: dict[str, float]
    rows: int
    notes: tuple[str, ...] = ()


@release_memory_on_error
def predict(
    folder: str | Path, texts: str | Sequence[str | tuple[str, str]], device: str | None = None
) -> list[Prediction]:
    """Label texts (or pairs of texts) with a trained model, in the order they came."""
    texts = [texts] if isinstance(texts, str) else texts
    if not texts:
        raise DataError("There is no text to label: give one or more.")
    where = find_device(device)
    model, tokenizer, limit = _load(load_run(folder), where)
    pairs = [text if isinstance(text, tuple) else (text, "") for text in texts]
    names = ("text", "text_pair") if any(second for _, second in pairs) else ("text",)
    rows = ({name: clean(text)[0] for name, text in zip(names, pair, strict=False)} for pair in pairs)
    with limit_memory(where, _say_nothing):
        logits = _logits(model, encode(store_rows(rows, dict.fromkeys(names, str)), tokenizer, limit), tokenizer)
    shares = np.exp(logits - logits.max(axis=1, keepdims=True))
    shares /= shares.sum(axis=1, keepdims=True)
    names = model.config.id2label
    return [Prediction(names[int(row.argmax())], float(row.max())) for row in shares]


@release_memory_on_error
def evaluate(
    folder: str | Path,
    data: str | None = None,
    device: str | None = None,
    *,
    text: str | None = None,
    label: str | None = None,
) -> Evaluation:
    """Score a trained model: on a file's rows less those it trained on, or on its own held-out rows."""
    from transformers import EvalPrediction

    run = load_run(folder)
    rows, held_out, notes = _rows_to_evaluate(run, data, text, label)
    where = find_device(device)
    model, tokenizer, limit = _load(run, where)
    labels = Labels(run.data.labels)
    known = [i for i, label in enumerate(held_out["label"]) if label in labels.ids]
    notes = (*notes, *about_unknown_labels(rows.name, held_out, labels))
    if not known:
        raise DataError(f"{rows.name} has no row left to evaluate on: give a file with other rows and known labels.")
    tokens = encode(held_out.select(known), tokenizer, limit, labels)
    with limit_memory(where, _say_nothing):
        logits, truth = _logits(model, tokens, tokenizer), np.array(tokens.dataset["labels"])
    scores = find_task(run.job.task).metrics(EvalPrediction(predictions=logits, label_ids=truth))
    metrics = {f"eval_{name}": value for name, value in scores.items()}
    return Evaluation({**metrics, "eval_loss": _loss(logits, truth)}, len(known), notes)


def _rows_to_evaluate(
    run: Run, data: str | None, text: str | None, label: str | None
) -> tuple[Rows, RowFile, tuple[str, ...]]:
    """The rows, those of them that were not trained on, and what there is to say about it."""
    job = run.job
    rows, validation = load_rows_for(run, data or job.validation or job.data, text, label)
    if data is None and job.validation is None and validation is not None:
        rows = validation
    held_out, note = held_out_rows(Path(run.folder), rows)
    return rows, held_out, (*rows.notes, *note)


def load_rows_for(
    run: Run, data: str, text: str | None = None, label: str | None = None, *, need_label: bool = True
) -> tuple[Rows, Rows | None]:
    """Rows of a file from the given columns, else from those the run was trained on, else found by name."""
    numbered = all(column.isdigit() for column in run.data.text_columns)
    there = set(find_sources(data, header=not numbered)[0].columns())
    trained = run.data.text_columns if set(run.data.text_columns) <= there else None
    label = label or (run.data.label_column if run.data.label_column in there else None)
    columns = tuple(name.strip() for name in text.split(",")) if text else trained
    return load_rows(data, columns, label if need_label else None, need_label=need_label)


def _load(run: Run, device: Device) -> tuple[PreTrainedModel, PreTrainedTokenizerBase, int]:
    from tightfit.models import load_config, load_model, load_tokenizer

    folder = Path(run.folder)
    if not (folder / "config.json").is_file():
        raise ModelError(f"'{folder}' holds no trained model: its run did not end; go on with train --resume.")
    head = find_task(run.job.task).head()
    model = load_model(head, str(folder), load_config(str(folder)), random_weights=False)
    return model.to(device.name).eval(), load_tokenizer(str(folder)), run.max_length


def _logits(model: PreTrainedModel, tokens: Tokens, tokenizer: PreTrainedTokenizerBase) -> Array:
    """Scores of every label, in the order of the rows; computed longest first so that little is padded."""
    import torch
    from transformers import DataCollatorWithPadding

    from tightfit.training.recovery import run_in_chunks

    collate = DataCollatorWithPadding(tokenizer)
    order = sorted(range(len(tokens)), key=lambda row: -tokens.lengths[row])
    out = np.empty((len(tokens), model.config.num_labels), dtype=np.float32)
    inputs = tokens.dataset.without("labels")
    limits = RowLimits(BATCH_SIZE)

    def answer(batch: Batch) -> Array:
        on_device = {name: value.to(model.device) for name, value in batch.items()}
        return model(**on_device).logits.float().cpu().numpy()

    with torch.inference_mode():
        for start in range(0, len(order), BATCH_SIZE):
            rows = order[start : start + BATCH_SIZE]
            batch = dict(collate(inputs.__getitems__(rows)))
            out[rows] = np.concatenate(run_in_chunks(answer, batch, limits, _say_nothing))
    return out


def _say_nothing(line: str) -> None:
    """Fewer rows at once change nothing that a user would see here."""


def _loss(logits: Array, truth: Array) -> float:
    """The mean cross-entropy, as in training."""
    import torch

    return float(torch.nn.functional.cross_entropy(torch.from_numpy(logits), torch.from_numpy(truth)))


# Labelling a file: its own columns, and beside them what the model says.


@dataclass(frozen=True)
class Labelled:
    """What was written."""

    rows: int
    notes: tuple[str, ...]


def label_file(run: str | Path, data: str, out: Path, device: str | None = None, text: str | None = None) -> Labelled:
    """Label every row of a file and write all of it, answers beside it, to another."""
    _refuse_output(out)
    rows, _ = load_rows_for(load_run(run), data, text, need_label=False)
    dataset = rows.dataset
    pairs = dataset["text_pair"] if "text_pair" in dataset.column_names else [""] * len(dataset)
    answers = predict(run, list(zip(dataset["text"], pairs, strict=True)), device)
    table = _Answered(rows.source, dict(zip(dataset["row"], answers, strict=True)))
    out.parent.mkdir(parents=True, exist_ok=True)
    with atomic_file(out) as aside:
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
