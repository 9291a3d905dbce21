"""How near a training step comes to the machine's limit: its own matrix products, timed alone in the same run.

Useful products are those of the plain model on the same micro-batches; what a recipe recomputes is not useful. A batch
is 32 hotel reviews of at most 128 tokens, random weights. Needs ../shared. Writes records/roofline.json; a model that
is in it is measured again only if it is named.
"""

from __future__ import annotations

import argparse
import contextlib
import json
import statistics
import tempfile
import time
from collections import Counter
from collections.abc import Iterator
from functools import partial
from pathlib import Path
from typing import Any

import torch
from memory import FROM_CONFIG, model
from torch.utils._python_dispatch import TorchDispatchMode
from transformers import DataCollatorWithPadding

from cpu_speed import machine
from quality import ROOT, split
from tightfit import Job
from tightfit.device import find_device
from tightfit.engine.assembly import build_optimizer
from tightfit.engine.micro_batch_loss import model_loss, weighted_micro_batches
from tightfit.engine.step import clip_gradients, train_batch
from tightfit.strategies.parts import Precision
from tightfit.strategies.recipe import Recipe
from tightfit.system.memory import tuned_malloc
from tightfit.training.setup import prepare

RECORD = ROOT / "records" / "roofline.json"
FROM_CONFIG["SmolLM2-135M"] = (
    "LlamaConfig",
    {"hidden_size": 576, "num_hidden_layers": 30, "num_attention_heads": 9, "num_key_value_heads": 3}
    | {"intermediate_size": 1536, "vocab_size": 49152, "pad_token_id": 0},
)
TOKENS = {"m3e-small": 4096, "bert-base-chinese": 2048, "chinese-macbert-large": 512, "SmolLM2-135M": 1024}
PRECISIONS = {"fp32": [], "bf16": ["mixed-precision"]}
STEPS, WARM_UP, TRIALS = 3, 1, 3
_PRODUCTS = {torch.ops.aten.mm, torch.ops.aten.addmm, torch.ops.aten.bmm, torch.ops.aten.baddbmm}


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument(
        "models", nargs="*", metavar="MODEL", help=f"some of {', '.join(TOKENS)} [default: the missing]"
    )
    given = parser.parse_args()
    record = json.loads(RECORD.read_text("utf-8")) if RECORD.is_file() else {"runs": {}}
    for name in given.models or [each for each in TOKENS if each not in record["runs"]]:
        record["runs"][name] = measure(name)
        record["machine"] = {**machine(), "threads": torch.get_num_threads()}
        record["clock"] = "processor" if torch.get_num_threads() == 1 else "wall"
        RECORD.write_text(json.dumps(record, indent=1) + "\n", "utf-8")
        print(name, json.dumps(record["runs"][name], indent=1), flush=True)


def measure(name: str) -> dict[str, Any]:
    with tempfile.TemporaryDirectory() as folder:
        train, validation = split(Path(folder), 400)
        files = {"data": str(train), "validation": str(validation)}
        job = Job(model=str(model(name, Path(folder))), **files, random_weights=True)
        return {precision: share(job, TOKENS[name], specs) for precision, specs in PRECISIONS.items()}


def share(job: Job, tokens: int, precision: list[str]) -> dict[str, Any]:
    useful = useful_products(job, [f"micro-batch:tokens={tokens}", *precision])
    recipe = ["tiled-attention", f"micro-batch:tokens={tokens}", *precision]
    with tuned_malloc(), training(job, recipe) as step:
        turns = [(step(), seconds_of(useful)) for _ in range(WARM_UP + STEPS)][WARM_UP:]
    return {
        "recipe": " ".join(recipe),
        "seconds": statistics.median(seconds for seconds, _ in turns),
        "seconds_of_products": statistics.median(products for _, products in turns),
        "share": statistics.median(products / seconds for seconds, products in turns),
        "shares": [products / seconds for seconds, products in turns],
        "products": sum(useful.values()),
    }


@contextlib.contextmanager
def training(job: Job, recipe: list[str], attention: str | None = None) -> Iterator[Any]:
    """A function that takes a whole step on the same batch and returns its seconds."""
    prepared = prepare(job, Recipe.parse(recipe), find_device("cpu"))
    parts, rows = prepared.parts, prepared.train.dataset
    batch = dict(DataCollatorWithPadding(prepared.tokenizer)([rows[i] for i in range(job.batch_size)]))
    optimizer = build_optimizer(parts)
    if attention is not None:
        parts.model.set_attn_implementation(attention)

    def loss(model: Any, micro_batch: Any) -> torch.Tensor:
        with torch.autocast("cpu", torch.bfloat16, enabled=parts.precision is Precision.BF16):
            return model_loss(model, micro_batch)

    def step() -> float:
        start, batching = clock(), parts.step_batching
        weighted = weighted_micro_batches(parts.model, batch, batching.limits(), sort=batching.sorts)
        train_batch(parts.model, weighted, loss, torch.Tensor.backward, no_phase)
        clip_gradients(parts.model, parts.max_grad_norm, no_phase)
        optimizer.step()
        optimizer.zero_grad()
        return clock() - start

    yield step


def clock() -> float:
    """The time of the processor with one thread, so that other work on the machine does not count; else time."""
    return time.process_time() if torch.get_num_threads() == 1 else time.perf_counter()


def no_phase(name: str) -> contextlib.AbstractContextManager[None]:
    return contextlib.nullcontext()


Product = tuple[Any, tuple[tuple[Any, ...], ...]]
"""A function, and shape, strides and number format of each factor."""


class Products(TorchDispatchMode):
    """Counts the matrix products that run; those of a fused kernel would not be seen."""

    def __init__(self) -> None:
        super().__init__()
        self.counts: Counter[Product] = Counter()

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        if func.overloadpacket in _PRODUCTS:
            factors = tuple((tuple(a.shape), a.stride(), a.dtype) for a in args if isinstance(a, torch.Tensor))
            self.counts[func.overloadpacket, factors] += 1
        return func(*args, **(kwargs or {}))


def useful_products(job: Job, recipe: list[str]) -> Counter[Product]:
    with training(job, recipe, "eager") as step, Products() as products:
        step()
    return products.counts


def seconds_of(products: Counter[Product]) -> float:
    """The time of all these products, one after the other, with results in memory that is there already."""
    return sum(count * best_seconds(*product) for product, count in products.items())


def best_seconds(function: Any, factors: tuple[tuple[Any, ...], ...]) -> float:
    operands = [torch.empty_strided(shape, strides, dtype=dtype).fill_(0.5) for shape, strides, dtype in factors]
    run = partial(function, *operands, out=function(*operands))
    seconds = []
    for _ in range(TRIALS):
        start = clock()
        run()
        seconds.append(clock() - start)
    return min(seconds)


if __name__ == "__main__":
    main()
