"""Plan files: writing, reading, validation of edits, and detection of changed data."""

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
from tightfit.planning.plan_file import changes, fingerprints, parse_header, write_plan


@pytest.fixture(scope="module")
def made(tmp_path_factory: pytest.TempPathFactory) -> Plan:
    return planner_of(tmp_path_factory.mktemp("model")).plan(budget(1 << 40), Constraints())


@pytest.fixture
def file(made: Plan, tmp_path: Path) -> Path:
    path = tmp_path / "plan.yaml"
    write_plan(path, made)
    return path


def test_a_plan_file_is_also_a_job_file(file: Path, made: Plan) -> None:
    values, specs = read_job_file(file)
    assert Job(**values) == made.job.resolve_paths()
    assert specs == made.recipe.specs
    header = parse_header(file, yaml.safe_load(file.read_text())["plan"])
    assert (header.peak_bytes, header.result) == (made.chosen.peak, "same")


def test_train_uses_the_plans_recipe_and_budget_unless_the_command_line_overrides_them(file: Path, made: Plan) -> None:
    assert planned_recipe(file, made.job, made.recipe.specs) == made.recipe.specs
    request = Request().merged_with(file, made.recipe.specs)
    assert request == Request(f"{1 << 20}MB", "cpu", [], [], "close", "exact")
    assert Request("2GB", "cuda", ["micro-batch"]).merged_with(file, []) == replace(
        request, budget="2GB", device="cuda", use=["micro-batch"]
    )


def test_a_plan_without_a_budget_is_checked_against_what_is_free_when_it_is_used(tmp_path: Path, made: Plan) -> None:
    path = tmp_path / "plan.yaml"
    write_plan(path, replace(made, budget=replace(made.budget, is_auto=True)))
    assert Request().merged_with(path, []).budget == "auto"


def test_a_plan_file_stores_the_constraints_for_planning_again(tmp_path: Path, made: Plan) -> None:
    path = tmp_path / "plan.yaml"
    write_plan(
        path,
        replace(
            made, constraints=Constraints.of(["micro-batch:size=2"], ["adafactor", "length-bucketing"], "different")
        ),
    )
    request = Request().merged_with(path, ["anything"])
    assert (request.use, request.avoid, request.allow) == (
        ["micro-batch:size=2"],
        ["adafactor", "length-bucketing"],
        "different",
    )
    assert not Request().has_constraints
    assert Request(allow="same").has_constraints


@pytest.mark.parametrize(("title", "planned"), [("T4 16GB", "T4 16GB"), ("an unknown GPU", None)])
def test_the_gpu_of_a_plan_is_reused_by_plan_but_not_by_train(
    tmp_path: Path, made: Plan, title: str, planned: str | None
) -> None:
    path = tmp_path / "plan.yaml"
    write_plan(path, replace(made, budget=replace(made.budget, device=replace(GPUS["T4 16GB"], label=title))))
    assert Request().merged_with(path, [], allow_absent_gpu=True).device == planned
    assert Request().merged_with(path, []).device is None


def test_a_job_file_without_a_plan_provides_only_strategies(tmp_path: Path) -> None:
    path = tmp_path / "job.yaml"
    path.write_text("model: m\ndata: d\n")
    assert read_plan_header(path) is None
    assert planned_recipe(path, Job(model="m", data="d"), ["micro-batch"]) is None
    assert Request().merged_with(path, ["micro-batch"]) == Request(use=["micro-batch"])


def test_changed_data_invalidates_the_plan(tmp_path: Path, made: Plan, capsys: pytest.CaptureFixture[str]) -> None:
    data = tmp_path / "rows.csv"
    data.write_text("text,label\na,b\n")
    job = made.job.model_copy(update={"data": str(data)})
    path = tmp_path / "plan.yaml"
    write_plan(path, replace(made, job=job))
    assert planned_recipe(path, job, ["x"]) == ["x"]
    data.write_text("text,label\na,b\nc,d\n")
    assert planned_recipe(path, job, ["x"]) is None
    assert "rows.csv changed from" in capsys.readouterr().err


def test_every_change_of_the_data_is_detected(tmp_path: Path, made: Plan) -> None:
    """Two files of the same name in different folders, a replaced file, a new file in a folder."""
    for name in ("train/rows.csv", "dev/rows.csv", "many/a.csv"):
        (tmp_path / name).parent.mkdir(exist_ok=True)
        (tmp_path / name).write_text(f"text,label\n{name},b\n")
    named = {"data": str(tmp_path / "train" / "rows.csv"), "validation": str(tmp_path / "dev" / "rows.csv")}
    job, path = made.job.model_copy(update=named), tmp_path / "plan.yaml"
    write_plan(path, replace(made, job=job))
    header = read_plan_header(path)
    assert header is not None
    assert not changes(header, job)
    assert changes(header, job.model_copy(update={"validation": None}))
    assert changes(header, job.model_copy(update={"data": str(tmp_path / "many")}))
    (tmp_path / "train" / "rows.csv").write_text("text,label\nx,y\n")
    assert len(changes(header, job)) == 1
    folder = job.model_copy(update={"data": str(tmp_path / "many")})
    before = fingerprints(folder)
    (tmp_path / "many" / "b.csv").write_text("text,label\nx,y\n")
    assert fingerprints(folder) != before


@pytest.mark.parametrize(
    ("old", "new", "message"),
    [
        ("version: 2", "version: 7", r"line \d+: the plan has version 7 and this tightfit reads 2"),
        ("peak_bytes:", "peek_bytes:", r"line \d+: there is no 'peek_bytes' in a plan: did you mean 'peak_bytes'"),
        ("result: same", "result: [1]", r"line \d+: result is"),
        ("epochs: 1.0", "epochs: three", r"line \d+: epochs is 'three'"),
        ("batch-size:", "batchsize:", r"line \d+: there is no setting 'batchsize': did you mean 'batch-size'"),
    ],
)
def test_an_invalid_edit_is_reported_with_its_key_and_line(file: Path, old: str, new: str, message: str) -> None:
    text = file.read_text()
    assert old in text
    file.write_text(text.replace(old, new))
    with pytest.raises(BadInput, match=message):
        _read(file)


def test_a_missing_key_is_reported(file: Path) -> None:
    content = yaml.safe_load(file.read_text())
    del content["plan"]["budget"]
    file.write_text(yaml.safe_dump(content))
    with pytest.raises(BadInput, match="lacks 'budget'"):
        _read(file)


def test_a_plan_without_fingerprints_reports_no_changes(file: Path, made: Plan) -> None:
    assert changes(parse_header(file, yaml.safe_load(file.read_text())["plan"]), made.job) == []


def _read(file: Path) -> None:
    read_job_file(file)
    parse_header(file, yaml.safe_load(file.read_text())["plan"])


@pytest.mark.parametrize(
    "value", [f"0x{'f' * 5000}", "[" * 40 + "]" * 40, "&a [*a, *a]"], ids=["digits", "deep", "recursive"]
)
@pytest.mark.parametrize("line", ["plan: {{version: {}}}", "plan: {{version: 2, budget: {}}}", "seed: {}", "? {}\n: 1"])
def test_huge_or_recursive_values_give_a_short_message(tmp_path: Path, line: str, value: str) -> None:
    path = tmp_path / "plan.yaml"
    path.write_text(f"model: m\ndata: d\n{line.format(value)}\n")

    def read() -> None:
        planned_recipe(path, Job(model="m", data="d"), [])
        Job(**read_job_file(path)[0])

    with pytest.raises(BadInput) as error:
        read()
    assert len(str(error.value)) < 2000
