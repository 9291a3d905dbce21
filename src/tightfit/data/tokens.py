"""Tokenization: rows as token ids, with the length of each and how much was truncated."""

from __future__ import annotations

import itertools
from collections.abc import Iterator
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any

from tightfit.data.labels import Labels
from tightfit.data.row_file import RowFile, store_rows
from tightfit.errors import BadInput

if TYPE_CHECKING:
    from transformers import PreTrainedTokenizerBase

_META = ("length", "truncated", "truncated_tokens")
_UNKNOWN = -1


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


def encode(
    dataset: RowFile, tokenizer: PreTrainedTokenizerBase, max_length: int, labels: Labels | None = None
) -> Tokens:
    """Tokenize texts, and map labels to class ids if `labels` is given."""
    _check_max_length(dataset, tokenizer, max_length)
    rows = _encoded_rows(dataset, tokenizer, max_length, labels.ids if labels else None)
    first = next(rows)  # tokenizers differ in the columns they return
    encoded = store_rows(itertools.chain([first], rows), {name: type(value) for name, value in first.items()})
    lengths, truncated, lost = (encoded[name] for name in _META)
    return Tokens(encoded.drop(*_META), lengths, sum(truncated), sum(lost) if _UNKNOWN not in lost else None)


def _encoded_rows(
    dataset: RowFile, tokenizer: Any, max_length: int, ids: dict[str, int] | None
) -> Iterator[dict[str, Any]]:
    for rows in dataset.batches():
        encoded = _encode_batch(rows, tokenizer, max_length, ids)
        yield from (dict(zip(encoded, cells, strict=True)) for cells in zip(*encoded.values(), strict=True))


def token_lengths(dataset: RowFile, tokenizer: PreTrainedTokenizerBase, max_length: int) -> list[int]:
    """The number of tokens of each row after truncation, without storing the tokens."""
    _check_max_length(dataset, tokenizer, max_length)
    lengths: list[int] = []
    for rows in dataset.batches():
        texts = rows["text"], *([rows["text_pair"]] if "text_pair" in rows else [])
        lengths += [min(length, max_length) for length in _full_lengths(texts, tokenizer)]
    return lengths


def _full_lengths(texts: tuple[list[str], ...], tokenizer: PreTrainedTokenizerBase) -> list[int]:
    """The lengths of texts or pairs before truncation; uses the Rust tokenizer directly if there is one."""
    backend = getattr(tokenizer, "backend_tokenizer", None)
    if backend is None:
        return [len(tokens) for tokens in tokenizer(*texts)["input_ids"]]
    backend.no_truncation()  # transformers sets both again on every call
    backend.no_padding()
    inputs = texts[0] if len(texts) == 1 else list(zip(*texts, strict=True))
    return [len(encoding.ids) for encoding in backend.encode_batch_fast(inputs)]


def _check_max_length(dataset: RowFile, tokenizer: PreTrainedTokenizerBase, max_length: int) -> None:
    special = tokenizer.num_special_tokens_to_add(pair="text_pair" in dataset.column_names)
    if max_length <= special:
        raise BadInput(
            f"max-length {max_length} leaves no tokens for the text after {special} special tokens: increase it."
        )


def _encode_batch(
    rows: dict[str, list[Any]], tokenizer: Any, max_length: int, ids: dict[str, int] | None
) -> dict[str, list[Any]]:
    pairs = [rows["text_pair"]] if "text_pair" in rows else []
    encoded = tokenizer(rows["text"], *pairs, truncation=True, max_length=max_length)
    fast = getattr(encoded, "encodings", None)  # None with slow tokenizers
    out = dict(encoded)
    lengths = [len(tokens) for tokens in encoded["input_ids"]]
    out["length"] = lengths
    out["truncated"] = [int(bool(e.overflowing)) for e in fast] if fast else [int(n >= max_length) for n in lengths]
    # Pairs overflow in every combination of the two texts, so their truncated tokens cannot be counted.
    out["truncated_tokens"] = [_overflow(e) for e in fast] if fast and not pairs else [_UNKNOWN for _ in lengths]
    if ids is not None:
        out["labels"] = [ids[label] for label in rows["label"]]
    return out


def _overflow(encoding: Any) -> int:
    """The tokens of a text that were cut off, without the special tokens around each part."""
    return sum(len(part.ids) - sum(part.special_tokens_mask) for part in encoding.overflowing)
