"""Comparisons: recipes measured side by side; failures are rows, finished measurements are kept."""

from __future__ import annotations

import itertools
import json
import pickle
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

import pytest
from cli.test_app import Run, run  # noqa: F401
from plans import RATES
from rich.cells import cell_len

from tightfit import Job, compare, train
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
from tightfit.comparison.measure import measure, predict_recipes
from tightfit.errors import BadInput, OutputError, RunFailed
from tightfit.i18n import render, using_language
from tightfit.messages import msg, verbatim
from tightfit.optional_imports import slim_process
from tightfit.report.charts import comparison_chart
from tightfit.report.comparison import (
    TITLE,
    comparison_as_html,
    comparison_as_markdown,
    comparison_as_text,
    write_comparison,
)
from tightfit.system.processes import Worker
from tightfit.timing import calibrate

Tasks = list[tuple[Any, ...]]
"""What the workers were asked to measure: a job and the specs of a recipe each."""


@pytest.fixture
def job(tiny_model: Path, reviews: Path) -> Job:
    return Job(model=str(tiny_model), data=str(reviews), batch_size=8, max_length=32)


class HereWorker(Worker):
    """Calls functions in this process, which saves the start of a new one, and records what is measured."""

    def __init__(self, tasks: Tasks, setup: Any) -> None:
        super().__init__(setup)
        self.tasks = tasks

    def call(self, function: Callable[..., Any], *args: Any, on_tick: Callable[[float], None] = print) -> Any:
        if function is measure:
            _, job, specs, *_ = args
            self.tasks.append((job, specs))
        return pickle.loads(pickle.dumps(function(*args)))


@pytest.fixture
def tasks(monkeypatch: pytest.MonkeyPatch) -> Tasks:
    tasks: Tasks = []
    monkeypatch.setattr(calibrate, "cpu_rates", lambda: RATES)
    monkeypatch.setattr(runner, "Worker", partial(HereWorker, tasks))
    return tasks


def run_comparison(job: Job, recipes: list[str], out: Path, **how: Any) -> Comparison:
    return compare(job, recipes, steps=2, device="cpu", out=out, quiet=True, **how)


def test_every_recipe_is_predicted_and_measured(job: Job, tasks: Tasks, tmp_path: Path) -> None:
    found = run_comparison(job, ["baseline", "micro-batch:size=2 adafactor"], tmp_path / "comparison")
    assert [row.title for row in found.rows] == ["baseline", "micro-batch:size=2 adafactor"]
    for row in found.rows:
        assert row.predicted is not None
        assert sum(row.predicted.kinds.values()) == row.predicted.peak_bytes
        [measurement] = row.measurements
        assert measurement.steps == 2
        assert measurement.steps_per_epoch == 7  # 54 of the 60 reviews, in batches of 8
        assert measurement.metrics == {}  # two steps are not a full training run
        assert row.seconds_per_epoch == 7 * measurement.seconds_per_step
        assert max(measurement.phases.values()) == row.peak
    assert [row.result for row in found.rows] == ["same", "close"]
    assert load_comparison(tmp_path / "comparison" / "comparison.json") == found
    assert not (tmp_path / "comparison" / "training").exists()


def test_a_short_measurement_evaluates_only_the_largest_batch(
    job: Job, tasks: Tasks, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    from tightfit.training.trainer import Trainer

    rows, original = [], Trainer.__init__

    def recording(self: Any, *args: Any, **how: Any) -> None:
        rows.append((how["parts"].step_batching.no_grad_rows, len(how["eval_dataset"])))
        original(self, *args, **how)

    monkeypatch.setattr(Trainer, "__init__", recording)
    run_comparison(job.model_copy(update={"batch_size": 2}), ["micro-batch:size=1"], tmp_path / "comparison")
    [(batch, evaluated)] = rows
    assert evaluated == min(batch, 6)


def test_a_full_comparison_has_scores_of_every_seed(job: Job, tasks: Tasks, tmp_path: Path) -> None:
    found = run_comparison(job, ["baseline", "micro-batch:size=4"], tmp_path / "comparison", full=True, seeds=2)
    for row in found.rows:
        assert [measurement.seed for measurement in row.measurements] == [42, 43]
        assert len(row.scores("f1")) == 2
    # the same training run for each seed, and the recipes alternate
    assert found.rows[0].scores("loss") == pytest.approx(found.rows[1].scores("loss"), abs=1e-4)
    order = [(specs, measured.seed) for measured, specs in tasks]
    assert order == [
        ([], 42),
        (["micro-batch:size=4"], 42),
        ([], 43),
        (["micro-batch:size=4"], 43),
    ]
    text = comparison_as_markdown(found)
    assert "±" in text
    assert "| F1 of '1' |" in text
    assert "always the majority class: F1 of '1' 0" in text


def test_the_first_epoch_includes_the_time_of_the_feature_cache(job: Job, tasks: Tasks, tmp_path: Path) -> None:
    [row] = run_comparison(job, ["freeze"], tmp_path / "comparison", full=True).rows
    [measurement] = row.measurements
    assert "features" in measurement.phases
    assert row.seconds_per_epoch == measurement.first_epoch_seconds
    assert row.seconds_per_epoch > measurement.seconds_per_step * measurement.steps_per_epoch


def test_an_interrupted_comparison_continues(
    job: Job, tasks: Tasks, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    out, original = tmp_path / "comparison", HereWorker.call

    def interrupted(self: HereWorker, function: Any, *args: Any, **how: Any) -> Any:
        if function is measure and args[2] == ["micro-batch:size=4"]:
            args[4].mkdir()
            raise KeyboardInterrupt
        return original(self, function, *args, **how)

    with monkeypatch.context() as patch:
        patch.setattr(HereWorker, "call", interrupted)
        with pytest.raises(KeyboardInterrupt):
            run_comparison(job, ["baseline", "micro-batch:size=4"], out)
    assert not (out / "training").exists()
    before = len(tasks)
    found = run_comparison(job, ["baseline", "micro-batch:size=4"], out)
    assert [specs for _, specs in tasks[before:]] == [["micro-batch:size=4"]]
    assert all(row.measurements for row in found.rows)


@pytest.mark.parametrize(
    ("error", "message"),
    [
        (RunFailed("killed by signal 9, probably out of memory"), "killed by signal 9, probably out of memory"),
        (KeyError("a mistake"), "KeyError: 'a mistake'"),
    ],
)
def test_a_failed_training_is_a_row_and_is_tried_again(
    job: Job, tasks: Tasks, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, error: Exception, message: str
) -> None:
    original = HereWorker.call

    def failing(self: HereWorker, function: Any, *args: Any, **how: Any) -> Any:
        if function is measure and args[2] == []:
            raise error
        return original(self, function, *args, **how)

    with monkeypatch.context() as patch:
        patch.setattr(HereWorker, "call", failing)
        found = run_comparison(job, ["baseline", "micro-batch:size=4"], tmp_path / "comparison")
    assert found.rows[0].failed == message
    assert found.rows[1].measurements
    assert message in comparison_as_markdown(found)
    again = run_comparison(job, ["baseline", "micro-batch:size=4"], tmp_path / "comparison")
    assert again.rows[0].failed is None
    assert again.rows[0].measurements


def test_a_recipe_that_cannot_run_here_is_a_row_without_a_measurement(
    job: Job, tasks: Tasks, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    original = HereWorker.call

    def on_a_small_machine(self: HereWorker, function: Any, *args: Any, **how: Any) -> Any:
        result = original(self, function, *args, **how)
        if function is predict_recipes:
            result[0][0].fits = False
        return result

    monkeypatch.setattr(HereWorker, "call", on_a_small_machine)
    found = run_comparison(job, ["baseline", "freeze:layers=99"], tmp_path / "comparison")
    assert (found.rows[0].failed or "").startswith("not run: it needs ")
    assert "more than the 2 layers" in (found.rows[1].failed or "")
    assert not any(row.measurements for row in found.rows)


def test_a_folder_holds_one_comparison(job: Job, tasks: Tasks, tmp_path: Path) -> None:
    out = tmp_path / "comparison"
    run_comparison(job, ["baseline"], out)
    with pytest.raises(BadInput, match="another job"):
        run_comparison(job.model_copy(update={"batch_size": 4}), ["baseline"], out)
    with pytest.raises(BadInput, match="another steps"):
        compare(job, ["baseline"], steps=3, device="cpu", out=out, quiet=True)
    (out / "comparison.json").write_text("{ torn")
    with pytest.raises(BadInput, match="damaged"):
        run_comparison(job, ["baseline"], out)
    with pytest.raises(OutputError, match="holds no comparison"):
        run_comparison(job, ["baseline"], tmp_path)


def test_each_tutorial_recipe_adds_one_strategy(job: Job) -> None:
    specs = [set(recipe.specs) for recipe in find_recipes("tutorial", job, "cpu")]
    assert len(specs) == 6
    assert specs[0] == set()
    assert all(len(after - before) == 1 and before < after for before, after in itertools.pairwise(specs))
    everything = find_recipes("all", job, "cpu")
    assert [set(recipe.specs) for recipe in everything[:6]] == specs
    assert everything[6:] == find_recipes("tightfit", job, "cpu")[1:]
    assert all(recipe.result.value != "different" for recipe in everything[6:])


@pytest.mark.parametrize(
    ("recipes", "message"),
    [
        ("mine", "no preset"),
        ([], "at least one"),
        (["micro-bach:size=2"], "no strategy"),
        (["micro-batch:size=0"], "size"),
    ],
)
def test_invalid_recipes_are_rejected(job: Job, recipes: Any, message: str, tmp_path: Path) -> None:
    with pytest.raises(BadInput, match=message):
        compare(job, recipes, device="cpu", out=tmp_path / "comparison", quiet=True)
    assert not (tmp_path / "comparison").exists()


def test_bad_data_leaves_no_folder(job: Job, tasks: Tasks, tmp_path: Path) -> None:
    with pytest.raises(BadInput, match=r"nowhere\.csv"):
        run_comparison(job.model_copy(update={"data": "nowhere.csv"}), ["baseline"], tmp_path / "comparison")
    assert not (tmp_path / "comparison").exists()


def test_a_worker_process_measures_a_recipe(job: Job, tmp_path: Path) -> None:
    """In a real process of its own, as every other measurement outside of these tests."""
    short, nowhere = job.model_copy(update={"max_steps": 1}), job.model_copy(update={"data": "nowhere.csv"})
    with Worker(slim_process) as worker:
        with pytest.raises(BadInput, match=r"nowhere\.csv"):
            worker.call(measure, train, nowhere, [], "cpu", tmp_path / "nowhere", False)
        found = worker.call(measure, train, short, [], "cpu", tmp_path / "training", False)
    assert found.steps == 1
    assert found.peak_bytes == max(found.phases.values())


def made_up(job: Job) -> Comparison:
    """A comparison with numbers that are easy to check."""

    def row(specs: str, result: str, seconds: float, **kinds: int) -> ComparisonRow:
        sizes = {name.replace("_", " "): size << 20 for name, size in kinds.items()}
        peak = sum(sizes.values())
        predicted = RowPrediction(
            peak_bytes=peak, phase="backward", kinds=sizes, seconds_per_step=1.0, steps_per_epoch=10, fits=True
        )
        measurement = Measurement(
            seed=1, peak_bytes=peak + 5, predicted_bytes=peak, phases={}, seconds_per_step=seconds, steps=2,
            steps_per_epoch=10, metrics={}, notes=[],
        )  # fmt: skip
        return ComparisonRow(recipe=specs.split(), result=result, predicted=predicted, measurements=[measurement])

    rows = [
        row("", "same", 2.0, process=100, weights=200, activations=700),
        row("micro-batch:size=1", "same", 3.0, process=100, weights=200, activations=50, gradients=150),
        row("micro-batch:size=1 adafactor", "close", 4.0, process=100, weights=200, activations=50, gradients=150),
        row("lora", "different", 1.0, process=100, weights=200, activations=300, inputs=10),
    ]
    return Comparison(job=job, device="a CPU", steps=2, rows=rows, budget_bytes=900 << 20, versions={})


def test_savings_are_against_the_parent_row(job: Job) -> None:
    found = made_up(job)
    parents = [getattr(parent_row(found, row), "title", None) for row in found.rows]
    assert parents == [None, "baseline", "micro-batch:size=1", "baseline"]
    assert savings(found, found.rows[1]) == {"activations": 650 << 20, "gradients": -(150 << 20)}
    assert savings(found, found.rows[2]) == {}
    assert "activations −650 MiB, gradients +150 MiB (vs baseline)" in comparison_as_markdown(found)


def test_the_chart_shows_every_byte(job: Job) -> None:
    found = made_up(job)
    memory, time = comparison_chart(found).axes
    ends = [max(bar.get_x() + bar.get_width() for bar in memory.patches if abs(_middle(bar) - place) < 0.01)
            for place in range(4)]  # fmt: skip
    assert ends == pytest.approx([sum(kinds_of(row).values()) / 2**30 for row in found.rows])
    assert [bar.get_width() for bar in time.patches] == [2.0, 3.0, 4.0, 1.0]
    (budget,) = memory.collections
    assert {x for line in budget.get_segments() for x in line[:, 0]} == {900 / 1024}


def test_nothing_in_the_chart_overlaps_the_budget_line_or_is_cut_off(job: Job) -> None:
    """Drawn in full: a budget right behind a bar, and one in the middle of the labels."""
    for budget in (410, 450, 600, 900):
        found = made_up(job).model_copy(update={"budget_bytes": budget << 20})
        found.rows[2].recipe = [
            *found.rows[2].recipe,
            "gradient-checkpointing",
            "freeze:layers=2",
            "max-length:tokens=64",
        ]
        chart = comparison_chart(found)
        chart.canvas.draw()
        memory = chart.axes[0]
        (line,) = memory.collections
        drawn = [memory.transData.transform(segment) for segment in line.get_segments()]
        for text in memory.texts:
            box = text.get_window_extent()
            for (x, bottom), (_, top) in drawn:
                low, high = sorted((bottom, top))
                assert not (box.x0 < x < box.x1 and box.y0 < high and low < box.y1), (budget, text.get_text())
        for box in (*(text.get_window_extent() for text in memory.texts), chart.legends[0].get_window_extent()):
            assert 0 <= box.x0 < box.x1 <= chart.bbox.x1


def test_the_picture_is_in_chinese_only_if_there_is_a_font(
    job: Job, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    drawn = []
    monkeypatch.setattr("tightfit.report.comparison.as_png", lambda chart: drawn.append(chart) or b"")
    for font in ("WenQuanYi Micro Hei", None):
        monkeypatch.setattr("tightfit.report.comparison.chinese_font", lambda font=font: font)
        write_comparison(made_up(job), tmp_path, "zh")
    labels = [chart.axes[1].get_xlabel() for chart in drawn]
    assert labels == ["每步用时（秒）", "seconds per step"]


@pytest.mark.parametrize("language", ["en", "zh"])
def test_the_table_fits_a_terminal_of_100_columns(job: Job, language: str) -> None:
    found = made_up(job)
    more = ["tiled-attention", "chunked-layers:size=8", "optimizer-in-backward", "length-bucketing", "bf16-weights"]
    found.rows[2].recipe = [*found.rows[2].recipe, *more]
    found.rows[3].failed = msg("not run: it needs {needed}, more than {device} has", needed="9 GiB " * 20, device="it")
    with using_language(language):
        text = comparison_as_text(found)
    assert max(map(cell_len, text.splitlines())) <= 100
    assert "bf16-weights" in text


def test_a_busy_machine_is_told(job: Job) -> None:
    found = made_up(job)
    assert "busy" not in comparison_as_text(found)
    found.rows[1].measurements[0].cpu_of_others = 0.45
    for text in (comparison_as_text(found), comparison_as_markdown(found), comparison_as_html(found)):
        assert "other processes used up to 45% of its CPU while 1 of 4 recipes" in " ".join(text.split())


def _middle(bar: Any) -> float:
    return bar.get_y() + bar.get_height() / 2


@pytest.mark.parametrize("language", ["en", "zh"])
def test_the_report_files_are_self_contained(job: Job, tmp_path: Path, language: str) -> None:
    found = made_up(job)
    found.rows[3].failed = verbatim("<script>alert(1)</script>")
    write_comparison(found, tmp_path, language)
    page = (tmp_path / "comparison.html").read_text("utf-8")
    assert render(TITLE, language) in page
    assert "<script" not in page
    assert "http:" not in page.replace("http-equiv", "")
    assert "https:" not in page
    assert page.count("<svg") == 1
    assert (tmp_path / "comparison.png").read_bytes().startswith(b"\x89PNG")
    assert render(msg("change"), language) in (tmp_path / "comparison.md").read_text("utf-8")
    assert "650 MiB" in comparison_as_html(found, language)


def test_the_command_writes_and_prints_the_comparison(run: Run, job: Job, tasks: Tasks, tmp_path: Path) -> None:  # noqa: F811
    command = ["compare", "--model", job.model, "--data", job.data, "--batch-size", 8, "--max-length", 32, "--steps", 1]
    command += [
        "--recipe",
        "baseline",
        "--recipe",
        "micro-batch:size=4",
        "--device",
        "cpu",
        "--out",
        tmp_path / "comparison",
    ]
    code, out, err = run(*command)
    assert code == 0
    assert "micro-batch:size=4" in out
    written = out.splitlines()[-1].removeprefix("written: ").split(", ")
    assert sorted(written) == sorted(str(path) for path in (tmp_path / "comparison").iterdir())
    assert "2/2  micro-batch:size=4: peak" in err
    assert {path.name for path in (tmp_path / "comparison").iterdir()} == {
        f"comparison.{e}" for e in ("json", "md", "html", "png")
    }
    code, out, _ = run(*command, "--json")
    assert code == 0
    assert [row["recipe"] for row in json.loads(out)["rows"]] == [[], ["micro-batch:size=4"]]
    assert run(*command, "--steps", 0)[0] == 2
    assert run(*command, "--lang", "fr")[0] == 2
