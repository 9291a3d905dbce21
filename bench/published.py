"""Published measurements of GPU memory beside our predictions. Needs ../shared. Writes records/published.json.

Each row of ../shared/ground_truth/published.csv that states enough is simulated as a training loop of the kind that its
source describes; the other rows are recorded with the reason why not.
"""

from __future__ import annotations

import contextlib
import csv
import json
from collections.abc import Callable
from dataclasses import replace
from typing import Any

import torch
import transformers as hf

from quality import ROOT, SHARED
from tightfit.device import GPUS, Device, find_gpu
from tightfit.simulation.estimate import Estimate
from tightfit.simulation.own_loop import estimate_loop
from tightfit.strategies.base import MemoryKind

RECORD = ROOT / "records" / "published.json"
_MIB = 1 << 20
Row = dict[str, str]
Loop = Callable[[], Callable[[], None]]


def main() -> None:
    hf.logging.set_verbosity_error()
    rows = list(csv.DictReader((SHARED / "ground_truth" / "published.csv").open(encoding="utf-8")))
    results = []
    for row in rows:
        result = {**about(row), **predicted(row)}
        results.append(result)
        error = f"{result['error']:+.1%}" if result.get("error") is not None else result["reason"]
        print(
            *(result[key] for key in ("source", "model", "batch", "length", "attention", "published")),
            error,
            flush=True,
        )
    RECORD.write_text(json.dumps({"rows": results}, indent=1, ensure_ascii=False) + "\n", "utf-8")


def about(row: Row) -> dict[str, Any]:
    keys = {"source": "source_id", "model": "model", "batch": "batch_size", "length": "seq_len", "gpu": "gpu"}
    keys |= {"precision": "precision", "optimizer": "optimizer", "attention": "attention_impl"}
    grade = row["notes"][1:2] if row["notes"].startswith("[") else ""
    published = float(row["value_MiB"]) if row["value_MiB"] else None
    short = {name: row[key].partition(" (")[0] for name, key in keys.items()}
    return {**short, "checkpointing": row["grad_checkpointing"] == "1", "grade": grade, "published": published}


def predicted(row: Row) -> dict[str, Any]:
    predict = SOURCES.get(row["source_id"])
    if predict is None:
        return {"predicted": None, "error": None, "reason": REASONS.get(row["source_id"], "not a training run")}
    return predict(row)


def sdpa_table(row: Row) -> dict[str, Any]:
    """Forward and backward only; the loss is the sum of the logits, which stay allocated; peak of allocated memory."""
    dtype = torch.float16 if row["precision"].startswith("fp16") else torch.float32
    batch, length, attention = int(row["batch_size"]), int(row["seq_len"]), row["attention_impl"]

    def build() -> Callable[[], None]:
        model = language_model(row["model"], attention, dtype).train()
        ids = torch.ones(batch, length, dtype=torch.long)

        def step() -> None:
            model.zero_grad()
            out = model(input_ids=ids)
            loss = out.logits.sum()
            loss.backward()

        return step

    estimate = estimate_loop(build, gpu_of(row))
    if not row["value_MiB"]:
        capacity = gpu_of(row).total_bytes
        return {
            "predicted": round(estimate.peak / _MIB, 1),
            "error": None,
            "reason": f"ran out of memory there; {fits(estimate, capacity)}",
        }
    return compared(row, allocated(estimate))


def language_model(name: str, attention: str, dtype: torch.dtype) -> Any:
    if "gpt2-large" in name:
        config: Any = hf.GPT2Config(n_embd=1280, n_layer=36, n_head=20, use_cache=False)
        kind: Any = hf.GPT2LMHeadModel
    else:
        config, kind = hf.AutoConfig.from_pretrained(SHARED / "models" / "bert-base-uncased"), hf.BertLMHeadModel
    model = kind._from_config(config, dtype=dtype, attn_implementation=attention)
    model.tie_weights()
    return model


def trainer_table(row: Row) -> dict[str, Any]:
    """BERT-Large in Trainer: CUDA context and all memory that the allocator reserved, read after training."""
    context = 1343 * _MIB  # the source's own measurement
    gpu = replace(GPUS["V100 16GB"], context_bytes=context)
    if row["optimizer"] == "none":
        if not row["batch_size"] and "bert" not in row["model"]:
            return {
                "predicted": None,
                "error": None,
                "reason": "the CUDA context itself: the other rows use this value",
            }
        return compared(row, loaded_bytes(gpu))
    if "8bit" in row["optimizer"]:
        return {"predicted": None, "error": None, "reason": "bitsandbytes' optimizer has no kernel without a GPU"}
    return compared(row, estimate_loop(trainer_loop(row), gpu).peak)


def trainer_loop(row: Row) -> Loop:
    batch, length, accumulated = int(row["batch_size"]), int(row["seq_len"]), int(row["grad_accum_steps"])
    half = row["precision"].startswith("fp16")

    def build() -> Callable[[], None]:
        model = classifier().train()
        if row["grad_checkpointing"] == "1":
            model.gradient_checkpointing_enable({"use_reentrant": True})
            model.enable_input_require_grads()
        optimizer = old_optimizer(row["optimizer"], model)
        batches = [
            {"input_ids": torch.ones(batch, length, dtype=torch.long), "labels": torch.ones(batch, dtype=torch.long)}
        ]

        def step() -> None:
            for _ in range(accumulated):
                with torch.autocast("cpu", torch.float16) if half else contextlib.nullcontext():
                    loss = model(**batches[0]).loss
                loss.backward()
            torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0, foreach=False)
            optimizer.step()
            model.zero_grad(set_to_none=False)  # the default until torch 2.0: gradients are zeroed, not freed

        return step

    return build


def classifier() -> Any:
    config = hf.AutoConfig.from_pretrained(SHARED / "models" / "bert-large-uncased")
    return hf.BertForSequenceClassification._from_config(config, attn_implementation="eager")


def old_optimizer(name: str, model: Any) -> torch.optim.Optimizer:
    """As in 2022: one parameter after the other."""
    if name == "Adafactor":
        from transformers.optimization import Adafactor

        return Adafactor(model.parameters(), lr=1e-5, scale_parameter=False, relative_step=False)
    return torch.optim.AdamW(model.parameters(), foreach=False)


def loaded_bytes(gpu: Device) -> int:
    def build() -> Callable[[], None]:
        model = classifier()
        return lambda: model.eval() and None

    estimate = estimate_loop(build, gpu)
    return estimate.overhead + sum(estimate.phases["load"].values())


def small_gpu(row: Row) -> dict[str, Any]:
    """Whether BERT-base with a question answering head trains on 4 GB."""
    gpu = GPUS["GTX 1050 Ti 4GB"]

    def build() -> Callable[[], None]:
        config = hf.AutoConfig.from_pretrained(SHARED / "models" / "bert-base-uncased")
        model = hf.BertForQuestionAnswering._from_config(config, attn_implementation="eager").train()
        optimizer = torch.optim.AdamW(model.parameters(), foreach=False)
        rows = torch.ones(int(row["batch_size"]), dtype=torch.long)
        ids = torch.ones(len(rows), int(row["seq_len"]), dtype=torch.long)

        def step() -> None:
            model(input_ids=ids, start_positions=rows, end_positions=rows).loss.backward()
            optimizer.step()
            optimizer.zero_grad()

        return step

    estimate = estimate_loop(build, gpu)
    outcome = "ran out of memory" if "OOM" in row["measured_quantity"].partition(":")[2] else "ran"
    return {
        "predicted": round(estimate.peak / _MIB, 1),
        "error": None,
        "reason": f"{outcome} there; {fits(estimate, gpu.total_bytes)}",
    }


def vit(row: Row) -> dict[str, Any]:
    """ViT-Large with torch's foreach Adam, the default on CUDA; memory that the allocator reserved."""
    bf16, half = row["precision"].startswith("bf16"), row["precision"].startswith("fp16")
    if "vit_l_16" not in row["model"] or row["optimizer"] != "Adam":
        return {"predicted": None, "error": None, "reason": "model or optimizer code not stated well enough"}

    def build() -> Callable[[], None]:
        shape = {"hidden_size": 1024, "num_hidden_layers": 24, "num_attention_heads": 16, "intermediate_size": 4096}
        config = hf.ViTConfig(**shape, num_labels=10, hidden_dropout_prob=0.0, attention_probs_dropout_prob=0.0)
        dtype = torch.bfloat16 if bf16 else torch.float32
        model = hf.ViTForImageClassification._from_config(config, dtype=dtype, attn_implementation="sdpa").train()
        optimizer = torch.optim.Adam(model.parameters(), lr=5e-5, foreach=True)
        rows = int(row["batch_size"])

        def step() -> None:
            pixels = torch.ones(rows, 3, 224, 224, dtype=dtype)
            for _ in range(int(row["grad_accum_steps"] or 1)):
                with torch.autocast("cpu", torch.float16) if half else contextlib.nullcontext():
                    loss = model(pixel_values=pixels, labels=torch.ones(rows, dtype=torch.long)).loss
                loss.backward()
            optimizer.step()
            optimizer.zero_grad()

        return step

    estimate = estimate_loop(build, replace(GPUS["A100 80GB"], context_bytes=0))
    return compared(row, estimate.peak)


def allocated(estimate: Estimate) -> int:
    """As torch's max_memory_allocated: without the CUDA context and the allocator's cache."""
    return max(sum(kinds.values()) - kinds[MemoryKind.ALLOCATOR] for kinds in estimate.phases.values())


def compared(row: Row, predicted: int) -> dict[str, Any]:
    error = predicted / _MIB / float(row["value_MiB"]) - 1
    return {
        "predicted": round(predicted / _MIB, 1),
        "error": round(error, 4),
        "reason": NOTES.get(row["source_id"], ""),
    }


def fits(estimate: Estimate, capacity: int | None) -> str:
    return "simulated, it " + ("fits" if capacity is not None and estimate.peak <= capacity else "does not fit")


def gpu_of(row: Row) -> Device:
    named = find_gpu(row["gpu"].partition(" (")[0].replace("-SXM2", "").replace("-", " "))
    return named or replace(GPUS["RTX 3080 10GB"], label=row["gpu"], total_bytes=16 << 30)


SOURCES: dict[str, Callable[[Row], dict[str, Any]]] = {
    "hf_docs_sdpa_bert": sdpa_table,
    "hf_docs_sdpa_gpt2": sdpa_table,
    "hf_pr_28802_bert_sdpa": sdpa_table,
    "hf_docs_perf_train_gpu_one": trainer_table,
    "hf_issue_1469": small_gpu,
    "raschka_pytorch_memory_optim": vit,
}
NOTES = {
    "hf_docs_perf_train_gpu_one": "as in 2022: eager attention, per-parameter optimizer, gradients zeroed, not freed",
    "raschka_pytorch_memory_optim": "torchvision's model, simulated as transformers' model of the same shape",
    "hf_pr_28802_bert_sdpa": "fp32 inferred from the size",
}
REASONS = {
    "google_bert_readme": "TensorFlow 1.11: different allocator and kernels",
    "torchtune_readme_flags": "torchtune's own model and loss code, settings not stated",
}

if __name__ == "__main__":
    main()
