"""The plan as a file: written, read again, checked, and what happens when it is edited wrongly or has aged."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest
import yaml
from plans import budget, planner_of

from tightfit import Job
from tightfit.cli.planning import Request, planned_recipe, read_plan_header
from tightfit.device import GPUS
from tightfit.errors import BadInput
from tightfit.job import read_job_file
from tightfit.planning.constraints import Constraints
from tightfit.planning.plan import Plan
from tightfit.planning.plan_file import changes, fingerprints, read_note, write_plan


@pytest.fixture(scope="module")
def made(tmp_path_factory: pytest.TempPathFactory) -> Plan:
    return planner_of(tmp_path_factory.mktemp("model")).plan(budget(1 << 40), Constraints())


@pytest.fixture
def file(made: Plan, tmp_path: Path) -> Path:
    path = tmp_path / "plan.yaml"
    write_plan(path, made)
    return path


def test_a_plan_is_a_job_file(file: Path, made: Plan) -> None:
    values, words = read_job_file(file)
    assert Job(**values) == made.job.resolve_paths()
    assert words == made.recipe.specs
    note = read_note(file, yaml.safe_load(file.read_text())["plan"])
    assert (note.peak_bytes, note.result) == (made.chosen.peak, "same")


def test_training_takes_its_recipe_and_budget_and_the_command_line_beats_it(file: Path, made: Plan) -> None:
    assert planned_recipe(file, made.job, made.recipe.specs) == made.recipe.specs
    kept = Request().over(file, made.recipe.specs)
    assert kept == Request(f"{1 << 20}MB", "cpu", [], [], "close")
    assert Request("2GB", "cuda", ["micro-batch"]).over(file, []) == replace(
        kept, budget="2GB", device="cuda", use=["micro-batch"]
    )


def test_what_a_plan_was_made_with_is_kept_for_planning_again(tmp_path: Path, made: Plan) -> None:
    path = tmp_path / "plan.yaml"
    write_plan(
        path,
        replace(
            made, constraints=Constraints.of(["micro-batch:size=2"], ["adafactor", "length-bucketing"], "different")
        ),
    )
    request = Request().over(path, ["anything"])
    assert (request.use, request.avoid, request.allow) == (
        ["micro-batch:size=2"],
        ["adafactor", "length-bucketing"],
        "different",
    )
    assert not Request().has_constraints
    assert Request(allow="same").has_constraints


@pytest.mark.parametrize(("title", "planned"), [("T4 16GB", "T4 16GB"), ("a card of this machine", None)])
def test_a_card_of_a_plan_is_planned_for_by_name_and_trained_on_if_it_is_here(
    tmp_path: Path, made: Plan, title: str, planned: str | None
) -> None:
    path = tmp_path / "plan.yaml"
    write_plan(path, replace(made, budget=replace(made.budget, device=replace(GPUS["T4 16GB"], title=title))))
    assert Request().over(path, [], cards=True).device == planned
    assert Request().over(path, []).device is None


def test_a_file_that_is_no_plan_only_has_strategies(tmp_path: Path) -> None:
    path = tmp_path / "job.yaml"
    path.write_text("model: m\ndata: d\n")
    assert read_plan_header(path) is None
    assert planned_recipe(path, Job(model="m", data="d"), ["micro-batch"]) is None
    assert Request().over(path, ["micro-batch"]) == Request(use=["micro-batch"])


def test_data_that_changed_is_planned_for_again(tmp_path: Path, made: Plan, capsys: pytest.CaptureFixture[str]) -> None:
    data = tmp_path / "rows.csv"
    data.write_text("text,label\na,b\n")
    job = made.job.model_copy(update={"data": str(data)})
    path = tmp_path / "plan.yaml"
    write_plan(path, replace(made, job=job))
    assert planned_recipe(path, job, ["x"]) == ["x"]
    data.write_text("text,label\na,b\nc,d\n")
    assert planned_recipe(path, job, ["x"]) is None
    assert "rows.csv changed from" in capsys.readouterr().err


def test_every_change_of_the_data_is_seen(tmp_path: Path, made: Plan) -> None:
    """Files of one name in two folders, another file in place of the first, a folder with one file more."""
    for name in ("train/rows.csv", "dev/rows.csv", "many/a.csv"):
        (tmp_path / name).parent.mkdir(exist_ok=True)
        (tmp_path / name).write_text(f"text,label\n{name},b\n")
    named = {"data": str(tmp_path / "train" / "rows.csv"), "validation": str(tmp_path / "dev" / "rows.csv")}
    job, path = made.job.model_copy(update=named), tmp_path / "plan.yaml"
    write_plan(path, replace(made, job=job))
    note = read_plan_header(path)
    assert note is not None
    assert not changes(note, job)
    assert changes(note, job.model_copy(update={"validation": None}))
    assert changes(note, job.model_copy(update={"data": str(tmp_path / "many")}))
    (tmp_path / "train" / "rows.csv").write_text("text,label\nx,y\n")
    assert len(changes(note, job)) == 1
    whole = job.model_copy(update={"data": str(tmp_path / "many")})
    before = fingerprints(whole)
    (tmp_path / "many" / "b.csv").write_text("text,label\nx,y\n")
    assert fingerprints(whole) != before


@pytest.mark.parametrize(
    ("old", "new", "said"),
    [
        ("version: 2", "version: 7", r"line \d+: the plan is of version 7 and this tightfit reads 2"),
        ("peak_bytes:", "peek_bytes:", r"line \d+: there is no 'peek_bytes' in a plan: did you mean 'peak_bytes'"),
        ("result: same", "result: [1]", r"line \d+: result is"),
        ("epochs: 1.0", "epochs: three", r"line \d+: epochs is 'three'"),
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


@pytest.mark.parametrize(
    "value", [f"0x{'f' * 5000}", "[" * 40 + "]" * 40, "&a [*a, *a]"], ids=["digits", "deep", "in itself"]
)
@pytest.mark.parametrize("line", ["plan: {{version: {}}}", "plan: {{version: 2, budget: {}}}", "seed: {}", "? {}\n: 1"])
def test_values_that_nobody_could_write_out_are_one_line(tmp_path: Path, line: str, value: str) -> None:
    path = tmp_path / "plan.yaml"
    path.write_text(f"model: m\ndata: d\n{line.format(value)}\n")

    def read() -> None:
        planned_recipe(path, Job(model="m", data="d"), [])
        Job(**read_job_file(path)[0])

    with pytest.raises(BadInput) as error:
        read()
    assert len(str(error.value)) < 2000
