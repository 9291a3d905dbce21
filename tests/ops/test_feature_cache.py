"""A frozen trunk runs once over each text: the head hears what it would have heard, for every architecture."""

from __future__ import annotations

import shutil
from pathlib import Path
from typing import Any

import pytest
import torch
from heads import CONFIGS, build, gradients, make_batch
from training.test_run import job_of, weights_of, without_dropout

from tightfit import freeze, train
from tightfit.data.row_file import FeatureFile
from tightfit.errors import PreflightFailed, RecipeError
from tightfit.ops.feature_cache import FeatureCache, find_cacheable_encoder

VARIANTS = [(name, {}) for name in CONFIGS] + [("ModernBert", {"classifier_pooling": "mean"})]


def frozen(architecture: str, **changes: Any) -> Any:
    model = build(architecture, **changes)
    freeze(model)
    return model


def trunk_of(model: Any) -> FeatureCache:
    feature_cache = find_cacheable_encoder(model)
    assert feature_cache is not None
    return feature_cache


@pytest.mark.parametrize(("architecture", "changes"), VARIANTS)
def test_the_head_learns_the_same_from_what_was_kept(architecture: str, changes: dict[str, str]) -> None:
    """Also when it has changed since; of each text only one state is kept."""
    model, batch = frozen(architecture, **changes), make_batch(6)
    feature_cache = trunk_of(model)
    features, _ = feature_cache.features(batch)
    assert sum(v.numel() for name, v in features.items() if name.startswith("kept_")) == 6 * 32
    for parameter in model.parameters():
        if parameter.requires_grad:
            torch.nn.init.normal_(parameter, std=0.5)
    model.train()(**features).loss.backward()
    found = gradients(model)
    feature_cache.step_aside()
    model(**batch).loss.backward()
    torch.testing.assert_close(found, gradients(model), rtol=1e-4, atol=1e-6)


def test_a_head_with_an_answer_for_each_token_is_left_alone() -> None:
    model = build("Bert", "token")
    freeze(model)
    assert find_cacheable_encoder(model) is None
    model(**make_batch(4, "token")).loss.backward()


def test_a_head_that_weighs_by_what_it_reads_is_left_alone(monkeypatch: pytest.MonkeyPatch) -> None:
    from transformers.models.roberta.modeling_roberta import RobertaClassificationHead

    monkeypatch.setattr(RobertaClassificationHead, "forward", lambda head, states, **rest: states.amax(dim=1)[:, :3])
    assert find_cacheable_encoder(frozen("Roberta")) is None


def test_an_answer_that_differs_is_refused() -> None:
    feature_cache = trunk_of(frozen("Roberta"))
    features, answer = feature_cache.features(make_batch(6))
    feature_cache.check_same_logits(features, answer)
    features["kept_last_hidden_state"][2] += 1
    with pytest.raises(RecipeError, match="use freeze:cache=false"):
        feature_cache.check_same_logits(features, answer)


def test_the_head_keeps_its_dropout() -> None:
    feature_cache = trunk_of(frozen("Bert", hidden_dropout_prob=0.5))
    features, _ = feature_cache.features(make_batch(6))
    feature_cache.model.train()
    assert feature_cache.model(**features).loss != feature_cache.model(**features).loss


def test_rows_come_back_as_they_were_written(tmp_path: Path) -> None:
    rows = FeatureFile(9, tmp_path)
    states, ids = torch.randn(4, 1, 5).to(torch.bfloat16), torch.arange(4)[:, None]
    rows.write([7, 0, 3, 2], {"ids": ids, "states": states})
    batch = rows.__getitems__([3, 7])
    assert torch.equal(batch["states"], states[[2, 0]])
    assert torch.equal(batch["ids"], ids[[2, 0]])
    assert len(rows) == 9
    assert not list(tmp_path.iterdir()), "the file has no name"


@pytest.mark.parametrize(
    "use",
    [
        [],
        ["micro-batch:size=3", "gradient-checkpointing"],
        ["adafactor", "optimizer-in-backward"],
        ["length-bucketing"],
    ],
)
def test_a_run_is_that_of_a_trunk_without_dropout(
    tiny_model: Path, reviews: Path, tmp_path: Path, use: list[str]
) -> None:
    model = without_dropout(tiny_model, tmp_path / "model")
    job = job_of(model, reviews, epochs=2, max_grad_norm=0)
    kept = train(job, ["freeze", *use], out=tmp_path / "kept", device="cpu", quiet=True)
    run = train(job, ["freeze:cache=false", *use], out=tmp_path / "run", device="cpu", quiet=True)
    for name, weight in weights_of(tmp_path / "run").items():
        torch.testing.assert_close(weights_of(tmp_path / "kept")[name], weight, rtol=1e-3, atol=1e-5)
    assert kept.metrics["eval_loss"] == pytest.approx(run.metrics["eval_loss"], rel=1e-4)
    assert kept.predicted.phases is not None
    assert "features" in kept.measured.phases
    assert "features" in kept.predicted.phases


@pytest.mark.parametrize(("changes", "rows"), [({"epochs": 3}, 60), ({"max_steps": 2}, 16 + 6)])
def test_each_text_goes_through_the_trunk_once(
    tiny_model: Path, reviews: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, changes: Any, rows: int
) -> None:
    """And none that the training does not meet."""
    from transformers.models.bert.modeling_bert import BertEncoder

    seen: list[int] = []
    forward = BertEncoder.forward

    def watched(self: Any, hidden: torch.Tensor, *args: Any, **kwargs: Any) -> Any:
        if type(hidden) is torch.Tensor and len(hidden) != 2:  # those of a rehearsal, and the two that are tried out
            seen.append(len(hidden))
        return forward(self, hidden, *args, **kwargs)

    monkeypatch.setattr(BertEncoder, "forward", watched)
    run = train(job_of(tiny_model, reviews, **changes), ["freeze"], out=tmp_path / "run", device="cpu", quiet=True)
    assert sum(seen) == rows
    assert run.measured.epochs is not None
    assert len(run.measured.epochs) == changes.get("epochs", 1)


def test_a_stopped_run_goes_on_to_the_same_bits(tiny_model: Path, reviews: Path, tmp_path: Path) -> None:
    job = job_of(tiny_model, reviews, epochs=2)
    whole = train(job, ["freeze"], out=tmp_path / "whole", device="cpu", quiet=True)
    shutil.copytree(tmp_path / "whole", tmp_path / "again")
    shutil.rmtree(tmp_path / "again" / f"checkpoint-{whole.steps}")
    (tmp_path / "again" / "run.json").unlink()
    train(job, ["freeze"], out=tmp_path / "again", device="cpu", quiet=True, resume=True)
    expected = weights_of(tmp_path / "whole")
    assert all(torch.equal(weight, expected[name]) for name, weight in weights_of(tmp_path / "again").items())


def test_texts_go_through_in_pieces_where_memory_is_short(
    tiny_model: Path, reviews: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Where not even one does, nothing is left of the run."""
    from transformers.models.bert.modeling_bert import BertEncoder

    forward, most = BertEncoder.forward, 3

    def hungry(self: Any, hidden: torch.Tensor, *args: Any, **kwargs: Any) -> Any:
        rehearsed_or_tried = type(hidden) is not torch.Tensor or hidden.shape[1] <= 4
        if not rehearsed_or_tried and len(hidden) > most:
            raise MemoryError
        return forward(self, hidden, *args, **kwargs)

    job = job_of(tiny_model, reviews)
    free = train(job, ["freeze"], out=tmp_path / "free", device="cpu", quiet=True)
    monkeypatch.setattr(BertEncoder, "forward", hungry)
    run = train(job, ["freeze"], out=tmp_path / "run", device="cpu", quiet=True)
    assert any("going on with 2 at once" in note for note in run.notes)
    assert run.metrics["eval_loss"] == pytest.approx(free.metrics["eval_loss"], rel=1e-4)
    most = 0
    with pytest.raises(PreflightFailed, match="a single text of"):
        train(job, ["freeze"], out=tmp_path / "starved", device="cpu", quiet=True)
    assert not (tmp_path / "starved").exists()


def test_mixed_precision_keeps_what_it_computes(tiny_model: Path, reviews: Path, tmp_path: Path) -> None:
    job = job_of(tiny_model, reviews)
    run = train(job, ["freeze", "mixed-precision"], out=tmp_path / "run", device="cpu", quiet=True)
    assert run.steps == 7
