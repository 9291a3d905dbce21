"""Process size of an exported script, measured by running it with a tiny model: it imports more than tightfit does."""

from __future__ import annotations

import subprocess
import sys
import tempfile
from functools import cache
from pathlib import Path

from tightfit.errors import RunFailed
from tightfit.messages import msg, verbatim
from tightfit.system.processes import be_killed_first

_MODEL = """\
# As wide as the buffers that matmul kernels keep; the model's own code and that of loading weights is imported too.
import contextlib

import torch
import torch.fx.experimental.symbolic_shapes
from transformers import AutoConfig, AutoModelForSequenceClassification, ElectraConfig

with contextlib.suppress(Exception), torch.device("meta"):
    AutoModelForSequenceClassification.from_config(AutoConfig.from_pretrained(MODEL))
sizes = {"embedding_size": 8, "hidden_size": 768, "num_attention_heads": 12, "intermediate_size": 3072}
positions = {"max_position_embeddings": max(512, MAX_LENGTH)}
config = ElectraConfig(vocab_size=len(tokenizer), num_hidden_layers=1, **sizes, **positions)
config.num_labels = 1 if "names" not in globals() else len(names)
model = AutoModelForSequenceClassification.from_config(config)
"""


def tiny_model(head: str) -> str:
    """The lines of the script that make the tiny model, with this auto class."""
    return _MODEL.replace("AutoModelForSequenceClassification", head)


SIZE = """\
import gc
from pathlib import Path

del trainer, model
gc.collect()
if sys.platform == "linux":
    ctypes.CDLL(None).malloc_trim(0)
    print(next(line.split()[1] for line in Path("/proc/self/status").open() if line.startswith("VmRSS:")))
else:
    import psutil

    print(psutil.Process().memory_info().rss >> 10)
"""
"""The lines of the script that print its size in KiB, without tensors."""


@cache
def measured_process(script: str) -> int:
    """Run a script that ends with `SIZE`; the bytes of its process without tensors."""
    with tempfile.TemporaryDirectory() as folder:
        file = Path(folder) / "script.py"
        file.write_text(script, "utf-8")
        done = subprocess.run(
            [sys.executable, str(file)], cwd=folder, capture_output=True, text=True, preexec_fn=be_killed_first
        )
    lines = (done.stdout if done.returncode == 0 else done.stderr).strip().splitlines() or ["killed"]
    if done.returncode != 0:
        raise RunFailed(msg("The exported script would not run here ({reason}).", reason=verbatim(lines[-1])))
    return int(lines[-1]) << 10
