"""Small language models in small memory: SmolLM2-135M tuned on a CPU beside Trainer; shapes planned for small GPUs.

Needs ../shared (data, model configs, published figures) and the weights of SmolLM2-135M-Instruct as safetensors, whose
folder is given with --weights. Writes records/language_models.json; each part replaces what is known of it:

    bench/language_models.py train --weights FOLDER     one run of tightfit within 2 GB
    bench/language_models.py trainer --weights FOLDER   the same steps by transformers.Trainer, one row at a time
    bench/language_models.py plans                      Qwen2.5-0.5B and Llama-3.2-1B on GPUs of 4, 6 and 8 GB
    bench/language_models.py published                  Llama-3.2-3B beside torchtune's published figures
"""

from __future__ import annotations

import argparse
import csv
import itertools
import json
import resource
import tempfile
import time
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import tightfit
from quality import ROOT, SHARED, run
from tightfit import Budget, Job
from tightfit.data.labels import Labels
from tightfit.device import Device, find_device_or_gpu
from tightfit.engine.dataset import read_data
from tightfit.errors import DoesNotFit, RecipeError
from tightfit.models import load_tokenizer
from tightfit.planning.constraints import Constraints
from tightfit.planning.plan import Plan
from tightfit.planning.planner import Planner
from tightfit.simulation.job_simulation import Simulation, SimulationSetup
from tightfit.simulation.worst_case import Lengths
from tightfit.strategies import STRATEGIES
from tightfit.strategies.recipe import Recipe
from tightfit.tasks import task_of, with_task
from tightfit.timing import step_time_on

RECORD = ROOT / "records" / "language_models.json"
BATCH, LENGTH, STEPS, SEED = 16, 512, 1, 1
BUDGET = "2GB"
CHATS, PAIRS_PER_CHAT = 60, 14
SHAPES = ("Qwen2.5-0.5B", "Llama-3.2-1B")
GPUS = ("GTX 1650 4GB", "RTX 3060 laptop 6GB", "RTX 4060 8GB")
WAYS = {
    "full": [],
    "LoRA": ["lora"],
    "LoRA, weights in bf16": ["lora", "bf16-weights"],
    "QLoRA": ["lora", "quantize"],
}
LLAMA_3B = {"hidden_size": 3072, "num_hidden_layers": 28, "num_attention_heads": 24, "head_dim": 128}
TORCHTUNE = {  # what a row adds to those above it, by the number of the row in the source
    4: "bf16-weights chunked-loss adamw-16bit",
    5: "bf16-weights chunked-loss gradient-checkpointing adamw-16bit",
    6: "bf16-weights chunked-loss gradient-checkpointing adamw-16bit optimizer-in-backward",
    7: "bf16-weights chunked-loss gradient-checkpointing offload-activations adamw-16bit optimizer-in-backward",
    8: "bf16-weights chunked-loss gradient-checkpointing optimizer-in-backward adamw-8bit",
    9: "bf16-weights chunked-loss gradient-checkpointing lora",
    10: "quantize chunked-loss gradient-checkpointing lora",
}


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("part", choices=list(PARTS))
    parser.add_argument("--weights", type=Path)
    parser.add_argument("--chats", type=Path, help=argparse.SUPPRESS)
    given = parser.parse_args()
    if given.chats:  # the process in which Trainer runs
        print(json.dumps(trainer_run(given.weights, given.chats)))
        return
    save(**{given.part: PARTS[given.part](given.weights)})


def recorded() -> dict[str, Any]:
    return json.loads(RECORD.read_text("utf-8")) if RECORD.is_file() else {}


def save(**parts: Any) -> None:
    """Replace parts of the record."""
    RECORD.write_text(json.dumps({**recorded(), **parts}, indent=1, ensure_ascii=False) + "\n", "utf-8")
    print(json.dumps(parts, ensure_ascii=False), flush=True)


# SmolLM2 on a CPU


def write_chats(path: Path) -> Path:
    """Chats of several turns, from English sentences and their Chinese translations."""
    lines = (SHARED / "data" / "tatoeba_en_zh_6000.tsv").read_text("utf-8-sig").splitlines()
    pairs = [line.split("\t")[:2] for line in lines[-CHATS * PAIRS_PER_CHAT :]]
    with path.open("w", encoding="utf-8") as file:
        for start in range(0, len(pairs), PAIRS_PER_CHAT):
            messages = [
                message
                for english, chinese in pairs[start : start + PAIRS_PER_CHAT]
                for message in (
                    {"role": "user", "content": f"Translate into Chinese: {english}"},
                    {"role": "assistant", "content": chinese},
                )
            ]
            file.write(json.dumps({"messages": messages}, ensure_ascii=False) + "\n")
    return path


def train(weights: Path) -> dict[str, Any]:
    """Every layer, within the budget, planning included; without the pre-flight, which takes as long as the step."""
    with tempfile.TemporaryDirectory() as name:
        chats = write_chats(Path(name) / "chats.jsonl")
        run = tightfit.train(
            job_of(weights, chats), budget=BUDGET, device="cpu", out=Path(name) / "run", preflight=False, quiet=True
        )
    losses = [entry["loss"] for entry in run.history if "loss" in entry]
    return {
        "model": weights.name,
        "parameters": run.parameters,
        "trainable_parameters": run.trainable_parameters,
        "batch": BATCH,
        "length": LENGTH,
        "steps": run.steps,
        "budget": BUDGET,
        "recipe": run.recipe,
        "result": run.result,
        "predicted_bytes": run.predicted.peak_bytes,
        "peak_bytes": run.measured.peak_bytes,
        "phases": run.measured.phases,
        "seconds_per_step": run.measured.seconds_per_step,
        "first_loss": losses[0],
        "eval_loss": run.metrics["eval_loss"],
        "eval_perplexity": run.metrics["eval_perplexity"],
    }


def job_of(weights: Path, chats: Path) -> Job:
    job = Job(
        model=str(weights), data=str(chats), batch_size=BATCH, max_length=LENGTH, max_steps=STEPS, seed=SEED,
        learning_rate=2e-5,
    )  # fmt: skip
    return with_task(job)


def trainer(weights: Path) -> dict[str, Any]:
    """Trainer in a process of its own, with gradient accumulation: whole batches take more memory than there is."""
    with tempfile.TemporaryDirectory() as name:
        chats = write_chats(Path(name) / "chats.jsonl")
        printed = run([__file__, "trainer", "--weights", weights, "--chats", chats])
    return json.loads(printed.splitlines()[-1])


def trainer_run(weights: Path, chats: Path) -> dict[str, Any]:
    """The rows that tightfit trains on, tokenized by it, in the same order."""
    from transformers import AutoModelForCausalLM, Trainer, TrainerCallback, TrainingArguments, set_seed

    job = job_of(weights, chats)
    task, tokenizer, data = task_of(job), load_tokenizer(job.model), read_data(job)
    rows = task.tokenize(data.split.train, tokenizer, LENGTH, data.labels).dataset
    seconds: list[float] = []

    class Timer(TrainerCallback):
        def on_step_begin(self, *args: Any, **kwargs: Any) -> None:
            seconds.append(-time.perf_counter())

        def on_step_end(self, *args: Any, **kwargs: Any) -> None:
            seconds[-1] += time.perf_counter()

    set_seed(SEED)
    with tempfile.TemporaryDirectory() as folder:
        arguments = TrainingArguments(
            output_dir=folder, max_steps=STEPS, per_device_train_batch_size=1, gradient_accumulation_steps=BATCH,
            learning_rate=2e-5, weight_decay=0.01, seed=SEED, use_cpu=True, report_to="none", save_strategy="no",
            logging_steps=1, disable_tqdm=True,
        )  # fmt: skip
        model = AutoModelForCausalLM.from_pretrained(weights)
        trainer = Trainer(
            model,
            arguments,
            train_dataset=task.model_inputs(rows),
            data_collator=task.collator(tokenizer),
            callbacks=[Timer()],
        )
        trainer.train()
    losses = [entry["loss"] for entry in trainer.state.log_history if "loss" in entry]
    peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024
    return {"rows_at_a_time": 1, "seconds_per_step": min(seconds), "peak_bytes": peak, "first_loss": losses[0]}


# Shapes without weights


def planner_of(model: Path, device: Any, batch: int, length: int) -> Planner:
    job = Job(
        model=str(model),
        data="none",
        task="language-modeling",
        batch_size=batch,
        max_length=length,
        random_weights=True,
    )
    tokenizer: Any = SimpleNamespace(pad_token_id=0)
    setup = SimulationSetup.of(job, device, Labels(), tokenizer)
    return Planner(Simulation(setup, Lengths.uniform(batch, length)), step_time_on(device))


def plans(_: Path | None) -> list[dict[str, Any]]:
    """The fastest recipe that fits, for all parameters and for adapters beside them; what is known is kept."""
    found: list[dict[str, Any]] = recorded().get("plans", [])
    known = {(plan["model"], plan["gpu"], plan["way"]) for plan in found}
    for shape, gpu in itertools.product(SHAPES, GPUS):
        missing = {way: names for way, names in WAYS.items() if set(names) <= STRATEGIES.keys()}
        missing = {way: names for way, names in missing.items() if (shape, gpu, way) not in known}
        device = find_device_or_gpu(gpu)
        planner = planner_of(SHARED / "models" / shape, device, BATCH, LENGTH) if missing else None
        for way, names in missing.items():
            found.append({"model": shape, "gpu": gpu, "way": way, **planned(planner, device, names)})
            save(plans=found)
    order = [*itertools.product(SHAPES, GPUS, WAYS)]
    return sorted(found, key=lambda plan: order.index((plan["model"], plan["gpu"], plan["way"])))


def planned(planner: Planner, device: Device, names: list[str]) -> dict[str, Any]:
    try:
        plan: Plan = planner.plan(
            Budget.of(device.total_bytes, device), Constraints.of(names, (), "different" if names else "close")
        )
    except DoesNotFit as error:
        closest = option(error.plan.chosen, device) if error.plan else {"reason": str(error)}
        return {"fits": False, **closest}
    except RecipeError as error:
        return {"fits": False, "reason": str(error)}
    return {"fits": True, **option(plan.chosen, device)}


def option(chosen: Any, device: Any) -> dict[str, Any]:
    return {
        "recipe": chosen.recipe.specs,
        "predicted_bytes": chosen.estimate.peak,
        "usable_bytes": device.total_bytes,
        "seconds_per_step": chosen.seconds_per_step,
    }


def published(_: Path | None) -> list[dict[str, Any]]:
    """Llama-3.2-3B, 2 x 4096 tokens on an A100: our recipes beside what torchtune measured with its own."""
    rows = list(csv.DictReader((SHARED / "ground_truth" / "published.csv").open(encoding="utf-8")))
    rows = [row for row in rows if row["source_id"] == "torchtune_readme_flags" and "3B" in row["model"]]
    config = json.loads((SHARED / "models" / "Llama-3.2-1B" / "config.json").read_text("utf-8"))
    found = []
    with tempfile.TemporaryDirectory() as name:
        (Path(name) / "config.json").write_text(json.dumps({**config, **LLAMA_3B}), "utf-8")
        simulation = planner_of(Path(name), find_device_or_gpu("A100 80GB"), 2, 4096).simulation
        for number, row in enumerate(rows, 1):
            recipe = TORCHTUNE.get(number, "")
            about = {
                "what": row["notes"].partition(": ")[2].partition(";")[0],
                "published": float(row["value_MiB"]),
            }
            found.append({**about, "recipe": recipe, **predicted(simulation, recipe)})
            print(json.dumps(found[-1]), flush=True)
    return found


def predicted(simulation: Simulation, recipe: str) -> dict[str, Any]:
    """Without the CUDA context and the allocator's cache, which torch does not count as active."""
    if not recipe or not {spec.partition(":")[0] for spec in recipe.split()} <= STRATEGIES.keys():
        return {"predicted": None}
    estimate = simulation.estimate(Recipe.parse(recipe.split()))
    phases = {phase: sum(n for kind, n in kinds.items() if kind.value not in ("allocator", "host memory"))
              for phase, kinds in estimate.phases.items()}  # fmt: skip
    phase = max(phases, key=lambda each: phases[each])
    return {
        "predicted": round(phases[phase] / 2**20, 1),
        "phase": phase,
        "parameters": estimate.parameters,
        "kinds": {kind.value: round(size / 2**20, 1) for kind, size in estimate.phases[phase].items() if size},
    }


PARTS = {"train": train, "trainer": trainer, "plans": plans, "published": published}

if __name__ == "__main__":
    main()
