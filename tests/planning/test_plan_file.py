"""The plan as a file: written, read again, checked, and what happens when it is edited wrongly or has aged."""

from __future__ import annotations

from pathlib import Path

import pytest
import yaml
from plans import budget, planner_of

from tightfit import Job
from tightfit.errors import BadInput
from tightfit.job import read_job_file
from tightfit.planning.file import changes, read_note, write_plan
from tightfit.planning.plans import Plan
from tightfit.planning.verb import from_plan
from tightfit.planning.wishes import Wishes


@pytest.fixture(scope="module")
def made(tmp_path_factory: pytest.TempPathFactory) -> Plan:
    return planner_of(tmp_path_factory.mktemp("model")).plan(budget(1 << 40), Wishes())


@pytest.fixture
def file(made: Plan, tmp_path: Path) -> Path:
    path = tmp_path / "plan.yaml"
    write_plan(path, made)
    return path


def test_a_plan_is_a_job_file(file: Path, made: Plan) -> None:
    values, words = read_job_file(file)
    assert Job(**values) == made.job.with_full_paths()
    assert words == made.recipe.words
    note = read_note(file, yaml.safe_load(file.read_text())["plan"])
    assert (note.peak_bytes, note.result) == (made.chosen.peak, "same")


def test_training_takes_its_recipe_and_budget_and_the_command_line_beats_it(file: Path, made: Plan) -> None:
    words, kept = from_plan(file, made.job, made.recipe.words, None)
    assert words == made.recipe.words
    assert kept == {"budget": f"{1 << 20}MB", "planned": True}
    assert from_plan(file, made.job, words, "2GB")[1]["budget"] == "2GB"


def test_data_that_changed_is_planned_for_again(tmp_path: Path, made: Plan, capsys: pytest.CaptureFixture[str]) -> None:
    data = tmp_path / "rows.csv"
    data.write_text("text,label\na,b\n")
    job = made.job.model_copy(update={"data": str(data)})
    path = tmp_path / "plan.yaml"
    write_plan(path, _with_job(made, job))
    assert from_plan(path, job, ["x"], None)[0] == ["x"]
    data.write_text("text,label\na,b\nc,d\n")
    words, kept = from_plan(path, job, ["x"], None)
    assert words == []
    assert "planned" not in kept
    assert "rows.csv changed from" in capsys.readouterr().err


@pytest.mark.parametrize(
    ("old", "new", "said"),
    [
        ("version: 1", "version: 7", r"line \d+: the plan is of version 7 and this tightfit reads 1"),
        ("peak_bytes:", "peek_bytes:", r"line \d+: there is no 'peek_bytes' in a plan: did you mean 'peak_bytes'"),
        ("result: same", "result: [1]", r"line \d+: result is"),
        ("batch-size:", "batchsize:", r"line \d+: there is no setting 'batchsize': did you mean 'batch-size'"),
    ],
)
def test_a_file_edited_wrongly_names_the_key_and_the_line(file: Path, old: str, new: str, said: str) -> None:
    text = file.read_text()
    assert old in text
    file.write_text(text.replace(old, new))
    with pytest.raises(BadInput, match=said):
        _read(file)


def test_what_is_missing_is_named(file: Path) -> None:
    content = yaml.safe_load(file.read_text())
    del content["plan"]["budget"]
    file.write_text(yaml.safe_dump(content))
    with pytest.raises(BadInput, match="lacks 'budget'"):
        _read(file)


def test_unknown_data_is_no_change(file: Path, made: Plan) -> None:
    assert changes(read_note(file, yaml.safe_load(file.read_text())["plan"]), made.job) == []


def _read(file: Path) -> None:
    read_job_file(file)
    read_note(file, yaml.safe_load(file.read_text())["plan"])


def _with_job(made: Plan, job: Job) -> Plan:
    from dataclasses import replace

    return replace(made, job=job)


@pytest.mark.parametrize(
    "value", [f"0x{'f' * 5000}", "[" * 40 + "]" * 40, "&a [*a, *a]"], ids=["digits", "deep", "in itself"]
)
@pytest.mark.parametrize("line", ["plan: {{version: {}}}", "plan: {{version: 1, budget: {}}}", "seed: {}", "? {}\n: 1"])
def test_values_that_nobody_could_write_out_are_one_line(tmp_path: Path, line: str, value: str) -> None:
    path = tmp_path / "plan.yaml"
    path.write_text(f"model: m\ndata: d\n{line.format(value)}\n")

    def read() -> None:
        from_plan(path, Job(model="m", data="d"), [], None)
        Job(**read_job_file(path)[0])

    with pytest.raises(BadInput) as error:
        read()
    assert len(str(error.value)) < 2000
