"""Runs code in a process that sees a fake GPU."""

from __future__ import annotations

import os
import subprocess
import sys
import textwrap
from pathlib import Path
from typing import Any

from fake_gpu import FakeGPU

ROOT = Path(__file__).parents[2]
GB = 1 << 30
START = """
from tightfit.optional_imports import slim_process
slim_process()  # as on the command line: bitsandbytes initializes CUDA when it is imported
import json, os, sys
from pathlib import Path
from conftest import make_model, write_reviews
import fake_gpu, torch
from tightfit import Job, plan, train
folder = Path(sys.argv[1])

def job(**settings):
    return Job(**{"model": str(model), "data": str(data), "batch_size": 8, "max_length": 32, "max_steps": 3} | settings)

model, data = make_model(folder / "model"), write_reviews(folder / "reviews.csv")
"""


def run(code: str, folder: Path, *, fails: bool = False, visible: str | None = None, **gpu: Any) -> str:
    """What Python code with a tiny model and reviews prints; if it is to fail, what it writes to stderr."""
    path = os.pathsep.join(str(ROOT / name) for name in ("", "src", "tests"))
    environment = os.environ | FakeGPU(**gpu).environment() | {"PYTHONPATH": path, "HF_HUB_OFFLINE": "1"}
    environment["HF_DATASETS_CACHE"] = str(folder / "rows")
    if visible is not None:
        environment["CUDA_VISIBLE_DEVICES"] = visible
    command = [sys.executable, "-c", START + textwrap.dedent(code), str(folder)]
    done = subprocess.run(command, env=environment, capture_output=True, text=True, timeout=600, check=False)
    assert (done.returncode != 0) is fails, done.stderr
    return done.stderr if fails else done.stdout.strip()
