"""Language modeling: learn from texts alone, to continue them (causal) or to fill in hidden words (masked).

For a causal model, texts are joined, each with the token that ends it, and cut into blocks of the maximum length: no
padding, and long texts are read to their end. A masked model gets the same blocks; in every epoch other words are
hidden, 15 % of them, as BERT was trained.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any, ClassVar

from tightfit.data.columns import ColumnNames, Columns
from tightfit.data.format_detection import PLAIN_TEXTS, DatasetFormat
from tightfit.data.labels import Labels
from tightfit.data.row_file import RowFile, store_rows
from tightfit.data.rows import Flaws, clean
from tightfit.data.tokens import ROW, RowBatch
from tightfit.errors import DataError
from tightfit.messages import Message, msg
from tightfit.models import load_config
from tightfit.tasks.base import TEXT_COLUMNS, ModelInputs
from tightfit.tasks.text_generation import GENERATION_ZH, GenerationTask, TextPrediction

if TYPE_CHECKING:
    from transformers import PreTrainedModel, PreTrainedTokenizerBase

    from tightfit.data.batches import Batch
    from tightfit.tasks.base import Collator

_HIDDEN = 0.15
_SINGLE = tuple(group for group in TEXT_COLUMNS if len(group) == 1)


class LanguageModeling(GenerationTask):
    """Every token of a text, predicted from those before it."""

    name: ClassVar[str] = "language-modeling"
    summary: ClassVar[Message] = msg("causal language modeling (continued pretraining) on plain text")
    reads: ClassVar[Message] = msg("plain text: text files, or one text column")
    command: ClassVar[str] = (
        "tightfit train --model HuggingFaceTB/SmolLM2-135M --data notes.txt --task language-modeling"
    )
    column_names: ClassVar[ColumnNames] = ColumnNames(_SINGLE)
    data_format: ClassVar[DatasetFormat | None] = PLAIN_TEXTS
    example: ClassVar[Message] = msg("the beginning of a text")

    def for_model(self, name: str) -> str:
        return MaskedLanguageModeling.name if _is_masked(name) else self.name

    def learned(self, labels: Sequence[str]) -> Message:
        return msg("continues texts")

    def read(self, row: Mapping[str, Any], columns: Columns) -> tuple[dict[str, Any], Flaws]:
        text, flaws = clean(row.get(columns.text[0]), limit=None)
        return {"text": text}, flaws

    def rows_of(self, texts: Sequence[tuple[str, ...]]) -> RowFile:
        return store_rows(({"text": clean(text, limit=None)[0]} for text, *_ in texts), {"text": str})

    def encode(
        self, rows: RowBatch, tokenizer: PreTrainedTokenizerBase, max_length: int, labels: Labels | None
    ) -> RowBatch:
        if labels is None:
            return _prompts(rows["text"], tokenizer, max_length)
        blocks = _blocks(rows["text"], tokenizer, max_length)
        return {**blocks, "labels": blocks["input_ids"]}


class MaskedLanguageModeling(LanguageModeling):
    """Hidden tokens of a text, predicted from all others."""

    name: ClassVar[str] = "masked-language-modeling"
    summary: ClassVar[Message] = msg("predict masked tokens (MLM), trained on plain text")
    command: ClassVar[str] = "tightfit train --model bert-base-uncased --data notes.txt --task masked-language-modeling"
    data_format: ClassVar[DatasetFormat | None] = PLAIN_TEXTS
    example: ClassVar[Message] = msg("a text with [MASK] in place of a word")
    peft_type: ClassVar[str | None] = None
    pipeline: ClassVar[str] = "fill-mask"

    def for_model(self, name: str) -> str:
        return self.name

    def learned(self, labels: Sequence[str]) -> Message:
        return msg("fills in hidden words")

    def encode(
        self, rows: RowBatch, tokenizer: PreTrainedTokenizerBase, max_length: int, labels: Labels | None
    ) -> RowBatch:
        if labels is None:
            _check_masks(rows["text"], tokenizer)
            return dict(tokenizer(rows["text"], truncation=True, max_length=max_length, return_token_type_ids=False))
        return super().encode(rows, tokenizer, max_length, labels)

    def collator(self, tokenizer: PreTrainedTokenizerBase) -> Collator:
        """Hides words in rows to learn from, not in those to predict; labels are those of the hidden words."""
        from transformers import DataCollatorForLanguageModeling, DataCollatorWithPadding

        hide = DataCollatorForLanguageModeling(tokenizer, mlm=True, mlm_probability=_HIDDEN)
        pad = DataCollatorWithPadding(tokenizer)

        def collate(rows: list[dict[str, Any]]) -> Mapping[str, Any]:
            inputs = [{name: row[name] for name in ("input_ids", "attention_mask")} for row in rows]
            return hide(inputs) if "labels" in rows[0] else pad(inputs)

        return collate

    def head(self) -> Any:
        from transformers import AutoModelForMaskedLM

        return AutoModelForMaskedLM

    def infer(self, model: PreTrainedModel, batch: Batch) -> list[Any]:
        """The most probable token of every place."""
        return model(**batch).logits.argmax(dim=-1).tolist()

    def decode(self, outputs: Sequence[Any], inputs: ModelInputs) -> list[TextPrediction]:
        mask, found = inputs.tokenizer.mask_token_id, []
        for ids, predicted in zip(inputs.tokens["input_ids"], outputs, strict=True):
            filled = [new if token == mask else token for token, new in zip(ids, predicted, strict=False)]
            found.append(TextPrediction(str(inputs.tokenizer.decode(filled, skip_special_tokens=True)).strip()))
        return found

    def pipeline_call(self, texts: Sequence[str], max_length: int) -> str:
        return super(GenerationTask, self).pipeline_call(texts, max_length)


def _is_masked(name: str) -> bool:
    """Whether a model fills in hidden words: its config names no decoder, and transformers has such a head for it."""
    from tightfit.compat import MODEL_FOR_MASKED_LM_MAPPING_NAMES

    config = load_config(name)
    is_decoder = getattr(config, "is_decoder", False) or config.is_encoder_decoder
    return config.model_type in MODEL_FOR_MASKED_LM_MAPPING_NAMES and not is_decoder


def _prompts(texts: Sequence[str], tokenizer: PreTrainedTokenizerBase, max_length: int) -> RowBatch:
    """The last tokens of each text, without the token that would end it."""
    ids = [_unended(tokenizer(text)["input_ids"], tokenizer)[-max_length:] for text in texts]
    return {"input_ids": ids, "attention_mask": [[1] * len(each) for each in ids]}


def _unended(ids: list[int], tokenizer: PreTrainedTokenizerBase) -> list[int]:
    return ids[:-1] if len(ids) > 1 and ids[-1] == tokenizer.eos_token_id else ids


def _blocks(texts: Sequence[str], tokenizer: PreTrainedTokenizerBase, max_length: int) -> RowBatch:
    """The texts one after the other, cut into blocks; the last one may be shorter, but not a single token."""
    ids: list[int] = []
    row_of: list[int] = []
    end = tokenizer.eos_token_id if tokenizer.mask_token is None else None
    for row, tokens in enumerate(tokenizer(list(texts))["input_ids"]):
        ended = tokens if end is None or tokens[-1:] == [end] else [*tokens, end]
        ids += ended
        row_of += [row] * len(ended)
    starts = [start for start in range(0, len(ids), max_length) if start == 0 or len(ids) - start > 1]
    blocks = [ids[start : start + max_length] for start in starts]
    return {
        "input_ids": blocks,
        "attention_mask": [[1] * len(block) for block in blocks],
        "truncated": [0] * len(blocks),
        "truncated_tokens": [0] * len(blocks),
        ROW: [row_of[start] for start in starts],
    }


def _check_masks(texts: Sequence[str], tokenizer: PreTrainedTokenizerBase) -> None:
    for text in texts:
        if str(tokenizer.mask_token) not in text:
            raise DataError(
                msg(
                    "'{text}' has no {mask} for the model to fill in: write it in place of a word.",
                    text=text[:60],
                    mask=str(tokenizer.mask_token),
                )
            )


LanguageModeling.zh = {
    LanguageModeling.reads: "纯文本：文本文件，或一列文本",
    **GENERATION_ZH,
    LanguageModeling.summary: "因果语言建模（继续预训练），只需纯文本",
    LanguageModeling.example: "一段文本的开头",
    "continues texts": "续写文本",
}
MaskedLanguageModeling.zh = {
    **GENERATION_ZH,
    MaskedLanguageModeling.summary: "掩码语言建模（MLM）：预测被掩码的 token，只需纯文本",
    MaskedLanguageModeling.example: "用 [MASK] 代替一个词的文本",
    "fills in hidden words": "填补被遮住的词",
    "'{text}' has no {mask} for the model to fill in: write it in place of a word.": (
        "“{text}”里没有可以填补的 {mask}：请用它代替一个词。"
    ),
}
