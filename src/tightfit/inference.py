"""Inference: what a trained model says of new texts, and how good it is on rows it never saw."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from tightfit.data.flaws import clean
from tightfit.data.labels import Labels, about_unknown_labels
from tightfit.data.limits import RowLimits
from tightfit.data.rows import Rows, load_rows
from tightfit.data.sources import find_sources
from tightfit.data.split import held_out_rows
from tightfit.data.store import Store, store_rows
from tightfit.data.tokens import Tokens, encode
from tightfit.device import Device, find_device
from tightfit.errors import DataError, ModelError
from tightfit.guard import guarded
from tightfit.oom import freed_after_failure
from tightfit.record import Run, load_run
from tightfit.tasks import find_task

if TYPE_CHECKING:
    from transformers import PreTrainedModel, PreTrainedTokenizerBase

    from tightfit.data.slices import Batch

    Array = np.ndarray[Any, Any]

ROWS_AT_ONCE = 32


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


@freed_after_failure
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
    with guarded(where, _say_nothing):
        logits = _logits(model, encode(store_rows(rows, dict.fromkeys(names, str)), tokenizer, limit), tokenizer)
    shares = np.exp(logits - logits.max(axis=1, keepdims=True))
    shares /= shares.sum(axis=1, keepdims=True)
    names = model.config.id2label
    return [Prediction(names[int(row.argmax())], float(row.max())) for row in shares]


@freed_after_failure
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
    with guarded(where, _say_nothing):
        logits, truth = _logits(model, tokens, tokenizer), np.array(tokens.dataset["labels"])
    scores = find_task(run.job.task).metrics(EvalPrediction(predictions=logits, label_ids=truth))
    metrics = {f"eval_{name}": value for name, value in scores.items()}
    return Evaluation({**metrics, "eval_loss": _loss(logits, truth)}, len(known), notes)


def _rows_to_evaluate(
    run: Run, data: str | None, text: str | None, label: str | None
) -> tuple[Rows, Store, tuple[str, ...]]:
    """The rows, those of them that were not trained on, and what there is to say about it."""
    job = run.job
    rows, validation = load_rows_like(run, data or job.validation or job.data, text, label)
    if data is None and job.validation is None and validation is not None:
        rows = validation
    held_out, note = held_out_rows(Path(run.folder), rows)
    return rows, held_out, (*rows.notes, *note)


def load_rows_like(
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
    from tightfit.weights import load_config, load_model, load_tokenizer

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

    from tightfit.recovery import run_in_pieces

    collate = DataCollatorWithPadding(tokenizer)
    order = sorted(range(len(tokens)), key=lambda row: -tokens.lengths[row])
    out = np.empty((len(tokens), model.config.num_labels), dtype=np.float32)
    inputs = tokens.dataset.without("labels")
    limits = RowLimits(ROWS_AT_ONCE)

    def answer(batch: Batch) -> Array:
        on_device = {name: value.to(model.device) for name, value in batch.items()}
        return model(**on_device).logits.float().cpu().numpy()

    with torch.inference_mode():
        for start in range(0, len(order), ROWS_AT_ONCE):
            rows = order[start : start + ROWS_AT_ONCE]
            batch = dict(collate(inputs.__getitems__(rows)))
            out[rows] = np.concatenate(run_in_pieces(answer, batch, limits, _say_nothing))
    return out


def _say_nothing(line: str) -> None:
    """Fewer rows at once change nothing that a user would see here."""


def _loss(logits: Array, truth: Array) -> float:
    """The mean cross-entropy, as in training."""
    import torch

    return float(torch.nn.functional.cross_entropy(torch.from_numpy(logits), torch.from_numpy(truth)))
