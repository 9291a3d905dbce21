"""predict and evaluate on files: Ctrl-C keeps what is done, and rows are counted."""

from __future__ import annotations

import csv
from collections.abc import Callable
from pathlib import Path

import pytest
from conftest import write_reviews

from tightfit import evaluate, inference, predict
from tightfit.errors import Interrupted
from tightfit.inference import BATCH_SIZE, predict_file

ROWS = 40 * BATCH_SIZE


@pytest.fixture
def new(tmp_path: Path) -> Path:
    return write_reviews(tmp_path / "new.csv", ROWS, seed=3)


def stop_after(rows: int) -> Callable[[int, int], None]:
    def on_rows(done: int, total: int) -> None:
        if done >= rows:
            raise KeyboardInterrupt

    return on_rows


def predicted(file: Path) -> list[str]:
    return [row["prediction"] for row in csv.DictReader(file.read_text("utf-8-sig").splitlines())]


def test_predictions_until_ctrl_c_are_kept(trained: Path, new: Path, tmp_path: Path) -> None:
    out = tmp_path / "out.csv"
    with pytest.raises(Interrupted, match=r"after 640 of 1,280 rows; .* are in \S*/out.partial.csv,") as stopped:
        predict_file(trained, str(new), out, "cpu", on_rows=stop_after(640))
    assert stopped.value.exit_code == 130
    assert not out.exists()
    kept = predicted(tmp_path / "out.partial.csv")
    predict_file(trained, str(new), out, "cpu")
    whole = predicted(out)
    assert len(kept) == len(whole) == ROWS
    assert sum(label != "" for label in kept) == 640
    assert all(label in ("", expected) for label, expected in zip(kept, whole, strict=True))
    assert all(kept[: inference._WINDOW])  # in about the order of the file


def test_nothing_is_written_if_ctrl_c_comes_before_the_first_rows(trained: Path, new: Path, tmp_path: Path) -> None:
    with pytest.raises(KeyboardInterrupt):
        predict_file(trained, str(new), tmp_path / "sub" / "out.csv", "cpu", on_rows=stop_after(0))
    assert not (tmp_path / "sub").exists()


def test_the_evaluation_until_ctrl_c_is_kept(trained: Path, new: Path) -> None:
    with pytest.raises(Interrupted, match="stopped after 320 of 1,280 rows; the scores are of those") as stopped:
        evaluate(trained, str(new), "cpu", on_rows=stop_after(320))
    assert stopped.value.result.rows == 320
    assert 0.9 < stopped.value.result.metrics["eval_accuracy"] <= 1


def test_rows_are_counted(trained: Path, new: Path, tmp_path: Path) -> None:
    calls: list[tuple[int, int]] = []
    predict_file(trained, str(new), tmp_path / "out.csv", "cpu", on_rows=lambda *rows: calls.append(rows))
    assert calls == [(done, ROWS) for done in range(0, ROWS + 1, BATCH_SIZE)]


def test_the_order_of_many_texts_is_kept(trained: Path) -> None:
    texts = ["clean kind warm" if number % 3 else f"dirty rude cold {'the ' * (number % 20)}" for number in range(700)]
    labels = [prediction.label for prediction in predict(trained, texts, "cpu")]
    assert labels == ["1" if number % 3 else "0" for number in range(700)]
