"""Text classification: one label for a text or a pair of texts."""

from __future__ import annotations

import math
import re
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any, ClassVar

import numpy as np

from tightfit.data.columns import ColumnNames, Columns, is_number
from tightfit.data.format_detection import SEVERAL_LABELS
from tightfit.data.labels import Labels, spelling
from tightfit.data.row_file import RowFile
from tightfit.data.rows import NOT_TEXT, Flaw, Flaws, Rows, clean
from tightfit.errors import BadInput, DataError, suggest
from tightfit.messages import Message, in_sequence, msg
from tightfit.tasks.base import (
    LABEL_COLUMNS,
    LOSS_SETTINGS,
    NO_LABEL,
    TEXT_COLUMNS,
    ModelInputs,
    Prediction,
    Script,
    TextTask,
    first_of,
    without_unknown,
)
from tightfit.tasks.classes import (
    CLASS_METRICS,
    CLASSES_ZH,
    accuracy_interval,
    class_metrics_for,
    class_scores,
    confusion_matrix,
    label_scores,
    most_confused,
    positive_by_meaning,
    small_matrix,
)
from tightfit.tasks.quality import MISTAKES, Metric, Quality

if TYPE_CHECKING:
    from transformers import EvalPrediction

    Array = np.ndarray[Any, Any]

_BAD_LABEL = Flaw(msg("whose label is a list, an object or bytes dropped"), dropped=True)
_MAX_RATINGS = 30
_SEPARATORS = ("|", ";", ",", "；", "，", "、")


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
    column_names: ClassVar[ColumnNames] = ColumnNames(TEXT_COLUMNS, LABEL_COLUMNS)
    metrics: ClassVar[tuple[Metric, ...]] = CLASS_METRICS
    constant: ClassVar[Message] = msg("always the majority class")
    example: ClassVar[Message] = msg("a text to classify")
    loss_settings: ClassVar[frozenset[str]] = frozenset(LOSS_SETTINGS)
    script: ClassVar[Script | None] = Script(
        imports="from sklearn.metrics import accuracy_score, f1_score, matthews_corrcoef",
        head="AutoModelForSequenceClassification",
        collator="DataCollatorWithPadding",
        labels="""

def by_number(label):
    \"""Numbers in their order, then words.\"""
    return (0, int(label), label) if label.lstrip("-").isdecimal() else (1, 0, label)


names = sorted(set(rows["label"]), key=by_number)
ids = {name: index for index, name in enumerate(names)}
""",
        label='ids[row["label"]]',
        config="num_labels=len(names), id2label=dict(enumerate(names)), label2id=ids",
        metrics="""\
def compute_metrics(output):
    truth, predicted = output.label_ids, np.argmax(output.predictions, axis=-1)
    scored = [ids[POSITIVE]] if POSITIVE in ids else None
    return {
        "f1": f1_score(truth, predicted, labels=scored, average="macro", zero_division=0),
        "accuracy": accuracy_score(truth, predicted),
        "macro_f1": f1_score(truth, predicted, average="macro", zero_division=0),
        "mcc": matthews_corrcoef(truth, predicted),
    }
""",
        strata='list(rows["label"])',
    )

    def learned(self, labels: Sequence[str]) -> Message:
        return msg("labels: {labels}", labels=labels)

    def read_label(self, value: Any) -> tuple[str, Flaws]:
        """A label as text: 1, 1.0, "1.0" and [1] are the same label, and NaN is no label."""
        if isinstance(value, list) and len(value) == 1:
            value = value[0]
        if isinstance(value, float) and math.isnan(value):
            return "", (NO_LABEL,)
        text, flaws = clean(value)
        if not text:
            return "", (_BAD_LABEL if NOT_TEXT in flaws else NO_LABEL,)
        return re.sub(r"^(-?\d+)\.0+$", r"\1", text), flaws

    def find_labels(self, rows: Rows, *, will_be_split: bool) -> tuple[Labels, tuple[Message, ...]]:
        """The labels: numbers in numeric order, then names in alphabetical order; in their commonest spelling."""
        counts = Counter(rows.dataset["label"])
        spellings = _by_spelling(counts)
        if len(spellings) == 1:
            raise DataError(
                msg(
                    "{name}: all {rows:,} rows have the label '{label}': classification needs at least two labels.",
                    name=rows.name,
                    rows=len(rows),
                    label=next(iter(counts)),
                )
            )
        _check_numbers(rows, counts)
        _check_combinations(rows, counts)
        if will_be_split:
            _check_single_rows(rows, spellings)
        names = {max(found, key=found.__getitem__): found for found in spellings.values()}
        notes = tuple(_spelling_note(rows.name, name, found) for name, found in names.items() if len(found) > 1)
        return Labels(tuple(sorted(names, key=_sort_key))), notes

    def check_positive(self, positive: str | None) -> None:
        """Any label may be the positive one; which there are is known from the data."""

    def choose_positive(self, labels: Labels, given: str | None) -> tuple[Labels, tuple[Message, ...]]:
        """The label that the user gave, or the one that is looked for by its meaning."""
        if given is not None:
            return replace(labels, positive=_find_label(labels, given)), ()
        if found := positive_by_meaning(labels.names):
            return replace(labels, positive=found), ()
        note = msg(
            "F1 is the mean of the F1 of '{first}' and '{second}' (macro F1): --positive names the label to score",
            first=labels.names[0],
            second=labels.names[1],
        )
        return labels, (note,) if len(labels.names) == 2 else ()

    def metrics_for(self, labels: Labels) -> tuple[Metric, ...]:
        return class_metrics_for(labels)

    def strata(self, rows: RowFile) -> Sequence[object]:
        return [spelling(label) for label in rows["label"]]

    def known_rows(self, name: str, rows: RowFile, labels: Labels) -> tuple[RowFile, tuple[Message, ...]]:
        """Without the rows whose label is not in the training data: the model cannot predict them."""
        unknown = [labels.id_of(label) is None for label in rows["label"]]
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
            "{text}, {count} labels from '{column}' ({names})",
            text=super().describe(columns, labels),
            count=len(labels.names),
            column=columns.label[0],
            names=first_of(labels.names),
        )

    def encode_labels(self, values: list[Any], labels: Labels) -> list[Any]:
        return [labels.id_of(value) for value in values]

    def class_counts(self, rows: RowFile, labels: Labels) -> Sequence[int]:
        return np.bincount(self.encode_labels(rows["label"], labels), minlength=len(labels.names)).tolist()

    def config_changes(self, labels: Labels) -> dict[str, Any]:
        problem = {"problem_type": "single_label_classification"}
        if not labels.names:
            return problem
        names = {"id2label": dict(enumerate(labels.names)), "label2id": labels.ids}
        return {"num_labels": len(labels.names), **names, **problem}

    def compute_metrics(self, prediction: EvalPrediction, inputs: ModelInputs) -> dict[str, float]:
        """F1 of the positive label, or the mean over the labels (macro F1) if there is none; and other metrics."""
        return class_scores(_matrix(prediction), _positive(inputs.labels))

    def constant_outputs(self, prediction: EvalPrediction, inputs: ModelInputs) -> EvalPrediction:
        """Those of a model that always predicts the majority class."""
        from transformers import EvalPrediction

        outputs = np.zeros_like(prediction.predictions)
        outputs[:, _majority(prediction, inputs.labels)] = 1
        return EvalPrediction(outputs, prediction.label_ids)

    def assess(self, prediction: EvalPrediction, inputs: ModelInputs) -> Quality:
        names, matrix = inputs.labels.names, _matrix(prediction)
        answers, rows = np.flatnonzero(matrix.sum(0)), int(matrix.sum())
        return Quality(
            rows=rows,
            constant=names[_majority(prediction, inputs.labels)],
            answer=names[answers[0]] if len(answers) == 1 else None,
            interval=accuracy_interval(int(np.trace(matrix)), rows),
            labels=label_scores(matrix, names),
            confusion=small_matrix(matrix),
            confused=most_confused(matrix, names),
            mistakes=self.mistakes(inputs, _most_confidently_wrong(prediction, names)),
        )

    def decode(self, outputs: Sequence[Any], inputs: ModelInputs) -> list[ClassPrediction]:
        """The most probable label of each row."""
        names = inputs.labels.names
        return [ClassPrediction(names[int(row.argmax())], float(row.max())) for row in _softmax(np.array(outputs))]


def _matrix(prediction: EvalPrediction) -> Array:
    logits = prediction.predictions
    return confusion_matrix(prediction.label_ids, logits.argmax(axis=-1), logits.shape[-1])


def _majority(prediction: EvalPrediction, labels: Labels) -> int:
    """The class of the most rows; among equals the positive one, since always predicting another has an F1 of 0."""
    rows = np.bincount(prediction.label_ids, minlength=len(labels.names))
    largest = np.flatnonzero(rows == rows.max())
    positive = _positive(labels)
    return positive if positive is not None and positive in largest else int(largest[0])


def _positive(labels: Labels) -> int | None:
    return None if labels.positive is None else labels.ids[labels.positive]


def _softmax(logits: Array) -> Array:
    probabilities: Array = np.exp(logits - logits.max(axis=1, keepdims=True))
    probabilities /= probabilities.sum(axis=1, keepdims=True)
    return probabilities


def _most_confidently_wrong(prediction: EvalPrediction, names: Sequence[str]) -> list[tuple[int, str, str, float]]:
    """The place, label, predicted label and confidence of some rows."""
    truth, predicted = prediction.label_ids, prediction.predictions.argmax(axis=-1)
    wrong = np.flatnonzero(truth != predicted)
    confidence = _softmax(prediction.predictions[wrong]).max(axis=1)
    first = np.argsort(-confidence, kind="stable")[:MISTAKES]
    rows = zip(wrong[first].tolist(), confidence[first].tolist(), strict=True)
    return [(row, names[truth[row]], names[predicted[row]], sure) for row, sure in rows]


def _find_label(labels: Labels, given: str) -> str:
    """The label as it is written in the data; upper and lower case are the same unless both exist."""
    found = labels.id_of(given)
    if found is None:
        raise BadInput(
            msg(
                "--positive '{label}' is no label of the data: {suggestion}",
                label=given,
                suggestion=suggest(given, labels.names),
            )
        )
    return labels.names[found]


def _by_spelling(counts: Counter[str]) -> dict[str, Counter[str]]:
    """The labels and their rows, those together that differ only in case or spaces."""
    found: dict[str, Counter[str]] = {}
    for label, count in counts.items():
        found.setdefault(spelling(label), Counter())[label] = count
    return found


def _spelling_note(name: str, label: str, found: Counter[str]) -> Message:
    written = [f"'{other}' ({count:,})" for other, count in found.most_common()]
    return msg(
        "{name}: labels that differ only in case or spaces are one label, '{label}': {written}",
        name=name,
        label=label,
        written=written,
    )


def _check_numbers(rows: Rows, counts: Counter[str]) -> None:
    """Labels that are numbers of a scale, rather than names of classes or ratings."""
    if not all(map(is_number, counts)):
        return
    values = [float(label) for label in counts]
    low, high, different = min(values), max(values), len(counts)
    rare = len(rows) < 20 * different
    if all(value.is_integer() for value in values):
        is_scale = different > _MAX_RATINGS and rare and high - low > 2 * different  # ids of classes have no such gaps
    else:
        is_scale = different > _MAX_RATINGS or (different > 10 and rare)
    if is_scale:
        raise DataError(
            msg(
                "{name}: the column '{column}' looks like numbers to predict ({different:,} different ones from "
                "{low:g} to {high:g}), not like labels: train it with --task text-regression.",
                name=rows.name,
                column=rows.columns.label[0],
                different=different,
                low=low,
                high=high,
            )
        )


def _check_combinations(rows: Rows, counts: Counter[str]) -> None:
    """Labels such as `wifi|bed`, which combine some of fewer labels."""
    for separator in _SEPARATORS:
        parts = {label: _parts(label, separator) for label in counts}
        combined = [label for label, found in parts.items() if len(found) > 1]
        single = {part for found in parts.values() for part in found}
        if len(combined) < 2 or len(single) >= len(counts) or len({len(found) for found in parts.values()}) == 1:
            continue
        raise DataError(
            msg(
                "{name} looks like several labels per text (line {line}: '{label}'; {combined:,} of {count:,} labels "
                "combine {single:,} with '{separator}'): {instead}",
                name=rows.name,
                line=rows.dataset["line"][rows.dataset["label"].index(combined[0])],
                label=combined[0],
                combined=len(combined),
                count=len(counts),
                single=len(single),
                separator=separator,
                instead=SEVERAL_LABELS.instead,
            )
        )


def _parts(label: str, separator: str) -> list[str]:
    """The labels in one, without the brackets and quotes of a list that was written as text."""
    return [part.strip(" '\"") for part in label.strip("[](){}").split(separator)]


def _check_single_rows(rows: Rows, spellings: dict[str, Counter[str]]) -> None:
    """A label with a single row cannot be in both the training and the validation rows."""
    single = [label for found in spellings.values() if found.total() == 1 for label in found]
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
    return (0, float(label), label) if is_number(label) else (1, 0, label)


TextClassification.zh = {
    TextClassification.summary: "为一段文本或一对文本预测一个类别",
    **CLASSES_ZH,
    TextClassification.constant: "总是预测多数类",
    "F1 is the mean of the F1 of '{first}' and '{second}' (macro F1): --positive names the label to score": (
        "F1 是“{first}”和“{second}”两个标签 F1 的平均值（宏平均 F1）：用 --positive 指定要计算 F1 的标签"
    ),
    "--positive '{label}' is no label of the data: {suggestion}": "--positive “{label}”不是数据中的标签：{suggestion}",
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
    "{name}: labels that differ only in case or spaces are one label, '{label}': {written}": (
        "{name}：只有大小写或空格不同的标签按同一个标签“{label}”处理：{written}"
    ),
    "{name}: the column '{column}' looks like numbers to predict ({different:,} different ones from "
    "{low:g} to {high:g}), not like labels: train it with --task text-regression.": (
        "{name}：“{column}”列看起来是要预测的数值（{different:,} 个不同的值，从 {low:g} 到 {high:g}），不是类别标签："
        "请加上 --task text-regression 训练。"
    ),
    "{name} looks like several labels per text (line {line}: '{label}'; {combined:,} of {count:,} labels "
    "combine {single:,} with '{separator}'): {instead}": (
        "{name} 看起来每段文本有多个标签（第 {line} 行：“{label}”；{count:,} 个标签中有 {combined:,} 个"
        "由 {single:,} 个标签用“{separator}”组合而成）：{instead}"
    ),
}
