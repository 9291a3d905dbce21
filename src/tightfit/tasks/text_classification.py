"""Text classification: one label for a text or a pair of texts."""

from __future__ import annotations

import math
import re
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, ClassVar

import numpy as np

from tightfit.data.columns import ColumnNames, Columns
from tightfit.data.labels import Labels
from tightfit.data.row_file import RowFile
from tightfit.data.rows import NOT_TEXT, Flaw, Flaws, Rows, clean, flaw_note
from tightfit.errors import DataError
from tightfit.messages import Message, in_sequence, msg
from tightfit.tasks.base import NO_LABEL, TEXT_COLUMNS, Metric, ModelInputs, Prediction, Script, TextTask

if TYPE_CHECKING:
    from transformers import EvalPrediction

_LABEL_COLUMNS = (
    "label", "labels", "class", "category", "target", "sentiment", "polarity", "rating", "y", "标签", "类别", "情感",
)  # fmt: skip
_BAD_LABEL = Flaw(msg("whose label is a list, an object or bytes dropped"), dropped=True)
_LABELS_LISTED = 6


@dataclass(frozen=True)
class ClassPrediction(Prediction):
    """A predicted label and the model's confidence in it (0 to 1)."""

    label: str
    confidence: float

    def columns(self) -> dict[str, Any]:
        return {"prediction": self.label, "confidence": round(self.confidence, 4)}

    def __str__(self) -> str:
        return f"{self.label}\t{self.confidence:.1%}"


class TextClassification(TextTask):
    """One label for a text or a pair of texts."""

    name: ClassVar[str] = "text-classification"
    summary: ClassVar[Message] = msg("one label for a text or a pair of texts")
    column_names: ClassVar[ColumnNames] = ColumnNames(TEXT_COLUMNS, _LABEL_COLUMNS)
    metrics: ClassVar[tuple[Metric, ...]] = (Metric("f1", msg("F1")), Metric("accuracy", msg("accuracy")))
    example: ClassVar[Message] = msg("a text to classify")
    script: ClassVar[Script | None] = Script(
        imports="from sklearn.metrics import accuracy_score, f1_score",
        head="AutoModelForSequenceClassification",
        collator="DataCollatorWithPadding",
        labels="""\
names = sorted({str(label) for label in rows[LABEL]})
ids = {name: index for index, name in enumerate(names)}
""",
        label="ids[str(row[LABEL])]",
        config="num_labels=len(names), id2label=dict(enumerate(names)), label2id=ids",
        metrics="""\
def compute_metrics(output):
    predicted = np.argmax(output.predictions, axis=-1)
    average = "binary" if len(names) == 2 else "macro"
    return {
        "f1": f1_score(output.label_ids, predicted, average=average),
        "accuracy": accuracy_score(output.label_ids, predicted),
    }
""",
    )

    def learned(self, labels: Sequence[str]) -> Message:
        return msg("labels: {labels}", labels=labels)

    def read_label(self, value: Any) -> tuple[str, Flaws]:
        """A label as text: 1, 1.0 and "1.0" are the same label, and NaN is no label."""
        if isinstance(value, float) and math.isnan(value):
            return "", (NO_LABEL,)
        text, flaws = clean(value)
        if not text:
            return "", (_BAD_LABEL if NOT_TEXT in flaws else NO_LABEL,)
        return re.sub(r"^(-?\d+)\.0+$", r"\1", text), flaws

    def find_labels(self, rows: Rows, *, will_be_split: bool) -> Labels:
        """The labels: integers in numeric order, then names in alphabetical order."""
        counts = Counter(rows.dataset["label"])
        if len(counts) == 1:
            raise DataError(
                msg(
                    "{name}: all {rows:,} rows have the label '{label}': classification needs at least two labels.",
                    name=rows.name,
                    rows=len(rows),
                    label=next(iter(counts)),
                )
            )
        if will_be_split:
            _check_single_rows(rows, counts)
        return Labels(tuple(sorted(counts, key=_sort_key)))

    def strata(self, rows: RowFile) -> Sequence[object]:
        return rows["label"]

    def known_rows(self, name: str, rows: RowFile, labels: Labels) -> tuple[RowFile, tuple[Message, ...]]:
        """Without the rows whose label is not in the training data: the model cannot predict them."""
        known = set(labels.names)
        unknown = [label not in known for label in rows["label"]]
        if not any(unknown):
            return rows, ()
        if all(unknown):
            raise DataError(
                msg("{name} has none of the labels of the training data: {labels}.", name=name, labels=labels.names)
            )
        lines = np.array(rows["line"])[unknown].tolist()
        note = flaw_note(name, msg("with labels unknown to the model dropped"), lines)
        return rows.select(np.flatnonzero(np.logical_not(unknown))), (note,)

    def describe(self, columns: Columns, labels: Labels) -> Message:
        more = ["…"] if len(labels.names) > _LABELS_LISTED else []
        return msg(
            "{text}, {count} labels from '{column}' ({names})",
            text=super().describe(columns, labels),
            count=len(labels.names),
            column=columns.label[0],
            names=[*labels.names[:_LABELS_LISTED], *more],
        )

    def encode_labels(self, values: list[Any], labels: Labels) -> list[int]:
        ids = labels.ids
        return [ids[value] for value in values]

    def config_changes(self, labels: Labels) -> dict[str, Any]:
        problem = {"problem_type": "single_label_classification"}
        if not labels.names:
            return problem
        names = {"id2label": dict(enumerate(labels.names)), "label2id": labels.ids}
        return {"num_labels": len(labels.names), **names, **problem}

    def compute_metrics(self, prediction: EvalPrediction, labels: Labels) -> dict[str, float]:
        """F1, of label 1 if there are two labels, otherwise the mean over the labels (macro F1); and accuracy."""
        predicted, truth = prediction.predictions.argmax(axis=-1), prediction.label_ids
        scores = _f1_by_label(truth, predicted)
        f1 = scores.get(1, 0.0) if prediction.predictions.shape[-1] == 2 else sum(scores.values()) / len(scores)
        return {"f1": f1, "accuracy": float((predicted == truth).mean())}

    def decode(self, outputs: Sequence[Any], inputs: ModelInputs) -> list[ClassPrediction]:
        """The most probable label of each row."""
        logits = np.array(outputs)
        probabilities = np.exp(logits - logits.max(axis=1, keepdims=True))
        probabilities /= probabilities.sum(axis=1, keepdims=True)
        return [ClassPrediction(inputs.labels.names[int(row.argmax())], float(row.max())) for row in probabilities]


def _check_single_rows(rows: Rows, counts: Counter[str]) -> None:
    """A label with a single row cannot be in both the training and the validation rows."""
    single = [label for label, count in counts.items() if count == 1]
    if not single:
        return
    line = rows.dataset["line"][rows.dataset["label"].index(single[0])]
    problem = msg(
        "{name}: the label '{label}'{more} appears only once, on line {line}: "
        "add rows, remove it, or give --validation a file of its own.",
        name=rows.name,
        label=single[0],
        more=msg(" (and {count:,} more)", count=len(single) - 1) if len(single) > 1 else "",
        line=line,
    )
    unlikely = len(single) > len(rows) / 10
    raise DataError(in_sequence(problem, msg("Is it the right column?")) if unlikely else problem)


def _sort_key(label: str) -> tuple[int, float, str]:
    try:
        return 0, int(label), label
    except ValueError:
        return 1, 0, label


def _f1_by_label(truth: Any, predicted: Any) -> dict[int, float]:
    """F1 of every label that occurs in the data or in the predictions."""
    labels = {*truth.tolist(), *predicted.tolist()}
    return {label: _f1(truth == label, predicted == label) for label in labels}


def _f1(truth: Any, predicted: Any) -> float:
    return float(2 * (truth & predicted).sum() / (truth.sum() + predicted.sum()))


TextClassification.zh = {
    TextClassification.summary: "给一段文本或一对文本标一个类别",
    "F1": "F1",
    "accuracy": "准确率",
    "labels: {labels}": "标签：{labels}",
    "a text to classify": "要分类的文本",
    "whose label is a list, an object or bytes dropped": "的标签是列表、对象或字节串，已丢弃",
    "with labels unknown to the model dropped": "的标签不在训练数据中，已丢弃",
    "{name}: all {rows:,} rows have the label '{label}': classification needs at least two labels.": (
        "{name}：全部 {rows:,} 条样本的标签都是“{label}”：分类至少需要两个标签。"
    ),
    "{name} has none of the labels of the training data: {labels}.": "{name} 中没有训练数据的任何标签：{labels}。",
    "{text}, {count} labels from '{column}' ({names})": "{text}，标签列 '{column}' 有 {count} 个标签（{names}）",
    "{name}: the label '{label}'{more} appears only once, on line {line}: "
    "add rows, remove it, or give --validation a file of its own.": (
        "{name}：标签“{label}”{more}只出现一次，在第 {line} 行："
        "请添加样本、删除它，或用 --validation 单独指定验证文件。"
    ),
    " (and {count:,} more)": "（还有 {count:,} 个）",
    "Is it the right column?": "这一列是标签列吗？",
}
