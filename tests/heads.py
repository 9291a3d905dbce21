"""Small models of many architectures with random weights and no dropout, and batches for each."""

from __future__ import annotations

from typing import Any

import torch
import transformers as hf

_SMALL = {
    "hidden_size": 32,
    "num_hidden_layers": 2,
    "num_attention_heads": 2,
    "intermediate_size": 64,
    "vocab_size": 99,
    "max_position_embeddings": 64,
    "hidden_dropout_prob": 0.0,
    "attention_probs_dropout_prob": 0.0,
    "pad_token_id": 0,
    "num_labels": 3,
    "use_cache": False,
}
_SPECIAL = {"cls_token_id": 1, "sep_token_id": 2, "bos_token_id": 1, "eos_token_id": 2}
_DISTIL = {"dim": 32, "hidden_dim": 64, "n_layers": 2, "n_heads": 2, "dropout": 0.0, "attention_dropout": 0.0}
_T5 = {"d_model": 32, "d_kv": 16, "d_ff": 64, "num_layers": 2, "num_heads": 2, "dropout_rate": 0.0, "eos_token_id": 2}
_GPT2 = {"n_embd": 32, "n_layer": 2, "n_head": 2, "resid_pdrop": 0.0, "embd_pdrop": 0.0, "attn_pdrop": 0.0, **_SPECIAL}
_ALBERT = {"embedding_size": 16, "classifier_dropout_prob": 0.0}
_T5_DECODER = {"decoder_start_token_id": 0, **_T5}

CONFIGS: dict[str, tuple[type, dict[str, Any]]] = {
    "Bert": (hf.BertConfig, {}),
    "Roberta": (hf.RobertaConfig, _SPECIAL),
    "DistilBert": (hf.DistilBertConfig, {**_DISTIL, "seq_classif_dropout": 0.0, "qa_dropout": 0.0}),
    "DebertaV2": (hf.DebertaV2Config, {"pooler_dropout": 0.0, "pooler_hidden_size": 32}),
    "DebertaV3": (
        hf.DebertaV2Config,
        {"pooler_dropout": 0.0, "pooler_hidden_size": 32, "relative_attention": True, "position_buckets": 8}
        | {"pos_att_type": ["p2c", "c2p"], "share_att_key": True, "norm_rel_ebd": "layer_norm"},
    ),
    "XLMRoberta": (hf.XLMRobertaConfig, _SPECIAL),
    "ModernBert": (hf.ModernBertConfig, _SPECIAL),
    "Qwen2": (hf.Qwen2Config, {"num_key_value_heads": 2}),
    "Llama": (hf.LlamaConfig, {"num_key_value_heads": 2}),
    "GPT2": (hf.GPT2Config, _GPT2),
    "T5": (hf.T5Config, {**_T5_DECODER, "classifier_dropout": 0.0}),
    "Electra": (hf.ElectraConfig, {"embedding_size": 16}),
    "MPNet": (hf.MPNetConfig, _SPECIAL),
    "Albert": (hf.AlbertConfig, _ALBERT),
}
DROPOUT = {"hidden_dropout_prob": 0.1, "attention_probs_dropout_prob": 0.1}
HEADS = {
    "sequence": hf.AutoModelForSequenceClassification,
    "token": hf.AutoModelForTokenClassification,
    "question": hf.AutoModelForQuestionAnswering,
    "causal": hf.AutoModelForCausalLM,
    "masked": hf.AutoModelForMaskedLM,
    "seq2seq": hf.AutoModelForSeq2SeqLM,
}


def build(architecture: str, head: str = "sequence", **changes: Any) -> Any:
    """A model in training mode, without dropout unless `changes` sets it."""
    torch.manual_seed(0)
    changes = {"num_labels": 2, **changes} if head == "question" else changes  # start and end
    return HEADS[head].from_config(small_config(architecture, **changes)).train()


def small_config(architecture: str, layers: int = 2, **changes: Any) -> Any:
    """The config of a small model."""
    kind, extra = CONFIGS[architecture]
    depths = {name: layers for name in extra if name in ("n_layer", "n_layers", "num_layers")}
    return kind(**{**_SMALL, **extra, **depths, "num_hidden_layers": layers, **changes})


def make_batch(
    rows: int, head: str = "sequence", longest: int = 20, seed: int = 1, shortest: int = 3
) -> dict[str, torch.Tensor]:
    """Rows of very different lengths, padded on the right, with the head's kind of labels."""
    torch.manual_seed(seed)
    lengths = torch.randint(shortest, longest + 1, (rows,))
    lengths[0] = longest
    mask = (torch.arange(longest)[None] < lengths[:, None]).long()
    ids = torch.randint(5, 99, (rows, longest)) * mask
    if head == "sequence":
        ids[torch.arange(rows), lengths - 1] = 2  # T5 classifies by the hidden state of the end token
        labels = torch.randint(0, 3, (rows,))
    elif head == "question":
        places = (torch.rand(2, rows) * lengths).long().sort(dim=0).values
        positions = {"start_positions": places[0], "end_positions": places[1]}
        return {"input_ids": ids, "attention_mask": mask, **positions}
    elif head == "seq2seq":
        labels = torch.randint(5, 99, (rows, longest - 6))
        labels[torch.arange(longest - 6)[None] >= (lengths[:, None] // 2).clamp(1, longest - 6)] = -100
    else:
        labels = torch.randint(0, 3, (rows, longest)) if head == "token" else ids.clone()
        labels[mask == 0] = -100
        labels[torch.rand(labels.shape) < 0.2] = -100
    return {"input_ids": ids, "attention_mask": mask, "labels": labels}


def gradients(model: Any) -> torch.Tensor:
    """All gradients in one vector; the model's are reset."""
    row = torch.cat([p.grad.flatten().double() for p in model.parameters() if p.grad is not None])
    model.zero_grad()
    return row
