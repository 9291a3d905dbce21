"""Worker: one rung, or the forecast of all, in a process of its own.

A task comes in on standard input, a line of JSON goes out. A process that is killed takes nobody along.
"""

from __future__ import annotations

import json
import sys
from pathlib import Path
from typing import Any

from tightfit.cli.startup import exit_with_message, slim_process
from tightfit.job import Job


def main() -> None:
    """Do what is asked."""
    slim_process()
    task: dict[str, Any] = json.load(sys.stdin)
    job = Job(**task.pop("job"))
    with exit_with_message():
        answer = predict_recipes(job, **task) if "recipes" in task else measure(job, **task)
    sys.stdout.write(f"\n{json.dumps(answer)}\n")


def predict_recipes(job: Job, recipes: list[list[str]], device: str | None) -> list[dict[str, Any]]:
    """Memory and time of every recipe; of those that cannot be used why, of those that cannot be rehearsed nothing."""
    from tightfit.device import find_device
    from tightfit.planning.planner import Planner
    from tightfit.strategies.recipe import Recipe

    planner = Planner.of(job, find_device(device))
    return [_predict_one(planner, Recipe.parse(specs)) for specs in recipes]


def _predict_one(planner: Any, recipe: Any) -> dict[str, Any]:
    try:
        option = planner.option(recipe)
    except Exception:  # whatever a rehearsal stumbles over, the training itself may well run
        return {}
    if option is None:
        return {"failed": planner.rejection(recipe)}
    estimate = option.estimate
    kinds = {kind.value: size for kind, size in estimate.phases[estimate.phase].items()}
    return {
        "predicted": {
            "peak_bytes": estimate.peak,
            "phase": estimate.phase,
            "kinds": {"process": estimate.overhead, **kinds},
            "seconds_per_step": option.seconds_per_step,
            "steps_per_epoch": option.steps_per_epoch,
            "fits": estimate.fits,
        }
    }


def measure(job: Job, specs: list[str], device: str | None, folder: str, *, full: bool) -> dict[str, Any]:
    """Train, and keep the figures only."""
    from tightfit.api import train

    run = train(job, specs, out=Path(folder), device=device, quiet=True, measure_only=not full)
    ran_once = "features" in run.measured.phases
    return {
        "seed": job.seed,
        "peak_bytes": run.measured.peak_bytes,
        "predicted_bytes": run.predicted.peak_bytes,
        "phases": run.measured.phases,
        "seconds_per_step": run.measured.seconds_per_step,
        "steps": run.steps,
        "steps_per_epoch": -(-run.data.train_rows // job.batch_size),
        "first_epoch": run.measured.epochs[0] if ran_once and run.measured.epochs else None,
        "metrics": run.metrics if full else {},
        "notes": run.notes,
    }


if __name__ == "__main__":
    main()
