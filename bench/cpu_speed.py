"""Steps of our recipes beside those of transformers.Trainer, in fp32 and with bf16=True, on this machine's CPU.

Each trains in a process of its own and takes a step when it is its turn, so that all meet the same machine: round by
round, the same rows of hotel reviews, 32 of at most 128 tokens. Needs ../shared. Writes records/cpu_speed.json.
"""

from __future__ import annotations

import argparse
import json
import statistics
import subprocess
import sys
import tempfile
import time
from importlib.metadata import version
from pathlib import Path
from typing import Any

from memory import model

from quality import ROOT, split

RECORD = ROOT / "records" / "cpu_speed.json"
ROUNDS, WARM_UP, ROWS = 6, 1, 400
FP32, BF16 = "Trainer fp32", "Trainer bf16"
RECIPES = {
    "bert-base-chinese": {
        "close": "tiled-attention mixed-precision",
        "same": "tiled-attention micro-batch:tokens=2048",
    },
}


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--child", nargs=2, metavar=("FOLDER", "KIND"))
    parser.add_argument("--rounds", type=int, default=ROUNDS)
    given = parser.parse_args()
    if given.child:
        child(Path(given.child[0]), given.child[1])
        return
    with tempfile.TemporaryDirectory() as name:
        record = {"machine": machine(), "models": [measure(each, Path(name), given.rounds) for each in RECIPES]}
    RECORD.write_text(json.dumps(record, indent=1) + "\n", "utf-8")
    print(json.dumps(record, indent=1))


def machine() -> dict[str, Any]:
    import torch

    from tightfit.device import find_device
    from tightfit.timing.calibrate import processor_name

    return {
        "processor": processor_name(),
        "threads": torch.get_num_threads(),
        "bf16 products": find_device("cpu").bf16_products,
        "torch": version("torch"),
        "transformers": version("transformers"),
    }


def measure(name: str, folder: Path, rounds: int) -> dict[str, Any]:
    split(folder, ROWS)
    runners = {kind: Runner(model(name, folder), folder, kind) for kind in (FP32, BF16, *RECIPES[name].values())}
    seconds = [{kind: runner.step() for kind, runner in runners.items()} for _ in range(WARM_UP + rounds)][WARM_UP:]
    peaks = {kind: runner.finish() for kind, runner in runners.items()}
    return {
        "model": name,
        "seconds": {kind: statistics.median(each[kind] for each in seconds) for kind in runners},
        "peak_bytes": peaks,
        "ratios": {
            f"{result} / {base}": {"recipe": recipe, **summary([each[recipe] / each[base] for each in seconds])}
            for result, recipe in RECIPES[name].items()
            for base in (FP32, BF16)
        },
    }


def summary(ratios: list[float]) -> dict[str, Any]:
    quarters = statistics.quantiles(ratios, n=4)
    return {"median": statistics.median(ratios), "quartiles": [quarters[0], quarters[2]], "rounds": len(ratios)}


class Runner:
    """A training in another process, which waits for its turn before every step."""

    def __init__(self, weights: Path, folder: Path, kind: str) -> None:
        command = [sys.executable, __file__, "--child", str(folder), json.dumps([str(weights), kind])]
        self.process = subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)

    def step(self) -> float:
        self._tell("step")
        return self._answer()

    def finish(self) -> int:
        """Its peak in bytes."""
        self._tell("stop")
        peak = int(self._answer())
        self.process.wait()
        return peak

    def _tell(self, word: str) -> None:
        assert self.process.stdin is not None
        print(word, file=self.process.stdin, flush=True)

    def _answer(self) -> float:
        assert self.process.stdout is not None
        for line in self.process.stdout:
            if line.startswith(ANSWER):  # other lines are printed by transformers
                return float(line.removeprefix(ANSWER))
        raise RuntimeError("a training ended early")


ANSWER = "measured "


def child(folder: Path, arguments: str) -> None:
    weights, kind = json.loads(arguments)
    from transformers import TrainerCallback

    class Turns(TrainerCallback):
        start = 0.0

        def on_step_begin(self, args: Any, state: Any, control: Any, **kwargs: Any) -> None:
            if sys.stdin.readline().strip() == "stop":
                print(f"{ANSWER}{peak_bytes()}", flush=True)
                raise SystemExit
            self.start = time.perf_counter()

        def on_step_end(self, *args: Any, **kwargs: Any) -> None:
            print(f"{ANSWER}{time.perf_counter() - self.start}", flush=True)

    run = train_plainly if kind in (FP32, BF16) else train_with
    with tempfile.TemporaryDirectory() as out:
        run(weights, folder, kind, out, Turns())


def peak_bytes() -> int:
    lines = Path("/proc/self/status").read_text("utf-8").splitlines()
    return next(int(line.split()[1]) * 1024 for line in lines if line.startswith("VmHWM"))


def train_plainly(weights: str, folder: Path, kind: str, out: str, turns: Any) -> None:
    """As the tutorials call it."""
    from datasets import load_dataset
    from transformers import AutoTokenizer, DataCollatorWithPadding, Trainer, set_seed

    import baseline

    tokenizer = AutoTokenizer.from_pretrained(weights)
    rows = load_dataset("csv", data_files={"train": str(folder / "train.csv")}, cache_dir=out)["train"]
    columns = ["label", "review"]
    tokens = rows.map(lambda r: baseline.encode(r, tokenizer, 128), batched=True, remove_columns=columns)
    given = argparse.Namespace(model=weights, random_weights=True, max_steps=1000, batch_size=32, seed=1)
    plain = {"bf16": kind == BF16, "eval_strategy": "no", "save_strategy": "no", "load_best_model_at_end": False}
    set_seed(given.seed)
    Trainer(
        baseline.load_model(given),
        baseline.arguments(out, given, **plain),
        train_dataset=tokens,
        data_collator=DataCollatorWithPadding(tokenizer),
        callbacks=[turns],
    ).train()


def train_with(weights: str, folder: Path, recipe: str, out: str, turns: Any) -> None:
    from tightfit import Job
    from tightfit.device import find_device
    from tightfit.engine.meter import meter_for
    from tightfit.strategies.recipe import Recipe
    from tightfit.system.memory import tuned_malloc
    from tightfit.training.setup import prepare, training_arguments
    from tightfit.training.trainer import Trainer

    files = {"data": str(folder / "train.csv"), "validation": str(folder / "validation.csv")}
    job = Job(model=weights, **files, random_weights=True, max_steps=1000, batch_size=32, max_length=128, seed=1)
    with tuned_malloc():
        prepared = prepare(job, Recipe.parse(recipe.split()), find_device("cpu"))
        arguments = training_arguments(job, prepared.parts, Path(out), [])
        Trainer(
            parts=prepared.parts,
            meter=meter_for(prepared.parts.device),
            args=arguments,
            train_dataset=prepared.train.dataset,
            eval_dataset=prepared.validation.dataset.select(range(8)),
            processing_class=prepared.tokenizer,
            compute_metrics=lambda prediction: {"f1": 0.0},
            callbacks=[turns],
        ).train()


if __name__ == "__main__":
    main()
