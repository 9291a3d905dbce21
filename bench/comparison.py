"""Every layer of BERT-Large in little memory: our recipes beside transformers.Trainer, step by step in turns.

Each contestant is a process of its own that runs the real thing (tightfit's command line, the tutorials' script) and
waits at every step for its turn, so all meet the machine in the same mood. A recipe with `bucket` meets other batches,
some short and some long: its steps are weighed by what is foretold for them, and the usual step of an epoch told from
that; Trainer's are all as long. Shape of macbert-large with random weights, real reviews. Needs ../shared. Writes
records/comparison.json.
"""

from __future__ import annotations

import argparse
import json
import os
import statistics
import subprocess
import sys
import tempfile
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from own_batches import foretold_of
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
    parser.add_argument("--layers", type=int, default=None, help="a shallower model, to try things out")
    parser.add_argument("--recipes", nargs="*", default=RECIPES)
    parser.add_argument("--record", type=Path, default=RECORD)
    given = parser.parse_args()
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        model, files = shape(folder, given.layers), rows(folder)
        steps = given.steps + WARM_UP
        contestants = [Contestant(BASELINE, baseline(model, files, steps))]
        contestants += [Contestant(recipe, ours(model, files, steps, recipe, folder)) for recipe in given.recipes]
        watch = CpuShare()
        for step in range(steps):
            for contestant in contestants:
                contestant.take_turn()
                print(step, f"{contestant.seconds[-1]:.1f} s", contestant.name, flush=True)
        data = {"data": files[1], "validation": files[3], "batch_size": BATCH, "max_length": LENGTH}
        job = Job(model=str(model), random_weights=True, **data)
        weighed = foretold_of(job, [recipe.split() for recipe in given.recipes], WARM_UP, given.steps)
        stolen = {"stolen": round(watch.stolen, 3)}  # of the machine's time, by its host for others
        record = summary(contestants, list(weighed), given.layers) | stolen
    given.record.write_text(json.dumps(record, indent=1) + "\n", "utf-8")
    print(json.dumps(record, indent=1))


@dataclass
class Contestant:
    """A gated training."""

    name: str
    command: list[str]
    seconds: list[float] = field(default_factory=list)

    def __post_init__(self) -> None:
        (theirs, go), (said, their_voice) = os.pipe(), os.pipe()
        gate = [sys.executable, str(ROOT / "bench" / "gated.py"), str(theirs), str(their_voice)]
        self.process = subprocess.Popen(
            [*gate, *self.command], pass_fds=(theirs, their_voice), stdout=subprocess.PIPE, text=True
        )
        os.close(theirs)
        os.close(their_voice)
        self.go, self.said = os.fdopen(go, "w"), os.fdopen(said)

    def take_turn(self) -> None:
        print(file=self.go, flush=True)
        self.seconds.append(float(self.said.readline()))

    def result(self) -> dict[str, Any]:
        print(file=self.go, flush=True)
        printed, _ = self.process.communicate()
        said = json.loads(printed[printed.rindex("\n{") if "\n{" in printed else 0 :])
        measured = said.get("measured", said)
        predicted = said.get("predicted") or {}
        return {
            "peak_bytes": measured["peak_bytes"],
            "predicted_bytes": predicted.get("peak_bytes"),
            "seconds_per_step": statistics.median(self.steady),
            "seconds": self.steady,
        }

    @property
    def steady(self) -> list[float]:
        return self.seconds[WARM_UP:]


def summary(
    contestants: list[Contestant], weighed: list[tuple[float, list[float]]], layers: int | None
) -> dict[str, Any]:
    """For each the seconds of an epoch's usual step, and what share of the baseline's that is."""
    baseline = contestants[0]
    usual = {baseline.name: baseline.steady}
    for contestant, (step, met) in zip(contestants[1:], weighed, strict=True):
        usual[contestant.name] = [
            step * seconds / predicted for seconds, predicted in zip(contestant.steady, met, strict=True)
        ]
    runs = {}
    for contestant in contestants:
        seconds = usual[contestant.name]
        ratios = [a / b for a, b in zip(seconds, baseline.steady, strict=True)]
        quarters = statistics.quantiles(ratios, n=4)
        runs[contestant.name] = contestant.result() | {
            "seconds_per_step": statistics.median(seconds),
            "ratio": statistics.median(seconds) / statistics.median(baseline.steady),
            "ratio_median": statistics.median(ratios),
            "ratio_quartiles": [quarters[0], quarters[2]],
        }
    about = {"model": MODEL, "batch": BATCH, "length": LENGTH, "steps": len(baseline.steady), "layers": layers or "all"}
    return {**about, "runs": runs}


def shape(folder: Path, layers: int | None) -> Path:
    """The model's config and tokenizer, with fewer layers if wanted."""
    target = folder / "model"
    target.mkdir()
    for file in (SHARED / "models" / MODEL).iterdir():
        (target / file.name).write_bytes(file.read_bytes())
    if layers is not None:
        config = json.loads((target / "config.json").read_text("utf-8"))
        (target / "config.json").write_text(json.dumps(config | {"num_hidden_layers": layers}), "utf-8")
    return target


def rows(folder: Path) -> list[str]:
    """All the training rows; of the others as few as an evaluation needs."""
    train, validation = split(folder, None)
    import csv

    with validation.open(encoding="utf-8", newline="") as file:
        few = list(csv.DictReader(file))[-BATCH:]
    few[0]["label"], few[-1]["label"] = "0", "1"
    return ["--train", str(train), "--validation", str(write(folder / "few.csv", few))]


def baseline(model: Path, files: list[str], steps: int) -> list[str]:
    return ["baseline.py", "--model", str(model), *files, "--random-weights", "--max-steps", str(steps)]


def ours(model: Path, files: list[str], steps: int, recipe: str, folder: Path) -> list[str]:
    out = folder / f"run-{abs(hash(recipe))}"
    command = ["tightfit", "train", "--json", "--device", "cpu", "--out", str(out), "--model", str(model)]
    command += ["--random-weights", "--max-steps", str(steps), "--batch-size", str(BATCH), "--max-length", str(LENGTH)]
    command += ["--data", files[1], "--validation", files[3], "--learning-rate", "2e-5"]
    return [*command, *(word for strategy in recipe.split() for word in ("--use", strategy))]


if __name__ == "__main__":
    main()
