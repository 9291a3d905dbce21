"""LoRA in every architecture, with recomputed layers, merged and saved as an adapter."""

from __future__ import annotations

import shutil
from pathlib import Path
from typing import Any

import pytest
import torch
from heads import CONFIGS, build, gradients, make_batch
from parts import parts_of

from tightfit import Job, evaluate, load_run, predict, train
from tightfit.errors import RecipeError

TEXTS = ["clean quiet kind", "dirty loud rude", "lovely staff and a cold room"]


def train_steps(parts: Any) -> None:
    """A few large steps, so that the adapter changes the logits."""
    optimizer = torch.optim.SGD([p for p in parts.model.parameters() if p.requires_grad], lr=0.5)
    for seed in range(3):
        parts.model(**make_batch(8, seed=seed)).loss.backward()
        optimizer.step()
        optimizer.zero_grad()


@pytest.mark.parametrize("architecture", CONFIGS)
def test_merging_keeps_the_logits_and_removes_the_adapter(architecture: str) -> None:
    parts, batch = parts_of("lora", model=build(architecture)), make_batch(8)
    frozen = {name: p.clone() for name, p in parts.model.named_parameters() if not p.requires_grad}
    train_steps(parts)
    assert all(torch.equal(p, frozen[name]) for name, p in parts.model.named_parameters() if name in frozen)
    with torch.no_grad():
        before = parts.model.eval()(**batch).logits
        parts.export.finish(None)
        after = parts.model(**batch).logits
    torch.testing.assert_close(after, before, rtol=1e-4, atol=1e-5)
    untrained = build(architecture).eval()
    assert set(parts.model.state_dict()) == set(untrained.state_dict())
    assert not torch.allclose(untrained(**batch).logits, after, atol=1e-3)


@pytest.mark.parametrize("architecture", CONFIGS)
@pytest.mark.parametrize("recomputation", ["gradient-checkpointing", "chunked-layers:size=3"])
def test_gradients_are_the_same_in_recomputed_layers(architecture: str, recomputation: str) -> None:
    from tightfit.data.micro_batches import micro_batches

    batch = next(micro_batches(make_batch(8), 8, sort=True))[1]
    found = []
    for specs in (["lora"], ["lora", recomputation]):
        torch.manual_seed(1)
        parts = parts_of(*specs, model=build(architecture))
        torch.manual_seed(1)
        for name, parameter in parts.model.named_parameters():
            if "lora_B" in name:
                torch.nn.init.normal_(parameter, std=0.1)  # initially zero, which would hide half of the gradients
        parts.model(**batch).loss.backward()
        found.append(gradients(parts.model))
    assert (found[1] - found[0]).norm() <= 1e-4 * found[0].norm()


LANGUAGE_MODELS = {"causal": ("Llama", "Qwen2", "GPT2"), "seq2seq": ("T5",), "masked": ("Bert", "ModernBert")}


@pytest.mark.parametrize(
    ("head", "architecture"), [(h, name) for h, names in LANGUAGE_MODELS.items() for name in names]
)
def test_the_head_of_a_language_model_is_left_as_it_is(head: str, architecture: str) -> None:
    parts = parts_of("lora", model=build(architecture, head, tie_word_embeddings=False))
    assert parts.trainable_parameters > 0
    assert all("lora_" in name for name, p in parts.model.named_parameters() if p.requires_grad)


@pytest.mark.parametrize("switch", ["use_rslora", "use_dora"])
def test_peft_loads_an_adapter_with_its_switches(switch: str, tmp_path: Path) -> None:
    """Saved by its own file names: the logits are those of the trained model."""
    from peft import PeftModel

    parts, batch = parts_of(f"lora:{switch}=true,r=4,merge=false", model=build("Bert")), make_batch(8)
    train_steps(parts)
    with torch.no_grad():
        expected = parts.model.eval()(**batch).logits
    parts.export.finish(tmp_path)
    model = PeftModel.from_pretrained(build("Bert"), str(tmp_path)).eval()
    assert getattr(model.peft_config["default"], switch)
    with torch.no_grad():
        torch.testing.assert_close(model(**batch).logits, expected, rtol=1e-4, atol=1e-5)


def test_targets_can_be_named() -> None:
    parts = parts_of("lora:targets=query+key,r=2")
    trained = {name.split(".")[-4] for name, p in parts.model.named_parameters() if "lora_A" in name}
    assert trained == {"query", "key"}


@pytest.mark.parametrize(
    ("specs", "message"),
    [
        (["lora:targets=nowhere"], "no module 'nowhere'; this model has .*LayerNorm"),
        (["lora", "freeze"], "clash: lora trains matrices inside the frozen part"),
    ],
)
def test_unknown_targets_and_a_frozen_encoder_are_rejected(specs: list[str], message: str) -> None:
    with pytest.raises(RecipeError, match=message):
        parts_of(*specs)


def job_of(model: Path, data: Path, **changes: Any) -> Job:
    values = {"batch_size": 8, "max_length": 32, "learning_rate": 5e-3, "seed": 7, "epochs": 4, **changes}
    return Job(model=str(model), data=str(data), **values)


@pytest.fixture(scope="module")
def runs(tiny_model: Path, tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, Path]:
    """The same training run with and without merging; random weights need a large alpha and many epochs."""
    from conftest import write_reviews

    folder = tmp_path_factory.mktemp("lora")
    data = write_reviews(folder / "reviews.csv")
    job = job_of(tiny_model, data, learning_rate=1e-2, epochs=24)
    for name, spec in (("merged", "lora:alpha=64"), ("adapter", "lora:alpha=64,merge=false")):
        train(job, [spec], out=folder / name, device="cpu", quiet=True)
    return folder / "merged", folder / "adapter"


@pytest.mark.slow
def test_a_pipeline_loads_both_run_folders(runs: tuple[Path, Path]) -> None:
    from transformers import pipeline

    merged, adapter = (pipeline("text-classification", str(folder))(TEXTS) for folder in runs)
    assert [answer["label"] for answer in merged] == [answer["label"] for answer in adapter]
    assert [a["score"] for a in merged] == pytest.approx([a["score"] for a in adapter], abs=1e-4)
    assert [answer["label"] for answer in merged[:2]] == ["1", "0"]


def test_predict_and_evaluate_load_both_run_folders(runs: tuple[Path, Path]) -> None:
    assert predict(runs[0], TEXTS, device="cpu")[0].confidence == pytest.approx(
        predict(runs[1], TEXTS, device="cpu")[0].confidence, abs=1e-4
    )
    for folder in runs:
        run = load_run(folder)
        assert run.metrics["eval_f1"] > 0.8
        assert evaluate(folder, device="cpu").metrics["eval_loss"] == pytest.approx(run.metrics["eval_loss"], rel=1e-3)
        assert run.trainable_parameters < 0.2 * run.parameters


def test_predicted_memory_holds_gradients_and_optimizer_state_to_the_byte(runs: tuple[Path, Path]) -> None:
    """The process size is in every phase: without it, a step holds what it adds to the loaded model."""
    for folder in runs:
        run = load_run(folder)
        saved = torch.load(next(folder.glob("checkpoint-*/optimizer.pt")), weights_only=True)["state"]
        state = sum(tensor.nbytes for values in saved.values() for tensor in values.values())
        assert state > 8 * run.trainable_parameters  # two moments, and a step counter per tensor
        phases = run.predicted.phases
        assert phases is not None
        assert phases["step"] - phases["load"] == 4 * run.trainable_parameters + state


def test_peft_loads_the_adapter(runs: tuple[Path, Path], tiny_model: Path, tmp_path: Path) -> None:
    """From its two files alone, on the model it was trained from."""
    from peft import PeftModel
    from transformers import AutoModelForSequenceClassification, AutoTokenizer

    for name in ("adapter_config.json", "adapter_model.safetensors"):
        shutil.copy(runs[1] / name, tmp_path)
    model = PeftModel.from_pretrained(AutoModelForSequenceClassification.from_pretrained(tiny_model), str(tmp_path))
    merged = AutoModelForSequenceClassification.from_pretrained(runs[0])
    inputs = AutoTokenizer.from_pretrained(tiny_model)(TEXTS, padding=True, return_tensors="pt")
    with torch.no_grad():
        torch.testing.assert_close(model.eval()(**inputs).logits, merged.eval()(**inputs).logits, rtol=1e-3, atol=1e-4)


def test_a_resumed_run_ends_with_identical_weights(tiny_model: Path, reviews: Path, tmp_path: Path) -> None:
    settings = job_of(tiny_model, reviews, epochs=2)
    whole = train(settings, ["lora"], out=tmp_path / "whole", device="cpu", quiet=True)
    for checkpoint in (tmp_path / "whole").glob("checkpoint-*"):
        assert (checkpoint / "model.safetensors").stat().st_size < 0.2 * 4 * whole.parameters, "only what trains"
    shutil.copytree(tmp_path / "whole", tmp_path / "resumed")
    shutil.rmtree(tmp_path / "resumed" / f"checkpoint-{whole.steps}")
    for name in ("run.json", "model.safetensors"):
        (tmp_path / "resumed" / name).unlink()
    resumed = train(settings, ["lora"], out=tmp_path / "resumed", device="cpu", quiet=True, resume=True)
    assert resumed.metrics["eval_loss"] == whole.metrics["eval_loss"]
    first, second = ((tmp_path / name / "model.safetensors").read_bytes() for name in ("whole", "resumed"))
    assert first == second
