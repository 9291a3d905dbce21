"""Tokens: rows encoded for the model, with the length of each and what was cut off."""

from __future__ import annotations

import itertools
from collections.abc import Iterator
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from tightfit.data.row_file import RowFile, store_rows
from tightfit.data.rows import Labels
from tightfit.errors import BadInput

if TYPE_CHECKING:
    from transformers import PreTrainedTokenizerBase

_OWN = ("length", "cut", "lost")
_UNTOLD = -1


@dataclass(frozen=True)
class Tokens:
    """Encoded rows, and the length of each."""

    dataset: RowFile
    lengths: list[int]
    cut: int
    """How many rows were longer than the limit."""
    lost: int | None = None
    """Tokens that were cut off; None where the tokenizer does not tell."""

    def __len__(self) -> int:
        return len(self.lengths)

    def longest_first(self) -> Tokens:
        """Sorted by length: batches hold rows of like length, and what is too large shows at once."""
        order = sorted(range(len(self)), key=lambda i: -self.lengths[i])
        return Tokens(self.dataset.select(order), [self.lengths[i] for i in order], self.cut, self.lost)


def encode(
    dataset: RowFile, tokenizer: PreTrainedTokenizerBase, max_length: int, labels: Labels | None = None
) -> Tokens:
    """Turn texts into token ids, and labels into numbers where they are wanted."""
    _refuse_no_room(dataset, tokenizer, max_length)
    rows = _encoded_rows(dataset, tokenizer, max_length, labels.ids if labels else None)
    first = next(rows)  # tokenizers differ in what they give
    encoded = store_rows(itertools.chain([first], rows), {name: type(value) for name, value in first.items()})
    lengths, cut, lost = (encoded[name] for name in _OWN)
    return Tokens(encoded.without(*_OWN), lengths, sum(cut), sum(lost) if _UNTOLD not in lost else None)


def _encoded_rows(
    dataset: RowFile, tokenizer: Any, max_length: int, ids: dict[str, int] | None
) -> Iterator[dict[str, Any]]:
    for rows in dataset.batches():
        encoded = _encode_batch(rows, tokenizer, max_length, ids)
        yield from (dict(zip(encoded, cells, strict=True)) for cells in zip(*encoded.values(), strict=True))


def token_lengths(dataset: RowFile, tokenizer: PreTrainedTokenizerBase, max_length: int) -> list[int]:
    """How long each text is for the model, without keeping the tokens."""
    _refuse_no_room(dataset, tokenizer, max_length)
    lengths: list[int] = []
    for rows in dataset.batches():
        texts = rows["text"], *([rows["text_pair"]] if "text_pair" in rows else [])
        lengths += [min(length, max_length) for length in _whole_lengths(texts, tokenizer)]
    return lengths


def _whole_lengths(texts: tuple[list[str], ...], tokenizer: PreTrainedTokenizerBase) -> list[int]:
    """Of a batch of texts or pairs, uncut; by the fast tokenizer's own shortest way where there is one."""
    backend = getattr(tokenizer, "backend_tokenizer", None)
    if backend is None:
        return [len(tokens) for tokens in tokenizer(*texts)["input_ids"]]
    backend.no_truncation()  # transformers sets both anew with every call
    backend.no_padding()
    inputs = texts[0] if len(texts) == 1 else list(zip(*texts, strict=True))
    return [len(encoding.ids) for encoding in backend.encode_batch_fast(inputs)]


def _refuse_no_room(dataset: RowFile, tokenizer: PreTrainedTokenizerBase, max_length: int) -> None:
    special = tokenizer.num_special_tokens_to_add(pair="text_pair" in dataset.column_names)
    if max_length <= special:
        raise BadInput(f"{max_length} tokens leave no room for a text beside {special} special ones: allow more.")


def _encode_batch(
    rows: dict[str, list[Any]], tokenizer: Any, max_length: int, ids: dict[str, int] | None
) -> dict[str, list[Any]]:
    pairs = [rows["text_pair"]] if "text_pair" in rows else []
    encoded = tokenizer(rows["text"], *pairs, truncation=True, max_length=max_length)
    inner = getattr(encoded, "encodings", None)
    out = dict(encoded)
    out["length"] = [len(tokens) for tokens in encoded["input_ids"]]
    out["cut"] = [int(bool(e.overflowing)) for e in inner] if inner else [int(n >= max_length) for n in out["length"]]
    # What is cut off a pair comes back in every combination of the two texts: nobody could add it up.
    out["lost"] = [_lost(e) for e in inner] if inner and not pairs else [_UNTOLD for _ in out["length"]]
    if ids is not None:
        out["labels"] = [ids[label] for label in rows["label"]]
    return out


def _lost(encoding: Any) -> int:
    """Tokens of a text that did not fit, without the special ones around each piece."""
    return sum(len(piece.ids) - sum(piece.special_tokens_mask) for piece in encoding.overflowing)
