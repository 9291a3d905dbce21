"""Steps of our recipes beside those of transformers.Trainer, in fp32 and with bf16=True, on this machine's CPU.

Each trains in a process of its own and takes a step when it is its turn, so that all meet the same machine: round by
round, the same rows of hotel reviews, 32 of at most 128 tokens. With `--threads 1` the processor's time is measured in
place of the time that passes, so that other work on the machine does not count. Needs ../shared. Writes
records/cpu_speed.json.
"""

from __future__ import annotations

import argparse
import json
import os
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
ROUNDS, WARM_UP, ROWS = 3, 1, 400
FP32, BF16 = "Trainer fp32", "Trainer bf16"
MODELS, BUDGET = ("bert-base-chinese",), "4GB"
CLOSE, SAME = "close", "same"
PAIRS = ((CLOSE, FP32), (CLOSE, BF16), (SAME, FP32))


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--child", nargs=2, metavar=("FOLDER", "KIND"))
    parser.add_argument("--rounds", type=int, default=ROUNDS)
    parser.add_argument("--threads", type=int, default=None)
    given = parser.parse_args()
    if given.child:
        child(Path(given.child[0]), given.child[1])
        return
    if given.threads:
        os.environ["OMP_NUM_THREADS"] = str(given.threads)
    with tempfile.TemporaryDirectory() as name:
        record = {
            "machine": {**machine(), "threads": given.threads or os.cpu_count()},
            "clock": "processor" if given.threads == 1 else "wall",
            "models": [measure(each, Path(name), given.rounds) for each in MODELS],
        }
    RECORD.write_text(json.dumps(record, indent=1) + "\n", "utf-8")
    print(json.dumps(record, indent=1))


def machine() -> dict[str, Any]:
    from tightfit.device import find_device
    from tightfit.timing.calibrate import processor_name

    return {
        "processor": processor_name(),
        "bf16_products": find_device("cpu").bf16_products,
        "torch": version("torch"),
        "transformers": version("transformers"),
    }


def measure(name: str, folder: Path, rounds: int) -> dict[str, Any]:
    split(folder, ROWS)
    weights = model(name, folder)
    recipes = fastest(weights, folder)
    pairs = [pair(weights, folder, result, recipes[result], base, rounds) for result, base in PAIRS]
    return {"model": name, "budget": BUDGET, "pairs": pairs}


def fastest(weights: Path, folder: Path) -> dict[str, str]:
    """The fastest recipe of each result that fits, without length bucketing, which would give a step other rows."""
    from tightfit import plan

    wanted = {CLOSE: "speed", SAME: "exact"}
    made = {
        result: plan(job(weights, folder), BUDGET, device="cpu", prefer=prefer, avoid=["length-bucketing"])
        for result, prefer in wanted.items()
    }
    assert all(each.chosen.result.value == result for result, each in made.items()), "not one of each fits"
    return {result: each.chosen.title for result, each in made.items()}


def job(weights: Path | str, folder: Path) -> Any:
    from tightfit import Job

    files = {"data": str(folder / "train.csv"), "validation": str(folder / "validation.csv")}
    shape = {"batch_size": 32, "max_length": 128}
    return Job(model=str(weights), **files, **shape, random_weights=True, max_steps=1000, seed=1)


def pair(weights: Path, folder: Path, result: str, recipe: str, base: str, rounds: int) -> dict[str, Any]:
    """Two at a time: with all of them the machine would need 20 GB."""
    runners = [Runner(weights, folder, kind) for kind in (recipe, base)]
    seconds = [[runner.step() for runner in runners] for _ in range(WARM_UP + rounds)][WARM_UP:]
    peaks = [runner.finish() for runner in runners]
    ours, theirs = (statistics.median(each) for each in zip(*seconds, strict=True))
    return {
        "result": result,
        "recipe": recipe,
        "base": base,
        "seconds": ours,
        "base_seconds": theirs,
        "peak_bytes": peaks[0],
        "base_peak_bytes": peaks[1],
        "ratio": summary([one / other for one, other in seconds]),
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

    clock = time.process_time if os.environ.get("OMP_NUM_THREADS") == "1" else time.perf_counter

    class Turns(TrainerCallback):
        start = 0.0

        def on_step_begin(self, args: Any, state: Any, control: Any, **kwargs: Any) -> None:
            if sys.stdin.readline().strip() == "stop":
                print(f"{ANSWER}{peak_bytes()}", flush=True)
                raise SystemExit
            self.start = clock()

        def on_step_end(self, *args: Any, **kwargs: Any) -> None:
            print(f"{ANSWER}{clock() - self.start}", flush=True)

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
    from tightfit.device import find_device
    from tightfit.engine.meter import meter_for
    from tightfit.strategies.recipe import Recipe
    from tightfit.system.memory import tuned_malloc
    from tightfit.training.setup import prepare, training_arguments
    from tightfit.training.trainer import Trainer

    given = job(weights, folder)
    with tuned_malloc():
        prepared = prepare(given, Recipe.parse(recipe.split()), find_device("cpu"))
        arguments = training_arguments(given, prepared.parts, Path(out), [])
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
