"""The ladder: rungs measured side by side; what dies is a row, what is measured stays."""

from __future__ import annotations

import itertools
import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from cli.test_app import Run, run  # noqa: F401
from plans import RATES

from tightfit import Job, compare
from tightfit.cli import worker
from tightfit.comparison import runner
from tightfit.comparison.comparison import (
    Comparison,
    ComparisonRow,
    Measurement,
    RowPrediction,
    find_recipes,
    kinds_of,
    load_comparison,
    parent_row,
    savings,
)
from tightfit.errors import BadInput, OutputError, TightfitError
from tightfit.processes import WorkerResult as Answer
from tightfit.processes import run_worker
from tightfit.report.charts import comparison_chart
from tightfit.report.comparison import comparison_as_html, comparison_as_markdown, write_comparison
from tightfit.report.i18n import LANGUAGES, Strings
from tightfit.timing import calibrate

Request = list[dict[str, Any]]


@pytest.fixture
def job(tiny_model: Path, reviews: Path) -> Job:
    return Job(model=str(tiny_model), data=str(reviews), batch_size=8, max_length=32)


@pytest.fixture
def asked(monkeypatch: pytest.MonkeyPatch) -> Request:
    """Tasks are done in this process, which saves the seconds that a new one takes to start."""
    tasks: Request = []

    def here(module: str, task: dict[str, Any], on_tick: Callable[[float], None] = print) -> Answer:
        tasks.append(task)
        task = dict(task)
        try:
            job = Job(**task.pop("job"))
            found = worker.predict_recipes(job, **task) if "recipes" in task else worker.measure(job, **task)
        except TightfitError as error:
            return Answer(None, str(error), error.exit_code)
        return Answer(json.loads(json.dumps(found)), "", 0)

    monkeypatch.setattr(calibrate, "cpu_rates", lambda: RATES)
    monkeypatch.setattr(runner, "run_worker", here)
    return tasks


def comparison(job: Job, rungs: list[str], out: Path, **how: Any) -> Comparison:
    return compare(job, rungs, steps=2, device="cpu", out=out, quiet=True, **how)


def test_every_rung_is_foretold_and_measured(job: Job, asked: Request, tmp_path: Path) -> None:
    found = comparison(job, ["baseline", "micro-batch:size=2 adafactor"], tmp_path / "ladder")
    assert [row.title for row in found.rows] == ["baseline", "micro-batch:size=2 adafactor"]
    for row in found.rows:
        assert row.predicted is not None
        assert sum(row.predicted.kinds.values()) == row.predicted.peak_bytes
        [measurement] = row.measurements
        assert measurement.steps == 2
        assert measurement.steps_per_epoch == 7  # 54 of the 60 reviews, in batches of 8
        assert measurement.metrics == {}  # two steps are no training
        assert row.seconds_per_epoch == 7 * measurement.seconds_per_step
        assert max(measurement.phases.values()) == row.peak
    assert [row.result for row in found.rows] == ["same", "close"]
    assert load_comparison(tmp_path / "ladder" / "comparison.json") == found
    assert not (tmp_path / "ladder" / "training").exists()


def test_a_rung_is_evaluated_on_its_largest_batch_only(
    job: Job, asked: Request, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    from tightfit.training.trainer import Trainer

    rows, plain = [], Trainer.__init__

    def noted(self: Any, *args: Any, **how: Any) -> None:
        rows.append((how["parts"].evaluation_rows, len(how["eval_dataset"])))
        plain(self, *args, **how)

    monkeypatch.setattr(Trainer, "__init__", noted)
    comparison(job.model_copy(update={"batch_size": 2}), ["micro-batch:size=1"], tmp_path / "ladder")
    [(at_once, evaluated)] = rows
    assert evaluated == min(at_once, 6)


def test_a_full_ladder_has_scores_of_every_seed(job: Job, asked: Request, tmp_path: Path) -> None:
    found = comparison(job, ["baseline", "micro-batch:size=4"], tmp_path / "ladder", full=True, seeds=2)
    for row in found.rows:
        assert [measurement.seed for measurement in row.measurements] == [42, 43]
        assert len(row.scores("f1")) == 2
    # the same training, seed by seed; and the rungs took turns
    assert found.rows[0].scores("loss") == pytest.approx(found.rows[1].scores("loss"), abs=1e-4)
    order = [(task["specs"], task["job"]["seed"]) for task in asked if "specs" in task]
    assert order == [([], 42), (["micro-batch:size=4"], 42), ([], 43), (["micro-batch:size=4"], 43)]
    assert "±" in comparison_as_markdown(found)


def test_a_frozen_part_that_runs_once_is_in_the_first_epoch(job: Job, asked: Request, tmp_path: Path) -> None:
    [row] = comparison(job, ["freeze"], tmp_path / "ladder", full=True).rows
    [measurement] = row.measurements
    assert "features" in measurement.phases
    assert row.seconds_per_epoch == measurement.first_epoch
    assert row.seconds_per_epoch > measurement.seconds_per_step * measurement.steps_per_epoch


def test_it_goes_on_where_it_was_stopped(
    job: Job, asked: Request, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    out, here = tmp_path / "ladder", runner.run_worker

    def stopped(module: str, task: dict[str, Any], *rest: Any) -> Answer:
        if task.get("specs") == ["micro-batch:size=4"]:
            (Path(task["folder"])).mkdir()
            raise KeyboardInterrupt
        return here(module, task, *rest)

    with monkeypatch.context() as patch:
        patch.setattr(runner, "run_worker", stopped)
        with pytest.raises(KeyboardInterrupt):
            comparison(job, ["baseline", "micro-batch:size=4"], out)
    assert not (out / "training").exists()
    before = len(asked)
    found = comparison(job, ["baseline", "micro-batch:size=4"], out)
    assert [task["specs"] for task in asked[before:]] == [["micro-batch:size=4"]]
    assert all(row.measurements for row in found.rows)


def test_a_rung_that_dies_is_a_row_and_is_tried_again(
    job: Job, asked: Request, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    here, killed = runner.run_worker, Answer(None, "ended by signal 9, perhaps for want of memory", 1)
    with monkeypatch.context() as patch:
        patch.setattr(
            runner,
            "run_worker",
            lambda module, task, *rest: killed if task.get("specs") == [] else here(module, task, *rest),
        )
        found = comparison(job, ["baseline", "micro-batch:size=4"], tmp_path / "ladder")
    assert "signal 9" in (found.rows[0].failed or "")
    assert found.rows[1].measurements
    assert "signal 9" in comparison_as_markdown(found)
    again = comparison(job, ["baseline", "micro-batch:size=4"], tmp_path / "ladder")
    assert again.rows[0].failed is None
    assert again.rows[0].measurements


def test_what_is_not_for_this_model_or_machine_is_a_row(
    job: Job, asked: Request, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    here = runner.run_worker

    def on_a_small_machine(task: dict[str, Any], *rest: Any) -> Answer:
        answer = here(task, *rest)
        if "recipes" in task:
            answer.found[0]["predicted"]["fits"] = False
        return answer

    monkeypatch.setattr(runner, "run_worker", on_a_small_machine)
    found = comparison(job, ["baseline", "freeze:layers=99"], tmp_path / "ladder")
    assert (found.rows[0].failed or "").startswith("not run: it would take ")
    assert "more than the 2 layers" in (found.rows[1].failed or "")
    assert not any(row.measurements for row in found.rows)


def test_a_folder_holds_one_ladder(job: Job, asked: Request, tmp_path: Path) -> None:
    out = tmp_path / "ladder"
    comparison(job, ["baseline"], out)
    with pytest.raises(BadInput, match="another job"):
        comparison(job.model_copy(update={"batch_size": 4}), ["baseline"], out)
    with pytest.raises(BadInput, match="another steps"):
        compare(job, ["baseline"], steps=3, device="cpu", out=out, quiet=True)
    (out / "comparison.json").write_text("{ torn")
    with pytest.raises(BadInput, match="damaged"):
        comparison(job, ["baseline"], out)
    with pytest.raises(OutputError, match="holds no ladder"):
        comparison(job, ["baseline"], tmp_path)


def test_the_tutorials_rungs_each_add_one_thing(job: Job) -> None:
    rungs = [set(recipe.specs) for recipe in find_recipes("tutorial", job, "cpu")]
    assert len(rungs) == 6
    assert rungs[0] == set()
    assert all(len(rung - before) == 1 and before < rung for before, rung in itertools.pairwise(rungs))
    everything = find_recipes("all", job, "cpu")
    assert [set(recipe.specs) for recipe in everything[:6]] == rungs
    assert everything[6:] == find_recipes("ours", job, "cpu")[1:]
    assert all(recipe.result.value != "different" for recipe in everything[6:])


@pytest.mark.parametrize(
    ("rungs", "said"),
    [("mine", "no preset"), ([], "at least one"), (["slise:size=2"], "no strategy"), (["micro-batch:size=0"], "size")],
)
def test_what_is_no_rung_is_said(job: Job, rungs: Any, said: str, tmp_path: Path) -> None:
    with pytest.raises(BadInput, match=said):
        compare(job, rungs, device="cpu", out=tmp_path / "ladder", quiet=True)
    assert not (tmp_path / "ladder").exists()


def test_wrong_data_leaves_no_folder(job: Job, asked: Request, tmp_path: Path) -> None:
    with pytest.raises(BadInput, match=r"nowhere\.csv"):
        comparison(job.model_copy(update={"data": "nowhere.csv"}), ["baseline"], tmp_path / "ladder")
    assert not (tmp_path / "ladder").exists()


def test_a_process_of_its_own_says_what_is_wrong(job: Job) -> None:
    task = {"job": job.model_dump() | {"data": "nowhere.csv"}, "recipes": [[]], "device": "cpu"}
    seconds: list[float] = []
    answer = run_worker(task, seconds.append)
    assert answer.found is None
    assert answer.exit_code == 2
    assert "nowhere.csv" in answer.sentence
    assert seconds == sorted(seconds) != []


def made_up(job: Job) -> Comparison:
    """Figures that are easy to check."""

    def row(words: str, result: str, seconds: float, **kinds: int) -> ComparisonRow:
        sizes = {name.replace("_", " "): size << 20 for name, size in kinds.items()}
        peak = sum(sizes.values())
        predicted = RowPrediction(
            peak_bytes=peak, phase="backward", kinds=sizes, seconds_per_step=1.0, steps_per_epoch=10, fits=True
        )
        measurement = Measurement(
            seed=1, peak_bytes=peak + 5, predicted_bytes=peak, phases={}, seconds_per_step=seconds, steps=2,
            steps_per_epoch=10, metrics={}, notes=[],
        )  # fmt: skip
        return ComparisonRow(recipe=words.split(), result=result, predicted=predicted, measurements=[measurement])

    rows = [
        row("", "same", 2.0, process=100, weights=200, activations=700),
        row("micro-batch:size=1", "same", 3.0, process=100, weights=200, activations=50, gradients=150),
        row("micro-batch:size=1 adafactor", "close", 4.0, process=100, weights=200, activations=50, gradients=150),
        row("lora", "different", 1.0, process=100, weights=200, activations=300, inputs=10),
    ]
    return Comparison(job=job, device="a CPU", steps=2, rows=rows, budget_bytes=900 << 20, versions={})


def test_a_rung_is_held_against_the_one_it_grew_from(job: Job) -> None:
    found = made_up(job)
    parents = [getattr(parent_row(found, row), "title", None) for row in found.rows]
    assert parents == [None, "baseline", "micro-batch:size=1", "baseline"]
    assert savings(found, found.rows[1]) == {"activations": 650 << 20, "gradients": -(150 << 20)}
    assert savings(found, found.rows[2]) == {}
    assert "activations −650 MiB, gradients +150 MiB (against plain)" in comparison_as_markdown(found)


def test_the_picture_shows_every_byte(job: Job) -> None:
    found = made_up(job)
    memory, time = comparison_chart(found, Strings.of("en")).axes
    ends = [max(bar.get_x() + bar.get_width() for bar in memory.patches if abs(_middle(bar) - place) < 0.01)
            for place in range(4)]  # fmt: skip
    assert ends == pytest.approx([sum(kinds_of(row).values()) / 2**30 for row in found.rows])
    assert [bar.get_width() for bar in time.patches] == [2.0, 3.0, 4.0, 1.0]
    budget = memory.lines[-1]
    assert list(budget.get_xdata()) == [900 / 1024] * 2


def _middle(bar: Any) -> float:
    return bar.get_y() + bar.get_height() / 2


@pytest.mark.parametrize("language", ["en", "zh"])
def test_its_files_need_nothing_else(job: Job, tmp_path: Path, language: str) -> None:
    found = made_up(job)
    found.rows[3].failed = "<script>alert(1)</script>"
    write_comparison(found, tmp_path, language)
    page = (tmp_path / "comparison.html").read_text("utf-8")
    assert Strings.of(language).ladder("title") in page
    assert "<script" not in page
    assert "http:" not in page.replace("http-equiv", "")
    assert "https:" not in page
    assert page.count("<svg") == 1
    assert (tmp_path / "comparison.png").read_bytes().startswith(b"\x89PNG")
    assert Strings.of(language).ladder("shrank") in (tmp_path / "comparison.md").read_text("utf-8")
    assert "650 MiB" in comparison_as_html(found, language)


def test_both_languages_have_all_words() -> None:
    assert LANGUAGES["en"].LADDER.keys() == LANGUAGES["zh"].LADDER.keys()


def test_the_verb_writes_and_prints(run: Run, job: Job, asked: Request, tmp_path: Path) -> None:  # noqa: F811
    words = ["ladder", "--model", job.model, "--data", job.data, "--batch-size", 8, "--max-length", 32, "--steps", 1]
    words += ["--recipe", "baseline", "--recipe", "micro-batch:size=4", "--device", "cpu", "--out", tmp_path / "ladder"]
    code, out, err = run(*words)
    assert code == 0
    assert "micro-batch:size=4" in out
    assert "2/2  micro-batch:size=4: peak" in err
    assert {path.name for path in (tmp_path / "ladder").iterdir()} == {
        f"ladder.{e}" for e in ("json", "md", "html", "png")
    }
    code, out, _ = run(*words, "--json")
    assert code == 0
    assert [row["recipe"] for row in json.loads(out)["rows"]] == [[], ["micro-batch:size=4"]]
    assert run(*words, "--steps", 0)[0] == 2
    assert run(*words, "--lang", "fr")[0] == 2
