"""Text regression: a number for a text or a pair of texts, such as a rating or how similar two sentences are."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, ClassVar

import numpy as np

from tightfit.data.batch_spec import BatchSpec, text_batch
from tightfit.data.columns import ColumnNames, Columns
from tightfit.data.labels import Labels
from tightfit.data.rows import Flaw, Flaws, Rows
from tightfit.errors import DataError
from tightfit.messages import Message, msg
from tightfit.tasks.base import NO_LABEL, TEXT_COLUMNS, ModelInputs, Prediction, Script, TextTask
from tightfit.tasks.quality import MISTAKES, Interval, Metric, Quality

if TYPE_CHECKING:
    from transformers import EvalPrediction

    Array = np.ndarray[Any, Any]

_LABEL_COLUMNS = (
    "score", "similarity", "similarity_score", "label", "labels", "target", "rating", "stars", "value", "y",
    "分数", "得分", "评分", "相似度", "标签",
)  # fmt: skip
_SAME = 0.01  # of the range of the labels: predictions that differ by less are the same
_ALMOST_1 = 1 - 1e-12
_NOT_A_NUMBER = Flaw(msg("whose label is not a number dropped"), dropped=True)


@dataclass(frozen=True)
class NumberPrediction(Prediction):
    """A predicted number."""

    score: float

    def columns(self) -> dict[str, Any]:
        return {"prediction": round(self.score, 4)}

    def __str__(self) -> str:
        return f"{self.score:.4f}"


class TextRegression(TextTask):
    """A number for a text or a pair of texts, trained with the mean squared error."""

    name: ClassVar[str] = "text-regression"
    summary: ClassVar[Message] = msg("a number for a text or a pair of texts, such as a rating or a similarity")
    reads: ClassVar[Message] = msg("a column of numbers, and a text column (two for text pairs)")
    command: ClassVar[str] = "tightfit train --model bert-base-uncased --data pairs.csv --task text-regression"
    column_names: ClassVar[ColumnNames] = ColumnNames(TEXT_COLUMNS, _LABEL_COLUMNS)
    no_label: ClassVar[Message] = msg("has no numbers")
    metrics: ClassVar[tuple[Metric, ...]] = (
        Metric("pearson", msg("Pearson correlation")),
        Metric("spearman", msg("Spearman correlation")),
        Metric("mse", msg("mean squared error"), greater_is_better=False),
    )
    constant: ClassVar[Message] = msg("always the mean")
    example: ClassVar[Message] = msg("a text to score")
    batch_spec: ClassVar[BatchSpec] = text_batch("float32")
    loss_settings: ClassVar[frozenset[str]] = frozenset()
    script: ClassVar[Script | None] = Script(
        imports="from scipy.stats import pearsonr, spearmanr",
        head="AutoModelForSequenceClassification",
        collator="DataCollatorWithPadding",
        labels="",
        label='float(row["label"])',
        config='num_labels=1, problem_type="regression"',
        metrics="""\
def compute_metrics(output):
    predicted = np.squeeze(output.predictions, axis=-1)
    return {
        "pearson": pearsonr(predicted, output.label_ids).statistic,
        "spearman": spearmanr(predicted, output.label_ids).statistic,
        "mse": np.mean((predicted - output.label_ids) ** 2),
    }
""",
    )

    def learned(self, labels: Sequence[str]) -> Message:
        return msg("predicts a number")

    def read_label(self, value: Any) -> tuple[float, Flaws]:
        """A finite number, also as text."""
        if value is None or value != value or (isinstance(value, str) and not value.strip()):  # NaN != NaN
            return 0.0, (NO_LABEL,)
        try:
            number = float(value)
        except (TypeError, ValueError, OverflowError):
            return 0.0, (_NOT_A_NUMBER,)
        return (number, ()) if math.isfinite(number) and not isinstance(value, bool) else (0.0, (_NOT_A_NUMBER,))

    def find_labels(self, rows: Rows, *, will_be_split: bool) -> tuple[Labels, tuple[Message, ...]]:
        """No classes; at least two different numbers."""
        numbers = set(rows.dataset["label"])
        if len(numbers) == 1:
            raise DataError(
                msg(
                    "{name}: all {rows:,} rows have the number {number:g}: there is nothing to learn from them.",
                    name=rows.name,
                    rows=len(rows),
                    number=numbers.pop(),
                )
            )
        return Labels(), ()

    def describe(self, columns: Columns, labels: Labels) -> Message:
        text = super().describe(columns, labels)
        return msg("{text}, numbers from '{column}'", text=text, column=columns.label[0])

    def encode_labels(self, values: list[Any], labels: Labels) -> list[float]:
        return values

    def config_changes(self, labels: Labels) -> dict[str, Any]:
        return {"num_labels": 1, "problem_type": "regression"}

    def compute_metrics(self, prediction: EvalPrediction, inputs: ModelInputs) -> dict[str, float]:
        """Pearson correlation of predicted and true numbers, and of their ranks (Spearman); mean squared error."""
        predicted, truth = _sides(prediction)
        return {
            "pearson": _correlation(predicted, truth),
            "spearman": _correlation(_ranks(predicted), _ranks(truth)),
            "mse": float(((predicted - truth) ** 2).mean()),
        }

    def constant_outputs(self, prediction: EvalPrediction, inputs: ModelInputs) -> EvalPrediction:
        """Those of a model that always says the mean, which has the smallest squared error."""
        from transformers import EvalPrediction

        return EvalPrediction(np.full_like(prediction.predictions, prediction.label_ids.mean()), prediction.label_ids)

    def assess(self, prediction: EvalPrediction, inputs: ModelInputs) -> Quality:
        predicted, truth = _sides(prediction)
        same = np.ptp(predicted) <= _SAME * np.ptp(truth)
        furthest = np.argsort(-np.abs(predicted - truth), kind="stable")[:MISTAKES].tolist()
        wrong = [(row, float(truth[row]), round(float(predicted[row]), 4), None) for row in furthest]
        return Quality(
            rows=len(truth),
            constant=f"{truth.mean():.4g}",
            answer=f"{predicted.mean():.4g}" if same else None,
            interval=_correlation_interval(_correlation(predicted, truth), len(truth)),
            mistakes=self.mistakes(inputs, wrong),
        )

    def decode(self, outputs: Sequence[Any], inputs: ModelInputs) -> list[NumberPrediction]:
        return [NumberPrediction(float(logits[0])) for logits in outputs]


def _sides(prediction: EvalPrediction) -> tuple[Array, Array]:
    """Predicted and true numbers."""
    return prediction.predictions.squeeze(axis=-1).astype(np.float64), prediction.label_ids.astype(np.float64)


def _correlation_interval(correlation: float, rows: int) -> Interval | None:
    """Fisher's interval; None for too few rows."""
    if rows < 4:
        return None
    centre, half = np.arctanh(np.clip(correlation, -_ALMOST_1, _ALMOST_1)), 1.959964 / np.sqrt(rows - 3)
    return Interval(metric="pearson", low=float(np.tanh(centre - half)), high=float(np.tanh(centre + half)))


def _correlation(first: Array, second: Array) -> float:
    """0 where it is not defined, because one side does not vary: such a model has learned nothing yet."""
    if not np.ptp(first) or not np.ptp(second):
        return 0.0
    first, second = (side.astype(np.float64) - side.mean(dtype=np.float64) for side in (first, second))
    return float((first * second).sum() / np.sqrt((first**2).sum() * (second**2).sum()))


def _ranks(values: Array) -> Array:
    """The rank of each value; equal values share the mean of their ranks."""
    _, place, counts = np.unique(values, return_inverse=True, return_counts=True)
    ranks: Array = (np.cumsum(counts) - (counts - 1) / 2)[place]
    return ranks


TextRegression.zh = {
    TextRegression.summary: "为一段文本或一对文本预测一个数值，例如评分或相似度",
    TextRegression.no_label: "没有数值",
    TextRegression.reads: "一列数值，以及一列文本（文本对为两列）",
    TextRegression.example: "要打分的文本",
    "Pearson correlation": "皮尔逊相关系数",
    "Spearman correlation": "斯皮尔曼相关系数",
    "mean squared error": "均方误差",
    TextRegression.constant: "总是预测平均值",
    "predicts a number": "预测一个数值",
    "whose label is not a number dropped": "的标签不是数值，已丢弃",
    "{name}: all {rows:,} rows have the number {number:g}: there is nothing to learn from them.": (
        "{name}：全部 {rows:,} 条样本的数值都是 {number:g}，无法从中学习。"
    ),
    "{text}, numbers from '{column}'": "{text}，数值来自“{column}”列",
}
