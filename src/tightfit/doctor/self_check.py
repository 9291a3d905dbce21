"""Self-check: a small model is trained by several recipes, and what was measured stands beside what was predicted.

The model is made from a config, with random weights, and the data comes with the package: nothing is downloaded.
"""

from __future__ import annotations

import json
import re
import tempfile
from collections import Counter
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from tightfit.api import compare
from tightfit.comparison.comparison import ComparisonRow
from tightfit.demo import demo_reviews
from tightfit.device import Device
from tightfit.gpus import remember_gpu
from tightfit.job import Job
from tightfit.messages import Message, as_data
from tightfit.optional_imports import slim_process
from tightfit.system.processes import Worker

_STEPS = 3
_RECIPES = {
    "cpu": ("baseline", "micro-batch:size=4 gradient-checkpointing", "chunked-layers:size=4 adafactor"),
    "cuda": ("baseline", "micro-batch:size=4 gradient-checkpointing", "mixed-precision adafactor"),
}
_WIDTH, _LAYERS = {"cpu": 512, "cuda": 768}, {"cpu": 4, "cuda": 6}
"""A GPU's allocator takes segments of 20 MiB, which are a large part of a small model."""
_SPECIAL = ("[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]")


@dataclass(frozen=True)
class CheckedRecipe:
    """A recipe that was trained for some steps."""

    recipe: str
    predicted_bytes: int | None
    """Of a CPU's whole process, or what torch reserves on a GPU; None if it could not be predicted."""
    measured_bytes: int | None
    """None if the training failed."""
    predicted_seconds: float | None
    measured_seconds: float | None
    """Of a step."""
    failed: Message | None

    @property
    def error(self) -> float | None:
        """Predicted over measured memory, minus one."""
        if not self.predicted_bytes or not self.measured_bytes:
            return None
        return self.predicted_bytes / self.measured_bytes - 1


@dataclass(frozen=True)
class SelfCheck:
    """Predicted and measured memory and time of several recipes."""

    recipes: list[CheckedRecipe]
    context_bytes: int | None
    """Of the CUDA context with the kernels of a training; None on a CPU, or if it cannot be told."""

    @property
    def failures(self) -> list[Message]:
        """Why recipes failed."""
        return [row.failed for row in self.recipes if row.failed]

    def to_json(self) -> dict[str, Any]:
        """For scripts."""
        rows = [
            {**as_data(asdict(row)), "recipe": str(row.recipe), "error": row.error and round(row.error, 4)}
            for row in self.recipes
        ]
        return {"recipes": rows, "context_bytes": self.context_bytes}


def check_predictions(device: Device) -> SelfCheck:
    """Train and compare; on a GPU what the CUDA context takes is measured first, and kept."""
    context = _measured_context(device) if device.kind == "cuda" else None
    if context is not None:
        remember_gpu(device.uuid, context=context)
    with tempfile.TemporaryDirectory(prefix="tightfit-doctor-") as folder:
        job = _small_job(Path(folder), device.kind)
        recipes = _RECIPES.get(device.kind, _RECIPES["cpu"][:2])
        out = Path(folder) / "comparison"
        found = compare(job, recipes, steps=_STEPS, device=device.kind, out=out, quiet=True)
    return SelfCheck([_checked(row, device) for row in found.rows], context)


def _checked(row: ComparisonRow, device: Device) -> CheckedRecipe:
    predicted, peak = row.predicted, row.predicted_peak
    if device.kind == "cuda" and peak is not None and not row.measurements:
        peak -= device.context_bytes  # which is not part of what is measured
    seconds = predicted.seconds_per_step if predicted else None
    return CheckedRecipe(row.title, peak, row.peak, seconds, row.seconds_per_step, row.failed)


def _small_job(folder: Path, device: str) -> Job:
    """A BERT of few layers with the words of the reviews, and the reviews."""
    model, reviews = folder / "model", demo_reviews()
    model.mkdir()
    counts = Counter(re.findall(r"[a-z]+|[^\sa-z]", reviews.read_text("utf-8").lower()))
    words = [*_SPECIAL, *sorted(counts)]
    (model / "vocab.txt").write_text("\n".join(words) + "\n", "utf-8")
    width, layers = _WIDTH.get(device, 512), _LAYERS.get(device, 4)
    shape = {"hidden_size": width, "intermediate_size": 4 * width, "num_attention_heads": width // 64}
    settings = {"model_type": "bert", "vocab_size": len(words), "num_hidden_layers": layers, **shape}
    (model / "config.json").write_text(json.dumps(settings), "utf-8")
    (model / "tokenizer_config.json").write_text(json.dumps({"tokenizer_class": "BertTokenizer"}), "utf-8")
    return Job(model=str(model), data=str(reviews), batch_size=8, max_length=64, random_weights=True)


def _measured_context(device: Device) -> int | None:
    """Bytes that another process takes beside its tensors, after a training step; None if the driver does not count it.

    Its memory is the difference that this process sees: other programs and this one's own context are in both numbers.
    """
    before = _used(device.name)
    with Worker(slim_process) as worker:
        used, reserved = worker.call(_train_step, device.name)
    return max(0, used - before - reserved) or None


def _used(name: str) -> int:
    import torch

    free, total = torch.cuda.mem_get_info(name)
    return total - free


def _train_step(name: str) -> tuple[int, int]:
    """Run a small step in fp32 and in 16 bits; the bytes in use on the GPU, and those that torch has reserved."""
    import torch

    width = _WIDTH["cuda"]
    layer = torch.nn.TransformerEncoderLayer(width, width // 64, batch_first=True, device=name)
    optimizer = torch.optim.AdamW(layer.parameters())
    for enabled in (False, True):
        with torch.autocast("cuda", torch.float16, enabled=enabled):
            loss = layer(torch.zeros(4, 64, width, device=name)).float().sum()
        loss.backward()
        optimizer.step()
        optimizer.zero_grad()
    torch.cuda.synchronize(name)
    return _used(name), torch.cuda.memory_reserved(name)
