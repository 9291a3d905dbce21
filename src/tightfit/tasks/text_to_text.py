"""Text to text: an encoder-decoder writes one text from another, such as a translation or a summary."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, ClassVar

from tightfit.data.batch_spec import ROWS, TARGETS, TOKENS, BatchSpec, Field
from tightfit.data.columns import ColumnNames, Columns
from tightfit.data.format_detection import TEXT_PAIRS, DatasetFormat
from tightfit.data.labels import Labels
from tightfit.data.row_file import RowFile, store_rows
from tightfit.data.rows import NO_TEXT, Flaw, Flaws, clean
from tightfit.data.tokens import RowBatch, encode_texts, text_lengths
from tightfit.messages import Message, msg
from tightfit.tasks.text_generation import GENERATION_ZH, NEW_TOKENS, GenerationTask, generate

if TYPE_CHECKING:
    from transformers import PreTrainedModel, PreTrainedTokenizerBase

    from tightfit.data.batches import Batch
    from tightfit.job import Job
    from tightfit.tasks.base import Collator

_SOURCES = ("source", "document", "article", "dialogue", "src", "input_text", "input", "text", "原文", "文本")
_TARGETS = ("target", "summary", "highlights", "translation", "tgt", "target_text", "output", "译文", "摘要")
_NO_TARGET = Flaw(msg("without a text to write dropped"), dropped=True)


@dataclass(frozen=True)
class TextToText(GenerationTask):
    """A text written from another."""

    name: ClassVar[str] = "text-to-text"
    summary: ClassVar[Message] = msg(
        "generate one text from another, such as a translation or a summary (encoder-decoder models)"
    )
    reads: ClassVar[Message] = msg("two columns of texts, such as `source` and `target`, or `document` and `summary`")
    command: ClassVar[str] = "tightfit train --model google-t5/t5-small --data pairs.tsv --task text-to-text"
    column_names: ClassVar[ColumnNames] = ColumnNames(
        tuple((name,) for name in _SOURCES), _TARGETS, first_two_unnamed=True
    )
    no_label: ClassVar[Message] = msg("has no texts to write")
    data_format: ClassVar[DatasetFormat | None] = TEXT_PAIRS
    batch_spec: ClassVar[BatchSpec] = BatchSpec(
        (
            Field("input_ids", "int64", (ROWS, TOKENS)),
            Field("labels", "int64", (ROWS, TARGETS)),
            Field("attention_mask", "int64", (ROWS, TOKENS)),
        )
    )
    peft_type: ClassVar[str | None] = "SEQ_2_SEQ_LM"
    pipeline: ClassVar[str] = "text2text-generation"

    prefix: str = ""
    """Written before each text, as T5 was trained to be told what to do."""

    def for_job(self, job: Job) -> TextToText:
        return TextToText(job.source_prefix or "")

    def learned(self, labels: Sequence[str]) -> Message:
        return msg("writes texts from texts")

    def read(self, row: Mapping[str, Any], columns: Columns) -> tuple[dict[str, Any], Flaws]:
        text, flaws = clean(row.get(columns.text[0]))
        if not columns.label:
            return {"text": text}, flaws
        target, more = clean(row.get(columns.label[0]))
        return {"text": text, "target": target}, (*flaws, *(_NO_TARGET if flaw is NO_TEXT else flaw for flaw in more))

    def describe(self, columns: Columns, labels: Labels) -> Message:
        text = super().describe(columns, labels)
        return msg("{text}, texts to write from '{column}'", text=text, column=columns.label[0])

    def rows_of(self, texts: Sequence[tuple[str, ...]]) -> RowFile:
        return store_rows(({"text": clean(text)[0]} for text, *_ in texts), {"text": str})

    def encode(
        self, rows: RowBatch, tokenizer: PreTrainedTokenizerBase, max_length: int, labels: Labels | None
    ) -> RowBatch:
        encoded = encode_texts(self._prefixed(rows), tokenizer, max_length)
        encoded.pop("token_type_ids", None)
        if labels is None:
            return encoded
        return {**encoded, "labels": _targets(rows, tokenizer, max_length)}

    def lengths(self, rows: RowBatch, tokenizer: PreTrainedTokenizerBase, max_length: int, labels: Labels) -> list[int]:
        return text_lengths(self._prefixed(rows), tokenizer, max_length)

    def longest_target(self, rows: RowFile, tokenizer: PreTrainedTokenizerBase, max_length: int) -> int:
        return max(len(ids) for batch in rows.batches() for ids in _targets(batch, tokenizer, max_length))

    def _prefixed(self, rows: RowBatch) -> RowBatch:
        return {"text": [self.prefix + text for text in rows["text"]]}

    def collator(self, tokenizer: PreTrainedTokenizerBase) -> Collator:
        from transformers import DataCollatorForSeq2Seq, DataCollatorWithPadding

        learn, predict = DataCollatorForSeq2Seq(tokenizer), DataCollatorWithPadding(tokenizer)
        return lambda rows: learn(rows) if "labels" in rows[0] else predict(rows)

    def head(self) -> Any:
        from transformers import AutoModelForSeq2SeqLM

        return AutoModelForSeq2SeqLM

    def usage(self, folder: str, texts: Sequence[str], max_length: int) -> str:
        """transformers has no pipeline for it any more."""
        where, text = (json.dumps(each, ensure_ascii=False) for each in (folder, self.prefix + texts[0]))
        return (
            "from transformers import AutoModelForSeq2SeqLM, AutoTokenizer\n\n"
            f"tokenizer = AutoTokenizer.from_pretrained({where})\n"
            f"model = AutoModelForSeq2SeqLM.from_pretrained({where})\n"
            f'inputs = tokenizer({text}, truncation=True, max_length={max_length}, return_tensors="pt")\n'
            f"written = model.generate(**inputs, max_new_tokens={NEW_TOKENS})\n"
            "print(tokenizer.decode(written[0], skip_special_tokens=True))"
        )

    def infer(self, model: PreTrainedModel, batch: Batch) -> list[Any]:
        return list(generate(model, batch["input_ids"], batch["attention_mask"]).tolist())


def _targets(rows: RowBatch, tokenizer: PreTrainedTokenizerBase, max_length: int) -> list[list[int]]:
    return list(tokenizer(text_target=rows["target"], truncation=True, max_length=max_length)["input_ids"])


TextToText.zh = {
    TextToText.reads: "两列文本，例如 `source` 与 `target`，或 `document` 与 `summary`",
    **GENERATION_ZH,
    TextToText.summary: "由一段文本生成另一段，例如翻译、摘要（编码器-解码器模型）",
    TextToText.no_label: "没有要写出的文本",
    "without a text to write dropped": "没有要写出的文本，已丢弃",
    "writes texts from texts": "由文本写出文本",
    "{text}, texts to write from '{column}'": "{text}，要写出的文本来自“{column}”列",
}
