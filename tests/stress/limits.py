"""Limits: a real training in less memory than its recipe needs. The kernel refuses the memory, nobody pretends."""

from __future__ import annotations

import resource
from pathlib import Path
from typing import Any

from stress.fixtures import NO_DROPOUT, Ground, ending_of, in_child, losses

from tightfit import load_run
from tightfit.system import status

SHAPE = {"hidden_size": 128, "num_hidden_layers": 2, "num_attention_heads": 4, "intermediate_size": 20480}
JOB = {"batch_size": 48, "max_length": 32, "epochs": 2}
RECIPES = {"plain": [], "layers in backward": ["chunked-layers:size=48", "adafactor", "optimizer-in-backward"]}


class Limits:
    """Trainings under the kernel's limit for a process's data."""

    def __init__(self, folder: Path) -> None:
        self.ground = Ground(folder, **SHAPE, **NO_DROPOUT)

    def suffer(self, recipe: str) -> dict[str, Any]:
        """The limit lies in the middle between what the recipe needs and what two rows at once need."""
        name, use = recipe.replace(" ", "-"), RECIPES[recipe]
        small = ["micro-batch:size=2"] if not use else ["chunked-layers:size=2", *use[1:]]
        needed, enough = self._peak(f"{name}-free", use), self._peak(f"{name}-small", small)
        child = in_child(lambda: self._starved(name, use, (needed + enough) // 2), self.ground.folder / f"{name}.log")
        code = ending_of(child)
        result = {"recipe": recipe, "needed": needed, "allowed": (needed + enough) // 2, "ended": code}
        if code:
            said = (self.ground.folder / f"{name}.log").read_text().strip().splitlines()[-1:]
            return {**result, "passed": False, "said": said}
        run, free = (load_run(self.ground.folder / out) for out in (name, f"{name}-free"))
        said = [note for note in run.notes if "out of memory" in note]
        pairs = zip(losses(run), losses(free), strict=True)
        difference = max(abs(a - b) / abs(b) for a, b in pairs)
        passed = bool(said) and run.steps == free.steps and difference < 1e-4
        return {**result, "passed": passed, "steps": run.steps, "shrunk": len(said), "difference": difference}

    def _peak(self, name: str, use: list[str]) -> int:
        """The most memory of a process that may take what it likes."""
        child = in_child(lambda: self._work(name, use), self.ground.folder / f"{name}.log")
        assert ending_of(child) == 0, f"{name} failed"
        return load_run(self.ground.folder / name).measured.peak_bytes

    def _starved(self, name: str, use: list[str], allowed: int) -> int:
        """The kernel's limit counts what was asked for, not what is in use: the difference is the free run's."""
        limit = allowed + int((self.ground.folder / f"{name}-free.unused").read_text())
        resource.setrlimit(resource.RLIMIT_DATA, (limit, limit))
        return self._work(name, use)

    def _work(self, name: str, use: list[str]) -> int:
        self.ground.train(name, use, **JOB)
        (self.ground.folder / f"{name}.unused").write_text(str(status("VmData") - status("VmRSS")))
        return 0
