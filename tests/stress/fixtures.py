"""The ground of all stress: a tiny training whose every bit is known, in this process or in one that may be killed."""

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


class Ground:
    """A folder with a model and reviews in it."""

    def __init__(self, folder: Path, **shape: Any) -> None:
        self.folder = folder
        self.model = make_model(folder / "model", **shape)
        self.data = write_reviews(folder / "reviews.csv", ROWS)
        torch.set_num_threads(1)  # tiny models gain nothing from more, and a fork has only one

    def job(self, **changes: Any) -> Job:
        settings = {"batch_size": BATCH, "max_length": 32, "learning_rate": 1e-3, "seed": 7, "epochs": 2, **changes}
        return Job(model=str(self.model), data=str(self.data), **settings)

    def train(self, out: str, use: list[str] | None = None, *, resume: bool = False, **settings: Any) -> Run:
        """A training in this process: every loss logged, no bill, which takes longer than the training."""
        job = self.job(**{key: settings.pop(key) for key in list(settings) if key in Job.model_fields})
        with (
            mock.patch.object(setup, "LOGGING_STEPS", 1),
            mock.patch.object(setup, "_predict_memory", return_value=(setup._Prediction(), ())),
        ):
            return train(job, use or [], out=self.folder / out, device="cpu", quiet=True, resume=resume, **settings)

    def weights(self, out: str) -> dict[str, torch.Tensor]:
        return load_file(self.folder / out / "model.safetensors")


def losses(run: Run) -> list[float]:
    """Of every step and every evaluation."""
    return [entry[key] for entry in run.history for key in ("loss", "eval_loss") if key in entry]


def same_bits(one: dict[str, torch.Tensor], other: dict[str, torch.Tensor]) -> bool:
    return one.keys() == other.keys() and all(torch.equal(one[name], other[name]) for name in one)


def in_child(work: Callable[[], int], output: Path) -> int:
    """Start work in a copy of this process, whose words go to a file; returns its number.

    A fork has everything loaded already, so that a killed run costs a second and not ten.
    """
    sys.stdout.flush()
    sys.stderr.flush()
    number = os.fork()
    if number:
        return number
    code = 70
    try:
        words = os.open(output, os.O_WRONLY | os.O_CREAT | os.O_TRUNC)
        os.dup2(words, 1)
        os.dup2(words, 2)
        _take_own_locks(tqdm)
        code = work()
    except BaseException:
        import traceback

        traceback.print_exc()
    finally:
        sys.stdout.flush()
        sys.stderr.flush()
        os._exit(code)


def _take_own_locks(bar: type[tqdm]) -> None:
    """Progress bars share a lock between forks, which a killed one would never give back to the next."""
    bar.set_lock(threading.RLock())
    for kind in bar.__subclasses__():
        _take_own_locks(kind)


def ending_of(child: int, seconds: float = 600) -> int:
    """Wait for a child: its exit code, or minus the signal that killed it. One that hangs is aborted."""
    end = time.monotonic() + seconds
    while (answer := os.waitpid(child, os.WNOHANG)) == (0, 0):
        if time.monotonic() > end:
            os.kill(child, signal.SIGABRT)
        time.sleep(0.005)
    return os.waitstatus_to_exitcode(answer[1])
