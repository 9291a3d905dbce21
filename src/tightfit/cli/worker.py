"""Worker process of a comparison: measures one recipe, or predicts all of them.

It reads a task as JSON from standard input and prints the result as one line of JSON. If it is killed, the comparison
continues.
"""

from __future__ import annotations

import json
import sys
from pathlib import Path
from typing import Any

from tightfit.cli.startup import exit_with_message, slim_process
from tightfit.device import find_device
from tightfit.job import Job


def main() -> None:
    """Run the task from standard input."""
    slim_process()
    task: dict[str, Any] = json.load(sys.stdin)
    job = Job(**task.pop("job"))
    with exit_with_message():
        result = predict_recipes(job, **task) if "recipes" in task else measure(job, **task)
    sys.stdout.write(f"\n{json.dumps(result)}\n")


def predict_recipes(job: Job, recipes: list[list[str]], device: str | None) -> list[dict[str, Any]]:
    """Memory and time of every recipe; the reason if it is rejected, nothing if it cannot be simulated."""
    from tightfit.planning.planner import Planner
    from tightfit.strategies.recipe import Recipe

    planner = Planner.of(job, find_device(device))
    return [_predict_one(planner, Recipe.parse(specs)) for specs in recipes]


def _predict_one(planner: Any, recipe: Any) -> dict[str, Any]:
    try:
        option = planner.option(recipe)
    except Exception:  # the training itself may run although the simulation failed
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
    """Train a recipe and return its measurements."""
    from tightfit.api import train

    run = train(job, specs, out=Path(folder), device=device, quiet=True, measure_only=not full)
    cached = "features" in run.measured.phases
    return {
        "seed": job.seed,
        "peak_bytes": run.measured.peak_bytes,
        "predicted_bytes": run.predicted.peak_bytes,
        "phases": run.measured.phases,
        "seconds_per_step": run.measured.seconds_per_step,
        "steps": run.steps,
        "steps_per_epoch": -(-run.data.train_rows // job.batch_size),
        "first_epoch_seconds": run.measured.epochs[0] if cached and run.measured.epochs else None,
        "metrics": run.metrics if full else {},
        "notes": run.notes,
    }


if __name__ == "__main__":
    main()
