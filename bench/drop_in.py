"""Scripts that call Trainer, changed by one import and one argument, under a hard memory limit -> records/drop_in.json.

    python bench/drop_in.py FOLDER     # a copy of the transformers repository: its folder `examples`

The examples of transformers, and a script as tutorials write it, run as they are and with the change, each in a process
of its own that the system limits to the budget. Models have random weights; data are local files, and the modules
`evaluate` and `nltk`, which need a hub, are replaced by ones that return zeros. Needs ../shared with models and data.
"""

from __future__ import annotations

import csv
import json
import os
import re
import resource
import subprocess
import sys
import tempfile
import time
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from hard_limit import limit_kind, limiter
from quality import ROOT, SHARED
from tightfit.units import parse_bytes

RECORD = ROOT / "records" / "drop_in.json"
ROWS = 130
STUBS = {
    "evaluate.py": """
class Metric:
    def compute(self, *args, **kwargs):
        names = "accuracy", "f1", "exact_match", "overall_precision", "overall_recall", "overall_f1", "overall_accuracy"
        return dict.fromkeys(names, 0.0)

def load(*args, **kwargs):
    return Metric()
""",
    "nltk.py": """
class data:
    find = staticmethod(lambda name: name)
""",
}
TUTORIAL = """
from datasets import load_dataset
from transformers import AutoModelForSequenceClassification, AutoTokenizer, DataCollatorWithPadding
from transformers import Trainer, TrainingArguments

folder, file, output = "{model}", "{data}", "{output}"
reviews = load_dataset("csv", data_files=file, split="train").train_test_split(0.1, seed=0)
tokenizer = AutoTokenizer.from_pretrained(folder)
reviews = reviews.map(lambda rows: tokenizer(rows["review"], max_length=128, truncation=True), batched=True)
reviews = reviews.rename_column("label", "labels").remove_columns("review")
args = TrainingArguments(
    output, per_device_train_batch_size=64, per_device_eval_batch_size=64, max_steps=2, logging_steps=1,
    learning_rate=2e-5, weight_decay=0.01, eval_strategy="epoch", use_cpu=True, report_to="none",
)
trainer = Trainer(
    model=AutoModelForSequenceClassification.from_pretrained(folder),
    args=args,
    train_dataset=reviews["train"],
    eval_dataset=reviews["test"],
    data_collator=DataCollatorWithPadding(tokenizer),
)
trainer.train()
"""


@dataclass(frozen=True)
class Case:
    """A script, the model and the data it trains with, and the budget."""

    script: str
    model: str
    head: str
    budget: str
    options: str = ""
    trainer: str = "Trainer"
    changed: str = ""
    """The file that imports the Trainer, if another; the argument is added to the script all the same."""


CASES = (
    Case("tutorial", "rbt3", "AutoModelForSequenceClassification", "1.3GB"),
    Case(
        "text-classification/run_glue.py", "rbt3", "AutoModelForSequenceClassification", "1.3GB",
        "--do_eval --train_file {csv} --validation_file {csv} --max_seq_length 128 --per_device_train_batch_size 64",
    ),
    Case(
        "token-classification/run_ner.py", "rbt3", "AutoModelForTokenClassification", "1.3GB",
        "--train_file {ner} --max_seq_length 128 --pad_to_max_length --per_device_train_batch_size 64",
    ),
    Case(
        "question-answering/run_qa.py", "rbt3", "AutoModelForQuestionAnswering", "1.3GB",
        "--train_file {qa} --max_seq_length 128 --doc_stride 64 --per_device_train_batch_size 64",
        "QuestionAnsweringTrainer", "question-answering/trainer_qa.py",
    ),
    Case(
        "summarization/run_summarization.py", "t5-small", "AutoModelForSeq2SeqLM", "1.9GB",
        "--train_file {pairs} --text_column text --summary_column summary --max_source_length 128 "
        "--max_target_length 64 --per_device_train_batch_size 16 --gradient_accumulation_steps 2",
        "Seq2SeqTrainer",
    ),
    Case(
        "language-modeling/run_clm.py", "gpt2", "AutoModelForCausalLM", "3GB",
        "--train_file {txt} --block_size 128 --per_device_train_batch_size 16",
    ),
)  # fmt: skip


def main() -> None:
    """Cases that were run before are not run again: delete the record to start anew."""
    copy = Path(sys.argv[1]).resolve() / "examples" / "pytorch"
    runs: dict[str, Any] = json.loads(RECORD.read_text("utf-8"))["runs"] if RECORD.is_file() else {}
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        files = write_data(folder)
        for case in CASES:
            if case.script not in runs:
                runs[case.script] = compared(case, copy, folder, files)
                RECORD.write_text(json.dumps({"limit": limit_kind(), "runs": runs}, indent=1) + "\n", "utf-8")
                print(case.script, json.dumps(runs[case.script], indent=1), flush=True)


def compared(case: Case, copy: Path, folder: Path, files: dict[str, Path]) -> dict[str, Any]:
    model = save_model(case, folder)
    plain = run(case, script_of(case, copy, folder / "plain", files, model, changed=False), folder, files, model)
    ours = run(case, script_of(case, copy, folder / "ours", files, model, changed=True), folder, files, model)
    return {"budget_bytes": parse_bytes(case.budget), "model": case.model, "transformers": plain, "tightfit": ours}


def save_model(case: Case, folder: Path) -> Path:
    """With random weights, in a process of its own, so that this one stays small."""
    target = folder / f"{case.model}-{case.head}"
    code = (
        "import sys, transformers as hf; source, target, head = sys.argv[1:]; hf.set_seed(0);"
        "hf.AutoTokenizer.from_pretrained(source).save_pretrained(target);"
        "getattr(hf, head).from_config(hf.AutoConfig.from_pretrained(source)).save_pretrained(target)"
    )
    source = SHARED / "models" / case.model
    subprocess.run([sys.executable, "-c", code, str(source), str(target), case.head], check=True, capture_output=True)
    return target


def script_of(case: Case, copy: Path, target: Path, files: dict[str, Path], model: Path, *, changed: bool) -> Path:
    """A copy of the script with its neighbours; changed by one import and one argument."""
    target.mkdir(exist_ok=True)
    if case.script == "tutorial":
        script = target / "tutorial.py"
        script.write_text(TUTORIAL.format(model=model, data=files["csv"], output=target / "out"))
    else:
        for source in (copy / case.script).parent.glob("*.py"):
            (target / source.name).write_text(source.read_text("utf-8"), "utf-8")
        script = target / Path(case.script).name
    if changed:
        add_argument(script, case)
        add_import(target / Path(case.changed or script).name, "Trainer" if case.changed else case.trainer)
    return script


def add_argument(script: Path, case: Case) -> None:
    text, count = re.subn(rf"(trainer = {case.trainer}\()", rf'\1budget="{case.budget}", ', script.read_text("utf-8"))
    assert count == 1
    script.write_text(text, "utf-8")


def add_import(script: Path, name: str) -> None:
    """After the last import from transformers, which it replaces."""
    text = script.read_text("utf-8")
    last = [*re.finditer(r"^from transformers import (\([^)]*\)|[^(\n]*)\n", text, re.MULTILINE)][-1]
    script.write_text(f"{text[: last.end()]}from tightfit import {name}\n{text[last.end() :]}", "utf-8")


def run(case: Case, script: Path, folder: Path, files: dict[str, Path], model: Path) -> dict[str, Any]:
    options = case.options.format(**files).split()
    if case.options:
        out = folder / "out" / script.parent.name / script.stem
        options += ["--model_name_or_path", str(model), "--output_dir", str(out), "--do_train", "--max_steps", "2"]
        options += ["--use_cpu", "--report_to", "none", "--save_strategy", "no", "--logging_steps", "1"]
    limit = limiter(parse_bytes(case.budget), f"{script.parent.name}-{script.stem}")
    paths = os.pathsep.join([str(folder / "stubs"), os.environ.get("PYTHONPATH", "")])
    start, before = time.perf_counter(), resource.getrusage(resource.RUSAGE_CHILDREN).ru_maxrss
    done = subprocess.run(
        [sys.executable, str(script), *options], capture_output=True, text=True, preexec_fn=limit,
        env={**os.environ, "PYTHONPATH": paths, "HF_HUB_OFFLINE": "1", "HF_DATASETS_CACHE": str(folder / "cache")},
    )  # fmt: skip
    peak = resource.getrusage(resource.RUSAGE_CHILDREN).ru_maxrss << 10
    found = {
        "exit": done.returncode,
        "seconds": round(time.perf_counter() - start, 1),
        "losses": [float(loss) for loss in re.findall(r"'loss': '?([0-9.]+)", done.stdout)],
        "largest_process_so_far_bytes": max(peak, before),
    }
    if done.returncode:
        found["error"] = done.stderr.strip().splitlines()[-1:]
    said = [line for line in done.stderr.splitlines() if line.startswith("tightfit: ")]
    return found | ({"said": said} if said else {})


def write_data(folder: Path) -> dict[str, Path]:
    """Reviews in the form that each script reads, and the modules that are replaced."""
    (folder / "stubs").mkdir()
    for name, text in STUBS.items():
        (folder / "stubs" / name).write_text(text)
    with (SHARED / "data" / "ChnSentiCorp_htl_all.csv").open(encoding="utf-8") as file:
        rows = [row for row in csv.DictReader(file) if len(row["review"]) > 64]
    rows = rows[:ROWS] + rows[-ROWS:]
    files = {name: folder / f"data.{name}" for name in ("csv", "txt")}
    files |= {name: folder / f"{name}.json" for name in ("ner", "qa", "pairs")}
    with files["csv"].open("w", encoding="utf-8", newline="") as file:
        writer = csv.DictWriter(file, ["label", "review"])
        writer.writeheader()
        writer.writerows(rows)
    files["txt"].write_text("\n".join(row["review"] for row in rows), "utf-8")
    tags = ("O", "O", "B-PLACE", "I-PLACE")
    ner = [
        {"tokens": [*r["review"][:120]], "ner_tags": [tags[i % 4] for i in range(len(r["review"][:120]))]} for r in rows
    ]
    questions = [
        {"id": str(n), "title": "", "context": r["review"], "question": r["review"][:8],
         "answers": {"text": [r["review"][9:12]], "answer_start": [9]}}
        for n, r in enumerate(rows)
    ]  # fmt: skip
    pairs = [{"text": row["review"], "summary": row["review"][:60]} for row in rows]
    files["ner"].write_text("\n".join(map(json.dumps, ner)))
    files["qa"].write_text(json.dumps({"data": questions}))
    files["pairs"].write_text("\n".join(map(json.dumps, pairs)))
    return files


if __name__ == "__main__":
    main()
