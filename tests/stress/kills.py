"""Kills: SIGKILL at random moments, many of them while a checkpoint is being written; every run is resumed to its end.

The weights, the losses and the number of steps have to be those of the undisturbed run, bit by bit, dropout included.
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

from stress.fixtures import Ground, ending_of, in_child, losses, same_bits

from tightfit import load_run
from tightfit.training.checkpoints import latest_checkpoint

RECIPES = {
    "plain": [],
    "slices": ["micro-batch:size=3", "gradient-checkpointing"],
    "in backward": ["chunked-layers:size=4", "adafactor", "optimizer-in-backward"],
    "16 bit": ["adamw-16bit", "chunked-layers:size=2"],
    "adapter": ["lora", "micro-batch:size=3"],
    "frozen": ["freeze", "length-bucketing"],
    "mixed": ["mixed-precision", "length-bucketing", "micro-batch:size=3"],
}
SAVE_EVERY = "3 steps"


class Kills:
    """Runs that are killed, beside the undisturbed run of their recipe."""

    def __init__(self, ground: Ground, seed: int = 0) -> None:
        self.ground, self.chance = ground, random.Random(seed)
        self._undisturbed: dict[str, float] = {}

    def suffer(self, number: int) -> dict[str, Any]:
        """One run, killed one to three times; every third is killed while it writes, every tenth before it begins."""
        recipe = list(RECIPES)[number % len(RECIPES)]
        seconds, out = self._undisturbed_seconds(recipe), f"killed-{number}"
        left, phases = self.chance.randint(1, 3), []
        while True:
            child = in_child(lambda: self._work(out, recipe), self.ground.folder / f"{out}.log")
            if left:
                self._strike(child, out, seconds, number)
            code = ending_of(child)
            if code == -signal.SIGKILL:
                left, phases = left - 1, [*phases, self._moment(out)]
            elif code or phases:
                break
            else:  # it was done before it was killed: once more, and sooner
                seconds /= 2
                shutil.rmtree(self.ground.folder / out)
        passed = code == 0 and self._is_as_undisturbed(out, recipe)
        return {"recipe": recipe, "killed": phases, "ended": code, "passed": passed}

    def _undisturbed_seconds(self, recipe: str) -> float:
        if recipe not in self._undisturbed:
            start = time.perf_counter()
            child = in_child(lambda: self._work(_name(recipe), recipe), self.ground.folder / f"{_name(recipe)}.log")
            assert ending_of(child) == 0, "the undisturbed run failed"
            self._undisturbed[recipe] = time.perf_counter() - start
        return self._undisturbed[recipe]

    def _work(self, out: str, recipe: str) -> int:
        resume = (self.ground.folder / out / "job.yaml").is_file()
        self.ground.train(out, RECIPES[recipe], resume=resume, save_every=SAVE_EVERY)
        return 0

    def _strike(self, child: int, out: str, seconds: float, number: int) -> None:
        """Kill it in a while, or a few milliseconds after it has begun to write a checkpoint."""
        folder = self.ground.folder / out
        if number % 10 == 9:
            time.sleep(seconds * self.chance.uniform(0, 0.5))
        elif number % 3 == 0:
            for _ in range(self.chance.randint(1, 3)):  # the first writings may pass
                _wait(child, lambda: not _is_writing(folder))
                _wait(child, lambda: _is_writing(folder))
            time.sleep(self.chance.uniform(0, 0.02))
        else:
            _wait(child, lambda: any(folder.glob("checkpoint-*")))
            time.sleep(seconds * self.chance.uniform(0, 0.6))
        os.kill(child, signal.SIGKILL)

    def _moment(self, out: str) -> str:
        folder = self.ground.folder / out
        if _is_writing(folder):
            return "writing a checkpoint"
        if not (folder / "job.yaml").is_file():
            return "before the run"
        return f"training after {latest_checkpoint(folder).name}" if latest_checkpoint(folder) else "beginning"

    def _is_as_undisturbed(self, out: str, recipe: str) -> bool:
        found, expected = (load_run(self.ground.folder / name) for name in (out, _name(recipe)))
        same_weights = same_bits(self.ground.weights(out), self.ground.weights(_name(recipe)))
        return same_weights and losses(found) == losses(expected) and found.steps == expected.steps


def _wait(child: int, happened: Callable[[], bool]) -> None:
    """Until something has happened, or the child has ended."""
    while not happened() and os.waitid(os.P_PID, child, os.WEXITED | os.WNOHANG | os.WNOWAIT) is None:
        time.sleep(0.0005)


def _is_writing(folder: Path) -> bool:
    return any(folder.glob(".checkpoint-*.part"))


def _name(recipe: str) -> str:
    return f"undisturbed-{recipe.replace(' ', '-')}"
