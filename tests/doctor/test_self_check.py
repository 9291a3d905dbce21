"""The self-check: a small model is trained, and measured beside predicted."""

from __future__ import annotations

import pytest

from tightfit.comparison.comparison import ComparisonRow, Measurement, RowPrediction
from tightfit.device import GPUS, find_device
from tightfit.doctor import self_check
from tightfit.doctor.self_check import CheckedRecipe, SelfCheck, _checked, check_predictions
from tightfit.messages import msg

MIB = 1 << 20


@pytest.mark.slow
def test_a_small_model_is_trained_by_each_recipe(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(self_check, "_WIDTH", {"cpu": 64})
    monkeypatch.setattr(self_check, "_LAYERS", {"cpu": 1})
    found = check_predictions(find_device("cpu"))
    assert [row.recipe for row in found.recipes] == list(self_check._RECIPES["cpu"])
    assert not found.failures
    assert all(row.error is not None and abs(row.error) < 0.05 for row in found.recipes)


def row(peak: int, overhead: int) -> ComparisonRow:
    predicted = RowPrediction(
        peak_bytes=peak,
        phase="step",
        kinds={"process": overhead},
        seconds_per_step=None,
        steps_per_epoch=1,
        fits=True,
    )
    measured = Measurement(
        seed=0,
        peak_bytes=400 * MIB,
        predicted_bytes=peak,
        phases={},
        seconds_per_step=0.5,
        steps=3,
        steps_per_epoch=1,
        metrics={},
        notes=[],
    )
    return ComparisonRow(recipe=[], result="same", predicted=predicted, measurements=[measured])


def test_on_a_gpu_the_context_is_not_compared() -> None:
    """What is measured there is what torch has reserved, and a run predicts the same; plans count the context too."""
    gpu = GPUS["T4 16GB"]
    checked = _checked(row(404 * MIB, gpu.context_bytes), gpu)
    not_trained = row(gpu.context_bytes + 404 * MIB, gpu.context_bytes).model_copy(update={"measurements": []})
    assert _checked(not_trained, gpu).predicted_bytes == checked.predicted_bytes
    assert checked.predicted_bytes == 404 * MIB
    assert checked.error == pytest.approx(0.01)
    assert checked.measured_seconds == 0.5


def test_json_has_the_errors_and_what_failed() -> None:
    rows = [
        CheckedRecipe("baseline", 110, 100, 1.0, 2.0, None),
        CheckedRecipe("adafactor", None, None, None, None, msg("process {pid} failed", pid=1)),
    ]
    check = SelfCheck(rows, None)
    assert check.failures == ["process 1 failed"]
    found = check.to_json()["recipes"]
    assert (found[0]["error"], found[0]["recipe"]) == (0.1, "baseline")
    assert (found[1]["error"], found[1]["failed"]["text"]) == (None, "process 1 failed")
