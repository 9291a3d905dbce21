"""Complete runs of the tiny model: what they write, measure and return."""

from __future__ import annotations

import json
import math
import shutil
import subprocess
import sys
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
import torch
from conftest import write_reviews
from parts import skip_unless_installed

from tightfit import Job, evaluate, load_run, predict, train
from tightfit.engine.dataset import JobData, read_data
from tightfit.errors import Interrupted, LossNotFinite, OutputError
from tightfit.runs.header import load_header
from tightfit.simulation.process_size import warm_up
from tightfit.tasks.text_classification import ClassPrediction


def job_of(model: Path, data: Path, **changes: Any) -> Job:
    values = {"batch_size": 8, "max_length": 32, "learning_rate": 1e-3, "seed": 7, **changes}
    return Job(model=str(model), data=str(data), **values)


def weights_of(folder: Path) -> dict[str, torch.Tensor]:
    from safetensors.torch import load_file

    return load_file(folder / "model.safetensors")


def test_a_run_learns_and_records_what_it_did(trained: Path) -> None:
    run = load_run(trained)
    assert run.metrics["eval_f1"] > 0.9
    assert run.steps == 42
    assert run.recipe == ["micro-batch:size=4"]
    assert run.result == "same"
    assert run.data.train_rows + run.data.validation_rows == 60
    assert {"load", "forward", "backward", "step", "evaluate", "save"} <= set(run.measured.phases)
    assert run.measured.peak_bytes == max(run.measured.phases.values()) > 10**8
    assert run.measured.seconds > 0
    assert {"torch", "transformers", "tightfit"} <= set(run.versions)


def test_the_estimate_of_a_run_equals_its_tensors(trained: Path) -> None:
    """Without the process size, beside which the tensors of a tiny model would not matter."""
    from transformers import AutoModelForSequenceClassification

    phases = estimate_of(trained)["phases"]
    model = AutoModelForSequenceClassification.from_pretrained(trained).train()
    trained_bytes = sum(parameter.nbytes for parameter in model.parameters())
    weight_bytes = trained_bytes + sum(buffer.nbytes for buffer in model.buffers())
    state = torch.load(trained / "checkpoint-42" / "optimizer.pt")["state"]
    state_bytes = sum(value.nbytes for values in state.values() for value in values.values())
    expected = {"weights": weight_bytes, "gradients": trained_bytes, "optimizer state": state_bytes}
    assert {kind: phases["step"][kind] for kind in expected} == expected
    assert "4 × 25 tokens" in estimate_of(trained)["worst"]
    assert phases["forward"]["activations"] == pytest.approx(saved_bytes(model, rows=4, tokens=25), rel=0.01)


def saved_bytes(model: torch.nn.Module, rows: int, tokens: int) -> int:
    """Bytes that autograd saves in a forward pass, without weights and inputs."""
    batch = {"input_ids": torch.full((rows, tokens), 5), "attention_mask": torch.ones(rows, tokens, dtype=torch.long)}
    batch["labels"] = torch.arange(rows) % 2
    known = {tensor.untyped_storage().data_ptr() for tensor in (*model.parameters(), *batch.values())}
    saved: dict[int, int] = {}

    def pack(tensor: torch.Tensor) -> torch.Tensor:
        saved[tensor.untyped_storage().data_ptr()] = tensor.untyped_storage().nbytes()
        return tensor

    with torch.autograd.graph.saved_tensors_hooks(pack, lambda tensor: tensor):
        output = model(**batch)
    assert output.loss.requires_grad
    return sum(size for address, size in saved.items() if address not in known)


def estimate_of(folder: Path) -> dict[str, Any]:
    header = load_header(folder)
    assert header is not None
    assert header.estimate is not None
    return header.estimate


def test_predicted_memory_is_recorded_beside_measured_memory(trained: Path) -> None:
    run, estimate = load_run(trained), estimate_of(trained)
    totals = {phase: estimate["overhead_bytes"] + sum(kinds.values()) for phase, kinds in estimate["phases"].items()}
    assert run.predicted.phases == totals
    assert run.predicted.peak_bytes == max(totals.values())
    assert {"forward", "backward", "step", "evaluate"} <= set(totals) & set(run.measured.phases)
    assert run.predicted.peak_bytes == pytest.approx(run.measured.peak_bytes, rel=0.03)


@pytest.mark.skipif(sys.platform != "linux", reason="elsewhere memory is sampled, and a short peak may be missed")
def test_reading_the_data_is_measured_and_the_estimate_is_not(
    tiny_model: Path, reviews: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def read(job: Job) -> JobData:
        np.ones(256 << 20, dtype=np.uint8)
        return read_data(job)

    warm_up.cache_clear()  # so that both runs include its small training steps, which take 120 MiB for a short time
    usual = train(job_of(tiny_model, reviews, max_steps=1), out=tmp_path / "usual", device="cpu", quiet=True)
    warm_up.cache_clear()
    monkeypatch.setattr("tightfit.training.setup.read_data", read)
    greedy = train(job_of(tiny_model, reviews, max_steps=1), out=tmp_path / "greedy", device="cpu", quiet=True)
    assert usual.measured.peak_bytes - usual.measured.phases["step"] < 40 << 20
    assert greedy.measured.phases["load"] - usual.measured.phases["load"] > 200 << 20
    assert greedy.measured.peak_bytes == greedy.measured.phases["load"]


@pytest.mark.slow
@pytest.mark.parametrize("recipe", ["micro-batch:size=8", "chunked-layers:size=4 adafactor optimizer-in-backward"])
def test_the_predicted_peak_of_a_fresh_process_matches_the_measured_one(
    recipe: str, tiny_model: Path, tmp_path: Path
) -> None:
    """A model large enough that its tensors matter beside the process size."""
    from transformers import BertConfig

    shape = {"hidden_size": 512, "num_hidden_layers": 4, "num_attention_heads": 8, "intermediate_size": 2048}
    folder = tmp_path / "model"
    shutil.copytree(tiny_model, folder)
    (folder / "model.safetensors").unlink()
    BertConfig(vocab_size=8000, max_position_embeddings=64, **shape).save_pretrained(folder)
    data = write_reviews(tmp_path / "reviews.csv", rows=100)
    arguments = ["--model", folder, "--data", data, "--out", tmp_path / "run", "--random-weights", "--max-length", 48]
    arguments += [argument for strategy in recipe.split() for argument in ("--use", strategy)]
    arguments += ["--device", "cpu", "--max-steps", 2, "--json"]
    command = [sys.executable, "-m", "tightfit", "train", *map(str, arguments)]
    record = json.loads(subprocess.run(command, check=True, stdout=subprocess.PIPE, text=True).stdout)
    assert record["predicted"]["peak_bytes"] == pytest.approx(record["measured"]["peak_bytes"], rel=0.02)


def test_a_model_that_cannot_be_simulated_is_trained(
    tiny_model: Path, reviews: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    from tightfit.simulation.job_simulation import Simulation

    def fail(*args: Any) -> None:
        raise RuntimeError("an operation without a shape")

    monkeypatch.setattr(Simulation, "estimate", fail)
    run = train(job_of(tiny_model, reviews, max_steps=1), out=tmp_path / "run", device="cpu", quiet=True)
    assert run.steps == 1
    assert run.predicted.peak_bytes is None
    assert "memory could not be estimated: an operation without a shape" in run.notes


def test_the_run_folder_is_a_model_folder(trained: Path) -> None:
    from transformers import AutoModelForSequenceClassification, AutoTokenizer, pipeline

    model = AutoModelForSequenceClassification.from_pretrained(trained)
    assert model.config.id2label == {0: "0", 1: "1"}
    assert AutoTokenizer.from_pretrained(trained)("clean room")["input_ids"]
    labels = pipeline("text-classification", str(trained))(["clean quiet kind", "dirty loud rude"])
    assert [each["label"] for each in labels] == ["1", "0"]


def test_predictions_keep_the_order_of_the_texts(trained: Path) -> None:
    texts = ["the room was dirty dirty rude", "clean", "kind staff clean warm lovely bed", "loud cold broken"]
    found = predict(trained, texts, device="cpu")
    assert [p.label for p in found] == ["0", "1", "1", "0"]
    assert all(isinstance(p, ClassPrediction) and 0.5 <= p.confidence <= 1 for p in found)


def test_evaluate_reproduces_the_metrics_of_the_run(trained: Path) -> None:
    run, evaluation = load_run(trained), evaluate(trained, device="cpu")
    assert evaluation.rows == run.data.validation_rows
    for name in ("eval_f1", "eval_accuracy"):
        assert evaluation.metrics[name] == pytest.approx(run.metrics[name])
    assert evaluation.metrics["eval_loss"] == pytest.approx(run.metrics["eval_loss"], rel=1e-4)


@pytest.mark.parametrize(("scores", "best"), [((0.5, 0.9, 0.7), 2), ((0.9, 0.5, 0.7), 1), ((0.9, 0.9, 0.8), 2)])
def test_the_weights_of_the_best_epoch_are_saved(
    tiny_model: Path,
    reviews: Path,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    scores: tuple[float, ...],
    best: int,
) -> None:
    """Scores are scripted; between equal scores the lower loss decides, which falls from epoch to epoch."""
    from tightfit.tasks.text_classification import TextClassification

    script = iter(scores)
    monkeypatch.setattr(TextClassification, "score", lambda self, prediction, labels: {"f1": next(script)})
    run = train(job_of(tiny_model, reviews, epochs=3), out=tmp_path / "run", device="cpu", quiet=True)
    losses = [entry["eval_loss"] for entry in run.history if "eval_loss" in entry]
    assert losses == sorted(losses, reverse=True)
    assert run.metrics["epoch"] == best
    assert run.metrics["eval_f1"] == max(scores)
    kept, final = weights_of(tmp_path / "run" / f"checkpoint-{7 * best}"), weights_of(tmp_path / "run")
    assert all(torch.equal(final[name], weight) for name, weight in kept.items())
    assert len(list((tmp_path / "run").glob("checkpoint-*"))) == 2


@pytest.mark.slow
@pytest.mark.parametrize(
    "use",
    [["micro-batch:size=3"], ["gradient-checkpointing"], ["micro-batch:size=1", "gradient-checkpointing"], ["adamw"]],
)
def test_strategies_with_result_same_give_the_same_weights(
    tiny_model: Path, reviews: Path, tmp_path: Path, use: list[str]
) -> None:
    """A complete run without dropout, with a smaller last batch: the weights equal those of the baseline."""
    model = without_dropout(tiny_model, tmp_path / "model")
    job = job_of(model, reviews, epochs=1)
    train(job, out=tmp_path / "baseline", device="cpu", quiet=True)
    train(job, use, out=tmp_path / "used", device="cpu", quiet=True)
    baseline, used = weights_of(tmp_path / "baseline"), weights_of(tmp_path / "used")
    for name, weight in baseline.items():
        torch.testing.assert_close(used[name], weight, rtol=1e-3, atol=2e-5)


def without_dropout(model: Path, target: Path) -> Path:
    shutil.copytree(model, target)
    config = json.loads((target / "config.json").read_text())
    config["hidden_dropout_prob"] = config["attention_probs_dropout_prob"] = 0.0
    (target / "config.json").write_text(json.dumps(config))
    return target


def test_the_baseline_equals_a_transformers_trainer(tiny_model: Path, tmp_path: Path) -> None:
    """Same data, same seed, dropout on: losses and weights equal those of transformers.Trainer."""
    import transformers

    data, held_out = write_reviews(tmp_path / "a.csv", 52), write_reviews(tmp_path / "b.csv", 10, seed=5)
    job = job_of(tiny_model, data, validation=str(held_out))
    run = train(job, out=tmp_path / "ours", device="cpu", quiet=True)

    rows = [line.split(",", 1) for line in data.read_text().splitlines()[1:]]
    tokenizer = transformers.AutoTokenizer.from_pretrained(tiny_model)
    tokens = [{**tokenizer(text, truncation=True, max_length=32), "labels": int(label)} for label, text in rows]
    transformers.set_seed(7)
    model = transformers.AutoModelForSequenceClassification.from_pretrained(tiny_model)
    arguments = transformers.TrainingArguments(
        output_dir=str(tmp_path / "theirs"),
        per_device_train_batch_size=8,
        num_train_epochs=1,
        learning_rate=1e-3,
        weight_decay=0.01,
        seed=7,
        use_cpu=True,
        report_to="none",
        save_strategy="no",
        disable_tqdm=True,
    )
    trainer = transformers.Trainer(model, arguments, train_dataset=tokens, processing_class=tokenizer)
    result = trainer.train()
    assert run.steps == result.global_step == 7
    assert run.metrics["train_loss"] == pytest.approx(result.training_loss, rel=1e-6)
    ours = weights_of(tmp_path / "ours")
    for name, weight in model.state_dict().items():
        torch.testing.assert_close(ours[name], weight, rtol=1e-5, atol=1e-7)


@pytest.mark.parametrize(
    "use", [["mixed-precision"], ["adafactor"], ["freeze"], ["freeze:layers=1", "gradient-checkpointing"]]
)
def test_strategies_that_change_the_result_train(
    tiny_model: Path, reviews: Path, tmp_path: Path, use: list[str]
) -> None:
    run = train(job_of(tiny_model, reviews, max_steps=3), use, out=tmp_path / "run", device="cpu", quiet=True)
    assert run.steps == 3
    assert math.isfinite(run.metrics["train_loss"])
    assert (run.trainable_parameters < run.parameters) == use[0].startswith("freeze")


def test_random_weights_need_only_a_config(tiny_model: Path, reviews: Path, tmp_path: Path) -> None:
    shutil.copytree(tiny_model, tmp_path / "shape", ignore=shutil.ignore_patterns("*.safetensors"))
    job = job_of(tmp_path / "shape", reviews, random_weights=True, max_steps=2)
    assert train(job, out=tmp_path / "run", device="cpu", quiet=True).steps == 2


def test_truncated_texts_are_recorded(tiny_model: Path, reviews: Path, tmp_path: Path) -> None:
    job = job_of(tiny_model, reviews, max_steps=1)
    run = train(job, ["max-length:tokens=8"], out=tmp_path / "run", device="cpu", quiet=True)
    assert run.max_length == 8
    assert run.data.truncated_rows > 0
    assert any("longer than 8 tokens" in note for note in run.notes)


def test_text_pairs_are_trained_and_predicted(tiny_model: Path, tmp_path: Path) -> None:
    lines = [f"{i % 2},clean room {i},{'kind' if i % 2 else 'rude'} staff" for i in range(20)]
    (tmp_path / "a.csv").write_text("label,premise,hypothesis\n" + "\n".join(lines), "utf-8")
    train(job_of(tiny_model, tmp_path / "a.csv", max_steps=2), out=tmp_path / "run", device="cpu", quiet=True)
    assert len(predict(tmp_path / "run", [("clean room", "kind staff")], device="cpu")) == 1


def test_more_than_two_labels_are_trained(tiny_model: Path, tmp_path: Path) -> None:
    lines = [f"{'abc'[i % 3]},word {i}" for i in range(30)]
    (tmp_path / "a.csv").write_text("label,review\n" + "\n".join(lines), "utf-8")
    job = job_of(tiny_model, tmp_path / "a.csv", max_steps=1)
    run = train(job, out=tmp_path / "run", device="cpu", quiet=True)
    assert run.data.labels == ("a", "b", "c")


def test_a_run_killed_within_an_epoch_resumes_from_the_epoch_before(
    tiny_model: Path, reviews: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Stopped in the third epoch, resumed from the end of the second: the weights of the uninterrupted run."""
    from tightfit.training import trainer

    job = job_of(tiny_model, reviews, epochs=3)
    uninterrupted = train(job, out=tmp_path / "uninterrupted", device="cpu", quiet=True)
    with monkeypatch.context() as patched:
        patched.setattr(trainer, "train_batch", interrupting(trainer.train_batch, at=17))
        with pytest.raises(Interrupted):
            train(job, out=tmp_path / "stopped", device="cpu", quiet=True)
    first, held = estimate_of(tmp_path / "stopped"), np.ones(64 << 20, dtype=np.uint8)
    again = train(job, out=tmp_path / "stopped", device="cpu", resume=True, quiet=True)
    assert estimate_of(tmp_path / "stopped") == first, f"one run has one prediction, also beside {held.nbytes} bytes"
    assert again.predicted.peak_bytes == first["peak_bytes"]
    assert again.steps == uninterrupted.steps
    assert again.metrics["eval_f1"] == uninterrupted.metrics["eval_f1"]
    found, expected = weights_of(tmp_path / "stopped"), weights_of(tmp_path / "uninterrupted")
    for name, weight in expected.items():
        torch.testing.assert_close(found[name], weight, rtol=0, atol=0)


def interrupting(train_batch: Any, at: int) -> Any:
    calls: list[int] = []

    def run(*args: Any) -> torch.Tensor:
        calls.append(1)
        if len(calls) == at:
            raise KeyboardInterrupt
        return train_batch(*args)

    return run


def test_a_nan_loss_stops_the_run(
    tiny_model: Path, reviews: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """In the second epoch: the checkpoint of the first stays, and no NaN weights are written."""
    from tightfit.training import trainer

    calls = []

    def with_nan(*args: Any) -> torch.Tensor:
        calls.append(1)
        loss = train_batch(*args)
        return loss * float("nan") if len(calls) == 10 else loss

    train_batch = trainer.train_batch
    monkeypatch.setattr(trainer, "train_batch", with_nan)
    job = job_of(tiny_model, reviews, epochs=2)
    with pytest.raises(LossNotFinite, match=r"nan after 9 steps.*checkpoint-7 holds the last good weights.*0.00025"):
        train(job, out=tmp_path / "run", device="cpu", quiet=True, preflight=False)
    assert not (tmp_path / "run" / "model.safetensors").exists()
    assert all(torch.isfinite(w).all() for w in weights_of(tmp_path / "run" / "checkpoint-7").values())


@pytest.mark.parametrize("max_grad_norm", [1.0, 0.0])
def test_a_nan_gradient_stops_the_run(
    tiny_model: Path, reviews: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, max_grad_norm: float
) -> None:
    """In the last step of an epoch, with and without clipping."""
    from tightfit.training import trainer

    train_batch, calls = trainer.train_batch, []

    def with_nan(model: Any, *args: Any) -> torch.Tensor:
        calls.append(1)
        loss = train_batch(model, *args)
        if len(calls) == 7:
            next(model.parameters()).grad.fill_(float("nan"))
        return loss

    monkeypatch.setattr(trainer, "train_batch", with_nan)
    job = job_of(tiny_model, reviews, max_grad_norm=max_grad_norm)
    with pytest.raises(LossNotFinite, match="gradient became nan after 6 steps"):
        train(job, out=tmp_path / "run", device="cpu", quiet=True, preflight=False)
    assert not (tmp_path / "run" / "model.safetensors").exists()


def test_a_moved_run_finds_its_best_checkpoint(
    tiny_model: Path, reviews: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    from tightfit.tasks.text_classification import TextClassification

    script = iter((0.9, 0.5, 0.4))
    monkeypatch.setattr(TextClassification, "score", lambda self, prediction, labels: {"f1": next(script)})
    train(job_of(tiny_model, reviews, epochs=2), out=tmp_path / "run", device="cpu", quiet=True)
    (tmp_path / "run").rename(tmp_path / "moved")
    run = train(job_of(tiny_model, reviews, epochs=3), out=tmp_path / "moved", device="cpu", resume=True, quiet=True)
    assert run.metrics["epoch"] == 1
    kept, final = weights_of(tmp_path / "moved" / "checkpoint-7"), weights_of(tmp_path / "moved")
    assert all(torch.equal(final[name], weight) for name, weight in kept.items())


def test_a_run_can_be_used_from_another_folder(
    tiny_model: Path, reviews: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(reviews.parent)
    job = job_of(tiny_model, Path(reviews.name), max_steps=1)
    train(job, "micro-batch:size=4", out=tmp_path / "run", device="cpu", quiet=True)
    monkeypatch.chdir("/")
    assert evaluate(tmp_path / "run", device="cpu").rows == 6
    assert len(predict(str(tmp_path / "run"), "clean room", device="cpu")) == 1


def test_the_padding_token_is_that_of_the_tokenizer(tiny_model: Path, reviews: Path) -> None:
    """With another one in the config a decoder would classify a text at the wrong token."""
    from tightfit.data.labels import Labels
    from tightfit.device import find_device
    from tightfit.engine.assembly import StepSettings, assemble
    from tightfit.engine.model_source import JobModel
    from tightfit.models import load_tokenizer
    from tightfit.strategies.recipe import Recipe

    tokenizer = load_tokenizer(str(tiny_model))
    tokenizer.pad_token = "[MASK]"
    job = job_of(tiny_model, reviews)
    source = JobModel(job, Labels(("0", "1")), tokenizer)
    parts = assemble(source, StepSettings.of(job), Recipe(), find_device("cpu"))
    assert parts.model.config.pad_token_id == tokenizer.pad_token_id == 4


def test_a_folder_with_other_files_is_rejected(tiny_model: Path, reviews: Path, tmp_path: Path) -> None:
    (tmp_path / "run").mkdir()
    (tmp_path / "run" / "thesis.txt").write_text("mine")
    with pytest.raises(OutputError, match="--resume"):
        train(job_of(tiny_model, reviews), out=tmp_path / "run", quiet=True)
    assert [p.name for p in (tmp_path / "run").iterdir()] == ["thesis.txt"]


def test_a_full_disk_is_rejected_before_the_run(
    tiny_model: Path, reviews: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(shutil, "disk_usage", lambda path: SimpleNamespace(free=10))
    with pytest.raises(OutputError, match="10 B are free"):
        train(job_of(tiny_model, reviews), out=tmp_path / "run", device="cpu", quiet=True)
    assert not (tmp_path / "run").exists()


def test_the_model_card_has_metadata_for_the_hub(trained: Path) -> None:
    from huggingface_hub import ModelCard

    model_card = ModelCard.load(trained / "README.md")
    assert model_card.data.pipeline_tag == "text-classification"
    assert model_card.data.eval_results[0].metric_type == "f1"
    assert "micro-batch:size=4" in model_card.content


def test_tensorboard_events_are_written(tiny_model: Path, reviews: Path, tmp_path: Path) -> None:
    job = job_of(tiny_model, reviews, max_steps=1)
    train(job, out=tmp_path / "run", device="cpu", report_to=["tensorboard"], quiet=True)
    assert list((tmp_path / "run").rglob("events.out.tfevents.*"))


@pytest.mark.slow
@pytest.mark.parametrize("optimizer", ["adamw", "adamw-8bit"])
def test_optimizer_in_backward_saves_and_resumes(
    tiny_model: Path, reviews: Path, tmp_path: Path, optimizer: str
) -> None:
    """Optimizer state and schedule are in the checkpoint as with any other recipe."""
    skip_unless_installed(optimizer)
    specs = ["chunked-layers:size=4", optimizer, "optimizer-in-backward"]
    settings = {
        "model": str(tiny_model),
        "data": str(reviews),
        "batch_size": 8,
        "max_length": 32,
        "learning_rate": 5e-3,
    }
    uninterrupted = train(Job(**settings, epochs=3), specs, out=tmp_path / "uninterrupted", device="cpu", quiet=True)
    shutil.copytree(tmp_path / "uninterrupted", tmp_path / "again")
    _, *later = sorted((tmp_path / "again").glob("checkpoint-*"), key=lambda path: int(path.name.split("-")[1]))
    for checkpoint in later:
        shutil.rmtree(checkpoint)
    (tmp_path / "again" / "run.json").unlink()
    again = train(Job(**settings, epochs=3), specs, out=tmp_path / "again", device="cpu", quiet=True, resume=True)
    assert again.metrics["eval_loss"] == uninterrupted.metrics["eval_loss"]
    assert again.steps == uninterrupted.steps
    one, other = (weights_of(tmp_path / name) for name in ("uninterrupted", "again"))
    assert all(torch.equal(one[name], other[name]) for name in one)
