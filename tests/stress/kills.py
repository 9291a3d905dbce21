"""SIGKILL at random times, often while a checkpoint is being written; every run is resumed until it finishes.

The weights, the losses and the number of steps have to be bit-identical to the uninterrupted run, with dropout on.
"""

from __future__ import annotations

import os
import random
import shutil
import signal
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

from stress.fixtures import Workspace, losses, same_bits, start_child, wait_for

from tightfit import load_run
from tightfit.training.checkpoints import latest_checkpoint

RECIPES = {
    "baseline": [],
    "micro-batches": ["micro-batch:size=3", "gradient-checkpointing"],
    "optimizer in backward": ["chunked-layers:size=4", "adafactor", "optimizer-in-backward"],
    "16-bit optimizer": ["adamw-16bit", "chunked-layers:size=2"],
    "lora": ["lora", "micro-batch:size=3"],
    "frozen encoder": ["freeze", "length-bucketing"],
    "mixed precision": ["mixed-precision", "length-bucketing", "micro-batch:size=3"],
}
SAVE_EVERY = "3 steps"


class Kills:
    """Kills runs and compares them with the uninterrupted run of their recipe."""

    def __init__(self, workspace: Workspace, seed: int = 0) -> None:
        self.workspace, self.rng = workspace, random.Random(seed)
        self._uninterrupted: dict[str, float] = {}

    def run_case(self, number: int) -> dict[str, Any]:
        """Kill a run one to three times: every third while it writes a checkpoint, every tenth before it starts."""
        recipe = list(RECIPES)[number % len(RECIPES)]
        seconds, out = self._uninterrupted_seconds(recipe), f"killed-{number}"
        kills_left, killed_while = self.rng.randint(1, 3), []
        while True:
            child = start_child(lambda: self._work(out, recipe), self.workspace.folder / f"{out}.log")
            if kills_left:
                self._kill(child, out, seconds, number)
            code = wait_for(child)
            if code == -signal.SIGKILL:
                kills_left, killed_while = kills_left - 1, [*killed_while, self._activity(out)]
            elif code or killed_while:
                break
            else:  # it finished before it was killed: repeat with an earlier kill
                seconds /= 2
                shutil.rmtree(self.workspace.folder / out)
        passed = code == 0 and self._equals_uninterrupted(out, recipe)
        return {"recipe": recipe, "killed_while": killed_while, "exit_code": code, "passed": passed}

    def _uninterrupted_seconds(self, recipe: str) -> float:
        if recipe not in self._uninterrupted:
            start = time.perf_counter()
            child = start_child(
                lambda: self._work(_name(recipe), recipe), self.workspace.folder / f"{_name(recipe)}.log"
            )
            assert wait_for(child) == 0, "the uninterrupted run failed"
            self._uninterrupted[recipe] = time.perf_counter() - start
        return self._uninterrupted[recipe]

    def _work(self, out: str, recipe: str) -> int:
        resume = (self.workspace.folder / out / "job.yaml").is_file()
        self.workspace.train(out, RECIPES[recipe], resume=resume, save_every=SAVE_EVERY)
        return 0

    def _kill(self, child: int, out: str, seconds: float, number: int) -> None:
        """Kill it after a random time, or a few milliseconds after it starts to write a checkpoint."""
        folder = self.workspace.folder / out
        if number % 10 == 9:
            time.sleep(seconds * self.rng.uniform(0, 0.5))
        elif number % 3 == 0:
            for _ in range(self.rng.randint(1, 3)):  # the first checkpoints may be completed
                _wait(child, lambda: not _is_writing(folder))
                _wait(child, lambda: _is_writing(folder))
            time.sleep(self.rng.uniform(0, 0.02))
        else:
            _wait(child, lambda: any(folder.glob("checkpoint-*")))
            time.sleep(seconds * self.rng.uniform(0, 0.6))
        os.kill(child, signal.SIGKILL)

    def _activity(self, out: str) -> str:
        """What the process was doing when it was killed."""
        folder = self.workspace.folder / out
        if _is_writing(folder):
            return "writing a checkpoint"
        if not (folder / "job.yaml").is_file():
            return "before the run"
        return f"training after {latest_checkpoint(folder).name}" if latest_checkpoint(folder) else "starting"

    def _equals_uninterrupted(self, out: str, recipe: str) -> bool:
        found, expected = (load_run(self.workspace.folder / name) for name in (out, _name(recipe)))
        same_weights = same_bits(self.workspace.weights(out), self.workspace.weights(_name(recipe)))
        return same_weights and losses(found) == losses(expected) and found.steps == expected.steps


def _wait(child: int, condition: Callable[[], bool]) -> None:
    """Wait until the condition holds or the child has ended."""
    while not condition() and os.waitid(os.P_PID, child, os.WEXITED | os.WNOHANG | os.WNOWAIT) is None:
        time.sleep(0.0005)


def _is_writing(folder: Path) -> bool:
    return any(folder.glob(".checkpoint-*.part"))


def _name(recipe: str) -> str:
    return f"uninterrupted-{recipe.replace(' ', '-')}"
