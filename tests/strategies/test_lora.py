"""Small matrices beside frozen weights: in every architecture, with what goes around layers, and out again."""

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


def learn(parts: Any) -> None:
    """A few large steps, so that the matrices matter."""
    optimizer = torch.optim.SGD([p for p in parts.model.parameters() if p.requires_grad], lr=0.5)
    for seed in range(3):
        parts.model(**make_batch(8, seed=seed)).loss.backward()
        optimizer.step()
        optimizer.zero_grad()


@pytest.mark.parametrize("architecture", CONFIGS)
def test_what_was_learnt_is_in_the_weights_afterwards(architecture: str) -> None:
    parts, batch = parts_of("lora", model=build(architecture)), make_batch(8)
    frozen = {name: p.clone() for name, p in parts.model.named_parameters() if not p.requires_grad}
    learn(parts)
    assert all(torch.equal(p, frozen[name]) for name, p in parts.model.named_parameters() if name in frozen)
    with torch.no_grad():
        before = parts.model.eval()(**batch).logits
        parts.adapter.merge_or_unload()
        after = parts.model(**batch).logits
    torch.testing.assert_close(after, before, rtol=1e-4, atol=1e-5)
    plain = build(architecture).eval()
    assert set(parts.model.state_dict()) == set(plain.state_dict())
    assert not torch.allclose(plain(**batch).logits, after, atol=1e-3)


@pytest.mark.parametrize("architecture", CONFIGS)
@pytest.mark.parametrize("around", ["gradient-checkpointing", "chunked-layers:size=3"])
def test_its_gradients_are_the_same_in_recomputed_layers(architecture: str, around: str) -> None:
    from tightfit.data.batches import micro_batches

    batch = next(micro_batches(make_batch(8), 8, sort=True))[1]
    found = []
    for words in (["lora"], ["lora", around]):
        torch.manual_seed(1)
        parts = parts_of(*words, model=build(architecture))
        torch.manual_seed(1)
        for name, parameter in parts.model.named_parameters():
            if "lora_B" in name:
                torch.nn.init.normal_(parameter, std=0.1)  # zeros at first, which would hide half of the gradients
        parts.model(**batch).loss.backward()
        found.append(gradients(parts.model))
    assert (found[1] - found[0]).norm() <= 1e-4 * found[0].norm()


def test_targets_by_name() -> None:
    parts = parts_of("lora:targets=query+key,r=2")
    trained = {name.split(".")[-4] for name, p in parts.model.named_parameters() if "lora_A" in name}
    assert trained == {"query", "key"}


@pytest.mark.parametrize(
    ("words", "says"),
    [
        (["lora:targets=nowhere"], "no module 'nowhere'; this model has .*LayerNorm"),
        (["lora", "freeze"], "clash: what lora trains lies in the frozen part"),
    ],
)
def test_what_does_not_work(words: list[str], says: str) -> None:
    with pytest.raises(RecipeError, match=says):
        parts_of(*words)


def job_of(model: Path, data: Path, **changes: Any) -> Job:
    values = {"batch_size": 8, "max_length": 32, "learning_rate": 5e-3, "seed": 7, "epochs": 4, **changes}
    return Job(model=str(model), data=str(data), **values)


@pytest.fixture(scope="module")
def runs(tiny_model: Path, tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, Path]:
    """The same training, merged and not; weights by chance want a strong correction and many epochs."""
    from conftest import write_reviews

    folder = tmp_path_factory.mktemp("lora")
    data = write_reviews(folder / "reviews.csv")
    job = job_of(tiny_model, data, learning_rate=1e-2, epochs=24)
    for name, word in (("merged", "lora:alpha=64"), ("apart", "lora:alpha=64,merge=false")):
        train(job, [word], out=folder / name, device="cpu", quiet=True)
    return folder / "merged", folder / "apart"


def test_both_folders_are_model_folders(runs: tuple[Path, Path]) -> None:
    from transformers import pipeline

    merged, apart = (pipeline("text-classification", str(folder))(TEXTS) for folder in runs)
    assert [answer["label"] for answer in merged] == [answer["label"] for answer in apart]
    assert [a["score"] for a in merged] == pytest.approx([a["score"] for a in apart], abs=1e-4)
    assert [answer["label"] for answer in merged[:2]] == ["1", "0"]


def test_predict_and_evaluate_find_what_was_learnt(runs: tuple[Path, Path]) -> None:
    assert predict(runs[0], TEXTS, device="cpu")[0].confidence == pytest.approx(
        predict(runs[1], TEXTS, device="cpu")[0].confidence, abs=1e-4
    )
    for folder in runs:
        run = load_run(folder)
        assert run.metrics["eval_f1"] > 0.8
        assert evaluate(folder, device="cpu").metrics["eval_loss"] == pytest.approx(run.metrics["eval_loss"], rel=1e-3)
        assert run.trainable_parameters < 0.2 * run.parameters
        assert run.predicted.peak_bytes == pytest.approx(run.measured.peak_bytes, rel=0.05)


def test_the_adapter_alone_is_peft_s(runs: tuple[Path, Path], tiny_model: Path, tmp_path: Path) -> None:
    """Its two files, put on the model it was trained from."""
    from peft import PeftModel
    from transformers import AutoModelForSequenceClassification, AutoTokenizer

    for name in ("adapter_config.json", "adapter_model.safetensors"):
        shutil.copy(runs[1] / name, tmp_path)
    model = PeftModel.from_pretrained(AutoModelForSequenceClassification.from_pretrained(tiny_model), str(tmp_path))
    merged = AutoModelForSequenceClassification.from_pretrained(runs[0])
    inputs = AutoTokenizer.from_pretrained(tiny_model)(TEXTS, padding=True, return_tensors="pt")
    with torch.no_grad():
        torch.testing.assert_close(model.eval()(**inputs).logits, merged.eval()(**inputs).logits, rtol=1e-3, atol=1e-4)


def test_a_stopped_run_goes_on(tiny_model: Path, reviews: Path, tmp_path: Path) -> None:
    settings = job_of(tiny_model, reviews, epochs=2)
    whole = train(settings, ["lora"], out=tmp_path / "whole", device="cpu", quiet=True)
    for checkpoint in (tmp_path / "whole").glob("checkpoint-*"):
        assert (checkpoint / "model.safetensors").stat().st_size < 0.2 * 4 * whole.parameters, "only what learns"
    shutil.copytree(tmp_path / "whole", tmp_path / "again")
    shutil.rmtree(tmp_path / "again" / f"checkpoint-{whole.steps}")
    for name in ("run.json", "model.safetensors"):
        (tmp_path / "again" / name).unlink()
    again = train(settings, ["lora"], out=tmp_path / "again", device="cpu", quiet=True, resume=True)
    assert again.metrics["eval_loss"] == whole.metrics["eval_loss"]
    first, second = ((tmp_path / name / "model.safetensors").read_bytes() for name in ("whole", "again"))
    assert first == second
