"""Ladder: several recipes measured side by side on this machine, each in a process of its own."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from tightfit.comparison.comparison import Ladder
from tightfit.job import Job

__all__ = ["Ladder", "ladder"]


def ladder(
    job: Job,
    rungs: str | Sequence[str] = "all",
    *,
    steps: int = 8,
    full: bool = False,
    seeds: int = 1,
    budget: str | None = None,
    device: str | None = None,
    out: str | Path = "ladder",
    quiet: bool = False,
) -> Ladder:
    """Measure recipes side by side and write what they took to `out`.

    `rungs` is a preset (tutorial, ours, all) or a list of recipes such as "slice:size=8 checkpoint". Each is trained
    for some steps, or with `full` to the end of the job, once for each seed. Called again it goes on where it stopped.
    """
    from tightfit.comparison.comparison import find_rungs
    from tightfit.comparison.runner import climb

    return climb(
        job.with_full_paths(),
        find_rungs(rungs, job, device),
        steps=None if full else steps,
        seeds=seeds,
        budget=budget,
        device=device,
        out=Path(out),
        quiet=quiet,
    )
