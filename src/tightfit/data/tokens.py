"""Tokenization: rows as token ids, in the way of a task, with the length of each and how much was truncated."""

from __future__ import annotations

import itertools
from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any

from tightfit.data.row_file import RowFile, store_rows
from tightfit.errors import BadInput
from tightfit.messages import msg

if TYPE_CHECKING:
    from transformers import PreTrainedTokenizerBase

_META = ("length", "truncated", "truncated_tokens")
ROW = "row"
"""The column with the number of the row that tokens are of, where `encode` may make several of one row."""
_UNKNOWN = -1

RowBatch = dict[str, list[Any]]
"""Some rows, as columns."""


@dataclass(frozen=True)
class Tokens:
    """Tokenized rows, and the length of each."""

    dataset: RowFile
    lengths: list[int]
    truncated: int
    """How many rows were longer than max_length."""
    truncated_tokens: int | None = None
    """How many tokens were cut off; None if unknown, as with slow tokenizers and text pairs."""

    def __len__(self) -> int:
        return len(self.lengths)

    def longest_first(self) -> Tokens:
        """Sorted by length: batches hold rows of similar length, and the largest batch is the first to run."""
        order = sorted(range(len(self)), key=lambda i: -self.lengths[i])
        return replace(self, dataset=self.dataset.select(order), lengths=[self.lengths[i] for i in order])


def tokenize(dataset: RowFile, encode: Callable[[RowBatch], RowBatch], max_length: int) -> Tokens:
    """Tokenize all rows, some at a time.

    `encode` returns `input_ids` and whatever else the model takes. It may say in `truncated` which rows were longer
    than max_length, and in `truncated_tokens` by how much. If it may make several of one row, such as windows of a long
    text, it says in `row` of which one each is, counted from 0 among those that it was given.
    """
    rows = _encoded_rows(dataset, encode, max_length)
    first = next(rows)  # tokenizers differ in the columns they return
    encoded = store_rows(itertools.chain([first], rows), {name: type(value) for name, value in first.items()})
    lengths, truncated, lost = (encoded[name] for name in _META)
    return Tokens(encoded.drop(*_META), lengths, sum(truncated), sum(lost) if _UNKNOWN not in lost else None)


def _encoded_rows(
    dataset: RowFile, encode: Callable[[RowBatch], RowBatch], max_length: int
) -> Iterator[dict[str, Any]]:
    before = 0
    for rows in dataset.batches():
        encoded = _with_meta(encode(rows), max_length)
        if ROW in encoded:
            encoded[ROW] = [before + row for row in encoded[ROW]]
        before += len(next(iter(rows.values())))
        yield from (dict(zip(encoded, cells, strict=True)) for cells in zip(*encoded.values(), strict=True))


def _with_meta(encoded: RowBatch, max_length: int) -> RowBatch:
    """Adds the lengths, and what `encode` did not say about truncation."""
    lengths = [len(tokens) for tokens in encoded["input_ids"]]
    truncated = [int(length >= max_length) for length in lengths]
    return {"truncated": truncated, "truncated_tokens": [_UNKNOWN] * len(lengths), **encoded, "length": lengths}


# Texts and pairs of texts, for the tasks that read them


def encode_texts(rows: RowBatch, tokenizer: PreTrainedTokenizerBase, max_length: int) -> RowBatch:
    """The tokens of `text`, or of the pairs `text` and `text_pair`, truncated to max_length."""
    texts = _texts(rows)
    _check_max_length(texts, tokenizer, max_length)
    encoded = tokenizer(*texts, truncation=True, max_length=max_length)
    fast = getattr(encoded, "encodings", None)  # None with slow tokenizers
    if not fast:
        return dict(encoded)
    truncated = {"truncated": [int(bool(encoding.overflowing)) for encoding in fast]}
    # Pairs overflow in every combination of the two texts, so their truncated tokens cannot be counted.
    lost = {"truncated_tokens": [_overflow(encoding) for encoding in fast]} if len(texts) == 1 else {}
    return {**encoded, **truncated, **lost}


def text_lengths(rows: RowBatch, tokenizer: PreTrainedTokenizerBase, max_length: int) -> list[int]:
    """The number of tokens of each text or pair after truncation, without the tokens."""
    texts = _texts(rows)
    _check_max_length(texts, tokenizer, max_length)
    return [min(length, max_length) for length in _full_lengths(texts, tokenizer)]


def _texts(rows: RowBatch) -> list[list[str]]:
    return [rows[name] for name in ("text", "text_pair") if name in rows]


def _full_lengths(texts: list[list[str]], tokenizer: PreTrainedTokenizerBase) -> list[int]:
    """The lengths of texts or pairs before truncation; uses the Rust tokenizer directly if there is one."""
    backend = getattr(tokenizer, "backend_tokenizer", None)
    if backend is None:
        return [len(tokens) for tokens in tokenizer(*texts)["input_ids"]]
    backend.no_truncation()  # transformers sets both again on every call
    backend.no_padding()
    inputs = texts[0] if len(texts) == 1 else list(zip(*texts, strict=True))
    return [len(encoding.ids) for encoding in backend.encode_batch_fast(inputs)]


def _check_max_length(texts: list[list[str]], tokenizer: PreTrainedTokenizerBase, max_length: int) -> None:
    special = tokenizer.num_special_tokens_to_add(pair=len(texts) == 2)
    if max_length <= special:
        raise BadInput(
            msg(
                "max-length {limit} leaves no tokens for the text after {special} special tokens: increase it.",
                limit=max_length,
                special=special,
            )
        )


def _overflow(encoding: Any) -> int:
    """The tokens of a text that were cut off, without the special tokens around each part."""
    return sum(len(part.ids) - sum(part.special_tokens_mask) for part in encoding.overflowing)
