"""Multi-label classification: any number of labels for a text or a pair of texts."""

from __future__ import annotations

import json
import re
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial
from typing import TYPE_CHECKING, Any, ClassVar

import numpy as np

from tightfit.data.batch_spec import ROWS, BatchSpec, Field, text_batch
from tightfit.data.columns import ColumnNames, Columns
from tightfit.data.format_detection import SEVERAL_LABELS, Sample, flag_columns
from tightfit.data.labels import Labels
from tightfit.data.row_file import RowFile
from tightfit.data.rows import Flaw, Flaws, Rows, clean, clean_texts
from tightfit.errors import DataError
from tightfit.messages import Message, msg
from tightfit.tasks.base import (
    LABEL_COLUMNS,
    TEXT_COLUMNS,
    ModelInputs,
    Prediction,
    TextTask,
    first_of,
    without_unknown,
)
from tightfit.tasks.classes import MACRO_F1
from tightfit.tasks.entities import label_score
from tightfit.tasks.quality import MISTAKES, LabelScore, Metric, Quality, shorten

if TYPE_CHECKING:
    from transformers import EvalPrediction, PreTrainedTokenizerBase

    from tightfit.tasks.base import Collator

    Array = np.ndarray[Any, Any]

_FIRST_SEPARATORS, _OTHER_SEPARATORS = re.compile("[;；|]"), re.compile("[,，、]")
_MAX_LABELS = 10_000
_YES, _NO = {"1", "true", "yes"}, {"0", "false", "no", "", "none", "nan"}
_NOT_FLAGS = Flaw(msg("with another value than 0 or 1 in a label column dropped"), dropped=True)
_NOT_LABELS = Flaw(msg("whose labels are neither texts nor numbers dropped"), dropped=True)
_NONE = Flaw(msg("with an empty label, taken as having no label"))


@dataclass(frozen=True)
class LabelsPrediction(Prediction):
    """The predicted labels, and the model's confidence in each of all labels (0 to 1)."""

    labels: tuple[str, ...]
    confidences: dict[str, float]

    def columns(self) -> dict[str, Any]:
        return {"prediction": ";".join(self.labels)}

    def __str__(self) -> str:
        return "; ".join(f"{label} {self.confidences[label]:.1%}" for label in self.labels) or "–"


class MultiLabelClassification(TextTask):
    """Each label is there or not, whatever the others are."""

    name: ClassVar[str] = "multi-label-classification"
    summary: ClassVar[Message] = msg("any number of labels for a text or a pair of texts")
    reads: ClassVar[Message] = msg("texts, and a list of labels, `a;b`, or a column of 0 and 1 for each label")
    command: ClassVar[str] = "tightfit train --model bert-base-uncased --data comments.csv --label toxic,obscene,insult"
    column_names: ClassVar[ColumnNames] = ColumnNames(TEXT_COLUMNS, LABEL_COLUMNS, max_labels=_MAX_LABELS)
    metrics: ClassVar[tuple[Metric, ...]] = (
        Metric("f1", msg("micro F1")),
        Metric("macro_f1", MACRO_F1),
        Metric("accuracy", msg("subset accuracy")),
    )
    constant: ClassVar[Message] = msg("always the same labels")
    example: ClassVar[Message] = msg("a text to label")
    loss_settings: ClassVar[frozenset[str]] = frozenset()

    def learned(self, labels: Sequence[str]) -> Message:
        return msg("any of the labels: {labels}", labels=labels)

    # Rows

    def columns_in(self, sample: Sample, given: Columns) -> Columns:
        """Columns of 0 and 1 are labels, if the user names none and no column is named as labels are."""
        flags = tuple(name for name in flag_columns(sample) if name not in given.text)
        return replace(given, label=flags) if flags and not given.label and not sample.labelled else given

    def read(self, row: Mapping[str, Any], columns: Columns) -> tuple[dict[str, Any], Flaws]:
        if len(columns.label) < 2:
            return super().read(row, columns)
        cells, flaws = clean_texts(row, columns)
        values = {name: str(row.get(name)).strip().lower().removesuffix(".0") for name in columns.label}
        if not set(values.values()) <= _YES | _NO:
            return cells, (*flaws, _NOT_FLAGS)
        return {**cells, "label": tuple(name for name, value in values.items() if value in _YES)}, flaws

    def read_label(self, value: Any) -> tuple[Any, Flaws]:
        """The labels in a list, or in a text where they are separated by `;`, `|` or commas."""
        if isinstance(value, (list, tuple)):
            found = [clean(each)[0] for each in value]
            return tuple(dict.fromkeys(found)), () if all(found) else (_NOT_LABELS,)
        if isinstance(value, (dict, bytes)):
            return (), (_NOT_LABELS,)
        text = clean(value)[0].strip("[](){}")
        separator = _FIRST_SEPARATORS if _FIRST_SEPARATORS.search(text) else _OTHER_SEPARATORS
        parts = [part.strip(" '\"") for part in separator.split(text)]
        labels = tuple(dict.fromkeys(filter(None, parts)))
        return labels, () if labels else (_NONE,)

    def find_labels(self, rows: Rows, *, will_be_split: bool) -> tuple[Labels, tuple[Message, ...]]:
        """All labels, in alphabetical order; at least one of them is not in all rows."""
        counts = Counter(label for batch in rows.dataset.batches() for labels in batch["label"] for label in labels)
        if all(count == len(rows) for count in counts.values()):
            raise DataError(
                msg(
                    "{name}: all {rows:,} rows have the same labels ({labels}): there is nothing to learn from them.",
                    name=rows.name,
                    rows=len(rows),
                    labels=sorted(counts),
                )
            )
        return Labels(tuple(sorted(counts))), ()

    def known_rows(self, name: str, rows: RowFile, labels: Labels) -> tuple[RowFile, tuple[Message, ...]]:
        """Without the rows that have a label which is not in the training data: the model cannot predict it."""
        unknown = [not labels.ids.keys() >= set(each) for each in rows["label"]]
        return without_unknown(
            name,
            rows,
            unknown,
            flaw=msg("with labels unknown to the model dropped"),
            none_left=msg(
                "{name} has none of the labels of the training data: {labels}.", name=name, labels=labels.names
            ),
        )

    def describe(self, columns: Columns, labels: Labels) -> Message:
        return msg(
            "{text}, any of {count} labels ({names})",
            text=super().describe(columns, labels),
            count=len(labels.names),
            names=first_of(labels.names),
        )

    # Tokens

    def batch_spec_for(self, labels: Labels) -> BatchSpec:
        """With a number for each label."""
        spec = text_batch("float32")
        wide = Field("labels", "float32", (ROWS, len(labels.names)))
        return BatchSpec(tuple(wide if each.name == wide.name else each for each in spec.fields))

    def encode_labels(self, values: list[Any], labels: Labels) -> list[list[int]]:
        return [[int(name in set(value)) for name in labels.names] for value in values]

    def collator(self, tokenizer: PreTrainedTokenizerBase) -> Collator:
        return partial(_with_float_labels, super().collator(tokenizer))

    # Model

    def config_changes(self, labels: Labels) -> dict[str, Any]:
        problem = {"problem_type": "multi_label_classification"}
        if not labels.names:
            return problem
        names = {"id2label": dict(enumerate(labels.names)), "label2id": labels.ids}
        return {"num_labels": len(labels.names), **names, **problem}

    # Outputs

    def compute_metrics(self, prediction: EvalPrediction, inputs: ModelInputs) -> dict[str, float]:
        """F1 over all labels of all rows (micro F1), its mean over the labels, and the share of rows without error."""
        scores, (truth, predicted) = _label_scores(prediction, inputs.labels), _sides(prediction)
        right, all_true, all_predicted = (int(each.sum()) for each in (truth & predicted, truth, predicted))
        return {
            "f1": label_score("", all_true, all_predicted, right).f1,
            "macro_f1": float(np.mean([score.f1 for score in scores])),
            "accuracy": float((truth == predicted).all(axis=1).mean()),
        }

    def constant_outputs(self, prediction: EvalPrediction, inputs: ModelInputs) -> EvalPrediction:
        """Those of a model that gives all rows the labels that are the most frequent, as many as score best."""
        from transformers import EvalPrediction

        outputs = np.full_like(prediction.predictions, -1)
        outputs[:, _best_constant(prediction)] = 1
        return EvalPrediction(outputs, prediction.label_ids)

    def assess(self, prediction: EvalPrediction, inputs: ModelInputs) -> Quality:
        truth, predicted = _sides(prediction)
        names, errors = np.array(inputs.labels.names), (truth != predicted).sum(axis=1)
        answers = np.unique(predicted, axis=0)
        worst = [place for place in np.argsort(-errors, kind="stable")[:MISTAKES].tolist() if errors[place]]
        wrong = [(place, _joined(names[truth[place]]), _joined(names[predicted[place]]), None) for place in worst]
        return Quality(
            rows=len(truth),
            constant=_joined(names[_best_constant(prediction)]),
            answer=_joined(names[answers[0]]) if len(answers) == 1 else None,
            labels=_label_scores(prediction, inputs.labels),
            mistakes=self.mistakes(inputs, wrong),
        )

    def decode(self, outputs: Sequence[Any], inputs: ModelInputs) -> list[LabelsPrediction]:
        """The labels with a confidence of at least one half."""
        sure = [1 / (1 + np.exp(-row.astype(np.float64))) for row in outputs]
        found = [dict(zip(inputs.labels.names, row.tolist(), strict=True)) for row in sure]
        return [LabelsPrediction(tuple(name for name, p in row.items() if p >= 0.5), row) for row in found]

    def pipeline_call(self, texts: Sequence[str], max_length: int) -> str:
        given = texts[0] if len(texts) == 1 else dict(zip(("text", "text_pair"), texts, strict=True))
        written = json.dumps(given, ensure_ascii=False)
        return f"pipe({written}, top_k=None, truncation=True, max_length={max_length})"


def _with_float_labels(collate: Collator, rows: list[dict[str, Any]]) -> Mapping[str, Any]:
    """The loss takes a probability for each label."""
    batch = dict(collate(rows))
    return {**batch, "labels": batch["labels"].float()} if "labels" in batch else batch


def _sides(prediction: EvalPrediction) -> tuple[Array, Array]:
    """Which labels are true, and which are predicted, in each row."""
    return prediction.label_ids > 0.5, prediction.predictions >= 0


def _label_scores(prediction: EvalPrediction, labels: Labels) -> list[LabelScore]:
    truth, predicted = _sides(prediction)
    columns = (side.sum(axis=0).tolist() for side in (truth, predicted, truth & predicted))
    return [label_score(name, *counts) for name, *counts in zip(labels.names, *columns, strict=True)]


def _best_constant(prediction: EvalPrediction) -> Array:
    """The places of the most frequent labels, as many as have the highest micro F1."""
    truth, _ = _sides(prediction)
    frequent = np.argsort(-truth.sum(axis=0), kind="stable")
    right = truth.sum(axis=0)[frequent].cumsum()
    scores = 2 * right / (truth.sum() + len(truth) * np.arange(1, len(right) + 1))
    return frequent[: int(scores.argmax()) + 1]


def _joined(names: Array) -> str:
    return shorten("; ".join(sorted(names.tolist()))) or "–"


MultiLabelClassification.data_format = SEVERAL_LABELS

MultiLabelClassification.zh = {
    MultiLabelClassification.summary: "为一段文本或一对文本预测任意多个标签",
    MultiLabelClassification.reads: "文本，以及标签列表、`a;b` 或每个标签一列 0/1",
    "micro F1": "微平均 F1",
    MACRO_F1: "宏平均 F1",
    "subset accuracy": "子集准确率（所有标签全对）",
    MultiLabelClassification.constant: "总是预测相同的标签",
    MultiLabelClassification.example: "要标注的文本",
    "any of the labels: {labels}": "以下任意标签：{labels}",
    "with another value than 0 or 1 in a label column dropped": "的标签列中有 0 和 1 以外的值，已丢弃",
    "whose labels are neither texts nor numbers dropped": "的标签既不是文本也不是数字，已丢弃",
    "with an empty label, taken as having no label": "的标签为空，按没有标签处理",
    "{name}: all {rows:,} rows have the same labels ({labels}): there is nothing to learn from them.": (
        "{name}：全部 {rows:,} 条样本的标签都相同（{labels}），无法从中学习。"
    ),
    "{text}, any of {count} labels ({names})": "{text}，{count} 个标签中的任意几个（{names}）",
}
