"""Every layer of BERT-Large in little memory: our recipes beside transformers.Trainer, with interleaved steps.

Each run has its own process (tightfit's command line, or the tutorials' script). The processes take their steps in
turns, so that a change in the machine's speed affects all of them alike. `length-bucketing` makes short and long
batches: its steps are weighted by their predicted time to get the mean step of an epoch. The steps of Trainer all take
about as long. The shape of macbert-large with random weights, real reviews. Needs ../shared. Writes
records/comparison.json.
"""

from __future__ import annotations

import argparse
import csv
import json
import os
import statistics
import subprocess
import sys
import tempfile
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from predicted_steps import predicted_steps
from quality import ROOT, SHARED, split, write
from tightfit import Job
from tightfit.timing.cpu_load import CpuShare

RECORD = ROOT / "records" / "comparison.json"
MODEL = "chinese-macbert-large"
BATCH, LENGTH = 32, 128
RECIPES = [
    "tiled-attention chunked-layers:size=8,layers=2 length-bucketing adafactor optimizer-in-backward",
    "tiled-attention chunked-layers:size=8,layers=2 adamw-16bit optimizer-in-backward",
]
BASELINE = "transformers.Trainer"
WARM_UP = 1


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--steps", type=int, default=8)
    parser.add_argument("--layers", type=int, default=None, help="a model with fewer layers, for a trial run")
    parser.add_argument("--recipes", nargs="*", default=RECIPES)
    parser.add_argument("--record", type=Path, default=RECORD)
    given = parser.parse_args()
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        model, files = copy_shape(folder, given.layers), write_rows(folder)
        steps = given.steps + WARM_UP
        runs = [GatedRun(BASELINE, baseline_command(model, files, steps))]
        runs += [GatedRun(recipe, our_command(model, files, steps, recipe, folder)) for recipe in given.recipes]
        load = CpuShare()
        for step in range(steps):
            for run in runs:
                run.run_step()
                print(step, f"{run.seconds[-1]:.1f} s", run.name, flush=True)
        job = Job(
            model=str(model),
            data=files[1],
            validation=files[3],
            batch_size=BATCH,
            max_length=LENGTH,
            random_weights=True,
        )
        predicted = predicted_steps(job, [recipe.split() for recipe in given.recipes], WARM_UP, given.steps)
        steal = {"steal": round(load.steal, 3)}  # share of CPU time that the hypervisor gave to other machines
        record = summary(runs, list(predicted), given.layers) | steal
    given.record.write_text(json.dumps(record, indent=1) + "\n", "utf-8")
    print(json.dumps(record, indent=1))


@dataclass
class GatedRun:
    """A training run in its own process that takes a step when it is asked for one."""

    name: str
    command: list[str]
    seconds: list[float] = field(default_factory=list)

    def __post_init__(self) -> None:
        (go_read, go_write), (times_read, times_write) = os.pipe(), os.pipe()
        gate = [sys.executable, str(ROOT / "bench" / "gated.py"), str(go_read), str(times_write)]
        self.process = subprocess.Popen(
            [*gate, *self.command], pass_fds=(go_read, times_write), stdout=subprocess.PIPE, text=True
        )
        os.close(go_read)
        os.close(times_write)
        self.go, self.times = os.fdopen(go_write, "w"), os.fdopen(times_read)

    def run_step(self) -> None:
        print(file=self.go, flush=True)
        self.seconds.append(float(self.times.readline()))

    def result(self) -> dict[str, Any]:
        print(file=self.go, flush=True)
        printed, _ = self.process.communicate()
        record = json.loads(printed[printed.rindex("\n{") if "\n{" in printed else 0 :])
        measured = record.get("measured", record)
        predicted = record.get("predicted") or {}
        return {
            "peak_bytes": measured["peak_bytes"],
            "predicted_bytes": predicted.get("peak_bytes"),
            "seconds_per_step": statistics.median(self.steady_seconds),
            "seconds": self.steady_seconds,
        }

    @property
    def steady_seconds(self) -> list[float]:
        """Without the warm-up."""
        return self.seconds[WARM_UP:]


def summary(runs: list[GatedRun], predicted: list[tuple[float, list[float]]], layers: int | None) -> dict[str, Any]:
    """For each run the seconds of the mean step of an epoch, and their ratio to the baseline's."""
    baseline = runs[0]
    mean_steps = {baseline.name: baseline.steady_seconds}
    for run, (mean, each) in zip(runs[1:], predicted, strict=True):
        mean_steps[run.name] = [mean * seconds / own for seconds, own in zip(run.steady_seconds, each, strict=True)]
    results = {run.name: run.result() | times_against(mean_steps[run.name], baseline.steady_seconds) for run in runs}
    about = {"model": MODEL, "batch": BATCH, "length": LENGTH, "layers": layers or "all"}
    return {**about, "steps": len(baseline.steady_seconds), "runs": results}


def times_against(seconds: list[float], baseline: list[float]) -> dict[str, Any]:
    """Medians and quartiles of the steps of one run, relative to those of the baseline."""
    ratios = [a / b for a, b in zip(seconds, baseline, strict=True)]
    quarters = statistics.quantiles(ratios, n=4)
    return {
        "seconds_per_step": statistics.median(seconds),
        "ratio": statistics.median(seconds) / statistics.median(baseline),
        "ratio_median": statistics.median(ratios),
        "ratio_quartiles": [quarters[0], quarters[2]],
    }


def copy_shape(folder: Path, layers: int | None) -> Path:
    """A copy of the model's config and tokenizer, with fewer layers if given."""
    target = folder / "model"
    target.mkdir()
    for file in (SHARED / "models" / MODEL).iterdir():
        (target / file.name).write_bytes(file.read_bytes())
    if layers is not None:
        config = json.loads((target / "config.json").read_text("utf-8"))
        (target / "config.json").write_text(json.dumps(config | {"num_hidden_layers": layers}), "utf-8")
    return target


def write_rows(folder: Path) -> list[str]:
    """All training rows, and one batch of validation rows: the evaluation is not measured."""
    train, validation = split(folder, None)
    with validation.open(encoding="utf-8", newline="") as file:
        few = list(csv.DictReader(file))[-BATCH:]
    few[0]["label"], few[-1]["label"] = "0", "1"
    return ["--train", str(train), "--validation", str(write(folder / "few.csv", few))]


def baseline_command(model: Path, files: list[str], steps: int) -> list[str]:
    return ["baseline.py", "--model", str(model), *files, "--random-weights", "--max-steps", str(steps)]


def our_command(model: Path, files: list[str], steps: int, recipe: str, folder: Path) -> list[str]:
    out = folder / f"run-{abs(hash(recipe))}"
    command = ["tightfit", "train", "--json", "--device", "cpu", "--out", str(out), "--model", str(model)]
    command += ["--random-weights", "--max-steps", str(steps), "--batch-size", str(BATCH), "--max-length", str(LENGTH)]
    command += ["--data", files[1], "--validation", files[3], "--learning-rate", "2e-5", "--budget", "none"]
    return [*command, *(part for spec in recipe.split() for part in ("--use", spec))]


if __name__ == "__main__":
    main()
