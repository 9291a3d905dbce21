"""Memory limits: real training runs in less memory than their recipe needs, where the kernel refuses allocations."""

from __future__ import annotations

import resource
from pathlib import Path
from typing import Any

from stress.fixtures import NO_DROPOUT, Workspace, losses, start_child, wait_for

from tightfit import load_run
from tightfit.system.memory import proc_status

SHAPE = {"hidden_size": 128, "num_hidden_layers": 2, "num_attention_heads": 4, "intermediate_size": 20480}
JOB = {"batch_size": 48, "max_length": 32, "epochs": 2}
RECIPES = {"baseline": [], "chunked layers": ["chunked-layers:size=48", "adafactor", "optimizer-in-backward"]}


class MemoryLimits:
    """Training runs under RLIMIT_DATA."""

    def __init__(self, folder: Path) -> None:
        self.workspace = Workspace(folder, **SHAPE, **NO_DROPOUT)

    def run_case(self, recipe: str) -> dict[str, Any]:
        """Train with a limit midway between the needs of the recipe and of micro-batches of two rows."""
        name, use = recipe.replace(" ", "-"), RECIPES[recipe]
        small = ["micro-batch:size=2"] if not use else ["chunked-layers:size=2", *use[1:]]
        needed, sufficient = self._peak(f"{name}-free", use), self._peak(f"{name}-small", small)
        limit = (needed + sufficient) // 2
        child = start_child(lambda: self._limited(name, use, limit), self.workspace.folder / f"{name}.log")
        code = wait_for(child)
        result = {"recipe": recipe, "needed_bytes": needed, "limit_bytes": limit, "exit_code": code}
        if code:
            messages = (self.workspace.folder / f"{name}.log").read_text().strip().splitlines()[-1:]
            return {**result, "passed": False, "messages": messages}
        run, free = (load_run(self.workspace.folder / out) for out in (name, f"{name}-free"))
        messages = [note for note in run.notes if "out of memory" in note]
        pairs = zip(losses(run), losses(free), strict=True)
        difference = max(abs(a - b) / abs(b) for a, b in pairs)
        passed = bool(messages) and run.steps == free.steps and difference < 1e-4
        return {
            **result,
            "passed": passed,
            "steps": run.steps,
            "times_halved": len(messages),
            "loss_difference": difference,
        }

    def _peak(self, name: str, use: list[str]) -> int:
        """The peak memory of a process without a limit."""
        child = start_child(lambda: self._work(name, use), self.workspace.folder / f"{name}.log")
        assert wait_for(child) == 0, f"{name} failed"
        return load_run(self.workspace.folder / name).measured.peak_bytes

    def _limited(self, name: str, use: list[str], limit: int) -> int:
        """RLIMIT_DATA counts allocated, not resident memory: the difference is taken from the run without a limit."""
        data_limit = limit + int((self.workspace.folder / f"{name}-free.not_resident").read_text())
        resource.setrlimit(resource.RLIMIT_DATA, (data_limit, data_limit))
        return self._work(name, use)

    def _work(self, name: str, use: list[str]) -> int:
        self.workspace.train(name, use, **JOB)
        (self.workspace.folder / f"{name}.not_resident").write_text(str(proc_status("VmData") - proc_status("VmRSS")))
        return 0
