"""Tiny language models with a tokenizer of bytes, and data to train them on."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from conftest import BAD, FILLER, GOOD

SPECIAL = ("<pad>", "<end>", "<start>", "<mask>")
CHAT_TEMPLATE = (
    "{% for message in messages %}<start>{{ message['role'] }}\n{{ message['content'] }}<end>\n{% endfor %}"
    "{% if add_generation_prompt %}<start>assistant\n{% endif %}"
)


def byte_tokenizer(*, chat_template: str | None = None, masked: bool = False) -> Any:
    """One token for each byte, and a few with a meaning."""
    from tokenizers import Tokenizer, decoders, models, pre_tokenizers
    from transformers import PreTrainedTokenizerFast

    names = [*SPECIAL, *sorted(pre_tokenizers.ByteLevel.alphabet())]
    backend = Tokenizer(models.BPE({name: number for number, name in enumerate(names)}, []))
    backend.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    backend.decoder = decoders.ByteLevel()
    mask = {"mask_token": "<mask>"} if masked else {}
    tokenizer = PreTrainedTokenizerFast(
        tokenizer_object=backend, pad_token="<pad>", eos_token="<end>", extra_special_tokens=["<start>"], **mask
    )
    tokenizer.chat_template = chat_template
    return tokenizer


def make_causal(folder: Path, *, chat_template: str | None = CHAT_TEMPLATE, **shape: Any) -> Path:
    """A tiny Llama."""
    from transformers import LlamaConfig, LlamaForCausalLM

    tokenizer = byte_tokenizer(chat_template=chat_template)
    return _save(folder, tokenizer, LlamaForCausalLM, LlamaConfig, {"num_key_value_heads": 2, **shape})


def make_masked(folder: Path) -> Path:
    """A tiny ModernBERT."""
    from transformers import BertConfig, BertForMaskedLM

    return _save(folder, byte_tokenizer(masked=True), BertForMaskedLM, BertConfig, {})


def make_seq2seq(folder: Path) -> Path:
    """A tiny T5."""
    from transformers import T5Config, T5ForConditionalGeneration

    shape = {"d_model": 32, "d_kv": 16, "d_ff": 64, "num_layers": 2, "num_heads": 2, "decoder_start_token_id": 0}
    return _save(folder, byte_tokenizer(), T5ForConditionalGeneration, T5Config, shape)


def _save(folder: Path, tokenizer: Any, model: Any, config: Any, shape: Mapping[str, Any]) -> Path:
    import torch

    torch.manual_seed(0)
    small = {"hidden_size": 32, "num_hidden_layers": 2, "num_attention_heads": 2, "intermediate_size": 64}
    ids = {"vocab_size": len(tokenizer), "pad_token_id": 0, "eos_token_id": 1, "bos_token_id": 1}
    model(config(**{**small, **ids, "max_position_embeddings": 128, **shape})).save_pretrained(folder)
    tokenizer.save_pretrained(folder)
    return folder


def write_lines(path: Path, rows: Sequence[Any]) -> Path:
    """One JSON object per line."""
    path.write_text("".join(json.dumps(row, ensure_ascii=False) + "\n" for row in rows), "utf-8")
    return path


def texts(count: int = 40) -> list[str]:
    """Sentences that resemble each other."""
    words = [*GOOD, *BAD]
    return [f"the {FILLER[n % 3 + 1]} was {words[n % 20]} and {words[(n + 7) % 20]}" for n in range(count)]
