"""Question answering: the span of a context that answers a question."""

from __future__ import annotations

import json
import re
import string
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from functools import partial
from typing import TYPE_CHECKING, Any, ClassVar

import numpy as np

from tightfit.data.batch_spec import ROWS, TOKENS, BatchSpec, Field
from tightfit.data.columns import ColumnNames, Columns
from tightfit.data.format_detection import DatasetFormat, Sample
from tightfit.data.labels import Labels
from tightfit.data.row_file import RowFile, store_rows
from tightfit.data.rows import NO_TEXT, Flaw, Flaws, Rows, clean
from tightfit.data.tokens import ROW, RowBatch
from tightfit.errors import BadInput, DataError, ModelError
from tightfit.messages import Message, msg
from tightfit.tasks.base import ModelInputs, Prediction, Task
from tightfit.tasks.quality import MISTAKES, Metric, Mistake, Quality, shorten

if TYPE_CHECKING:
    from transformers import EvalPrediction, PreTrainedModel, PreTrainedTokenizerBase

    from tightfit.data.batches import Batch
    from tightfit.tasks.base import Collator

    Array = np.ndarray[Any, Any]

NO_ANSWER = "no answer"
"""The only label, where some questions have no answer in their context (SQuAD 2)."""
_COLUMNS = (
    ("question", "context"), ("query", "context"), ("question", "passage"), ("question", "paragraph"),
    ("question", "document"), ("问题", "上下文"), ("问题", "文章"),
)  # fmt: skip
_ANSWER_COLUMNS = ("answers", "answer", "answer_text", "答案")
_OVERLAP = 3  # a window shares a third of its tokens with the next one, as in transformers' examples
_CANDIDATES = 20
_LONGEST_ANSWER = 64  # tokens
_CJK = "\u3040-\u30ff\u3400-\u9fff\uac00-\ud7af\uf900-\ufaff\U00020000-\U0003ffff"
_NOT_IN_CONTEXT = Flaw(msg("whose answer is not in its context dropped"), dropped=True)
_MOVED = Flaw(msg("whose answer is not where it says, taken from the nearest place"))
_UNANSWERED = Flaw(msg("without an answer: the model learns that their context has none"))


@dataclass(frozen=True)
class AnswerPrediction(Prediction):
    """The answer in the context, empty if there is none, and the model's confidence in it (0 to 1)."""

    answer: str
    confidence: float
    start: int
    """The place of its first character in the context."""
    end: int

    def columns(self) -> dict[str, Any]:
        return {"prediction": self.answer, "confidence": round(self.confidence, 4)}

    def __str__(self) -> str:
        return f"{self.answer or '–'}\t{self.confidence:.1%}"


class QuestionAnswering(Task):
    """An answer to each question, from its context; long contexts are read in windows that overlap."""

    name: ClassVar[str] = "question-answering"
    summary: ClassVar[Message] = msg("extractive question answering: the span of a context that answers a question")
    reads: ClassVar[Message] = msg("SQuAD files (also 2.0), or columns `question`, `context` and `answers`")
    command: ClassVar[str] = "tightfit train --model bert-base-uncased --data train-v2.0.json --max-length 384"
    column_names: ClassVar[ColumnNames] = ColumnNames(_COLUMNS, _ANSWER_COLUMNS)
    no_label: ClassVar[Message] = msg("has no answers that are in their contexts")
    metrics: ClassVar[tuple[Metric, ...]] = (
        Metric("f1", msg("word-overlap F1")),
        Metric("exact_match", msg("exact match")),
    )
    constant: ClassVar[Message] = msg("always no answer")
    batch_spec: ClassVar[BatchSpec] = BatchSpec(
        (
            Field("input_ids", "int64", (ROWS, TOKENS)),
            Field("start_positions", "int64", (ROWS,)),
            Field("end_positions", "int64", (ROWS,)),
            Field("attention_mask", "int64", (ROWS, TOKENS)),
        )
    )
    label_names: ClassVar[tuple[str, ...]] = ("start_positions", "end_positions")
    extra_columns: ClassVar[tuple[str, ...]] = ("offsets",)
    loss_settings: ClassVar[frozenset[str]] = frozenset()
    peft_type: ClassVar[str | None] = "QUESTION_ANS"
    pipeline: ClassVar[str] = "question-answering"
    example: ClassVar[Message] = msg("a question")
    second_example: ClassVar[Message] = msg("the context with the answer")
    sample_texts: ClassVar[tuple[Message, Message]] = (
        msg("Where was Marie Curie born?"),
        msg("Marie Curie was born in Warsaw in 1867."),
    )

    def learned(self, labels: Sequence[str]) -> Message:
        if NO_ANSWER in labels:
            return msg("finds the answer to a question in its context, or says that it has none")
        return msg("finds the answer to a question in its context")

    # Rows

    def read(self, row: Mapping[str, Any], columns: Columns) -> tuple[dict[str, Any], Flaws]:
        if len(columns.text) != 2:
            raise DataError(
                msg(
                    "A question and its context are read, and only the column '{column}' is named: "
                    "name both, such as --text question,context.",
                    column=columns.text[0],
                )
            )
        (question, flaws), (context, context_flaws) = (clean(row.get(name)) for name in columns.text)
        cells: dict[str, Any] = {"question": question, "context": context}
        if not columns.label or NO_TEXT in (*flaws, *context_flaws):
            return cells, (*flaws, *context_flaws)
        raw = str(row.get(columns.text[1]))
        answers, starts, answer_flaws = _read_answers(row, columns.label[0], context, len(raw) - len(raw.lstrip()))
        return {**cells, "answers": answers, "starts": starts}, (*flaws, *context_flaws, *answer_flaws)

    def find_labels(self, rows: Rows, *, will_be_split: bool) -> tuple[Labels, tuple[Message, ...]]:
        """Whether some questions have no answer; at least one has."""
        answered = [bool(starts) for batch in rows.dataset.batches() for starts in batch["starts"]]
        if not any(answered):
            raise DataError(
                msg("{name}: none of the {rows:,} questions has an answer.", name=rows.name, rows=len(answered))
            )
        return Labels() if all(answered) else Labels((NO_ANSWER,)), ()

    def describe(self, columns: Columns, labels: Labels) -> Message:
        question, context = columns.text
        return msg(
            "questions from '{question}', contexts from '{passage}', answers from '{answers}'",
            question=question,
            passage=context,
            answers=columns.label[0],
        )

    def text_of(self, row: Mapping[str, Any]) -> str:
        return str(row["context"])

    def rows_of(self, texts: Sequence[tuple[str, ...]]) -> RowFile:
        if any(len(text) != 2 for text in texts):
            raise BadInput(msg("This model takes a question and its context: give both, as a pair."))
        rows = ({"question": clean(question)[0], "context": clean(context)[0]} for question, context in texts)
        return store_rows(rows, {"question": str, "context": str})

    # Tokens

    def encode(
        self, rows: RowBatch, tokenizer: PreTrainedTokenizerBase, max_length: int, labels: Labels | None
    ) -> RowBatch:
        """Windows of each context after its question; `offsets` has where in the context each token is."""
        _check_windows(tokenizer, max_length)
        questions = _shortened(rows["question"], tokenizer, max_length // 2)
        encoded = tokenizer(
            questions,
            rows["context"],
            truncation="only_second",
            max_length=max_length,
            stride=max_length // _OVERLAP,
            return_overflowing_tokens=True,
        )
        of_row, spans = encoded.pop("overflow_to_sample_mapping"), [_spans(each) for each in encoded.encodings]
        shortened = [int(questions[row] != rows["question"][row]) for row in of_row]
        columns: RowBatch = {**encoded, ROW: of_row, "offsets": [span.ravel().tolist() for span in spans]}
        columns["truncated"] = shortened
        if labels is None:
            return columns
        answers = [(rows["starts"][row], rows["answers"][row]) for row in of_row]
        places = [_place(span, answer) for span, answer in zip(spans, answers, strict=True)]
        starts, ends = zip(*places, strict=True)
        return {**columns, "start_positions": list(starts), "end_positions": list(ends)}

    def collator(self, tokenizer: PreTrainedTokenizerBase) -> Collator:
        """Padding on the right, whatever the tokenizer's side is: positions count from the first token."""
        return partial(_pad, tokenizer)

    # Model

    def head(self) -> Any:
        from transformers import AutoModelForQuestionAnswering

        return AutoModelForQuestionAnswering

    def config_changes(self, labels: Labels) -> dict[str, Any]:
        return {"num_labels": 2}  # start and end

    # Outputs

    def keep_logits(self, outputs: Any, labels: Any) -> Any:
        """The logits of starts and ends."""
        return outputs[:2]

    def compute_metrics(self, prediction: EvalPrediction, inputs: ModelInputs) -> dict[str, float]:
        """Exact match and F1 as in SQuAD, the mean over the questions in percent as 0 to 1."""
        scores = np.array([_scores(answer.answer, golds) for answer, golds in _answered(prediction, inputs)])
        f1, exact = scores.mean(axis=0).tolist()
        return {"f1": f1, "exact_match": exact}

    def constant_outputs(self, prediction: EvalPrediction, inputs: ModelInputs) -> EvalPrediction | None:
        """Those of a model that finds no answer in any context."""
        from transformers import EvalPrediction

        if NO_ANSWER not in inputs.labels.names:
            return None
        first = np.zeros_like(prediction.predictions[0])
        first[:, 0] = 1
        return EvalPrediction((first, first), prediction.label_ids)

    def assess(self, prediction: EvalPrediction, inputs: ModelInputs) -> Quality:
        answered = list(_answered(prediction, inputs))
        answers = {answer.answer for answer, _ in answered}
        return Quality(
            rows=len(answered),
            constant=NO_ANSWER,
            answer=(answers.pop() or NO_ANSWER) if len(answers) == 1 < len(answered) else None,
            mistakes=_mistakes(answered, inputs),
        )

    def infer(self, model: PreTrainedModel, batch: Batch) -> list[Any]:
        """The logits of starts and ends for each window."""
        outputs = model(**batch)
        return [*zip(*(each.float().cpu().numpy() for each in (outputs.start_logits, outputs.end_logits)), strict=True)]

    def decode(self, outputs: Sequence[Any], inputs: ModelInputs) -> list[AnswerPrediction]:
        return [answer for _, answer in _answers(outputs, inputs)]

    def usage(self, folder: str, texts: Sequence[str], max_length: int) -> str:
        """Transformers has no pipeline for it since version 5."""
        question, context, where = (json.dumps(each, ensure_ascii=False) for each in (*texts, folder))
        return (
            "from transformers import AutoModelForQuestionAnswering, AutoTokenizer\n\n"
            f"tokenizer = AutoTokenizer.from_pretrained({where})\n"
            f"model = AutoModelForQuestionAnswering.from_pretrained({where})\n"
            f"inputs = tokenizer({question}, {context}, truncation=True, max_length={max_length}, "
            'return_tensors="pt")\n'
            "outputs = model(**inputs)\n"
            "start, end = outputs.start_logits.argmax(), outputs.end_logits.argmax()\n"
            'print(tokenizer.decode(inputs["input_ids"][0, start : end + 1]))'
        )


# Rows


def _read_answers(
    row: Mapping[str, Any], column: str, context: str, stripped: int
) -> tuple[tuple[str, ...], list[int], Flaws]:
    """The answers and where they begin in the cleaned context, of which `stripped` characters were cut off."""
    given = list(_given_answers(row.get(column), row.get("answer_start")))
    if not given:
        return (), [], (_UNANSWERED,)
    found = [(text, _nearest(context, text, None if start is None else start - stripped)) for text, start in given]
    usable = [(text, start) for text, start in found if start is not None]
    if not usable:
        return (), [], (_NOT_IN_CONTEXT,)
    texts, starts = zip(*usable, strict=True)
    moved = any(
        said is not None and said - stripped != start for (_, said), (_, start) in zip(given, found, strict=True)
    )
    return texts, list(starts), (_MOVED,) if moved else ()


def _given_answers(cell: Any, start: Any) -> Iterator[tuple[str, int | None]]:
    """The answers in a cell that are not empty, and where each is said to begin.

    It may be a text, a list of texts or objects, or an object of lists as in the hub's data sets.
    """
    if isinstance(cell, dict):
        texts, starts = (_as_list(cell.get(name)) for name in ("text", "answer_start"))
        items: list[Any] = [*zip(texts, [*starts, *[None] * (len(texts) - len(starts))], strict=False)]
    else:
        items = [
            (each.get("text"), each.get("answer_start", each.get("start"))) if isinstance(each, dict) else (each, start)
            for each in _as_list(cell)
        ]
    for value, place in items:
        text, _ = clean(value)
        if text:
            yield text, place if isinstance(place, int) and place >= 0 else None


def _as_list(value: Any) -> list[Any]:
    return list(value) if isinstance(value, (list, tuple)) else [value]


def _nearest(context: str, text: str, start: int | None) -> int | None:
    """Where the text is in the context: at `start`, or else the place next to it; None if it is nowhere."""
    if start is not None and context.startswith(text, start):
        return start
    places = [match.start() for match in re.finditer(re.escape(text), context)]
    return min(places, key=lambda place: abs(place - (start or 0)), default=None)


# Tokens


def _check_windows(tokenizer: PreTrainedTokenizerBase, max_length: int) -> None:
    """A window holds at most half a question, and of the context more than what it shares with the next one."""
    if not tokenizer.is_fast:
        raise ModelError(msg("The tokenizer of this model is slow: it does not say where in a context its tokens are."))
    special = tokenizer.num_special_tokens_to_add(pair=True)
    if max_length - max_length // 2 - special <= max_length // _OVERLAP:
        raise BadInput(
            msg(
                "max-length {limit} is too short for a question and a part of its context: 384 is usual.",
                limit=max_length,
            )
        )


def _shortened(questions: Sequence[str], tokenizer: PreTrainedTokenizerBase, limit: int) -> list[str]:
    """The questions, each cut to so many tokens."""
    backend = tokenizer.backend_tokenizer
    backend.no_truncation()  # transformers sets both again on every call
    backend.no_padding()
    encodings = backend.encode_batch(list(questions), add_special_tokens=False)
    return [
        text if len(encoding.ids) <= limit else text[: encoding.offsets[limit - 1][1]]
        for text, encoding in zip(questions, encodings, strict=True)
    ]


def _spans(encoding: Any) -> Array:
    """First and end character of each token of the context; -1 for other tokens."""
    inside = np.array([sequence == 1 for sequence in encoding.sequence_ids])
    return np.where(inside[:, None], np.array(encoding.offsets), -1)


def _place(spans: Array, answer: tuple[Sequence[int], Sequence[str]]) -> tuple[int, int]:
    """The first and the last token of the first answer; those of the first token if it is not all in this window."""
    (starts, texts), inside = answer, np.flatnonzero(spans[:, 1] >= 0)
    if not starts or not len(inside):
        return 0, 0
    start, end = starts[0], starts[0] + len(texts[0])
    if spans[inside[0], 0] > start or spans[inside[-1], 1] < end:
        return 0, 0
    first = inside[np.searchsorted(spans[inside, 0], start, side="right") - 1]
    last = inside[np.searchsorted(spans[inside, 1], end, side="left")]
    return int(first), int(last)


def _pad(tokenizer: PreTrainedTokenizerBase, rows: list[dict[str, Any]]) -> Mapping[str, Any]:
    return tokenizer.pad(rows, return_tensors="pt", padding_side="right")


# Answers


@dataclass
class _Candidates:
    """What the windows of a context say."""

    best: tuple[float, int, int] = (-np.inf, 0, 0)
    """The highest score of a start and an end, and their characters."""
    no_answer: float = np.inf
    """The lowest score of the first token, in any window."""
    starts: list[Array] = field(default_factory=list)
    """The logits of all starts, and of all ends, for the confidence."""
    ends: list[Array] = field(default_factory=list)

    def add(self, start: Array, end: Array, spans: Array) -> None:
        """Take what the model says of one window."""
        inside = np.flatnonzero(spans[:, 1] >= 0)
        self.no_answer = min(self.no_answer, float(start[0] + end[0]))
        self.starts.append(start[inside])
        self.ends.append(end[inside])
        firsts, lasts = (inside[np.argsort(-each[inside], kind="stable")[:_CANDIDATES]] for each in (start, end))
        length = lasts[None] - firsts[:, None]
        scores = np.where(
            (length >= 0) & (length < _LONGEST_ANSWER), start[firsts][:, None] + end[lasts][None], -np.inf
        )
        if scores.size and scores.max() > self.best[0]:
            row, column = divmod(int(scores.argmax()), scores.shape[1])
            self.best = float(scores.max()), int(spans[firsts[row], 0]), int(spans[lasts[column], 1])

    def answer(self, context: str, *, may_be_none: bool) -> AnswerPrediction:
        """The best answer, or none where that scores higher."""
        score, start, end = self.best
        chosen = self.no_answer if may_be_none and self.no_answer > score else score
        sums = (_log_sum(np.concatenate(logits)) for logits in (self.starts, self.ends))
        everything = np.logaddexp(sum(sums), self.no_answer) if may_be_none else sum(sums)
        confidence = min(1.0, float(np.exp(chosen - everything)))
        if chosen != score or not np.isfinite(score):
            return AnswerPrediction("", confidence if np.isfinite(chosen) else 0.0, 0, 0)
        return AnswerPrediction(context[start:end], confidence, start, end)


def _log_sum(logits: Array) -> float:
    return float(np.logaddexp.reduce(logits.astype(np.float64))) if len(logits) else 0.0


def _answers(outputs: Sequence[tuple[Array, Array]], inputs: ModelInputs) -> list[tuple[int, AnswerPrediction]]:
    """The number of each row that has outputs, in order, and its answer."""
    found: dict[int, _Candidates] = {}
    windows = zip(outputs, inputs.row_numbers, inputs.tokens["offsets"], strict=False)  # all, or the first
    for (start, end), row, offsets in windows:
        found.setdefault(row, _Candidates()).add(start, end, np.array(offsets).reshape(-1, 2))
    rows = sorted(found)
    contexts = [row["context"] for row in inputs.rows.__getitems__(rows)]
    may_be_none = NO_ANSWER in inputs.labels.names
    return [(row, found[row].answer(text, may_be_none=may_be_none)) for row, text in zip(rows, contexts, strict=True)]


def _answered(prediction: EvalPrediction, inputs: ModelInputs) -> Iterator[tuple[AnswerPrediction, tuple[str, ...]]]:
    """The predicted answer to each question, and the true ones."""
    found = _answers([*zip(*prediction.predictions, strict=True)], inputs)
    rows = inputs.rows.__getitems__([row for row, _ in found])
    return ((answer, row["answers"]) for (_, answer), row in zip(found, rows, strict=True))


def _mistakes(answered: Sequence[tuple[AnswerPrediction, tuple[str, ...]]], inputs: ModelInputs) -> list[Mistake]:
    """The answers without a right word that the model was most confident of."""
    wrong = [place for place, (answer, golds) in enumerate(answered) if not _scores(answer.answer, golds)[0]]
    worst = sorted(wrong, key=lambda place: -answered[place][0].confidence)[:MISTAKES]
    numbers = sorted(set(inputs.row_numbers[: len(inputs.tokens)]))
    rows = inputs.rows.__getitems__([numbers[place] for place in worst])
    return [
        Mistake(
            text=f"{shorten(row['question'])}\n{shorten(row['context'])}",
            line=row.get("line"),
            label=next(iter(row["answers"]), NO_ANSWER),
            predicted=answered[place][0].answer or NO_ANSWER,
            confidence=answered[place][0].confidence,
        )
        for place, row in zip(worst, rows, strict=True)
    ]


# Scores

_ARTICLES = re.compile(r"\b(a|an|the)\b")
_PUNCTUATION = dict.fromkeys(map(ord, string.punctuation + "，。、；：？！“”‘’（）《》〈〉【】「」『』…—·"))
_WORDS = re.compile(rf"[{_CJK}]|[^\s{_CJK}]+")


def normalized_words(text: str) -> list[str]:
    """The words of an answer as SQuAD compares them: without case, punctuation and articles; Chinese by character."""
    return _WORDS.findall(_ARTICLES.sub(" ", text.lower().translate(_PUNCTUATION)))


def _scores(answer: str, golds: Sequence[str]) -> tuple[float, float]:
    """F1 and exact match with the true answer that is most like it."""
    pairs = [(normalized_words(answer), normalized_words(gold)) for gold in golds or ("",)]
    return max(_f1(*pair) for pair in pairs), max(float(words == gold) for words, gold in pairs)


def _f1(words: list[str], gold: list[str]) -> float:
    """Of the words in common; without words on one side, whether there are none on the other."""
    if not words or not gold:
        return float(words == gold)
    return 2 * (Counter(words) & Counter(gold)).total() / (len(words) + len(gold))


# Format


def _questions_in_contexts(sample: Sample) -> Message | None:
    """A question, a context and an answer; labels of another kind make it text classification."""
    columns = sample.columns
    found = next((pair for pair in _COLUMNS if all(name in columns for name in pair)), None)
    answers = next((name for name in _ANSWER_COLUMNS if name in columns), None)
    if found is None or answers is None or sample.labelled:
        return None
    return msg("columns {columns}", columns=[columns[name] for name in (*found, answers)])


QuestionAnswering.data_format = DatasetFormat(
    msg("questions with their answers in a context (SQuAD)"),
    _questions_in_contexts,
    msg("train it with --task {task}.", task="question-answering"),
)

QuestionAnswering.zh = {
    QuestionAnswering.summary: "抽取式问答：在上下文中找出问题的答案",
    QuestionAnswering.no_label: "没有出现在上下文中的答案",
    QuestionAnswering.reads: "SQuAD 文件（含 2.0），或 `question`、`context`、`answers` 三列",
    "word-overlap F1": "答案的词级 F1",
    "exact match": "精确匹配率（EM）",
    QuestionAnswering.constant: "总是回答没有答案",
    QuestionAnswering.example: "一个问题",
    QuestionAnswering.second_example: "含有答案的上下文",
    QuestionAnswering.sample_texts[0]: "玛丽·居里出生在哪里？",
    QuestionAnswering.sample_texts[1]: "玛丽·居里 1867 年出生于华沙。",
    "finds the answer to a question in its context, or says that it has none": (
        "在上下文中找出问题的答案，或指出没有答案"
    ),
    "finds the answer to a question in its context": "在上下文中找出问题的答案",
    "whose answer is not in its context dropped": "的答案不在上下文中，已丢弃",
    "whose answer is not where it says, taken from the nearest place": "的答案不在所标的位置，取最近的一处",
    "without an answer: the model learns that their context has none": "没有答案：模型会学习其上下文中没有答案",
    "questions with their answers in a context (SQuAD)": "问题及其在上下文中的答案（SQuAD）",
    "A question and its context are read, and only the column '{column}' is named: "
    "name both, such as --text question,context.": (
        "需要读取问题和上下文两列，但只指定了“{column}”列：请同时指定，例如 --text question,context。"
    ),
    "{name}: none of the {rows:,} questions has an answer.": "{name}：{rows:,} 个问题都没有答案。",
    "questions from '{question}', contexts from '{passage}', answers from '{answers}'": (
        "问题取自“{question}”列，上下文取自“{passage}”列，答案取自“{answers}”列"
    ),
    "This model takes a question and its context: give both, as a pair.": ("这个模型需要问题和上下文：请成对给出。"),
    "The tokenizer of this model is slow: it does not say where in a context its tokens are.": (
        "这个模型的分词器是慢速版本，无法得知 token 在上下文中的位置。"
    ),
    "max-length {limit} is too short for a question and a part of its context: 384 is usual.": (
        "max-length {limit} 放不下问题和一段上下文：通常为 384。"
    ),
}
