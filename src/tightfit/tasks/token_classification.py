"""Token classification: a tag for each token of a text, such as named entities."""

from __future__ import annotations

import json
import re
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass
from itertools import pairwise
from typing import TYPE_CHECKING, Any, ClassVar

import numpy as np

from tightfit.data.batch_spec import ROWS, TOKENS, BatchSpec, Field
from tightfit.data.columns import ColumnNames, Columns
from tightfit.data.format_detection import DatasetFormat, Sample
from tightfit.data.labels import Labels
from tightfit.data.micro_batches import IGNORED
from tightfit.data.row_file import RowFile, store_rows
from tightfit.data.rows import NO_TEXT, Flaw, Flaws, Rows, clean
from tightfit.data.tokens import RowBatch
from tightfit.errors import DataError, ModelError
from tightfit.messages import Message, msg
from tightfit.tasks.base import LOSS_SETTINGS, NO_LABEL, ModelInputs, Prediction, Task, first_of, without_unknown
from tightfit.tasks.entities import OUTSIDE, Entity, entity_scores, entity_type, find_entities, has_prefix, label_score
from tightfit.tasks.quality import MISTAKES, Metric, Mistake, Quality, shorten

if TYPE_CHECKING:
    from transformers import EvalPrediction, PreTrainedTokenizerBase

    from tightfit.data.batches import Batch
    from tightfit.tasks.base import Collator

    Array = np.ndarray[Any, Any]

_TOKEN_COLUMNS = ("tokens", "words", "token", "word", "characters", "chars", "词", "字")
_TEXT_COLUMNS = ("text", "sentence", "文本", "句子")
_TAG_COLUMNS = (
    "ner_tags", "tags", "labels", "ner", "ner_tag", "tag", "label", "entities", "bio", "pos_tags", "chunk_tags",
    "标签", "标注",
)  # fmt: skip
_CJK = "\u3040-\u30ff\u3400-\u9fff\uac00-\ud7af\uf900-\ufaff\U00020000-\U0003ffff"
_WORD = re.compile(rf"[{_CJK}]|[^\W{_CJK}]+|[^\w\s]")
_SPACED = re.compile(rf"[^\s{_CJK}，。、；：？！“”‘’（）《》…—]")
_PREFIX = re.compile("^(`?)[BIESLUM]-")
_FIELD = (ROWS, TOKENS)
_MISALIGNED = Flaw(msg("with another number of tags than tokens dropped"), dropped=True)
_NOT_TOKENS = Flaw(msg("whose tokens are neither a list of words nor a text dropped"), dropped=True)
_NOT_TAGS = Flaw(msg("whose tags are no list dropped"), dropped=True)


@dataclass(frozen=True)
class Span:
    """A part of a text that is an entity."""

    type: str
    text: str
    start: int
    """The place of its first character."""
    end: int
    """The place after its last character."""
    confidence: float


@dataclass(frozen=True)
class EntitiesPrediction(Prediction):
    """The entities in a text, and the tag of each token."""

    entities: tuple[Span, ...]
    tags: tuple[str, ...]

    def columns(self) -> dict[str, Any]:
        return {"prediction": [asdict(span) for span in self.entities], "predicted_tags": list(self.tags)}

    def __str__(self) -> str:
        return "; ".join(f"{span.text} {span.type} {span.confidence:.1%}" for span in self.entities) or "–"


class TokenClassification(Task):
    """A tag for each token, of which entities are read."""

    name: ClassVar[str] = "token-classification"
    summary: ClassVar[Message] = msg("a tag for each token of a text, such as named entities")
    reads: ClassVar[Message] = msg("CoNLL files (a token and its tag per line), or lists of `tokens` and `ner_tags`")
    command: ClassVar[str] = "tightfit train --model bert-base-chinese --data train.conll --epochs 3"
    column_names: ClassVar[ColumnNames] = ColumnNames(
        tuple((name,) for name in (*_TOKEN_COLUMNS, *_TEXT_COLUMNS)), _TAG_COLUMNS
    )
    no_label: ClassVar[Message] = msg("has no tags, one for each token")
    metrics: ClassVar[tuple[Metric, ...]] = (
        Metric("f1", msg("entity F1")),
        Metric("precision", msg("entity precision")),
        Metric("recall", msg("entity recall")),
        Metric("accuracy", msg("token accuracy")),
    )
    constant: ClassVar[Message] = msg("always the most frequent tag")
    batch_spec: ClassVar[BatchSpec] = BatchSpec(
        (
            Field("input_ids", "int64", _FIELD),
            Field("labels", "int64", _FIELD),
            Field("attention_mask", "int64", _FIELD),
        )
    )
    extra_columns: ClassVar[tuple[str, ...]] = ("words",)
    loss_settings: ClassVar[frozenset[str]] = frozenset(LOSS_SETTINGS)
    peft_type: ClassVar[str | None] = "TOKEN_CLS"
    pipeline: ClassVar[str] = "token-classification"
    example: ClassVar[Message] = msg("a text with names")
    sample_texts: ClassVar[tuple[Message, Message]] = (msg("Marie Curie was born in Warsaw"),) * 2

    def learned(self, labels: Sequence[str]) -> Message:
        types = [_PREFIX.sub(r"\1", label) for label in labels if label.strip("`") != OUTSIDE]  # `B-PER` as `PER`
        return msg("entities: {types}", types=sorted(set(types)))

    # Rows

    def read(self, row: Mapping[str, Any], columns: Columns) -> tuple[dict[str, Any], Flaws]:
        """Lists of tokens and tags, or texts of both with spaces; a text to predict for is cut into words."""
        cell, label = row.get(columns.text[0]), columns.label
        text, tokens = ("", cell) if isinstance(cell, (list, tuple)) else (clean(cell)[0], [])
        if not text and not tokens:
            return {}, (NO_TEXT,)
        if not all(isinstance(token, (str, int, float)) for token in tokens):
            return {}, (_NOT_TOKENS,)
        words = tuple(clean(token)[0] for token in tokens) or tuple(text.split() if label else split_words(text))
        cells: dict[str, Any] = {"text": "" if label else text, "tokens": words}
        if not label:
            return cells, ()
        tags, flaws = _read_tags(row.get(label[0]), len(words))
        return {**cells, "tags": tags}, flaws

    def find_labels(self, rows: Rows, *, will_be_split: bool) -> tuple[Labels, tuple[Message, ...]]:
        """All tags, in alphabetical order."""
        counts = Counter(tag for batch in rows.dataset.batches() for tags in batch["tags"] for tag in tags)
        if len(counts) == 1:
            tag = next(iter(counts))
            raise DataError(
                msg(
                    "{name}: all {count:,} tokens have the tag '{tag}': there is nothing to learn from them.",
                    name=rows.name,
                    count=counts.total(),
                    tag=tag,
                )
            )
        labels = Labels(
            tuple(sorted(counts, key=lambda tag: (not tag.isdecimal(), int(tag) if tag.isdecimal() else 0, tag)))
        )
        if any(map(has_prefix, counts)):
            _check_prefixes(rows, counts)
            return labels, ()
        note = msg(
            "{name}: no tag begins with B- or I-, so tokens in a row with the same tag other than '{outside}' count as "
            "one entity",
            name=rows.name,
            outside=outside_of(labels),
        )
        return labels, (note,)

    def class_counts(self, rows: RowFile, labels: Labels) -> Sequence[int]:
        counts = Counter(tag for tags in rows["tags"] for tag in tags)
        return [counts[name] for name in labels.names]

    def known_rows(self, name: str, rows: RowFile, labels: Labels) -> tuple[RowFile, tuple[Message, ...]]:
        """Without the rows that have a tag which is not in the training data: the model cannot predict it."""
        unknown = [not labels.ids.keys() >= set(tags) for tags in rows["tags"]]
        return without_unknown(
            name,
            rows,
            unknown,
            flaw=msg("with tags unknown to the model dropped"),
            none_left=msg(
                "{name} has no row with the tags of the training data alone: {tags}.", name=name, tags=labels.names
            ),
        )

    def describe(self, columns: Columns, labels: Labels) -> Message:
        types = _types(labels.names)
        return msg(
            "tokens from '{tokens}', tags from '{tags}' ({types})",
            tokens=columns.text[0],
            tags=columns.label[0],
            types=first_of(types),
        )

    def text_of(self, row: Mapping[str, Any]) -> str:
        return row["text"] or join_words(row["tokens"])

    def rows_of(self, texts: Sequence[tuple[str, ...]]) -> RowFile:
        cleaned = (clean(text)[0] for text, *_ in texts)
        rows = ({"text": text, "tokens": tuple(split_words(text))} for text in cleaned)
        return store_rows(rows, {"text": str, "tokens": tuple})

    # Tokens

    def encode(
        self, rows: RowBatch, tokenizer: PreTrainedTokenizerBase, max_length: int, labels: Labels | None
    ) -> RowBatch:
        """The first piece of each word has its tag, the others none; `words` has the number of the word, or -1."""
        if not tokenizer.is_fast:
            raise ModelError(msg("The tokenizer of this model is slow: it does not say which tokens a word becomes."))
        spaced = _marks_spaces(tokenizer)
        words = [_with_spaces(tokens) if spaced else list(tokens) for tokens in rows["tokens"]]
        encoded = tokenizer(words, is_split_into_words=True, truncation=True, max_length=max_length)
        found = [_first_pieces(encoding.word_ids) for encoding in encoded.encodings]
        columns: RowBatch = {**encoded, "words": found}
        columns["truncated"] = [int(bool(encoding.overflowing)) for encoding in encoded.encodings]
        if labels is None:
            return columns
        ids = labels.ids
        tagged = zip(found, rows["tags"], strict=True)
        return {**columns, "labels": [[IGNORED if w < 0 else ids[tags[w]] for w in row] for row, tags in tagged]}

    def collator(self, tokenizer: PreTrainedTokenizerBase) -> Collator:
        from transformers import DataCollatorForTokenClassification

        return DataCollatorForTokenClassification(tokenizer)

    # Model

    def head(self) -> Any:
        from transformers import AutoModelForTokenClassification

        return AutoModelForTokenClassification

    def config_changes(self, labels: Labels) -> dict[str, Any]:
        if not labels.names:
            return {}
        names = dict(enumerate(labels.names))
        return {"num_labels": len(names), "id2label": names, "label2id": labels.ids}

    # Outputs

    def keep_logits(self, outputs: Any, labels: Any) -> Any:
        """The predicted tags."""
        return super().keep_logits(outputs, labels).argmax(dim=-1)

    def compute_metrics(self, prediction: EvalPrediction, inputs: ModelInputs) -> dict[str, float]:
        """Precision, recall and F1 of entities, which must have the right type and all their tokens; token accuracy."""
        scores = entity_scores(_sentences(prediction, inputs.labels))
        right = sum(round(score.recall * score.rows) for score in scores)
        total = label_score("", sum(s.rows for s in scores), sum(s.predicted for s in scores), right)
        counted = prediction.label_ids != IGNORED
        same = (prediction.predictions == prediction.label_ids)[counted]
        return {
            "f1": total.f1,
            "precision": total.precision,
            "recall": total.recall,
            "accuracy": float(same.mean()) if len(same) else 0.0,
        }

    def constant_outputs(self, prediction: EvalPrediction, inputs: ModelInputs) -> EvalPrediction:
        """Those of a model that gives all tokens the most frequent tag."""
        from transformers import EvalPrediction

        return EvalPrediction(np.full_like(prediction.predictions, _most_frequent(prediction)), prediction.label_ids)

    def assess(self, prediction: EvalPrediction, inputs: ModelInputs) -> Quality:
        names, counted = inputs.labels.names, prediction.label_ids != IGNORED
        answers = np.unique(prediction.predictions[counted])
        sentences = list(_sentences(prediction, inputs.labels))
        return Quality(
            rows=len(sentences),
            constant=names[_most_frequent(prediction)],
            answer=names[answers[0]] if len(answers) == 1 else None,
            labels=entity_scores(sentences),
            mistakes=_mistakes(sentences, inputs),
        )

    def infer(self, model: Any, batch: Batch) -> list[Any]:
        """The logits of the tokens of each row, without padding."""
        used = batch["attention_mask"].bool().cpu().numpy()
        return [row[mask] for row, mask in zip(super().infer(model, batch), used, strict=True)]

    def decode(self, outputs: Sequence[Any], inputs: ModelInputs) -> list[EntitiesPrediction]:
        rows = inputs.rows.__getitems__(inputs.row_numbers)
        found = zip(outputs, inputs.tokens["words"], rows, strict=True)
        return [_prediction(logits, words, row, inputs.labels) for logits, words, row in found]

    def pipeline_call(self, texts: Sequence[str], max_length: int) -> str:
        return f'pipe({json.dumps(texts[0], ensure_ascii=False)}, aggregation_strategy="simple")'


# Words


def split_words(text: str) -> list[str]:
    """The words and punctuation marks of a text; each Chinese character is a word."""
    return _WORD.findall(text)


def join_words(words: Sequence[str]) -> str:
    """A text of words, with spaces where the language has them."""
    return "".join(_with_spaces(words))


def _with_spaces(words: Sequence[str]) -> list[str]:
    pairs = pairwise(("", *words))
    return [f" {word}" if before and _are_spaced(before, word) else word for before, word in pairs]


def _are_spaced(before: str, word: str) -> bool:
    return bool(_SPACED.fullmatch(before[-1:]) and _SPACED.fullmatch(word[:1]))


def _marks_spaces(tokenizer: PreTrainedTokenizerBase) -> bool:
    """Whether a word after a space has other tokens than one without, as with tokenizers of bytes."""
    steps = str(tokenizer.backend_tokenizer.pre_tokenizer)
    return "ByteLevel" in steps and "add_prefix_space=True" not in steps


def _first_pieces(word_ids: Sequence[int | None]) -> list[int]:
    """The number of the word at its first piece, else -1."""
    return [-1 if word is None or word == before else word for before, word in pairwise((None, *word_ids))]


# Tags


def outside_of(labels: Labels) -> str:
    """The tag of tokens that are in no entity; 0 if tags are numbers."""
    return OUTSIDE if OUTSIDE in labels.names or "0" not in labels.names else "0"


def _types(tags: Sequence[str]) -> list[str]:
    return sorted({entity_type(tag) for tag in tags} - {OUTSIDE})


def _read_tags(cell: Any, words: int) -> tuple[tuple[str, ...], Flaws]:
    """The tags in a cell, one for each word."""
    if cell is None or cell == "" or cell == []:
        return (), (NO_LABEL,)
    tags = cell.split() if isinstance(cell, str) else cell
    if not isinstance(tags, (list, tuple)) or not all(isinstance(tag, (str, int)) for tag in tags):
        return (), (_NOT_TAGS,)
    return tuple(str(tag).strip() for tag in tags), () if len(tags) == words else (_MISALIGNED,)


def _check_prefixes(rows: Rows, counts: Counter[str]) -> None:
    """Beside tags such as `B-PER` there is only `O`: anything else would be a type of its own by mistake."""
    strange = next((tag for tag in sorted(counts) if tag != OUTSIDE and not has_prefix(tag)), None)
    if strange is None:
        return
    places = zip(rows.dataset["line"], rows.dataset["tags"], strict=True)
    line, place = next((line, tags.index(strange)) for line, tags in places if strange in tags)
    raise DataError(
        msg(
            "{name}: the tag '{tag}' of token {place} of the sentence on line {line} is neither O nor begins with B-, "
            "I-, E- or S- as other tags do ({others}): correct it.",
            name=rows.name,
            tag=strange,
            place=place + 1,
            line=line,
            others=[tag for tag, _ in counts.most_common() if has_prefix(tag)][:2],
        )
    )


def _most_frequent(prediction: EvalPrediction) -> int:
    return int(np.bincount(prediction.label_ids[prediction.label_ids != IGNORED]).argmax())


Sentence = tuple[list[Entity], list[Entity]]


def _sentences(prediction: EvalPrediction, labels: Labels) -> Iterator[Sentence]:
    """The true and the predicted entities of each row; tokens that were cut off are in neither."""
    names, outside = np.array(labels.names), outside_of(labels)
    for truth, predicted in zip(prediction.label_ids, prediction.predictions, strict=True):
        counted = truth != IGNORED
        sides = (names[side[counted]].tolist() for side in (truth, predicted))
        true, guessed = (find_entities(tags, outside) for tags in sides)
        yield true, guessed


def _mistakes(sentences: Sequence[Sentence], inputs: ModelInputs) -> list[Mistake]:
    """The rows with the most entities that are missing or wrong."""
    wrong = [len({*true} ^ {*guessed}) for true, guessed in sentences]
    worst = [place for place in np.argsort(-np.array(wrong), kind="stable")[:MISTAKES].tolist() if wrong[place]]
    numbers = inputs.row_numbers
    rows = inputs.rows.__getitems__([numbers[place] for place in worst])
    tokens = inputs.tokens.__getitems__(worst)
    return [
        Mistake(
            text=shorten(join_words(row["tokens"])),
            line=row.get("line"),
            label=_quoted(sentences[place][0], row["tokens"], found["words"]),
            predicted=_quoted(sentences[place][1], row["tokens"], found["words"]),
        )
        for place, row, found in zip(worst, rows, tokens, strict=True)
    ]


def _quoted(entities: Sequence[Entity], words: Sequence[str], first_pieces: Sequence[int]) -> str:
    """Entities as text; they are counted in words that have tokens."""
    counted = [words[word] for word in first_pieces if word >= 0]
    return shorten("; ".join(f"{join_words(counted[e.start : e.end])} {e.type}" for e in entities)) or "–"


def _prediction(logits: Array, words: Sequence[int], row: Mapping[str, Any], labels: Labels) -> EntitiesPrediction:
    """The entities of a text; words that were cut off are in none."""
    first = np.flatnonzero(np.array(words) >= 0)
    chances = np.exp(logits - logits.max(axis=-1, keepdims=True))[first]
    chances /= chances.sum(axis=-1, keepdims=True)
    outside = outside_of(labels)
    tags, sure = [outside] * len(row["tokens"]), np.ones(len(row["tokens"]))
    for place, found in zip(np.array(words)[first].tolist(), chances, strict=True):
        tags[place], sure[place] = labels.names[int(found.argmax())], found.max()
    text = row["text"] or join_words(row["tokens"])
    starts = _starts(text, row["tokens"])
    spans = []
    for entity in find_entities(tags, outside):
        start, end = starts[entity.start], starts[entity.end - 1] + len(row["tokens"][entity.end - 1])
        spans.append(Span(entity.type, text[start:end], start, end, float(sure[entity.start : entity.end].mean())))
    return EntitiesPrediction(tuple(spans), tuple(tags))


def _starts(text: str, words: Sequence[str]) -> list[int]:
    """Where in the text each word begins."""
    found, place = [], 0
    for word in words:
        place = text.index(word, place)
        found.append(place)
        place += len(word)
    return found


# Format


def _tokens_and_tags(sample: Sample) -> Message | None:
    """A column of lists of words, and one of lists of as many tags."""
    tokens, tags = (_column(sample, names) for names in (_TOKEN_COLUMNS, _TAG_COLUMNS))
    if tokens is None or tags is None:
        return None
    return msg("columns {columns} of lists", columns=[tokens, tags])


def _column(sample: Sample, names: Sequence[str]) -> str | None:
    found = (sample.columns[name] for name in names if name in sample.columns)
    return next((column for column in found if _are_lists([cell for _, cell in sample.cells(column)])), None)


def _are_lists(cells: Sequence[Any]) -> bool:
    return bool(cells) and all(
        isinstance(cell, list) and all(isinstance(e, (str, int)) for e in cell) for cell in cells
    )


TokenClassification.data_format = DatasetFormat(
    msg("tokens with their tags"), _tokens_and_tags, msg("train it with --task {task}.", task="token-classification")
)

TokenClassification.zh = {
    TokenClassification.summary: "为文本中的每个 token 预测一个标签，例如命名实体",
    TokenClassification.no_label: "没有标签（每个 token 应有一个）",
    TokenClassification.reads: "CoNLL 文件（每行一个 token 和标签），或 `tokens` 与 `ner_tags` 列表",
    "entity F1": "实体 F1",
    "entity precision": "实体精确率",
    "entity recall": "实体召回率",
    "token accuracy": "token 准确率",
    TokenClassification.constant: "总是预测最常见的标签",
    TokenClassification.example: "含有人名、地名等的文本",
    TokenClassification.sample_texts[0]: "玛丽·居里出生于华沙",
    "entities: {types}": "实体：{types}",
    "tokens with their tags": "带标签的 token",
    "columns {columns} of lists": "由列表组成的列 {columns}",
    "with another number of tags than tokens dropped": "的标签数与 token 数不同，已丢弃",
    "whose tokens are neither a list of words nor a text dropped": "的 token 既不是词的列表也不是文本，已丢弃",
    "whose tags are no list dropped": "的标签不是列表，已丢弃",
    "with tags unknown to the model dropped": "含有训练数据中没有的标签，已丢弃",
    "{name}: all {count:,} tokens have the tag '{tag}': there is nothing to learn from them.": (
        "{name}：全部 {count:,} 个 token 的标签都是“{tag}”，无法从中学习。"
    ),
    "{name}: no tag begins with B- or I-, so tokens in a row with the same tag other than '{outside}' count as "
    "one entity": "{name}：没有以 B- 或 I- 开头的标签，因此连续且标签相同（“{outside}”除外）的 token 算作一个实体",
    "{name} has no row with the tags of the training data alone: {tags}.": (
        "{name} 中没有一行只含训练数据中的标签：{tags}。"
    ),
    "tokens from '{tokens}', tags from '{tags}' ({types})": "token 取自“{tokens}”列，标签取自“{tags}”列（{types}）",
    "The tokenizer of this model is slow: it does not say which tokens a word becomes.": (
        "这个模型的分词器是慢速版本，无法得知每个词对应哪些 token。"
    ),
    "{name}: the tag '{tag}' of token {place} of the sentence on line {line} is neither O nor begins with B-, "
    "I-, E- or S- as other tags do ({others}): correct it.": (
        "{name}：第 {line} 行开始的句子中第 {place} 个 token 的标签“{tag}”既不是 O，"
        "也不像其他标签（{others}）那样以 B-、I-、E- 或 S- 开头：请改正。"
    ),
}
