"""A wrong prediction is reported once, after the first steps, and kept in the record of the run."""

from __future__ import annotations

from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import torch
from conftest import write_reviews

from tightfit import Job, load_run, train
from tightfit.errors import ModelError
from tightfit.messages import Message
from tightfit.simulation.job_simulation import SimulationSetup
from tightfit.strategies.base import MemoryKind
from tightfit.training.prediction_check import PredictionCheck

GB = 10**9
PREDICTED = {"load": GB, "forward": 3 * GB, "backward": 2 * GB, "step": 2 * GB, "evaluate": 9 * GB}


def lines_after(
    steps: int, measured: dict[str, float], *, reaches_peak: bool = True, device: str = "cpu"
) -> list[Message]:
    estimate: Any = SimpleNamespace(
        overhead=GB,
        device=SimpleNamespace(kind=device),
        phases={name: {MemoryKind.WEIGHTS: size - GB} for name, size in PREDICTED.items()},
    )
    meter: Any = SimpleNamespace(measured=PREDICTED | {name: int(size) for name, size in measured.items()})
    lines: list[Message] = []
    check = PredictionCheck(estimate, meter, lines.append, lambda: reaches_peak)
    for _ in range(steps):
        check.on_step_end()
    return lines


@pytest.mark.parametrize(
    ("measured", "said"),
    [
        ({"forward": 3.1 * GB}, None),
        ({"forward": 3.3 * GB}, "+10%, forward"),
        ({"step": 3.3 * GB}, "+10%, step"),
        ({"forward": 2.7 * GB}, "-10%, forward"),
        ({"load": 1.5 * GB}, None),  # not the peak
        ({"evaluate": 20 * GB}, None),  # its largest batch may come later
    ],
)
def test_a_peak_that_differs_by_more_than_five_percent_is_said(measured: dict[str, float], said: str | None) -> None:
    lines = lines_after(2, measured)
    assert [line for line in lines if said and said in line] == lines
    assert len(lines) == (0 if said is None else 1)


def test_on_a_gpu_the_context_is_not_part_of_what_is_compared() -> None:
    """torch measures what it has reserved itself."""
    assert lines_after(2, {name: size - GB for name, size in PREDICTED.items()}, device="cuda") == []
    assert len(lines_after(2, {"forward": 3 * GB}, device="cuda")) == 1


def test_it_is_said_once_and_not_before_there_is_optimizer_state() -> None:
    measured = {"forward": 4 * GB}
    assert [len(lines_after(steps, measured)) for steps in (1, 2, 5)] == [0, 1, 1]


def test_a_lower_peak_counts_only_if_the_largest_batch_has_run() -> None:
    assert not lines_after(2, {"forward": 2 * GB}, reaches_peak=False)
    assert lines_after(2, {"forward": 4 * GB}, reaches_peak=False)


def test_the_line_is_kept_in_the_record(tiny_model: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    data = write_reviews(tmp_path / "reviews.csv")
    monkeypatch.setattr(SimulationSetup, "process_bytes", lambda self: 10**7)
    job = Job(model=str(tiny_model), data=str(data), batch_size=8, max_length=32, max_steps=2)
    train(job, out=tmp_path / "run")
    notes = load_run(tmp_path / "run").notes
    assert len([note for note in notes if "the prediction is wrong" in note]) == 1


def test_an_error_in_the_models_own_code_is_one_sentence(
    tiny_model: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    from transformers.models.bert.modeling_bert import BertEmbeddings

    whole = BertEmbeddings.forward

    def forward(self: Any, *args: Any, **kwargs: Any) -> Any:
        own = self.word_embeddings.embedding_dim < 768  # not the model that the process size is measured with
        return whole(self, *args, **kwargs) + torch.ones(7 if own else 1)

    data = write_reviews(tmp_path / "reviews.csv")
    monkeypatch.setattr(BertEmbeddings, "forward", forward)
    job = Job(model=str(tiny_model), data=str(data), batch_size=8, max_length=32, max_steps=2)
    with pytest.raises(ModelError, match=r"^The code of '.*' fails on a batch of texts: .*\. Use another model\.$"):
        train(job, out=tmp_path / "run")
