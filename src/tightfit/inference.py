"""Inference with a trained model: predictions for new texts and evaluation on held-out rows."""

from __future__ import annotations

import csv
import itertools
import json
import signal
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeVar

import numpy as np

from tightfit.activity import LOADING, activity
from tightfit.data.columns import Columns
from tightfit.data.header import HeaderHints
from tightfit.data.micro_batches import IGNORED, RowLimits
from tightfit.data.row_file import RowFile
from tightfit.data.rows import Rows, read_sources
from tightfit.data.sources import Source, find_sources
from tightfit.data.split import held_out_rows
from tightfit.data.tokens import Tokens
from tightfit.device import Device, find_device
from tightfit.display import Display
from tightfit.engine.class_loss import ClassLoss
from tightfit.engine.micro_batch_loss import label_counts
from tightfit.engine.oom import release_memory_on_error
from tightfit.errors import DataError, Interrupted, ModelError, OutputError
from tightfit.messages import Message, msg
from tightfit.models import load_config, load_model, load_tokenizer
from tightfit.ops.lora_adapter import base_of_adapter, with_adapter
from tightfit.runs.folder import resume_command
from tightfit.runs.quality_notes import with_notes
from tightfit.runs.record import Run, load_run
from tightfit.system.files import atomic_file
from tightfit.tasks import find_task, task_of
from tightfit.tasks.base import ModelInputs, Prediction, Task
from tightfit.tasks.quality import LOSS, Quality, Scoring
from tightfit.training.memory_limit import limit_memory

if TYPE_CHECKING:
    from transformers import PreTrainedModel, PreTrainedTokenizerBase

    from tightfit.data.batches import Batch

    Array = np.ndarray[Any, Any]


T = TypeVar("T")
BATCH_SIZE = 32
_WINDOW = 16 * BATCH_SIZE  # rows that are sorted by length together; what Ctrl-C keeps is close to the first rows
RowsDone = Callable[[int, int], None]
"""Called with the rows done and the rows in total."""


def _ignore(done: int, total: int) -> None:
    """For callers that show no progress."""


@dataclass(frozen=True)
class Evaluation(Display):
    """Metrics of a run's model on rows it was not trained on."""

    task: str
    metrics: dict[str, float]
    rows: int
    scoring: Scoring
    positive_label: str | None = None
    """The class of which `f1` is the F1; None if it is macro F1."""
    quality: Quality | None = None
    """What else is known of the predictions."""
    notes: tuple[Message, ...] = ()

    def to_json(self) -> dict[str, Any]:
        """The evaluation as JSON values."""
        return {
            "metrics": self.metrics,
            "rows": self.rows,
            "positive_label": self.positive_label,
            "quality": self.quality.model_dump(mode="json") if self.quality else None,
            "notes": self.notes,
        }


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
    done, predictions = _predict_rows(run, rows, device, _ignore)
    if len(done) < len(rows):
        raise KeyboardInterrupt
    return predictions


def _predict_rows(run: Run, rows: RowFile, device: str | None, on_rows: RowsDone) -> tuple[list[int], list[Prediction]]:
    """The numbers of the rows until Ctrl-C, in order, and their predictions."""
    where, task = find_device(device), task_of(run.job)
    model, tokenizer = _load(run, where)
    tokens = task.tokenize(rows, tokenizer, run.max_length, None)
    with limit_memory(where, _silent):
        batches = _run_batches(partial(task.infer, model), model, tokens, task, tokenizer)
        found = _until_stopped(batches, len(tokens), on_rows)
    outputs: dict[int, Any] = {}
    for numbers, chunks in found:
        outputs.update(zip(numbers, itertools.chain(*chunks), strict=True))
    row_of = ModelInputs(rows, tokens.dataset, tokenizer, run.data.classes).row_numbers
    unfinished = {row for number, row in enumerate(row_of) if number not in outputs}
    done = [number for number, row in enumerate(row_of) if row not in unfinished]
    inputs = ModelInputs(rows, tokens.dataset.select(done), tokenizer, run.data.classes)
    predictions = list(task.decode([outputs[number] for number in done], inputs))
    return sorted({row_of[number] for number in done}), predictions


def _until_stopped(
    batches: Iterator[tuple[list[int], list[T]]], total: int, on_rows: RowsDone
) -> list[tuple[list[int], list[T]]]:
    """The batches until Ctrl-C, which stops the work and keeps what is done."""
    found, done = [], 0
    on_rows(0, total)
    try:
        for numbers, chunks in batches:
            found.append((numbers, chunks))
            done += len(numbers)
            on_rows(done, total)
    except KeyboardInterrupt:
        if not found:
            raise
    return found


@release_memory_on_error
def evaluate(
    folder: str | Path,
    data: str | None = None,
    device: str | None = None,
    *,
    text: str | None = None,
    label: str | None = None,
    on_rows: RowsDone = _ignore,
) -> Evaluation:
    """Evaluate a trained model on its held-out rows, or on the rows of a file that it was not trained on.

    Ctrl-C raises Interrupted; its `result` is the evaluation on the rows until then.
    """
    run = load_run(folder)
    where, task, labels = find_device(device), task_of(run.job), run.data.classes
    rows, held_out, notes = _rows_to_evaluate(run, data, Columns.of(text, label))
    known, unknown_notes = task.known_rows(rows.name, held_out, labels)
    if not len(known):
        raise DataError(msg("{name} has no row left to evaluate on: give a file with new rows.", name=rows.name))
    model, tokenizer = _load(run, where)
    tokens = task.tokenize(known, tokenizer, run.max_length, labels)
    with limit_memory(where, _silent):
        loss = ClassLoss.of(run.job, run.data.class_weights)
        batches = _run_batches(partial(_score, task, loss, model), model, tokens, task, tokenizer)
        found = _until_stopped(batches, len(tokens), on_rows)
    order = [number for numbers, _ in found for number in numbers]
    inputs = ModelInputs(known, tokens.dataset.select(order), tokenizer, labels)
    metrics, quality = _metrics(task, [score for _, chunks in found for score in chunks], inputs)
    all_trained = run.trainable_parameters == run.parameters
    evaluation = Evaluation(
        task=task.name,
        metrics=metrics,
        rows=len(set(inputs.row_numbers)),
        scoring=run.scoring,
        positive_label=labels.positive,
        quality=with_notes(quality, metrics, run.scoring, run.job, all_trained=all_trained),
        notes=(*notes, *unknown_notes),
    )
    if len(order) < len(tokens):
        stopped = msg(
            "stopped after {done:,} of {rows:,} rows; the scores are of those.", done=evaluation.rows, rows=len(known)
        )
        raise Interrupted(stopped, signal.SIGINT, evaluation)
    return evaluation


@dataclass(frozen=True)
class _Score:
    """Some rows of an evaluation."""

    loss: float
    """The sum over their labels."""
    labels: float
    """Their number, or the weight of their classes."""
    logits: Any
    """An array, or a tuple of them; None for a task without metrics."""
    truth: Any


def _score(task: Task, class_loss: ClassLoss | None, model: PreTrainedModel, batch: Batch) -> _Score:
    loss, *logits = _loss_and_logits(class_loss, model, batch)
    labels = sum(label_counts(model, batch, class_loss.weights if class_loss else None))
    truth = _one_or_all([batch[name] for name in task.label_names])
    reads = task.metrics and task.reads_logits
    kept = _as_arrays(task.keep_logits(_one_or_all(logits), truth)) if reads else None
    return _Score(float(loss) * labels if labels else 0.0, labels, kept, _as_arrays(truth))


def _loss_and_logits(class_loss: ClassLoss | None, model: PreTrainedModel, batch: Batch) -> tuple[Any, ...]:
    if class_loss is None:
        return tuple(model(**batch).to_tuple())
    loss, outputs = class_loss.with_outputs(model, batch)
    return loss, *outputs.to_tuple()


def _one_or_all(tensors: list[Any]) -> Any:
    """As Trainer gives them to metrics."""
    return tensors[0] if len(tensors) == 1 else tuple(tensors)


def _as_arrays(tensors: Any) -> Any:
    return tuple(map(_as_arrays, tensors)) if isinstance(tensors, tuple) else tensors.cpu().numpy()


def _metrics(task: Task, scores: list[_Score], inputs: ModelInputs) -> tuple[dict[str, float], Quality | None]:
    """The task's metrics, the mean loss as in training, and what else is known."""
    from transformers import EvalPrediction

    found, quality = {}, None
    if task.metrics and task.reads_logits:
        logits = _join([score.logits for score in scores])
        prediction = EvalPrediction(logits, _join([score.truth for score in scores]))
        found, quality = task.score(prediction, inputs), task.assess(prediction, inputs)
    loss = sum(score.loss for score in scores) / sum(score.labels for score in scores)
    found |= task.metrics_of_loss(loss)
    return {**{f"eval_{name}": value for name, value in found.items()}, LOSS.key: loss}, quality


def _join(parts: list[Any]) -> Any:
    """The rows of all parts; where they differ in length, padded with the label that is ignored, as Trainer does."""
    if isinstance(parts[0], tuple):
        return tuple(_join(list(each)) for each in zip(*parts, strict=True))
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
    task, trained = find_task(run.job.task), Columns(run.data.text_columns, run.data.label_columns)
    usual = task.column_names.usual | {name.lower() for name in trained.names}
    expected = trained if trained.numbered and not given.all else given
    sources = find_sources(data, HeaderHints(usual, expected))
    available = set(sources[0].columns())
    text = given.text or _if_all_in(available, trained.text)
    label = given.label or _if_all_in(available, trained.label)
    columns = Columns(text, label if need_label else ())
    return read_sources(sources, task, columns, need_label=need_label)


def _if_all_in(available: set[str], columns: tuple[str, ...]) -> tuple[str, ...]:
    return columns if set(columns) <= available else ()


def _load(run: Run, device: Device) -> tuple[PreTrainedModel, PreTrainedTokenizerBase]:
    folder = Path(run.folder)
    if not (folder / "config.json").is_file():
        raise ModelError(
            msg(
                "'{folder}' holds no trained model: its run did not finish. Continue it with: {command}",
                folder=folder,
                command=resume_command(folder),
            )
        )
    head = find_task(run.job.task).head()
    base, config = base_of_adapter(folder), load_config(str(folder))
    with activity(LOADING):
        model = load_model(head, base or str(folder), config, random_weights=False)
        model = with_adapter(model, folder) if base else model
    return model.to(device.name).eval(), load_tokenizer(str(folder))


def _run_batches(
    run: Callable[[Batch], T],
    model: PreTrainedModel,
    tokens: Tokens,
    task: Task,
    tokenizer: PreTrainedTokenizerBase,
) -> Iterator[tuple[list[int], list[T]]]:
    """The rows of each batch and what `run` returns for its chunks; of some batches the longest rows first."""
    import torch

    from tightfit.training.recovery import run_in_chunks

    limits, collate, inputs = RowLimits(BATCH_SIZE), task.collator(tokenizer), task.model_inputs(tokens.dataset)

    def on_device(batch: Batch) -> T:
        return run({name: value.to(model.device) for name, value in batch.items()})

    with torch.inference_mode():
        for rows in _batches_of(tokens.lengths):
            yield rows, run_in_chunks(on_device, dict(collate(inputs.__getitems__(rows))), limits, _silent)


def _batches_of(lengths: Sequence[int]) -> Iterator[list[int]]:
    """Rows of similar length, for less padding, in about the order of the file."""
    for first in range(0, len(lengths), _WINDOW):
        window = range(first, min(first + _WINDOW, len(lengths)))
        order = sorted(window, key=lambda row: -lengths[row])
        yield from (order[start : start + BATCH_SIZE] for start in range(0, len(order), BATCH_SIZE))


def _silent(line: str) -> None:
    """Drop log lines: smaller batches after an out-of-memory do not change predictions."""


@dataclass(frozen=True)
class PredictedFile:
    """Number of predicted rows, and notes about the data."""

    rows: int
    notes: tuple[Message, ...]


@release_memory_on_error
def predict_file(
    folder: str | Path,
    data: str,
    out: Path,
    device: str | None = None,
    text: str | None = None,
    on_rows: RowsDone = _ignore,
) -> PredictedFile:
    """Write a copy of a data file with more columns: the prediction for each row.

    After Ctrl-C the copy has another name, and predictions for the rows until then.
    """
    _check_output(out)
    run = load_run(folder)
    rows, _ = load_rows_for(run, data, Columns.of(text, None), need_label=False)
    done, predictions = _predict_rows(run, rows.dataset, device, on_rows)
    table = _PredictedTable(rows.source, dict(zip(rows.dataset.select(done)["row"], predictions, strict=True)))
    if len(done) < len(rows.dataset):
        partial_file = out.with_name(f"{out.stem}.partial{out.suffix}")
        _write(partial_file, table)
        raise Interrupted(_stopped(len(done), len(rows.dataset), partial_file), signal.SIGINT)
    _write(out, table)
    return PredictedFile(len(predictions), rows.notes)


def _stopped(done: int, rows: int, file: Path) -> Message:
    return msg(
        "stopped after {done:,} of {rows:,} rows; their predictions are in {file}, where the other rows have none.",
        done=done,
        rows=rows,
        file=file,
    )


def _write(out: Path, table: _PredictedTable) -> None:
    out.parent.mkdir(parents=True, exist_ok=True)
    with atomic_file(out) as tmp:
        _WRITERS[out.suffix.lower()](tmp, table)


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
        writer.writerows({name: _as_cell(value) for name, value in row.items()} for row in table.rows())


def _as_cell(value: Any) -> Any:
    """Lists and objects as JSON."""
    return json.dumps(value, ensure_ascii=False) if isinstance(value, (list, dict)) else value


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
