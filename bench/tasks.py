"""Every task on real data and weights: losses and metrics beside transformers.Trainer, predicted and measured memory.

The baseline recipe and plain transformers.Trainer train the same few steps with the same seed, one after the other;
then each recipe runs two steps in a process of its own. Needs ../shared. Writes records/tasks.json; the next call
continues where the last one stopped, and a name as argument does one task only. A new task is an entry in CASES, with
a function that writes its data and one that says how transformers.Trainer trains it.
"""

from __future__ import annotations

import argparse
import json
import random
import re
import string
import subprocess
import sys
import tempfile
import time
from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from quality import ROOT, SHARED

RECORD = ROOT / "records" / "tasks.json"
WEIGHTS = ROOT / "build" / "weights"
STEPS, SEED, BATCH = 20, 7, 8
TRAIN, VALIDATION = 240, 60  # rows
RECIPES = [
    "baseline",
    "micro-batch:size=2",
    "micro-batch:size=4 gradient-checkpointing",
    "micro-batch:size=2 adafactor",
    "mixed-precision",
    "tiled-attention chunked-layers:size=2 adafactor optimizer-in-backward",
    "freeze:layers=2",
]
Files = tuple[Path, Path]
"""Training rows and validation rows."""


@dataclass(frozen=True)
class Reference:
    """What transformers.Trainer is called with."""

    model: Callable[[], Any]
    train: list[dict[str, Any]]
    validation: list[dict[str, Any]]
    collator: Any
    metrics: Callable[[Any], dict[str, float]] | None


@dataclass(frozen=True)
class Case:
    """A task, its data and how transformers.Trainer trains it."""

    weights: str
    """As ../shared/tools/weights.py names them."""
    write: Callable[[Path], Files]
    reference: Callable[[Path, Path, Path], Reference]
    """From the model and the files."""
    options: tuple[str, ...] = ()
    """Of the command line beside model and data."""
    max_length: int = 128
    recipes: tuple[str, ...] = tuple(RECIPES)


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("tasks", nargs="*", choices=[*CASES, []])
    parser.add_argument("--reference", type=Path, nargs=3, help="train with transformers.Trainer: model and files")
    parser.add_argument(
        "--minutes", type=float, default=60, help="start nothing after this time; the next call continues"
    )
    given = parser.parse_args()
    end = time.monotonic() + 60 * given.minutes
    if given.reference:
        print(json.dumps(trained(CASES[given.tasks[0]], *given.reference)))
        return
    names = given.tasks or list(CASES)
    with tempfile.TemporaryDirectory() as folder:
        for name in names:
            compare(name, CASES[name], Path(folder, name), end)
        for name in names:
            measure(name, CASES[name], Path(folder, name), end)


def compare(name: str, case: Case, folder: Path, end: float) -> None:
    """Train a task with both, unless that is in the record."""
    folder.mkdir()
    if "trainer" not in recorded(name) and time.monotonic() < end:
        model, files = weights(case.weights), case.write(folder)
        ours, theirs = tightfit_run(name, case, model, files, folder), reference_run(name, model, files)
        save(name, **compared(ours, theirs), model=case.weights, steps=STEPS, batch=BATCH, max_length=case.max_length)
        print(name, f"{recorded(name)['loss_difference']:.1e}", flush=True)


def measure(name: str, case: Case, folder: Path, end: float) -> None:
    """Measure the memory of the recipes that are not in the record."""
    missing = [recipe for recipe in case.recipes if recipe not in recorded(name).get("memory", {})]
    if not missing:
        return
    model, files = weights(case.weights), case.write(folder)
    for recipe in missing:
        if time.monotonic() > end:
            return
        found = memory(name, case, model, files, recipe, folder)
        save(name, memory={**recorded(name).get("memory", {}), recipe: found})
        print(name, recipe, f"{found['predicted'] / found['measured'] - 1:+.2%}", flush=True)


# tightfit


def options(name: str, case: Case, model: Path, files: Files) -> list[str]:
    """The options that train and compare have in common."""
    given = ["--model", model, "--data", files[0], "--validation", files[1], "--task", name, "--batch-size", BATCH]
    given += ["--max-length", case.max_length, "--seed", SEED, "--learning-rate", 5e-5, "--device", "cpu"]
    return [*map(str, given), *case.options]


def tightfit_run(name: str, case: Case, model: Path, files: Files, folder: Path) -> dict[str, Any]:
    """The losses and metrics of the baseline recipe."""
    command = ["-m", "tightfit", "train", *options(name, case, model, files), "--max-steps", STEPS, "--json"]
    record = json.loads(run([*command, "--budget", "none", "--out", folder / "run"]))
    losses = {str(entry["step"]): entry["loss"] for entry in record["history"] if "loss" in entry}
    return {"losses": losses, "metrics": record["metrics"]}


def memory(name: str, case: Case, model: Path, files: Files, recipe: str, folder: Path) -> dict[str, int]:
    """Predicted and measured peak of the process."""
    out = folder / f"compare-{case.recipes.index(recipe)}"
    command = ["-m", "tightfit", "compare", *options(name, case, model, files), "--steps", 2, "--recipe", recipe]
    run([*command, "--out", out])
    [row] = json.loads((out / "comparison.json").read_text("utf-8"))["rows"]
    if row["failed"]:
        raise SystemExit(f"{name}, {recipe}: {row['failed']}")
    [measured] = row["measurements"]
    return {"predicted": measured["predicted_bytes"], "measured": measured["peak_bytes"]}


# transformers.Trainer


def reference_run(name: str, model: Path, files: Files) -> dict[str, Any]:
    """The losses and metrics of transformers.Trainer, in a process of its own."""
    printed = run([__file__, name, "--reference", model, *files])
    found: dict[str, Any] = json.loads(printed.splitlines()[-1])
    return found


def trained(case: Case, model: Path, train: Path, validation: Path) -> dict[str, Any]:
    """Train with transformers.Trainer in this process."""
    from transformers import Trainer, TrainingArguments, set_seed

    reference = case.reference(model, train, validation)
    set_seed(SEED)
    with tempfile.TemporaryDirectory() as folder:
        arguments = TrainingArguments(
            output_dir=folder,
            max_steps=STEPS,
            per_device_train_batch_size=BATCH,
            per_device_eval_batch_size=BATCH,
            learning_rate=5e-5,
            weight_decay=0.01,
            logging_steps=10,
            logging_first_step=True,
            seed=SEED,
            use_cpu=True,
            report_to="none",
            disable_tqdm=True,
        )
        trainer = Trainer(
            reference.model(),
            arguments,
            train_dataset=reference.train,
            eval_dataset=reference.validation,
            data_collator=reference.collator,
            compute_metrics=reference.metrics,
        )
        trainer.train()
        losses = {str(entry["step"]): entry["loss"] for entry in trainer.state.log_history if "loss" in entry}
        return {"losses": losses, "metrics": trainer.evaluate()}


def compared(ours: dict[str, Any], theirs: dict[str, Any]) -> dict[str, Any]:
    """The figures of both, and the largest relative difference of their training losses.

    The loss of an evaluation is not compared: Trainer takes the mean over batches, and their rows are others.
    """
    names = [name for name in theirs["metrics"] if name.startswith("eval_") and name in ours["metrics"]]
    names = [name for name in names if not name.endswith(("loss", "runtime", "_per_second"))]
    pairs = [(ours["losses"][step], loss) for step, loss in theirs["losses"].items()]
    return {
        "tightfit": {"losses": ours["losses"], "metrics": {name: ours["metrics"][name] for name in names}},
        "trainer": {"losses": theirs["losses"], "metrics": {name: theirs["metrics"][name] for name in names}},
        "loss_difference": max(abs(a - b) / abs(b) for a, b in pairs),
    }


# The record


def recorded(name: str) -> dict[str, Any]:
    content = json.loads(RECORD.read_text("utf-8")) if RECORD.is_file() else {}
    found: dict[str, Any] = content.get(name, {})
    return found


def save(name: str, **values: Any) -> None:
    content = json.loads(RECORD.read_text("utf-8")) if RECORD.is_file() else {}
    content[name] = {**content.get(name, {}), **values}
    ordered = {each: content[each] for each in [*CASES, *content] if each in content}
    RECORD.write_text(json.dumps(ordered, indent=1, ensure_ascii=False) + "\n", "utf-8")


def run(command: list[Any]) -> str:
    """The standard output of a Python command."""
    return subprocess.run([sys.executable, *map(str, command)], check=True, stdout=subprocess.PIPE, text=True).stdout


def weights(name: str) -> Path:
    """Pretrained weights from a pinned wheel."""
    if name in MADE:
        return MADE[name](WEIGHTS)
    folder = WEIGHTS / name
    if not folder.is_dir():
        subprocess.run([sys.executable, SHARED / "tools" / "weights.py", WEIGHTS, name], check=True)
    return folder


# Data


def write_rows(folder: Path, rows: list[dict[str, Any]]) -> Files:
    """The first rows as training data, the next ones as validation data."""
    files = folder / "train.jsonl", folder / "validation.jsonl"
    for file, part in zip(files, (rows[:TRAIN], rows[TRAIN : TRAIN + VALIDATION]), strict=True):
        file.write_text("".join(json.dumps(row, ensure_ascii=False) + "\n" for row in part), "utf-8")
    return files


def read_rows(file: Path) -> list[dict[str, Any]]:
    return [json.loads(line) for line in file.read_text("utf-8").splitlines()]


def films() -> list[tuple[str, str]]:
    """Sentences of film reviews (SST-2) and their labels."""
    lines = (SHARED / "data" / "sst2" / "train.tsv").read_text("utf-8").splitlines()
    return [(text, label) for text, label in (line.split("\t") for line in lines)]


def microblogs() -> list[tuple[list[str], list[str]]]:
    """Characters and tags of posts (Weibo NER)."""
    text = (SHARED / "data" / "weibo_ner" / "train.txt").read_text("utf-8")
    posts = [[line.split("\t") for line in post.splitlines()] for post in text.strip().split("\n\n")]
    return [([token for token, _ in post], [tag for _, tag in post]) for post in posts]


def labelled(folder: Path) -> Files:
    return write_rows(folder, [{"text": text, "label": label} for text, label in films()])


def scored(folder: Path) -> Files:
    """The label as a number."""
    return write_rows(folder, [{"text": text, "score": float(label)} for text, label in films()])


def tagged(folder: Path) -> Files:
    posts = [post for post in microblogs() if set(post[1]) != {"O"}]
    random.Random(SEED).shuffle(posts)
    return write_rows(folder, [{"tokens": tokens, "ner_tags": tags} for tokens, tags in posts])


def with_types(folder: Path) -> Files:
    """The types of the entities in a post are its labels."""
    rows = [
        {"text": "".join(tokens), "labels": sorted({tag[2:] for tag in tags if tag != "O"})}
        for tokens, tags in microblogs()
    ]
    random.Random(SEED).shuffle(rows)
    return write_rows(folder, rows)


def asked(folder: Path) -> Files:
    """The context has some sentences of reviews, the question has the first words of one, the answer is its rest."""
    picker, sentences = random.Random(SEED), [text for text, _ in films() if len(text.split()) > 8]
    rows = []
    for number in range(TRAIN + VALIDATION):
        chosen = sentences[8 * number : 8 * number + 8]
        words = chosen[picker.randrange(8)].split()
        context, answer = " . ".join(chosen), " ".join(words[4:8])
        answers = {"text": [answer], "answer_start": [context.index(" ".join(words)) + len(" ".join(words[:4])) + 1]}
        question = f"what comes after {' '.join(words[:4])} ?"
        rows.append({"id": number, "question": question, "context": context, "answers": answers})
    return write_rows(folder, rows)


# How transformers.Trainer trains each task


def classification(model: Path, train: Path, validation: Path) -> Reference:
    from sklearn.metrics import accuracy_score, f1_score
    from transformers import AutoModelForSequenceClassification, AutoTokenizer, DataCollatorWithPadding

    tokenizer = AutoTokenizer.from_pretrained(model)

    def encode(row: dict[str, Any]) -> dict[str, Any]:
        return {**tokenizer(row["text"], truncation=True, max_length=128), "labels": int(row["label"])}

    def metrics(output: Any) -> dict[str, float]:
        predicted = output.predictions.argmax(-1)
        return {"f1": f1_score(output.label_ids, predicted), "accuracy": accuracy_score(output.label_ids, predicted)}

    return Reference(
        lambda: AutoModelForSequenceClassification.from_pretrained(model, num_labels=2),
        [encode(row) for row in read_rows(train)],
        [encode(row) for row in read_rows(validation)],
        DataCollatorWithPadding(tokenizer),
        metrics,
    )


def regression(model: Path, train: Path, validation: Path) -> Reference:
    from scipy.stats import pearsonr, spearmanr
    from transformers import AutoModelForSequenceClassification, AutoTokenizer, DataCollatorWithPadding

    tokenizer = AutoTokenizer.from_pretrained(model)

    def encode(row: dict[str, Any]) -> dict[str, Any]:
        return {**tokenizer(row["text"], truncation=True, max_length=128), "labels": row["score"]}

    def metrics(output: Any) -> dict[str, float]:
        predicted = output.predictions.squeeze(-1)
        return {
            "pearson": pearsonr(predicted, output.label_ids).statistic,
            "spearman": spearmanr(predicted, output.label_ids).statistic,
            "mse": float(((predicted - output.label_ids) ** 2).mean()),
        }

    return Reference(
        lambda: AutoModelForSequenceClassification.from_pretrained(model, num_labels=1, problem_type="regression"),
        [encode(row) for row in read_rows(train)],
        [encode(row) for row in read_rows(validation)],
        DataCollatorWithPadding(tokenizer),
        metrics,
    )


def several_labels(model: Path, train: Path, validation: Path) -> Reference:
    from sklearn.metrics import accuracy_score, f1_score
    from transformers import AutoModelForSequenceClassification, AutoTokenizer, DataCollatorWithPadding

    tokenizer = AutoTokenizer.from_pretrained(model)
    names = sorted({label for row in read_rows(train) for label in row["labels"]})

    def encode(row: dict[str, Any]) -> dict[str, Any]:
        labels = [float(name in row["labels"]) for name in names]
        return {**tokenizer(row["text"], truncation=True, max_length=128), "labels": labels}

    def metrics(output: Any) -> dict[str, float]:
        truth, predicted = output.label_ids > 0.5, output.predictions > 0
        return {
            "f1": f1_score(truth, predicted, average="micro", zero_division=0),
            "macro_f1": f1_score(truth, predicted, average="macro", zero_division=0),
            "accuracy": accuracy_score(truth, predicted),
        }

    problem = {"num_labels": len(names), "problem_type": "multi_label_classification"}
    return Reference(
        lambda: AutoModelForSequenceClassification.from_pretrained(model, **problem),
        [encode(row) for row in read_rows(train)],
        [encode(row) for row in read_rows(validation) if set(row["labels"]) <= set(names)],
        DataCollatorWithPadding(tokenizer),
        metrics,
    )


def tokens(model: Path, train: Path, validation: Path) -> Reference:
    """As in transformers' run_ner.py: the first piece of each word is labelled, and seqeval scores entities."""
    from seqeval.metrics import accuracy_score, f1_score, precision_score, recall_score
    from transformers import AutoModelForTokenClassification, AutoTokenizer, DataCollatorForTokenClassification

    tokenizer = AutoTokenizer.from_pretrained(model)
    names = sorted({tag for row in read_rows(train) for tag in row["ner_tags"]})

    def encode(row: dict[str, Any]) -> dict[str, Any]:
        encoded = tokenizer(row["tokens"], is_split_into_words=True, truncation=True, max_length=128)
        labels, before = [], None
        for word in encoded.word_ids():
            labels.append(-100 if word is None or word == before else names.index(row["ner_tags"][word]))
            before = word
        return {**encoded, "labels": labels}

    def metrics(output: Any) -> dict[str, float]:
        pairs = zip(output.label_ids, output.predictions.argmax(-1), strict=True)
        kept = [(truth[truth != -100], guessed[truth != -100]) for truth, guessed in pairs]
        truth, predicted = ([[names[each] for each in row[side]] for row in kept] for side in (0, 1))
        return {
            "f1": float(f1_score(truth, predicted)),
            "precision": float(precision_score(truth, predicted)),
            "recall": float(recall_score(truth, predicted)),
            "accuracy": float(accuracy_score(truth, predicted)),
        }

    known = [row for row in read_rows(validation) if set(row["ner_tags"]) <= set(names)]
    return Reference(
        lambda: AutoModelForTokenClassification.from_pretrained(model, num_labels=len(names)),
        [encode(row) for row in read_rows(train)],
        [encode(row) for row in known],
        DataCollatorForTokenClassification(tokenizer),
        metrics,
    )


def answers(model: Path, train: Path, validation: Path) -> Reference:
    """As in transformers' run_qa.py: windows with a stride, the best start and end over all windows of a context."""
    from transformers import AutoModelForQuestionAnswering, AutoTokenizer, DataCollatorWithPadding

    tokenizer = AutoTokenizer.from_pretrained(model)

    def encode(rows: list[dict[str, Any]]) -> tuple[list[dict[str, Any]], list[tuple[dict[str, Any], list[Any]]]]:
        inputs, about = [], []
        for row in rows:
            start = row["answers"]["answer_start"][0]
            end = start + len(row["answers"]["text"][0])
            encoded = tokenizer(
                row["question"], row["context"], truncation="only_second", max_length=LENGTH, stride=LENGTH // 3,
                return_overflowing_tokens=True, return_offsets_mapping=True,
            )  # fmt: skip
            for number, ids in enumerate(encoded["input_ids"]):
                inside = [sequence == 1 for sequence in encoded.sequence_ids(number)]
                spans = [
                    span if use else None for span, use in zip(encoded["offset_mapping"][number], inside, strict=True)
                ]
                first = next((i for i, span in enumerate(spans) if span and span[0] <= start < span[1]), None)
                last = next((i for i, span in enumerate(spans) if span and span[0] < end <= span[1]), None)
                whole = first is not None and last is not None
                places = {"start_positions": first if whole else 0, "end_positions": last if whole else 0}
                names = ("attention_mask", "token_type_ids")
                masks = {name: encoded[name][number] for name in names if name in encoded}
                inputs.append({"input_ids": ids, **masks, **places})
                about.append((row, spans))
        return inputs, about

    validated, about = encode(read_rows(validation))

    def metrics(output: Any) -> dict[str, float]:
        best: dict[int, tuple[float, str, str]] = {}
        for start, end, (row, spans) in zip(*output.predictions, about, strict=True):
            inside = [place for place, span in enumerate(spans) if span]
            score, text = max(
                ((float(start[a] + end[b]), row["context"][spans[a][0] : spans[b][1]]))
                for a in sorted(inside, key=lambda place: -start[place])[:20]
                for b in sorted(inside, key=lambda place: -end[place])[:20]
                if a <= b < a + 64
            )
            best[row["id"]] = max(best.get(row["id"], (-np.inf, "", "")), (score, text, row["answers"]["text"][0]))
        scores = [answer_scores(text, gold) for _, text, gold in best.values()]
        f1, exact = np.mean(scores, axis=0).tolist()
        return {"f1": f1, "exact_match": exact}

    inputs, _ = encode(read_rows(train))
    collator = DataCollatorWithPadding(tokenizer)
    return Reference(lambda: AutoModelForQuestionAnswering.from_pretrained(model), inputs, validated, collator, metrics)


def answer_scores(answer: str, gold: str) -> tuple[float, float]:
    """SQuAD's F1 and exact match."""
    words, expected = (normalized(text) for text in (answer, gold))
    common = (Counter(words) & Counter(expected)).total()
    return 2 * common / max(1, len(words) + len(expected)), float(words == expected)


def normalized(text: str) -> list[str]:
    text = "".join(letter for letter in text.lower() if letter not in string.punctuation)
    return re.sub(r"\b(a|an|the)\b", " ", text).split()


# Language models


def smollm2(folder: Path) -> Path:
    """The wheel's 4-bit file as safetensors; reading it needs the package gguf."""
    from transformers import AutoModelForCausalLM, AutoTokenizer

    target = folder / "SmolLM2-135M-Instruct"
    if not target.is_dir():
        source = weights("smollm2-135m-instruct-gguf")
        [file] = source.glob("*.gguf")
        model = AutoModelForCausalLM.from_pretrained(source, gguf_file=file.name, dtype="float32")
        model.hf_quantizer = model.dequantize = None  # its weights are ordinary ones by now
        model.config.__dict__.pop("quantization_config", None)
        AutoTokenizer.from_pretrained(source, gguf_file=file.name).save_pretrained(target)
        model.save_pretrained(target)
    return target


def random_t5(folder: Path) -> Path:
    """The shape of T5-small with random weights, written once: no wheel has real ones."""
    from transformers import AutoConfig, AutoModelForSeq2SeqLM, AutoTokenizer, set_seed

    target, shape = folder / "t5-small-random", SHARED / "models" / "t5-small"
    if not target.is_dir():
        set_seed(0)
        AutoModelForSeq2SeqLM.from_config(AutoConfig.from_pretrained(shape)).save_pretrained(target)
        AutoTokenizer.from_pretrained(shape).save_pretrained(target)
    return target


MADE = {"SmolLM2-135M-Instruct": smollm2, "T5-small, random weights": random_t5}


def sentence_pairs() -> list[list[str]]:
    """English sentences with their Chinese translations (Tatoeba)."""
    lines = (SHARED / "data" / "tatoeba_en_zh_6000.tsv").read_text("utf-8-sig").splitlines()
    return [line.split("\t")[:2] for line in lines[-TRAIN - VALIDATION :]]


def unlabelled(folder: Path) -> Files:
    return write_rows(folder, [{"text": text} for text, _ in films()])


def chats(folder: Path) -> Files:
    turns = [
        [{"role": "user", "content": f"Translate into Chinese: {english}"}, {"role": "assistant", "content": chinese}]
        for english, chinese in sentence_pairs()
    ]
    return write_rows(folder, [{"messages": messages} for messages in turns])


def translations(folder: Path) -> Files:
    return write_rows(folder, [{"source": english, "target": chinese} for english, chinese in sentence_pairs()])


def blocks(tokenizer: Any, rows: list[dict[str, Any]], end: list[int]) -> list[dict[str, Any]]:
    """Texts one after the other, as in transformers' run_clm.py and run_mlm.py; the last block may be shorter."""
    ids = [token for row in rows for token in [*tokenizer(row["text"])["input_ids"], *end]]
    cut = [ids[start : start + WORDS] for start in range(0, len(ids), WORDS)]
    return [{"input_ids": part, "attention_mask": [1] * len(part), "labels": part} for part in cut if len(part) > 1]


def causal(model: Path, train: Path, validation: Path) -> Reference:
    from transformers import AutoModelForCausalLM, AutoTokenizer, DataCollatorForTokenClassification

    tokenizer = AutoTokenizer.from_pretrained(model)
    return Reference(
        lambda: AutoModelForCausalLM.from_pretrained(model),
        *(blocks(tokenizer, read_rows(file), [tokenizer.eos_token_id]) for file in (train, validation)),
        DataCollatorForTokenClassification(tokenizer),
        None,
    )


def masked(model: Path, train: Path, validation: Path) -> Reference:
    from transformers import AutoModelForMaskedLM, AutoTokenizer, DataCollatorForLanguageModeling

    tokenizer = AutoTokenizer.from_pretrained(model)
    return Reference(
        lambda: AutoModelForMaskedLM.from_pretrained(model),
        *(blocks(tokenizer, read_rows(file), []) for file in (train, validation)),
        DataCollatorForLanguageModeling(tokenizer, mlm_probability=0.15),
        None,
    )


def instructions(model: Path, train: Path, validation: Path) -> Reference:
    """The prompt is what the chat template writes before the answer; its tokens are not learned."""
    from transformers import AutoModelForCausalLM, AutoTokenizer, DataCollatorForTokenClassification

    tokenizer = AutoTokenizer.from_pretrained(model)

    def encode(row: dict[str, Any]) -> dict[str, Any]:
        asked = tokenizer.apply_chat_template(row["messages"][:1], add_generation_prompt=True)["input_ids"]
        ids = tokenizer.apply_chat_template(row["messages"])["input_ids"]
        labels = [*[-100] * len(asked), *ids[len(asked) :]]
        return {"input_ids": ids[:CHAT], "attention_mask": [1] * len(ids[:CHAT]), "labels": labels[:CHAT]}

    return Reference(
        lambda: AutoModelForCausalLM.from_pretrained(model),
        *([encode(row) for row in read_rows(file)] for file in (train, validation)),
        DataCollatorForTokenClassification(tokenizer),
        None,
    )


def pairs(model: Path, train: Path, validation: Path) -> Reference:
    from transformers import AutoModelForSeq2SeqLM, AutoTokenizer, DataCollatorForSeq2Seq

    tokenizer = AutoTokenizer.from_pretrained(model)

    def encode(row: dict[str, Any]) -> dict[str, Any]:
        return dict(tokenizer(row["source"], text_target=row["target"], truncation=True, max_length=WORDS))

    return Reference(
        lambda: AutoModelForSeq2SeqLM.from_pretrained(model),
        *([encode(row) for row in read_rows(file)] for file in (train, validation)),
        DataCollatorForSeq2Seq(tokenizer),
        None,
    )


WORDS, CHAT = 32, 96
LANGUAGE_RECIPES = (
    "baseline",
    "chunked-loss",
    "micro-batch:size=2 chunked-loss",
    "chunked-loss gradient-checkpointing adafactor",
    "mixed-precision chunked-loss",
    "chunked-loss chunked-layers:size=2 adafactor optimizer-in-backward",
)

LENGTH = 96  # of the windows

CASES: dict[str, Case] = {
    "text-classification": Case("all-MiniLM-L6-v2", labelled, classification),
    "text-regression": Case("all-MiniLM-L6-v2", scored, regression),
    "multi-label-classification": Case("m3e-small", with_types, several_labels),
    "token-classification": Case("m3e-small", tagged, tokens),
    "question-answering": Case("all-MiniLM-L6-v2", asked, answers, max_length=LENGTH),
    "language-modeling": Case("SmolLM2-135M-Instruct", unlabelled, causal, max_length=WORDS, recipes=LANGUAGE_RECIPES),
    "masked-language-modeling": Case(
        "all-MiniLM-L6-v2", unlabelled, masked, max_length=WORDS, recipes=LANGUAGE_RECIPES
    ),
    "instruction-tuning": Case("SmolLM2-135M-Instruct", chats, instructions, max_length=CHAT, recipes=LANGUAGE_RECIPES),
    "text-to-text": Case("T5-small, random weights", translations, pairs, max_length=WORDS, recipes=LANGUAGE_RECIPES),
}

if __name__ == "__main__":
    main()
