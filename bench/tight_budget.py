"""`tightfit train --budget X` in a fresh memory cgroup limited to X, with X just above what the smallest recipe needs.

Planning takes memory too, in a process with all the libraries of training: what a container of a few hundred MB has
left for that is less than a plan likes to take. Small models with random weights, shapes of the usual architectures,
real reviews. Writes records/tight_budget.json; the next call continues where the last one stopped.
"""

from __future__ import annotations

import argparse
import itertools
import json
import os
import shutil
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

import transformers

from hard_limit import CGROUPS, RECOVERIES, limit_kind, limiter, reviews
from quality import ROOT, SHARED
from tightfit.messages import from_data

RECORD = ROOT / "records" / "tight_budget.json"
ROWS, STEPS, BATCH = 64, 2, 8
FACTORS = (1.10, 1.09)  # x the predicted peak of the smallest recipe
SHAPES: dict[str, tuple[str, dict[str, int]]] = {  # configs of transformers, with the vocabulary of bert-base-chinese
    "albert": ("AlbertConfig", {"hidden_size": 768, "num_attention_heads": 12, "intermediate_size": 3072}),
    "distilbert": ("DistilBertConfig", {"dim": 384, "n_heads": 6, "hidden_dim": 1536}),
    "electra-small": ("ElectraConfig", {}),
    "mobilebert": ("MobileBertConfig", {}),
    "t5": (
        "T5Config",
        {"d_model": 256, "d_kv": 32, "d_ff": 1024, "num_layers": 4, "num_heads": 8, "decoder_start_token_id": 0},
    ),
    "bert-24-narrow-layers": (
        "BertConfig",
        {"hidden_size": 256, "num_hidden_layers": 24, "num_attention_heads": 4, "intermediate_size": 1024},
    ),
    "minilm": (
        "BertConfig",
        {"hidden_size": 384, "num_hidden_layers": 6, "num_attention_heads": 6, "intermediate_size": 1536},
    ),
    "mpnet": (
        "MPNetConfig",
        {"hidden_size": 384, "num_hidden_layers": 6, "num_attention_heads": 6, "intermediate_size": 1536},
    ),
    "gpt2": ("GPT2Config", {"n_embd": 384, "n_layer": 6, "n_head": 6}),
    "roberta": (
        "RobertaConfig",
        {"hidden_size": 384, "num_hidden_layers": 12, "num_attention_heads": 6, "intermediate_size": 1536},
    ),
}


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument(
        "--minutes", type=float, default=None, help="start no run after this time; the next call continues"
    )
    given = parser.parse_args()
    assert limit_kind() == "cgroup", "needs root and a memory cgroup"
    start, record = time.monotonic(), recorded()
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        data = reviews(folder / "data", ROWS)
        for factor, model in itertools.product(FACTORS, SHAPES):
            case = f"{model} x {factor}"
            late = given.minutes is not None and time.monotonic() - start > 60 * given.minutes
            if case in record["runs"] or late:
                continue
            job = ["--model", saved_model(model, folder), "--data", data, "--max-steps", STEPS, "--batch-size", BATCH]
            if model not in record["smallest"]:
                record["smallest"][model] = smallest_plan(job)
            budget = int(factor * record["smallest"][model]["peak_bytes"])
            record["runs"][case] = run(job, budget, folder / "run")
            RECORD.write_text(json.dumps(record, indent=1) + "\n", "utf-8")
            print(case, record["runs"][case], flush=True)


def recorded() -> dict[str, Any]:
    return json.loads(RECORD.read_text("utf-8")) if RECORD.is_file() else {"smallest": {}, "runs": {}}


def saved_model(name: str, folder: Path) -> Path:
    """A folder with a config and the tokenizer of bert-base-chinese."""
    kind, sizes = SHAPES[name]
    own = folder / name
    transformers.AutoTokenizer.from_pretrained(SHARED / "models" / "bert-base-chinese").save_pretrained(own)
    tokens = {"pad_token_id": 0, "bos_token_id": 101, "eos_token_id": 102}
    getattr(transformers, kind)(vocab_size=21128, **tokens, **sizes).save_pretrained(own)
    return own


def tightfit(verb: str, job: list[Any], *options: object, **how: Any) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, "-m", "tightfit", verb, "--json", "--random-weights", "--device", "cpu"]
    one_thread = {**os.environ, "OMP_NUM_THREADS": "1"}  # memory is measured here, on a machine that may be busy
    return subprocess.run(
        [*command, *map(str, (*job, *options))], capture_output=True, text=True, env=one_thread, **how
    )


def smallest_plan(job: list[Any]) -> dict[str, Any]:
    """The recipe that needs least: the closest to a budget that only the process and the weights fit in."""
    baseline = json.loads(tightfit("estimate", job).stdout)
    weights = 4 * baseline["parameters"]
    done = tightfit("plan", job, "--budget", f"{baseline['overhead_bytes'] + weights + (4 << 20)}B")
    plan = json.loads(done.stdout, object_hook=from_data)
    assert not plan["fits"], plan
    return {"recipe": plan["recipe"], "peak_bytes": plan["peak_bytes"]}


def run(job: list[Any], budget: int, out: Path) -> dict[str, Any]:
    name = f"tight-{budget}"
    start = time.monotonic()
    done = tightfit("train", job, "--budget", f"{budget}B", "--out", out, preexec_fn=limiter(budget, name))
    result: dict[str, Any] = {
        "budget_bytes": budget,
        "exit": done.returncode,
        "seconds": round(time.monotonic() - start, 1),
        "cgroup_peak_bytes": int((group_of(name) / "memory.max_usage_in_bytes").read_text()),
    }
    if done.returncode == 0:
        record = json.loads(done.stdout, object_hook=from_data)
        result |= {
            "recipe": record["recipe"],
            "predicted_bytes": record["predicted"]["peak_bytes"],
            "peak_bytes": record["measured"]["peak_bytes"],
            "recoveries": [note for note in record["notes"] if any(words in note for words in RECOVERIES)],
        }
        shutil.rmtree(out)
    else:
        result["error"] = done.stderr.strip().splitlines()[-1:]
        shutil.rmtree(out, ignore_errors=True)
    group_of(name).rmdir()
    return result


def group_of(name: str) -> Path:
    return CGROUPS / f"tightfit-{os.getpid()}-{name}"


if __name__ == "__main__":
    main()
