"""Default run folders: their names, and which one `--resume` continues."""

from __future__ import annotations

import itertools
import json
import os
from pathlib import Path

import pytest

from tightfit import Job, load_run, train
from tightfit.errors import BadInput
from tightfit.job import write_job_file
from tightfit.runs.default_folder import new_run_folders, unfinished_run
from tightfit.runs.lock import locked_folder


@pytest.fixture(autouse=True)
def _in_an_empty_folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)


@pytest.mark.parametrize(
    ("model", "data", "name"),
    [
        ("hfl/chinese-macbert-large", "reviews.csv", "chinese-macbert-large-reviews-1"),
        ("bert-base-chinese", "data/酒店 评论.tsv", "bert-base-chinese-酒店-评论-1"),
        ("/weights/minilm/model", "user/imdb", "minilm-imdb-1"),
        ("../models/my.bert/", "./a.b.jsonl", "my.bert-a.b-1"),
        ("..", "$(rm -rf)", "run-rm--rf-1"),
    ],
)
def test_a_new_folder_is_named_by_model_and_data(model: str, data: str, name: str, tmp_path: Path) -> None:
    if "." in Path(data).name:
        Path(data).parent.mkdir(exist_ok=True)
        Path(data).touch()
    assert next(new_run_folders(Job(model=model, data=data))) == Path("runs") / name


def test_new_folders_are_numbered_and_numbers_are_not_used_again() -> None:
    job = Job(model="bert", data="user/reviews")
    for name in ("run", "bert-reviews-1", "bert-reviews-10", "bert-reviews-x", "bert-other-99"):
        (Path("runs") / name).mkdir(parents=True)
    folders = itertools.islice(new_run_folders(job), 2)
    assert [folder.name for folder in folders] == ["bert-reviews-11", "bert-reviews-12"]


def test_a_run_without_out_takes_the_next_free_folder(tiny_model: Path, reviews: Path) -> None:
    job = Job(model=str(tiny_model), data=str(reviews), batch_size=8, max_length=32, max_steps=1)
    with locked_folder(Path("runs/tiny-bert-reviews-1")):  # a run that has just been started beside it
        names = [Path(train(job, device="cpu", quiet=True).folder).name for _ in range(2)]
    assert names == ["tiny-bert-reviews-2", "tiny-bert-reviews-3"]


def unfinished(number: int, *, seed: int = 42, steps: int | None = None, started: float = 0.0) -> Path:
    folder = Path("runs") / f"run-{number}"
    folder.mkdir(parents=True)
    write_job_file(folder / "job.yaml", Job(model="bert", data="user/reviews", seed=seed, max_steps=steps), [])
    (folder / "start.json").write_text("{}")
    os.utime(folder / "start.json", (started, started))
    return folder


def test_the_newest_unfinished_run_of_the_job_is_resumed() -> None:
    unfinished(1, started=1)
    second, third = unfinished(2, started=3), unfinished(3, seed=7, started=2)
    (Path("runs") / "damaged").mkdir()
    (Path("runs/damaged/job.yaml")).write_text("[")
    assert unfinished_run({}) == second
    assert unfinished_run({"seed": 7}) == third
    assert unfinished_run({"model": "bert", "data": "user/reviews", "epochs": 5.0}) == second
    with pytest.raises(BadInput, match="no unfinished run of this job under 'runs': name one with --out"):
        unfinished_run({"model": "other"})


def test_a_finished_run_is_resumed_for_more_epochs_only(tiny_model: Path, reviews: Path) -> None:
    job = Job(model=str(tiny_model), data=str(reviews), batch_size=8, max_length=32, max_steps=1)
    first = train(job, device="cpu", quiet=True)
    with pytest.raises(BadInput, match="no unfinished run"):
        train(job, device="cpu", quiet=True, resume=True)
    again = train(job.model_copy(update={"max_steps": 2}), device="cpu", quiet=True, resume=True)
    assert again.folder == first.folder
    assert again.steps == 2


@pytest.mark.parametrize(
    ("count", "left"), [(0, []), (1, ["checkpoint-21"]), (3, ["checkpoint-7", "checkpoint-14", "checkpoint-21"])]
)
def test_of_a_finished_run_some_checkpoints_are_kept(
    tiny_model: Path, reviews: Path, count: int, left: list[str]
) -> None:
    job = Job(model=str(tiny_model), data=str(reviews), batch_size=8, max_length=32, epochs=3)
    train(job, out="run", device="cpu", quiet=True, keep_checkpoints=count)
    assert sorted(path.name for path in Path("run").glob("checkpoint-*")) == sorted(left)
    assert (Path("run") / "model.safetensors").is_file()
    if count == 0:
        more = job.model_copy(update={"epochs": 4.0})
        with pytest.raises(BadInput, match="has finished and kept no checkpoint to continue from"):
            train(more, out="run", device="cpu", quiet=True, resume=True)
        assert json.loads(Path("run/run.json").read_text())["steps"] == load_run("run").steps == 21
