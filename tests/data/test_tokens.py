"""Tokenization."""

from __future__ import annotations

from pathlib import Path

from tightfit.data.row_file import store_rows
from tightfit.data.rows import load_rows
from tightfit.data.tokens import encode, token_lengths
from tightfit.models import load_tokenizer


def test_token_lengths_equal_those_of_the_tokenized_rows(tiny_model: Path, reviews: Path) -> None:
    rows, _ = load_rows(str(reviews))
    tokenizer = load_tokenizer(str(tiny_model))
    pairs = store_rows(
        ({"text": text, "text_pair": text[:10]} for text in rows.dataset["text"]), {"text": str, "text_pair": str}
    )
    for dataset in (rows.dataset, pairs):
        assert token_lengths(dataset, tokenizer, 12) == encode(dataset, tokenizer, 12).lengths
    assert max(token_lengths(rows.dataset, tokenizer, 99)) > 12
