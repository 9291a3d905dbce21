"""Tokenization."""

from __future__ import annotations

from functools import partial
from pathlib import Path

import pytest
from conftest import FILLER, GOOD

from tightfit.data.row_file import RowFile, store_rows
from tightfit.data.tokens import RowBatch, encode_texts, text_lengths, tokenize
from tightfit.errors import BadInput
from tightfit.models import load_tokenizer


def texts_of(*, pairs: bool) -> RowFile:
    rows = [{"text": " ".join(FILLER[: n + 1]), "text_pair": " ".join(GOOD[:n])} for n in range(len(GOOD))]
    names = ("text", "text_pair") if pairs else ("text",)
    return store_rows(rows, dict.fromkeys(names, str))


@pytest.mark.parametrize("pairs", [False, True])
@pytest.mark.parametrize("max_length", [9, 99])
def test_text_lengths_equal_those_of_the_tokenized_texts(tiny_model: Path, pairs: bool, max_length: int) -> None:
    tokenizer, rows = load_tokenizer(str(tiny_model)), texts_of(pairs=pairs)
    tokens = tokenize(rows, partial(encode_texts, tokenizer=tokenizer, max_length=max_length), max_length)
    [batch] = rows.batches()
    assert text_lengths(batch, tokenizer, max_length) == tokens.lengths
    assert max(tokens.lengths) == min(max_length, 22 if pairs else 12)
    assert (tokens.truncated_tokens is None) == pairs


def test_a_task_may_make_several_rows_of_one(tiny_model: Path) -> None:
    """As for texts that are longer than the model, which are read in windows."""

    def windows(rows: RowBatch) -> RowBatch:
        return {"input_ids": [[n] * 3 for n, _ in enumerate(rows["text"]) for _ in range(2)]}

    tokens = tokenize(texts_of(pairs=False), windows, max_length=3)
    assert tokens.dataset["input_ids"][:3] == [[0, 0, 0], [0, 0, 0], [1, 1, 1]]
    assert (len(tokens), tokens.truncated, tokens.truncated_tokens) == (20, 20, None)


def test_a_max_length_without_room_for_text_is_rejected(tiny_model: Path) -> None:
    tokenizer = load_tokenizer(str(tiny_model))
    [batch] = texts_of(pairs=True).batches()
    for count in (encode_texts, text_lengths):
        with pytest.raises(BadInput, match="leaves no tokens for the text after 3 special tokens"):
            count(batch, tokenizer, 3)
