"""Scores of predicted classes: metrics, the scores of each class, and the class whose F1 is reported."""

from __future__ import annotations

import math
import re
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

import numpy as np

from tightfit.data.columns import is_number
from tightfit.data.labels import Labels
from tightfit.errors import BadInput, suggest
from tightfit.messages import Message, msg
from tightfit.tasks.quality import Confusion, Interval, LabelScore, Metric

if TYPE_CHECKING:
    Array = np.ndarray[Any, Any]

MACRO_F1 = msg("macro F1")
CLASS_METRICS = (
    Metric("f1", msg("F1")),
    Metric("accuracy", msg("accuracy")),
    Metric("macro_f1", MACRO_F1),
    Metric("mcc", msg("MCC")),
)
LABEL_HEADINGS = (
    msg("label"),
    msg("examples"),
    msg("predicted", context="by the model"),
    msg("precision"),
    msg("recall"),
    CLASS_METRICS[0].title,
)
"""Of a table with the scores of each class."""
_MAX_IN_MATRIX = 20
_MOST_CONFUSED = 10
_Z = 1.959964  # of the normal distribution, for a probability of 95 %


def class_metrics_for(labels: Labels) -> tuple[Metric, ...]:
    """The metrics, with the class in the title of its F1; without such a class, F1 is macro F1."""
    _, *others = CLASS_METRICS
    if labels.positive is None:
        return Metric("f1", MACRO_F1 if labels.names else CLASS_METRICS[0].title), *others
    return Metric("f1", msg("F1 of '{label}'", label=labels.positive)), *others


# Metrics


def confusion_matrix(truth: Array, predicted: Array, classes: int) -> Array:
    """Rows by their class and the predicted one."""
    counts = np.bincount(truth.astype(np.int64) * classes + predicted, minlength=classes * classes)
    return counts.reshape(classes, classes)


def class_scores(matrix: Array, positive: int | None) -> dict[str, float]:
    """F1 of the class with this id, or macro F1 if there is none; accuracy, macro F1 and Matthews correlation."""
    by_class = _f1(matrix)
    occurs = (matrix.sum(0) + matrix.sum(1)) > 0
    macro = float(by_class[occurs].mean())
    return {
        "f1": macro if positive is None else float(by_class[positive]),
        "accuracy": float(np.trace(matrix) / matrix.sum()),
        "macro_f1": macro,
        "mcc": _matthews(matrix),
    }


def _f1(matrix: Array) -> Array:
    """F1 of each class; 0 for one that neither occurs nor is predicted."""
    return _share(2 * np.diag(matrix), matrix.sum(0) + matrix.sum(1))


def _share(part: Array, whole: Array) -> Array:
    """0 of nothing is 0."""
    return part / np.maximum(whole, 1)


def _matthews(matrix: Array) -> float:
    """The correlation of classes and predictions; 0 if all rows have, or get, the same."""
    matrix = matrix.astype(np.float64)
    rows, predicted, truth = matrix.sum(), matrix.sum(0), matrix.sum(1)
    norm = np.sqrt((rows**2 - predicted @ predicted) * (rows**2 - truth @ truth))
    return float((np.trace(matrix) * rows - predicted @ truth) / norm) if norm > 0 else 0.0


def accuracy_interval(right: int, rows: int) -> Interval:
    """Wilson's interval, which also holds for few rows and for an accuracy of 0 or 1."""
    share, spread = right / rows, _Z**2 / rows
    centre = (share + spread / 2) / (1 + spread)
    half = _Z / (1 + spread) * np.sqrt(share * (1 - share) / rows + spread / (4 * rows))
    return Interval(metric="accuracy", low=max(0.0, centre - half), high=min(1.0, centre + half))


# The scores of each class


def label_scores(matrix: Array, names: tuple[str, ...]) -> list[LabelScore]:
    """Precision, recall and F1 of each class."""
    found, truth, predicted = np.diag(matrix), matrix.sum(1), matrix.sum(0)
    columns = (truth, predicted, _share(found, predicted), _share(found, truth), _f1(matrix))
    values = zip(names, *(column.tolist() for column in columns), strict=True)
    return [
        LabelScore(label=name, rows=rows, predicted=guessed, precision=precision, recall=recall, f1=f1)
        for name, rows, guessed, precision, recall, f1 in values
    ]


def small_matrix(matrix: Array) -> list[list[int]]:
    """The confusion matrix; empty if it has more classes than can be looked at."""
    return matrix.tolist() if len(matrix) <= _MAX_IN_MATRIX else []


def most_confused(matrix: Array, names: tuple[str, ...]) -> list[Confusion]:
    """The most frequent wrong predictions."""
    wrong = matrix - np.diag(np.diag(matrix))
    order = np.argsort(-wrong, axis=None, kind="stable")[:_MOST_CONFUSED].tolist()
    cells = [divmod(place, len(matrix)) for place in order]
    return [
        Confusion(label=names[row], predicted=names[column], rows=int(wrong[row, column]))
        for row, column in cells
        if wrong[row, column]
    ]


# The weight of each class in the loss

BALANCED = "balanced"


def class_weights(text: str, labels: Labels, counts: Sequence[int] | None) -> tuple[float, ...]:
    """The weight of each class: `balanced` by how rare it is, or `name=weight,…` and 1 for classes without.

    Balanced weights are scikit-learn's: all rows together weigh as much as without weights, and each class the same.
    """
    if text.strip().lower() == BALANCED:
        total, classes = sum(counts or ()), len(labels.names)
        return tuple(total / (classes * count) if count else 1.0 for count in counts or ())
    given = dict(_class_weight(pair, labels) for pair in text.split(","))
    return tuple(given.get(place, 1.0) for place in range(len(labels.names)))


def _class_weight(pair: str, labels: Labels) -> tuple[int, float]:
    name, _, number = (part.strip() for part in pair.rpartition("="))
    found = labels.id_of(name)
    if found is None:
        hint = suggest(name, labels.names)
        raise BadInput(
            msg("--class-weights names '{label}', which is no label: {suggestion}", label=name, suggestion=hint)
        )
    return found, float(number)


def check_class_weights(text: str) -> None:
    """Raise BadInput if this cannot be read, whatever the classes are."""
    for pair in text.split(",") if text.strip().lower() != BALANCED else ():
        name, _, number = (part.strip() for part in pair.rpartition("="))
        if not name or not is_number(number) or not 0 < float(number) < math.inf:
            raise BadInput(
                msg(
                    "--class-weights '{text}' cannot be read at '{pair}': write balanced, or a number above 0 for each "
                    "class, such as spam=5,ham=1.",
                    text=text,
                    pair=pair.strip(),
                )
            )


# The class whose F1 is reported

_PRESENT = {
    "positive", "pos", "good", "true", "yes", "like", "liked", "happy", "satisfied", "recommended",
    "recommend", "helpful", "spam", "junk", "toxic", "hate", "hateful", "hate speech", "offensive", "abusive", "abuse",
    "insult", "harmful", "harassment", "sarcasm", "sarcastic", "irony", "ironic", "fraud", "fraudulent", "scam",
    "phishing", "malicious", "attack", "malignant", "fake", "rumor", "rumour", "clickbait", "anomaly", "abnormal",
    "duplicate", "paraphrase", "entailment", "relevant", "churn",
    "正面", "正面评价", "正面情绪", "好评", "积极", "积极情绪", "正向", "正向情感", "正", "正例", "阳性", "是", "对",
    "真", "有", "喜欢", "满意", "推荐", "乐观", "垃圾", "垃圾短信", "垃圾邮件", "垃圾评论", "广告", "谣言", "诈骗",
    "欺诈", "辱骂", "攻击", "仇恨", "有害", "有毒", "违规", "敏感", "恶意", "恶性", "讽刺", "反讽", "虚假",
    "异常", "相似", "相同", "相关",
}  # fmt: skip
"""What a model with two classes looks for: the good ones of a review, the harmful ones of a filter."""
_ABSENT = {
    "0", "-1", "false", "no", "ham", "normal", "none", "other", "others", "clean", "benign", "legit", "legitimate",
    "real", "safe", "neither", "否", "无", "没有", "正常", "普通", "其他", "其它", "安全", "良性", "无害", "合规",
    "真实",
}  # fmt: skip
"""Names of the other class."""
_LETTERS = {"y": "n", "t": "f", "p": "n", "+": "-"}  # alone, each may mean anything
_NOT = ("not ", "non ", "no ", "un", "in", "dis", "非", "不", "无", "未", "没")
_NUMBERED = re.compile(r"(?:label|class|category|标签|类别) ?(-?\d+)")


def positive_by_meaning(names: tuple[str, ...]) -> str | None:
    """Of two classes the one that is looked for, by the usual words; None if the words do not say."""
    if len(names) != 2:
        return None
    words = {_word(name): name for name in names}
    if len(words) < 2:
        return None
    for choose in (_lettered, _negated, _present, _absent):
        if found := choose(words.keys()):
            return words[found]
    return None


def _word(name: str) -> str:
    """Without case, underscores and `label_`; -1 stays -1."""
    text = re.sub(r"(?<=\w)[\s_-]+|_+", " ", name.strip().casefold()).strip()
    numbered = _NUMBERED.fullmatch(text)
    return numbered[1] if numbered else text


def _lettered(words: Any) -> str | None:
    """`y` of `y` and `n`."""
    return next((word for word, other in _LETTERS.items() if words == {word, other}), None)


def _negated(words: Any) -> str | None:
    """`toxic` of `toxic` and `not toxic`."""
    return next((word for word in words for no in _NOT if no + word in words), None)


def _present(words: Any) -> str | None:
    found = [word for word in words if word in _PRESENT]
    return found[0] if len(found) == 1 else None


def _absent(words: Any) -> str | None:
    """The class beside one that only says that something is not there."""
    others = [word for word in words if word not in _ABSENT]
    return others[0] if len(others) == 1 else None


CLASSES_ZH: dict[Message | str, str] = {
    "--class-weights names '{label}', which is no label: {suggestion}": (
        "--class-weights 中的“{label}”不是数据中的标签：{suggestion}"
    ),
    "--class-weights '{text}' cannot be read at '{pair}': write balanced, or a number above 0 for each class, such as "
    "spam=5,ham=1.": (
        "--class-weights “{text}”中的“{pair}”无法识别：请写 balanced，或给每个类别一个大于 0 的数，例如 spam=5,ham=1。"
    ),
    "precision": "精确率",
    "recall": "召回率",
    "F1": "F1",
    "F1 of '{label}'": "“{label}”的 F1",
    "accuracy": "准确率",
    MACRO_F1: "宏平均 F1",
    "MCC": "MCC",
}
