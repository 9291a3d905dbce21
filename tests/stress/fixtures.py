"""Fixtures of the stress suite: a tiny reproducible training, in this process or in a child that may be killed."""

from __future__ import annotations

import os
import signal
import sys
import threading
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any
from unittest import mock

import torch
from conftest import make_model, write_reviews
from safetensors.torch import load_file
from tqdm import tqdm

from tightfit import Job, Run, train
from tightfit.training import setup

ROWS, BATCH = 60, 8
STEPS_PER_EPOCH = 7  # 54 rows to train on
NO_DROPOUT = {"hidden_dropout_prob": 0.0, "attention_probs_dropout_prob": 0.0}


class Workspace:
    """A folder with a tiny model, a data file and the runs trained from them."""

    def __init__(self, folder: Path, **shape: Any) -> None:
        self.folder = folder
        self.model = make_model(folder / "model", **shape)
        self.data = write_reviews(folder / "reviews.csv", ROWS)
        torch.set_num_threads(1)  # tiny models gain nothing from more, and a forked child has only one

    def job(self, **changes: Any) -> Job:
        settings = {"batch_size": BATCH, "max_length": 32, "learning_rate": 1e-3, "seed": 7, "epochs": 2, **changes}
        return Job(model=str(self.model), data=str(self.data), **settings)

    def train(self, out: str, use: list[str] | None = None, *, resume: bool = False, **settings: Any) -> Run:
        """Train in this process with every loss logged, and without the memory estimate, which would take longer."""
        job = self.job(**{key: settings.pop(key) for key in list(settings) if key in Job.model_fields})
        with (
            mock.patch.object(setup, "LOGGING_STEPS", 1),
            mock.patch.object(setup, "_predict_memory", return_value=(setup._Prediction(), ())),
        ):
            how: dict[str, Any] = {"device": "cpu", "budget": "none", "quiet": True, "resume": resume} | settings
            return train(job, use or [], out=self.folder / out, **how)

    def weights(self, out: str) -> dict[str, torch.Tensor]:
        return load_file(self.folder / out / "model.safetensors")


def losses(run: Run) -> list[float]:
    """The losses of every step and every evaluation."""
    return [entry[key] for entry in run.history for key in ("loss", "eval_loss") if key in entry]


def same_bits(one: dict[str, torch.Tensor], other: dict[str, torch.Tensor]) -> bool:
    return one.keys() == other.keys() and all(torch.equal(one[name], other[name]) for name in one)


def start_child(work: Callable[[], int], output: Path) -> int:
    """Run work in a fork of this process with its output in a file; returns the process ID.

    A fork has all libraries loaded, so a killed run costs one second and not ten.
    """
    sys.stdout.flush()
    sys.stderr.flush()
    pid = os.fork()
    if pid:
        return pid
    code = 70
    try:
        log = os.open(output, os.O_WRONLY | os.O_CREAT | os.O_TRUNC)
        os.dup2(log, 1)
        os.dup2(log, 2)
        _replace_locks(tqdm)
        code = work()
    except BaseException:
        import traceback

        traceback.print_exc()
    finally:
        sys.stdout.flush()
        sys.stderr.flush()
        os._exit(code)


def _replace_locks(bar: type[tqdm]) -> None:
    """Progress bars share a lock between forks, which a killed process would never release."""
    bar.set_lock(threading.RLock())
    for kind in bar.__subclasses__():
        _replace_locks(kind)


def wait_for(child: int, seconds: float = 600) -> int:
    """Wait for a child and return its exit code, or minus the signal that killed it; a hanging child is aborted."""
    end = time.monotonic() + seconds
    while (status := os.waitpid(child, os.WNOHANG)) == (0, 0):
        if time.monotonic() > end:
            os.kill(child, signal.SIGABRT)
        time.sleep(0.005)
    return os.waitstatus_to_exitcode(status[1])
