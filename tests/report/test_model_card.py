"""The model card: its code runs as printed, and its metadata say what is known of the base model and the data."""

from __future__ import annotations

import json
import re
import shutil
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
from conftest import make_model, write_reviews
from huggingface_hub import ModelCard

from tightfit import Job, load_run, train
from tightfit.report.base_model import BaseModel, base_model
from tightfit.report.html import report_page
from tightfit.report.model_card import write_card
from tightfit.runs.folder import read_run_folder


def python_in(readme: Path) -> str:
    """The code that the model card tells its reader to run."""
    found = re.search(r"```python\n(.*?)```", readme.read_text("utf-8"), flags=re.DOTALL)
    assert found
    return found[1]


def run_python(code: str, folder: Path) -> Any:
    shown = subprocess.run([sys.executable, "-c", code], check=True, cwd=folder, capture_output=True, text=True)
    return json.loads(shown.stdout.replace("'", '"'))


@pytest.fixture(scope="module")
def long_texts_run(tiny_model: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A run in a folder whose name a shell would split, with texts longer than the model can take."""
    folder = tmp_path_factory.mktemp("model-cards")
    job = Job(model=str(tiny_model), data=str(write_reviews(folder / "reviews.csv")), batch_size=8, max_length=16)
    train(job, out=folder / "my run", device="cpu", quiet=True)
    return folder / "my run"


def test_the_code_runs_as_printed(long_texts_run: Path, tmp_path: Path) -> None:
    code = python_in(long_texts_run / "README.md")
    assert "truncation=True, max_length=16" in code
    [answer] = run_python(code, tmp_path)
    assert answer["label"] in ("0", "1")
    [answer] = run_python(code.replace("a text to classify", "the room was clean " * 50), tmp_path)
    assert answer["label"] in ("0", "1")


def test_the_code_runs_for_a_folder_given_relative_to_the_current_one(long_texts_run: Path) -> None:
    relative = load_run(long_texts_run).model_copy(update={"folder": "my run"})
    model_card = ModelCard.load(long_texts_run / "README.md")
    code = python_in(long_texts_run / "README.md").replace(str(long_texts_run), relative.folder)
    assert run_python(code, long_texts_run.parent)
    assert model_card.data.base_model is None  # the config of the tiny model tells no name


def test_a_model_with_random_weights_is_not_called_fine_tuned(trained: Path, tmp_path: Path) -> None:
    run = load_run(shutil.copytree(trained, tmp_path / "run"))
    assert " fine-tuned with tightfit; " in (tmp_path / "run" / "README.md").read_text("utf-8")
    write_card(run.model_copy(update={"job": run.job.model_copy(update={"random_weights": True})}))
    model_card = (tmp_path / "run" / "README.md").read_text("utf-8")
    assert (
        "with random weights, trained with tightfit to measure memory and time, not for its predictions" in model_card
    )
    assert "fine-tuned with" not in model_card


def test_phases_have_the_names_of_the_report(trained: Path) -> None:
    """Not their ids, which run.json has."""
    run, model_card = load_run(trained), (trained / "README.md").read_text("utf-8")
    assert {"step", "between"} <= run.measured.phases.keys()
    assert "| optimizer step |" in model_card
    assert "| between phases |" in model_card
    assert not re.search(r"\| (step|between) \|", model_card)
    assert "  optimizer step" in str(run)


def test_the_metadata_say_what_is_known(trained: Path, tmp_path: Path) -> None:
    run = load_run(trained)
    assert run.data.language == "en"
    model = tmp_path / "base"
    shutil.copytree(run.job.model, model)
    (model / "README.md").write_text("---\nlicense: mit\nlanguage: zh\nbase_model: hfl/rbt3\n---\n# x\n", "utf-8")
    copy = run.model_copy(update={"folder": str(tmp_path), "job": run.job.model_copy(update={"model": str(model)})})
    write_card(copy)
    data = ModelCard.load(tmp_path / "README.md").data
    assert (data.base_model, data.license, data.language) == ("hfl/rbt3", "mit", "en")
    assert data.metrics == ["f1", "accuracy", "macro_f1", "mcc"]
    [result] = [each for each in data.eval_results if each.metric_type == "f1"]
    assert result.metric_name == "F1 of '1'"
    assert str(tmp_path / "base") not in (tmp_path / "README.md").read_text("utf-8")


@pytest.mark.parametrize(
    ("written", "name"),
    [
        ({"_name_or_path": "bert-base-chinese"}, "bert-base-chinese"),
        ({"_name_or_path": "hfl/chinese-macbert-large"}, "hfl/chinese-macbert-large"),
        ({"_name_or_path": "/home/somebody/models/bert"}, None),
        ({"_name_or_path": "./bert"}, None),
        ({"_name_or_path": ""}, None),
        ({}, None),
    ],
)
def test_the_name_of_a_folder_is_that_of_its_config(tmp_path: Path, written: dict[str, str], name: str | None) -> None:
    (tmp_path / "config.json").write_text(json.dumps(written), "utf-8")
    assert base_model(str(tmp_path)) == BaseModel(name)


def test_a_folder_of_the_cache_has_the_name_of_its_repository(tmp_path: Path) -> None:
    folder = tmp_path / "models--hfl--rbt3" / "snapshots" / "0123"
    folder.mkdir(parents=True)
    assert base_model(str(folder)).name == "hfl/rbt3"


def test_a_hub_id_is_its_own_name() -> None:
    assert base_model("hfl/rbt3") == BaseModel("hfl/rbt3")
    assert base_model("/a folder/that is gone").license is None


def test_a_model_that_says_the_same_for_every_text_is_not_praised(tmp_path: Path) -> None:
    """The tiny model knows no numbers, so that all texts are the same to it."""
    model = make_model(tmp_path / "model")
    data = tmp_path / "reviews.csv"
    lines = [f"{'正面' if n % 3 else '负面'},the room was {n}" for n in range(90)]
    data.write_text("label,review\n" + "\n".join(lines), "utf-8")
    job = Job(model=str(model), data=str(data), batch_size=32, max_length=16, learning_rate=4e-4, epochs=40)
    run = train(job, ["freeze"], out=tmp_path / "run", device="cpu", quiet=True)
    assert run.quality is not None
    assert run.quality.answer == "正面"
    assert run.metrics["eval_f1"] == run.metrics["eval_constant_f1"] == pytest.approx(0.8)
    [note] = run.quality.notes
    assert note.startswith("All 9 examples get the same answer, '正面'")
    assert "higher --learning-rate (it was 0.0004" in note
    model_card = (tmp_path / "run" / "README.md").read_text("utf-8")
    assert "F1 of '正面' 0.8000" in model_card
    assert "always the majority class: F1 of '正面' 0.8000" in model_card
    assert note in model_card
    page = report_page([read_run_folder(tmp_path / "run")])
    assert "--epochs 120 --learning-rate 0.0005" in page
    assert "use fewer epochs" not in page
