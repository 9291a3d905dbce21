"""Quality of a run: the label of F1, the metric that chooses the checkpoint, and what is known of the predictions."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from conftest import write_reviews
from sklearn.metrics import f1_score
from typer.testing import CliRunner

from tightfit import Job, evaluate, load_run, plan, predict, train
from tightfit.cli.app import app
from tightfit.errors import BadInput, Interrupted, TightfitError
from tightfit.i18n import render
from tightfit.report.html import report_page
from tightfit.runs.folder import read_run_folder
from tightfit.training import trainer

WORDS = {"0": "负面", "1": "正面"}


def job_of(model: Path, data: Path, **changes: Any) -> Job:
    values = {"batch_size": 8, "max_length": 32, "learning_rate": 1e-3, "seed": 7, "epochs": 2, **changes}
    return Job(model=str(model), data=str(data), **values)


def with_words(reviews: Path) -> Path:
    """The same reviews with the labels 正面 and 负面."""
    lines = reviews.read_text("utf-8").splitlines()
    changed = [lines[0], *(f"{WORDS[line[0]]}{line[1:]}" for line in lines[1:])]
    path = reviews.with_name("words.csv")
    path.write_text("\n".join(changed), "utf-8")
    return path


def trained_on(model: Path, data: Path, out: Path, **changes: Any) -> Any:
    return train(job_of(model, data, **changes), out=out, device="cpu", quiet=True)


@pytest.fixture(scope="module")
def worded(tiny_model: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A run on 正面 and 负面."""
    folder = tmp_path_factory.mktemp("worded")
    data = with_words(write_reviews(folder / "reviews.csv"))
    trained_on(tiny_model, data, folder / "run", epochs=6, learning_rate=5e-3)
    return folder / "run"


def test_f1_is_that_of_the_positive_label_wherever_it_stands(worded: Path) -> None:
    run = load_run(worded)
    assert (run.data.labels, run.data.positive_label) == (("正面", "负面"), "正面")
    title, scored = "F1 of '正面'", f"F1 of '正面' {run.metrics['eval_f1']:.4f}"
    assert scored in (worded / "README.md").read_text("utf-8")
    page = report_page([read_run_folder(worded)])
    assert page.count("F1 of &#39;正面&#39;") >= 2
    assert f"{run.metrics['eval_f1']:.4f}" in page
    shown = CliRunner().invoke(app, ["evaluate", str(worded), "--device", "cpu"], catch_exceptions=False).stdout
    assert scored in shown
    assert "always the majority class: " + title in shown
    assert "“正面”的 F1" in report_page([read_run_folder(worded)], "zh")


def test_f1_is_what_scikit_learn_says_of_the_predictions(worded: Path) -> None:
    data = _swapped(worded)
    rows = [line.partition(",") for line in data.read_text("utf-8").splitlines()[1:]]
    predicted = [each.to_json()["label"] for each in predict(worded, [text for _, _, text in rows], device="cpu")]
    truth, found = [label for label, _, _ in rows], evaluate(worded, str(data), device="cpu")
    assert found.positive_label == "正面"
    assert found.metrics["eval_f1"] == pytest.approx(f1_score(truth, predicted, pos_label="正面", zero_division=0))
    assert found.metrics["eval_accuracy"] == pytest.approx(np.mean(np.array(truth) == predicted))


def test_evaluate_has_all_metrics_of_the_run(worded: Path) -> None:
    run, found = load_run(worded), evaluate(worded, device="cpu")
    for key in ("eval_f1", "eval_accuracy", "eval_macro_f1", "eval_mcc", "eval_constant_f1"):
        assert found.metrics[key] == pytest.approx(run.metrics[key])


def test_what_is_known_of_the_predictions_is_the_same_after_the_run(worded: Path) -> None:
    run, found = load_run(worded), evaluate(worded, device="cpu")
    assert run.quality is not None
    assert found.quality is not None
    assert run.quality.labels == found.quality.labels
    assert run.quality.confusion == found.quality.confusion
    assert [each.text for each in run.quality.mistakes] == [each.text for each in found.quality.mistakes]
    assert np.trace(run.quality.confusion) == round(run.metrics["eval_accuracy"] * run.data.validation_rows)
    assert not (worded / "quality.json").exists()
    by_label = {each.label: each for each in run.quality.labels}
    assert by_label["正面"].f1 == pytest.approx(run.metrics["eval_f1"])


def test_mistakes_have_the_texts_that_were_predicted_wrongly(worded: Path) -> None:
    """The validation rows are sorted by length, and evaluated in another order than they are in the file."""
    data = _swapped(worded)
    found, lines = evaluate(worded, str(data), device="cpu").quality, data.read_text("utf-8").splitlines()
    assert found is not None
    assert found.mistakes
    for mistake in found.mistakes:
        assert mistake.line is not None
        label, _, text = lines[mistake.line - 1].partition(",")
        assert text.startswith(mistake.text.removesuffix("…"))
        assert mistake.label == label
        [answer] = predict(worded, [text], device="cpu")
        assert answer.to_json()["label"] == mistake.predicted != label
        assert mistake.confidence == pytest.approx(answer.to_json()["confidence"], abs=1e-4)


def test_the_report_shows_each_label_the_confusions_and_the_worst_mistakes(
    worded: Path,
) -> None:
    found = evaluate(worded, str(_swapped(worded)), device="cpu").quality
    assert found is not None
    view = read_run_folder(worded)
    assert view.run is not None
    page = report_page([replace(view, run=view.run.model_copy(update={"quality": found}))])
    for each in found.labels:
        assert f"{each.precision:.4f}" in page
        assert f"{each.recall:.4f}" in page
    assert "Confusion matrix" in page
    for mistake in found.mistakes:
        assert mistake.text in page
        assert f"{mistake.confidence:.1%}" in page


def _swapped(worded: Path) -> Path:
    """New texts with the wrong labels."""
    lines = (worded.parent / "words.csv").read_text("utf-8").splitlines()
    other = {"正面": "负面", "负面": "正面"}
    changed = [f"{other[label]},another {text}" for label, _, text in (line.partition(",") for line in lines[1:13])]
    path = worded.parent / "swapped.csv"
    path.write_text("\n".join([lines[0], *changed]), "utf-8")
    return path


def test_evaluate_prints_what_is_known_as_json(worded: Path) -> None:
    shown = CliRunner().invoke(app, ["evaluate", str(worded), "--device", "cpu", "--json"], catch_exceptions=False)
    found = json.loads(shown.stdout)
    assert found["positive_label"] == "正面"
    assert {each["label"] for each in found["quality"]["labels"]} == {"正面", "负面"}
    assert {"precision", "recall", "f1", "rows", "predicted", "label"} == set(found["quality"]["labels"][0])
    assert len(found["quality"]["confusion"]) == 2
    assert found["quality"]["interval"]["metric"] == "accuracy"
    run = json.loads((worded / "run.json").read_text("utf-8"))
    assert run["quality"]["confusion"] == found["quality"]["confusion"]
    assert run["data"]["positive_label"] == "正面"
    assert run["metrics"]["eval_constant_accuracy"] == 0.5


def test_few_validation_rows_are_said_to_be_few(worded: Path) -> None:
    run = load_run(worded)
    assert run.quality is not None
    few = run.quality.notes[-1]
    assert few.startswith(f"{run.data.validation_rows} examples are few: accuracy ")
    assert "条样本太少" in render(few, "zh")
    assert few in (worded / "README.md").read_text("utf-8")
    assert few in report_page([read_run_folder(worded)])


def test_a_label_and_a_metric_of_the_user(tiny_model: Path, reviews: Path, tmp_path: Path) -> None:
    run = trained_on(tiny_model, reviews, tmp_path / "run", positive="0", metric="mcc", epochs=3)
    assert run.data.positive_label == "0"
    assert run.scoring.best.name == "mcc"
    entries = [entry for entry in run.history if "eval_mcc" in entry]
    assert run.metrics["eval_mcc"] == max(entry["eval_mcc"] for entry in entries)
    assert "MCC" in (tmp_path / "run" / "README.md").read_text("utf-8")
    page = report_page([read_run_folder(tmp_path / "run")])
    assert "the epoch with the best MCC" in page


@pytest.mark.parametrize(("metric", "worse"), [("loss", max), ("accuracy", min)])
def test_the_metric_chooses_the_checkpoint(
    tiny_model: Path, reviews: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, metric: str, worse: Any
) -> None:
    """Scripted: f1 falls from epoch to epoch, accuracy rises and so does the loss's opposite."""
    from tightfit.tasks.text_classification import TextClassification

    script = iter([(0.9, 0.1), (0.5, 0.5), (0.1, 0.9)])

    def score(self: Any, prediction: Any, labels: Any) -> dict[str, float]:
        return dict(zip(("f1", "accuracy"), next(script), strict=True))

    monkeypatch.setattr(TextClassification, "score", score)
    run = trained_on(tiny_model, reviews, tmp_path / "run", metric=metric, epochs=3)
    values = [entry[f"eval_{metric}"] for entry in run.history if f"eval_{metric}" in entry]
    assert run.metrics[f"eval_{metric}"] == (min(values) if worse is max else max(values))
    assert run.metrics["epoch"] == 3


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"metric": "f2"}, "text-classification has no metric 'f2': "),
        ({"metric": "pearson"}, "text-classification has no metric 'pearson': choose from f1, accuracy, macro-f1, mcc"),
        ({"metric": "f1", "task": "text-regression"}, "text-regression has no metric 'f1'"),
        ({"positive": "1", "task": "text-regression"}, "text-regression has no labels to choose '1' from"),
    ],
)
def test_a_wrong_metric_is_rejected_before_anything_is_read(
    tmp_path: Path, changes: dict[str, str], message: str
) -> None:
    job = Job(model="no/model", data="no.csv", **changes)
    for call in (plan, lambda job: train(job, out=tmp_path / "run", quiet=True)):
        with pytest.raises(BadInput, match=message):
            call(job)
    options = [f"--{name}={value}" for name, value in changes.items()]
    failed = CliRunner().invoke(app, ["train", "--model=no/model", "--data=no.csv", *options]).exception
    assert isinstance(failed, TightfitError)
    assert failed.exit_code == 2
    assert not (tmp_path / "run").exists()


def test_a_label_that_is_not_in_the_data_is_rejected(tiny_model: Path, reviews: Path, tmp_path: Path) -> None:
    with pytest.raises(BadInput, match="--positive '2' is no label of the data"):
        trained_on(tiny_model, reviews, tmp_path / "run", positive="2")


def test_a_resumed_run_knows_the_predictions_of_an_earlier_process(
    tiny_model: Path, reviews: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The first epoch is the best, the run stops in the third: its quality is read from the folder."""
    from tightfit.tasks.text_classification import TextClassification

    script = iter([0.9, 0.8, 0.7, 0.6])  # of three epochs, and of the evaluation afterwards
    monkeypatch.setattr(TextClassification, "score", lambda self, prediction, labels: {"f1": next(script)})
    out, original = tmp_path / "run", trainer.train_batch
    calls: list[int] = []

    def interrupting(*args: Any) -> Any:
        calls.append(1)
        if len(calls) == 17:
            raise KeyboardInterrupt
        return original(*args)

    with monkeypatch.context() as patched:
        patched.setattr(trainer, "train_batch", interrupting)
        with pytest.raises(Interrupted):
            trained_on(tiny_model, reviews, out, epochs=3)
    kept = json.loads((out / "quality.json").read_text("utf-8"))
    run = train(job_of(tiny_model, reviews, epochs=3), out=out, device="cpu", resume=True, quiet=True)
    assert run.metrics["epoch"] == 1
    assert kept["step"] == 7
    assert run.quality is not None
    assert run.quality.confusion == kept["quality"]["confusion"]
    assert evaluate(out, device="cpu").quality.confusion == run.quality.confusion  # type: ignore[union-attr]


def test_a_run_that_only_measures_needs_no_notes(tiny_model: Path, reviews: Path, tmp_path: Path) -> None:
    run = trained_on(tiny_model, reviews, tmp_path / "run", random_weights=True, max_steps=1)
    assert run.quality is not None
    assert run.quality.notes == []
