"""Published measurements of GPU memory beside our predictions. Needs ../shared. Writes records/published.json.

Each row of ../shared/ground_truth/published.csv that states enough is simulated as a training loop of the kind that its
source describes; the other rows are recorded with the reason why not.
"""

from __future__ import annotations

import contextlib
import csv
import json
from collections.abc import Callable, Iterable
from dataclasses import replace
from functools import partial
from typing import Any

import torch
import transformers as hf

from quality import ROOT, SHARED
from tightfit.device import GPUS, Device, find_gpu
from tightfit.simulation.caching_allocator import CachingAllocator, MemoryBlock
from tightfit.simulation.estimate import Estimate
from tightfit.simulation.own_loop import estimate_loop, trace_loop

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
        cached = cached_keys_and_values(model)
        ids = torch.ones(batch, length, dtype=torch.long)
        outputs: Any = None

        def step() -> None:
            nonlocal outputs  # the script's variable: those of a step are freed when the next forward pass has ended
            model.zero_grad()
            outputs = model(input_ids=ids), cached.copy()
            cached.clear()
            outputs[0].logits.sum().backward()

        return step

    if not row["value_MiB"]:
        estimate, capacity = estimate_loop(build, gpu_of(row)), gpu_of(row).total_bytes
        return {
            "predicted": round(estimate.peak / _MIB, 1),
            "error": None,
            "reason": f"ran out of memory there; {fits(estimate, capacity)}",
        }
    return compared(row, allocated(build, gpu_of(row)))


def language_model(name: str, attention: str, dtype: torch.dtype) -> Any:
    if "gpt2-large" in name:
        config: Any = hf.GPT2Config(n_embd=1280, n_layer=36, n_head=20, use_cache=False)
        kind: Any = hf.GPT2LMHeadModel
    else:
        config, kind = hf.AutoConfig.from_pretrained(SHARED / "models" / "bert-base-uncased"), hf.BertLMHeadModel
    model = kind._from_config(config, dtype=dtype, attn_implementation=attention)
    model.tie_weights()
    return model


def cached_keys_and_values(model: Any) -> list[torch.Tensor]:
    """GPT-2 as in transformers 4.42: outputs hold keys and values, and each attention holds the mask of all positions.

    Keys and values are views of the projection's output, which stays allocated with them.
    """
    projections: list[torch.Tensor] = []
    for layer in model.transformer.h if model.config.model_type == "gpt2" else ():
        layer.attn.register_buffer("bias", torch.ones(1024, 1024, dtype=torch.bool))
        layer.attn.c_attn.register_forward_hook(lambda _, __, output: projections.append(output.detach()))
    return projections


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
    hf.AttentionInterface.register("of_2022", attention_of_2022)
    return hf.BertForSequenceClassification._from_config(config, attn_implementation="of_2022")


def attention_of_2022(
    module: Any, query: Any, key: Any, value: Any, mask: Any, scaling: float, dropout: float, **_: Any
) -> Any:
    mask = torch.zeros(
        len(query), 1, 1, key.shape[2]
    )  # always there, in fp32 also with mixed precision: then the sum is
    scores = torch.matmul(query, key.transpose(2, 3)) * scaling + mask
    probabilities = torch.nn.functional.dropout(SoftmaxOf2022.apply(scores), dropout, module.training)
    return torch.matmul(probabilities, value).transpose(1, 2).contiguous(), probabilities


class SoftmaxOf2022(torch.autograd.Function):
    """Until torch 1.10 softmax kept its input for the backward pass, beside its output."""

    @staticmethod
    def forward(ctx: Any, scores: torch.Tensor) -> torch.Tensor:
        probabilities = torch.softmax(scores, -1)
        ctx.save_for_backward(scores, probabilities)
        return probabilities

    @staticmethod
    def backward(ctx: Any, gradient: torch.Tensor) -> torch.Tensor:
        scores, probabilities = ctx.saved_tensors
        return torch.ops.aten._softmax_backward_data(gradient, probabilities, -1, scores.dtype)


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
    """ViT-Large with optimizers for all parameters at once, the default on CUDA; memory that the allocator reserved."""
    bf16, half = row["precision"].startswith("bf16"), row["precision"].startswith("fp16")
    accumulated = int(row["grad_accum_steps"] or 1)
    if "vit_l_16" not in row["model"]:
        return {"predicted": None, "error": None, "reason": "several GPUs, which shard the optimizer state"}

    def build() -> Callable[[], None]:
        dtype = torch.bfloat16 if bf16 else torch.float32
        model = VisionTransformer(dtype)
        optimizer = OPTIMIZERS[row["optimizer"]](model.parameters())
        rows = int(row["batch_size"])

        def step() -> None:
            pixels, labels = torch.ones(rows, 3, 224, 224, dtype=dtype), torch.ones(rows, dtype=torch.long)
            for _ in range(accumulated):
                with torch.autocast("cpu", torch.float16) if half else contextlib.nullcontext():
                    loss = torch.nn.functional.cross_entropy(model(pixels), labels)
                if accumulated == 1:  # the script's order: gradients of the last step are there in the forward pass
                    optimizer.zero_grad()
                loss.backward()
            optimizer.step()
            if accumulated > 1:
                optimizer.zero_grad()

        return step

    estimate = estimate_loop(build, replace(GPUS["A100 80GB"], context_bytes=0))
    return compared(row, estimate.peak)


class VisionTransformer(torch.nn.Module):
    """The layers of torchvision's vit_l_16: torch's own attention, and no dropout."""

    def __init__(self, dtype: torch.dtype) -> None:
        super().__init__()
        self.patches = torch.nn.Conv2d(3, 1024, kernel_size=16, stride=16, dtype=dtype)
        self.first = torch.nn.Parameter(torch.zeros(1, 1, 1024, dtype=dtype))
        self.positions = torch.nn.Parameter(torch.zeros(1, 197, 1024, dtype=dtype))
        settings: dict[str, Any] = {"activation": "gelu", "batch_first": True, "norm_first": True, "dtype": dtype}
        layer = partial(torch.nn.TransformerEncoderLayer, 1024, 16, 4096, dropout=0.0, **settings)
        self.layers = torch.nn.ModuleList(layer() for _ in range(24))
        self.norm, self.head = torch.nn.LayerNorm(1024, dtype=dtype), torch.nn.Linear(1024, 10, dtype=dtype)

    def forward(self, pixels: torch.Tensor) -> torch.Tensor:
        patches = self.patches(pixels).flatten(2).transpose(1, 2)
        states = torch.cat([self.first.expand(len(pixels), -1, -1), patches], 1) + self.positions
        for layer in self.layers:
            states = layer(states)
        out: torch.Tensor = self.head(self.norm(states)[:, 0])
        return out


class AdamOf2023(torch.optim.Optimizer):
    """Adam for all parameters at once, as torch had it until July 2023: the root and the denominator are two copies."""

    def __init__(self, parameters: Iterable[torch.nn.Parameter]) -> None:
        super().__init__(parameters, {})

    @torch.no_grad()
    def step(self, closure: Any = None) -> None:
        parameters = [p for p in self.param_groups[0]["params"] if p.grad is not None]
        for p in parameters:
            if not self.state[p]:
                self.state[p] |= {name: torch.zeros_like(p) for name in ("mean", "square")}
        means, squares = ([self.state[p][name] for p in parameters] for name in ("mean", "square"))
        gradients = [p.grad for p in parameters]
        torch._foreach_mul_(means, 0.9)
        torch._foreach_add_(means, gradients, alpha=0.1)
        torch._foreach_mul_(squares, 0.999)
        torch._foreach_addcmul_(squares, gradients, gradients, 0.001)
        roots = torch._foreach_sqrt(squares)
        denominators = torch._foreach_add(roots, 1e-8)
        torch._foreach_addcdiv_(parameters, means, denominators, -5e-5)


OPTIMIZERS: dict[str, Callable[[Any], torch.optim.Optimizer]] = {
    "Adam": AdamOf2023,
    "SGD + cosine schedule": partial(torch.optim.SGD, lr=0.01, foreach=True),
}


def allocated(build: Loop, gpu: Device) -> int:
    """As torch's max_memory_allocated, which counts whole blocks: a remainder of up to 1 MiB is not split off."""
    traced, _ = trace_loop(build, gpu)
    timeline, allocator, peak = traced.timeline, CachingAllocator(), 0
    sizes, _ = timeline.read([])
    used = [index for index in range(len(sizes)) if sizes[index] > 0]
    frees = [(timeline.free_ticks[index], 0, index) for index in used]
    allocs = [(timeline.alloc_ticks[index], 1, index) for index in used]
    blocks: dict[int, MemoryBlock] = {}
    for _, is_alloc, index in sorted(frees + allocs):
        if is_alloc:
            blocks[index] = allocator.alloc(int(sizes[index]))
        else:
            allocator.free(blocks.pop(index))
        peak = max(peak, allocator.allocated)
    return peak


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
