"""Base class of tasks.

A task is one file: what a model is trained for, and all that only this task knows. It says which columns it needs and
by which names they are found, reads a row and finds its flaws, tokenizes and collates rows, chooses the model's head,
has metrics and knows which of them is best, turns outputs into predictions, and brings the words for reports in both
languages. Everything else is the same for all tasks.
"""

from __future__ import annotations

import json
from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass
from functools import partial
from typing import TYPE_CHECKING, Any, ClassVar

from tightfit.data.batch_spec import BatchSpec, text_batch
from tightfit.data.columns import ColumnNames, Columns
from tightfit.data.format_detection import DatasetFormat, Sample
from tightfit.data.labels import Labels
from tightfit.data.row_file import RowFile, store_rows
from tightfit.data.rows import Flaw, Flaws, Rows, clean, clean_texts, flaw_note
from tightfit.data.tokens import ROW, RowBatch, Tokens, encode_texts, text_lengths, tokenize
from tightfit.errors import BadInput, DataError, suggest
from tightfit.job import Job
from tightfit.messages import Message, msg
from tightfit.tasks.quality import CONSTANT, LOSS, Metric, Mistake, Quality, Scoring, shorten

if TYPE_CHECKING:
    from transformers import EvalPrediction, PreTrainedModel, PreTrainedTokenizerBase

    from tightfit.data.batches import Batch
    from tightfit.job import Job

    Collator = Callable[[list[dict[str, Any]]], Mapping[str, Any]]


LOSS_SETTINGS = ("label_smoothing_factor", "class_weights")
"""The settings of a job that change the loss."""


@dataclass(frozen=True)
class Prediction(ABC):
    """What a model predicts for one row; the fields are those of the task."""

    def to_json(self) -> dict[str, Any]:
        """The prediction as JSON values."""
        return asdict(self)

    def columns(self) -> dict[str, Any]:
        """The prediction as columns of a table."""
        return asdict(self)

    @abstractmethod
    def __str__(self) -> str:
        """The prediction in a terminal."""


@dataclass(frozen=True)
class ModelInputs:
    """What the model was given, to decode its outputs with."""

    rows: RowFile
    tokens: RowFile
    """The columns that `encode` returned, in the order of the outputs."""
    tokenizer: PreTrainedTokenizerBase
    labels: Labels

    @property
    def row_numbers(self) -> list[int]:
        """The place in `rows` of the row that each of the tokens is of; a task may make several of one row."""
        return self.tokens[ROW] if ROW in self.tokens.column_names else self.tokens.places.tolist()


@dataclass(frozen=True)
class Script:
    """The lines of a transformers script that depend on the task. Its rows have the columns `text` and `label`."""

    imports: str
    """Of libraries other than numpy, datasets and transformers."""
    head: str
    """The auto class."""
    collator: str
    """The class of the collator, which takes the tokenizer."""
    labels: str
    """What is read from `rows` before they are tokenized."""
    label: str
    """The label of a `row`."""
    config: str
    """Arguments of the model's config."""
    metrics: str
    """The function `compute_metrics`."""
    strata: str = "[0] * len(rows)"
    """The class of each row, for the split; the same for all if rows have none."""


_SAMPLE_TEXT = msg("The room was clean and the staff were friendly")


class Task(ABC):
    """What a model is trained for."""

    name: ClassVar[str]
    """The name on the command line."""
    summary: ClassVar[Message]
    """One line for the list of tasks."""
    reads: ClassVar[Message] = msg("a label column, and a text column (two for text pairs)")
    """What its data has, for the list of tasks."""
    command: ClassVar[str] = "tightfit train --model bert-base-chinese --data reviews.csv"
    """A command that trains it, for the list of tasks."""
    column_names: ClassVar[ColumnNames]
    """The usual names of its columns."""
    no_label: ClassVar[Message] = msg("has no labels")
    """What is wrong with a label column that no row can be used with, after "the column 'x'"."""
    metrics: ClassVar[tuple[Metric, ...]] = ()
    """The metrics of `compute_metrics`; the first one chooses the best checkpoint unless the job names another."""
    constant: ClassVar[Message] = msg("always the same answer")
    """What a model does whose answer does not depend on the text, and that scores best among those."""
    batch_spec: ClassVar[BatchSpec]
    """The fields of the batches that its collator makes, for simulations."""
    label_names: ClassVar[tuple[str, ...]] = ("labels",)
    """The fields of a batch that hold what is to be predicted."""
    extra_columns: ClassVar[tuple[str, ...]] = ()
    """What `encode` returns besides what the model takes: `decode` and the metrics read it in `ModelInputs.tokens`."""
    peft_type: ClassVar[str | None] = None
    """peft's name for it."""
    reads_logits: ClassVar[bool] = True
    """Whether its metrics are computed from the model's outputs; if not, they follow from the loss alone."""
    predicts_words: ClassVar[bool] = False
    """Whether its models predict tokens among all words they know."""
    loss_settings: ClassVar[frozenset[str]] = frozenset({"label_smoothing_factor"})
    """The settings of the loss that it has: of those in LOSS_SETTINGS."""
    pipeline: ClassVar[str]
    """The pipeline of transformers, which is also the task's name on the hub."""
    data_format: ClassVar[DatasetFormat | None] = None
    """How its data can be told from that of other tasks; None for labelled texts, which many tasks read."""
    example: ClassVar[Message] = msg("a text")
    """What a user would give it, in reports."""
    second_example: ClassVar[Message] = msg("a second text")
    """What would come with it, for a model that was trained on pairs."""
    sample_texts: ClassVar[tuple[Message, Message]] = (_SAMPLE_TEXT, _SAMPLE_TEXT)
    """What the command line suggests to predict for first: a text, or a pair."""
    script: ClassVar[Script | None] = None
    """Its part of an exported script; None if the script has to call tightfit."""
    zh: ClassVar[Mapping[str, str]] = {}
    """The Chinese of its messages: of the texts above, its metrics, errors and notes; at the end of its file."""

    @abstractmethod
    def learned(self, labels: Sequence[str]) -> Message:
        """What the model learned, in reports."""

    def for_job(self, job: Job) -> Task:
        """The task with the settings of a job that only it has; raises BadInput if the job has one that it has not."""
        if job.source_prefix is not None:
            raise BadInput(msg("{task} has no --source-prefix: leave it out.", task=self.name))
        return self

    # Metrics

    def find_metric(self, name: str | None) -> Metric:
        """A metric by its name on the command line; None is the one that chooses the best checkpoint by default."""
        known = {metric.option: metric for metric in (*self.metrics, LOSS)}
        wanted = next(iter(known)) if name is None else _metric_option(name)
        if wanted not in known:
            hint = suggest(wanted, known)
            raise BadInput(
                msg("{task} has no metric '{metric}': {suggestion}", task=self.name, metric=name, suggestion=hint)
            )
        return known[wanted]

    def has_metric(self, name: str | None) -> bool:
        """Whether it has the metric of this name on the command line."""
        return name is None or _metric_option(name) in {metric.option for metric in (*self.metrics, LOSS)}

    def check_positive(self, positive: str | None) -> None:
        """Raise BadInput if the task cannot have a positive label."""
        if positive is not None:
            raise BadInput(
                msg(
                    "{task} has no labels to choose '{label}' from: leave out --positive.",
                    task=self.name,
                    label=positive,
                )
            )

    def check_loss(self, job: Job) -> None:
        """Raise BadInput if the job has a setting of the loss that the task does not have."""
        for name in LOSS_SETTINGS:
            if getattr(job, name) and name not in self.loss_settings:
                option = f"--{name.replace('_', '-')}"
                raise BadInput(
                    msg(
                        "{task} has no {option}, since its labels are not one class each: leave it out.",
                        task=self.name,
                        option=option,
                    )
                )

    def class_counts(self, rows: RowFile, labels: Labels) -> Sequence[int] | None:
        """How often each class occurs as a label of the rows; None if labels are not classes."""
        return None

    def choose_positive(self, labels: Labels, given: str | None) -> tuple[Labels, tuple[Message, ...]]:
        """The labels with the one that the model is to find, and notes about it; `given` by the user."""
        return labels, ()

    def metrics_for(self, labels: Labels) -> tuple[Metric, ...]:
        """Its metrics, with titles for these labels."""
        return self.metrics

    def scoring(self, labels: Labels, metric: str | None = None) -> Scoring:
        """Its metrics for these labels, the chosen one first; of two with the same title only one."""
        best = self.find_metric(metric)
        found = (*self.metrics_for(labels), LOSS)
        first = next(each for each in found if each.name == best.name)
        others = {each.title: each for each in reversed(found) if each.title != first.title}
        return Scoring((first, *(each for each in found if each in others.values())), self.constant)

    def score(self, prediction: EvalPrediction, inputs: ModelInputs) -> dict[str, float]:
        """The metrics by name, and those of a model that gives the same answer to all rows."""
        constant = self.constant_outputs(prediction, inputs)
        found = self.compute_metrics(prediction, inputs)
        if constant is None:
            return found
        always = self.compute_metrics(constant, inputs)
        return {**found, **{f"{CONSTANT}{name}": value for name, value in always.items()}}

    @abstractmethod
    def compute_metrics(self, prediction: EvalPrediction, inputs: ModelInputs) -> dict[str, float]:
        """The metrics by name, of the first of `inputs.tokens`: of all, unless only memory is measured."""

    def metrics_of_loss(self, loss: float) -> dict[str, float]:
        """The metrics by name that follow from the loss."""
        return {}

    def constant_outputs(self, prediction: EvalPrediction, inputs: ModelInputs) -> EvalPrediction | None:
        """The outputs of a model that gives the same answer to all rows, the best one; None if there is none."""
        return None

    def assess(self, prediction: EvalPrediction, inputs: ModelInputs) -> Quality | None:
        """What else is known of the predictions for rows with labels."""
        return None

    # Rows

    def columns_in(self, sample: Sample, given: Columns) -> Columns:
        """The columns that the user gave, and those that the content of the data shows."""
        return given

    @abstractmethod
    def read(self, row: Mapping[str, Any], columns: Columns) -> tuple[dict[str, Any], Flaws]:
        """The cells of a row and their flaws; without a label if `columns` has none."""

    def find_labels(self, rows: Rows, *, will_be_split: bool) -> tuple[Labels, tuple[Message, ...]]:
        """The classes in the data, and notes about them; raises DataError if nothing can be learned from it."""
        return Labels(), ()

    def strata(self, rows: RowFile) -> Sequence[object] | None:
        """The class of each row, for a split that has the same share of each; None if a row has not one class."""
        return None

    def known_rows(self, name: str, rows: RowFile, labels: Labels) -> tuple[RowFile, tuple[Message, ...]]:
        """The rows that a model with these labels can be scored on, and notes about the others."""
        return rows, ()

    def describe(self, columns: Columns, labels: Labels) -> Message:
        """Which columns are read, and what for."""
        return msg("text from {columns}", columns=" + ".join(f"'{column}'" for column in columns.text))

    def text_of(self, row: Mapping[str, Any]) -> str:
        """The text of a row that was read, to tell its language."""
        return str(row["text"])

    @abstractmethod
    def rows_of(self, texts: Sequence[tuple[str, ...]]) -> RowFile:
        """Rows to predict, from texts that a user gave; those of a tuple belong together."""

    # Tokens

    @abstractmethod
    def encode(
        self, rows: RowBatch, tokenizer: PreTrainedTokenizerBase, max_length: int, labels: Labels | None
    ) -> RowBatch:
        """Tokenize rows into the model's inputs; with `labels` of the rows, unless it is None."""

    def lengths(self, rows: RowBatch, tokenizer: PreTrainedTokenizerBase, max_length: int, labels: Labels) -> list[int]:
        """The number of tokens of each row in training."""
        return [len(ids) for ids in self.encode(rows, tokenizer, max_length, labels)["input_ids"]]

    def tokenize(
        self, rows: RowFile, tokenizer: PreTrainedTokenizerBase, max_length: int, labels: Labels | None
    ) -> Tokens:
        """Tokenize all rows."""
        encode = partial(self.encode, tokenizer=tokenizer, max_length=max_length, labels=labels)
        return tokenize(rows, encode, max_length)

    def token_lengths(
        self, rows: RowFile, tokenizer: PreTrainedTokenizerBase, max_length: int, labels: Labels
    ) -> list[int]:
        """The lengths of all rows, without storing the tokens."""
        return [n for batch in rows.batches() for n in self.lengths(batch, tokenizer, max_length, labels)]

    def longest_target(self, rows: RowFile, tokenizer: PreTrainedTokenizerBase, max_length: int) -> int:
        """The most tokens of what is to be written for a row; 0 where that is not an axis of its own."""
        return 0

    def batch_spec_for(self, labels: Labels) -> BatchSpec:
        """The fields of the batches with these labels."""
        return self.batch_spec

    def model_inputs(self, tokens: RowFile) -> RowFile:
        """The columns of tokenized rows that a batch is made of."""
        return tokens.drop(ROW, *self.extra_columns)

    @abstractmethod
    def collator(self, tokenizer: PreTrainedTokenizerBase) -> Collator:
        """The function that makes a batch of tokenized rows."""

    # Model

    def for_model(self, name: str) -> str:
        """The name of the task that this one is for this model, where models of two kinds read the same data."""
        return self.name

    @abstractmethod
    def head(self) -> Any:
        """The auto class of models with the head for this task."""

    def config_changes(self, labels: Labels) -> dict[str, Any]:
        """The settings of the model's config; the model's own where there are no labels."""
        return {}

    # Outputs

    def keep_logits(self, outputs: Any, labels: Any) -> Any:
        """What is kept of the model's outputs for the metrics: only the first, the logits."""
        return outputs[0] if isinstance(outputs, tuple) else outputs

    def infer(self, model: PreTrainedModel, batch: Batch) -> list[Any]:
        """What the model says of each row of a batch without labels: its logits."""
        return list(model(**batch).logits.float().cpu().numpy())

    @abstractmethod
    def decode(self, outputs: Sequence[Any], inputs: ModelInputs) -> Sequence[Prediction]:
        """A prediction for each row that has tokens, in the order of the rows, from what the model said of them."""

    def usage(self, folder: str, texts: Sequence[str], max_length: int) -> str:
        """Python code that predicts for these texts with transformers alone."""
        return (
            "from transformers import pipeline\n\n"
            f"pipe = pipeline({json.dumps(self.pipeline)}, {json.dumps(folder, ensure_ascii=False)})\n"
            f"print({self.pipeline_call(texts, max_length)})"
        )

    def pipeline_call(self, texts: Sequence[str], max_length: int) -> str:
        """Python code that calls the pipeline `pipe` with these texts, which are truncated as in training."""
        return f"pipe({json.dumps(texts[0], ensure_ascii=False)}, truncation=True, max_length={max_length})"


def without_unknown(
    name: str, rows: RowFile, unknown: Sequence[bool], *, flaw: Message, none_left: Message
) -> tuple[RowFile, tuple[Message, ...]]:
    """The rows that a model can be scored on, with a note about the others; DataError if none is left."""
    if not any(unknown):
        return rows, ()
    if all(unknown):
        raise DataError(none_left)
    lines = [line for line, dropped in zip(rows["line"], unknown, strict=True) if dropped]
    kept = rows.select([place for place, dropped in enumerate(unknown) if not dropped])
    return kept, (flaw_note(name, flaw, lines),)


def first_of(names: Sequence[str]) -> list[str]:
    """The first few names, and dots if there are more."""
    return [*names[:_NAMES_LISTED], *(["…"] if len(names) > _NAMES_LISTED else [])]


_NAMES_LISTED = 6


def _metric_option(name: str) -> str:
    return name.strip().lower().replace("_", "-").removeprefix("eval-")


_PAIRS = (
    ("sentence1", "sentence2"), ("premise", "hypothesis"), ("question1", "question2"), ("text_a", "text_b"),
    ("text1", "text2"), ("question", "passage"), ("question", "sentence"),
)  # fmt: skip
_SINGLE = (
    "text", "review", "sentence", "content", "comment", "document", "body", "message", "tweet", "title",
    "review_text", "review_body", "text_a", "评论", "文本", "内容", "句子",
)  # fmt: skip
TEXT_COLUMNS: tuple[tuple[str, ...], ...] = (*_PAIRS, *((name,) for name in _SINGLE))
"""The usual names of text columns: pairs, then single ones."""
LABEL_COLUMNS: tuple[str, ...] = (
    "label", "labels", "class", "category", "target", "sentiment", "polarity", "rating", "y", "标签", "类别", "情感",
)  # fmt: skip
"""The usual names of columns with classes."""
NO_LABEL = Flaw(msg("without a label dropped"), dropped=True)


class TextTask(Task):
    """A task with one label for a text or a pair of texts, which is read from one column."""

    batch_spec: ClassVar[BatchSpec] = text_batch()
    peft_type: ClassVar[str | None] = "SEQ_CLS"
    pipeline: ClassVar[str] = "text-classification"

    @abstractmethod
    def read_label(self, value: Any) -> tuple[Any, Flaws]:
        """The label in a cell, and what is wrong with it."""

    @abstractmethod
    def encode_labels(self, values: list[Any], labels: Labels) -> list[Any]:
        """The labels of some rows, as the model's loss takes them."""

    def read(self, row: Mapping[str, Any], columns: Columns) -> tuple[dict[str, Any], Flaws]:
        cells, flaws = clean_texts(row, columns)
        if not columns.label:
            return cells, flaws
        label, label_flaws = self.read_label(row.get(columns.label[0]))
        return {**cells, "label": label}, (*flaws, *label_flaws)

    def rows_of(self, texts: Sequence[tuple[str, ...]]) -> RowFile:
        names = ("text", "text_pair") if any(second for _, *rest in texts for second in rest) else ("text",)
        rows = ({name: clean(text)[0] for name, text in zip(names, (*given, ""), strict=False)} for given in texts)
        return store_rows(rows, dict.fromkeys(names, str))

    def encode(
        self, rows: RowBatch, tokenizer: PreTrainedTokenizerBase, max_length: int, labels: Labels | None
    ) -> RowBatch:
        encoded = encode_texts(rows, tokenizer, max_length)
        if labels is None:
            return encoded
        return {**encoded, "labels": self.encode_labels(rows["label"], labels)}

    def lengths(self, rows: RowBatch, tokenizer: PreTrainedTokenizerBase, max_length: int, labels: Labels) -> list[int]:
        return text_lengths(rows, tokenizer, max_length)

    def mistakes(self, inputs: ModelInputs, wrong: Sequence[tuple[int, Any, Any, float | None]]) -> list[Mistake]:
        """Some wrong predictions with the beginning of their texts: place, label, prediction and confidence of each."""
        numbers = inputs.row_numbers
        rows = inputs.rows.__getitems__([numbers[place] for place, *_ in wrong])
        return [
            Mistake(
                text="\n".join(shorten(row[name]) for name in ("text", "text_pair") if name in row),
                line=row.get("line"),
                label=label,
                predicted=predicted,
                confidence=confidence,
            )
            for row, (_, label, predicted, confidence) in zip(rows, wrong, strict=True)
        ]

    def collator(self, tokenizer: PreTrainedTokenizerBase) -> Collator:
        from transformers import DataCollatorWithPadding

        return DataCollatorWithPadding(tokenizer)

    def head(self) -> Any:
        from transformers import AutoModelForSequenceClassification

        return AutoModelForSequenceClassification

    def pipeline_call(self, texts: Sequence[str], max_length: int) -> str:
        if len(texts) == 1:
            return super().pipeline_call(texts, max_length)
        pair = json.dumps(dict(zip(("text", "text_pair"), texts, strict=True)), ensure_ascii=False)
        return f"pipe({pair}, truncation=True, max_length={max_length})"
