"""A frozen encoder runs once over each example, and the head trains as if it ran in every step."""

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
from tightfit.simulation.process_size import warm_up

VARIANTS = [(name, {}) for name in CONFIGS] + [("ModernBert", {"classifier_pooling": "mean"})]


def frozen(architecture: str, **changes: Any) -> Any:
    model = build(architecture, **changes)
    freeze(model)
    return model


def cache_of(model: Any) -> FeatureCache:
    feature_cache = find_cacheable_encoder(model)
    assert feature_cache is not None
    return feature_cache


@pytest.mark.parametrize(("architecture", "changes"), VARIANTS)
def test_the_head_gets_the_same_gradients_from_cached_features(architecture: str, changes: dict[str, str]) -> None:
    """Also after the head has changed; one hidden state per example is stored."""
    model, batch = frozen(architecture, **changes), make_batch(6)
    feature_cache = cache_of(model)
    features, _ = feature_cache.features(batch)
    assert sum(v.numel() for name, v in features.items() if name.startswith("feature_")) == 6 * 32
    for parameter in model.parameters():
        if parameter.requires_grad:
            torch.nn.init.normal_(parameter, std=0.5)
    model.train()(**features).loss.backward()
    found = gradients(model)
    feature_cache.remove()
    model(**batch).loss.backward()
    torch.testing.assert_close(found, gradients(model), rtol=1e-4, atol=1e-6)


def test_a_token_classification_head_is_not_cached() -> None:
    model = build("Bert", "token")
    freeze(model)
    assert find_cacheable_encoder(model) is None
    model(**make_batch(4, "token")).loss.backward()


def test_a_head_whose_token_weights_depend_on_the_input_is_not_cached(monkeypatch: pytest.MonkeyPatch) -> None:
    from transformers.models.roberta.modeling_roberta import RobertaClassificationHead

    monkeypatch.setattr(RobertaClassificationHead, "forward", lambda head, states, **rest: states.amax(dim=1)[:, :3])
    assert find_cacheable_encoder(frozen("Roberta")) is None


def test_features_with_other_logits_are_rejected() -> None:
    feature_cache = cache_of(frozen("Roberta"))
    features, logits = feature_cache.features(make_batch(6))
    feature_cache.check_same_logits(features, logits)
    features["feature_last_hidden_state"][2] += 1
    with pytest.raises(RecipeError, match="use freeze:cache=false"):
        feature_cache.check_same_logits(features, logits)


def test_the_head_keeps_its_dropout() -> None:
    feature_cache = cache_of(frozen("Bert", hidden_dropout_prob=0.5))
    features, _ = feature_cache.features(make_batch(6))
    feature_cache.model.train()
    assert feature_cache.model(**features).loss != feature_cache.model(**features).loss


def test_a_feature_file_returns_rows_as_they_were_written(tmp_path: Path) -> None:
    rows = FeatureFile(9, tmp_path)
    states, ids = torch.randn(4, 1, 5).to(torch.bfloat16), torch.arange(4)[:, None]
    rows.write([7, 0, 3, 2], {"ids": ids, "states": states})
    batch = rows.__getitems__([3, 7])
    assert torch.equal(batch["states"], states[[2, 0]])
    assert torch.equal(batch["ids"], ids[[2, 0]])
    assert len(rows) == 9
    assert not list(tmp_path.iterdir()), "the file is anonymous"


@pytest.mark.slow
@pytest.mark.parametrize(
    "use",
    [
        [],
        ["micro-batch:size=3", "gradient-checkpointing"],
        ["adafactor", "optimizer-in-backward"],
        ["length-bucketing"],
    ],
)
def test_a_cached_run_equals_one_that_runs_the_encoder_without_dropout(
    tiny_model: Path, reviews: Path, tmp_path: Path, use: list[str]
) -> None:
    model = without_dropout(tiny_model, tmp_path / "model")
    job = job_of(model, reviews, epochs=2, max_grad_norm=0)
    cached = train(job, ["freeze", *use], out=tmp_path / "cached", device="cpu", quiet=True)
    run = train(job, ["freeze:cache=false", *use], out=tmp_path / "run", device="cpu", quiet=True)
    for name, weight in weights_of(tmp_path / "run").items():
        torch.testing.assert_close(weights_of(tmp_path / "cached")[name], weight, rtol=1e-3, atol=1e-5)
    assert cached.metrics["eval_loss"] == pytest.approx(run.metrics["eval_loss"], rel=1e-4)
    assert cached.predicted.phases is not None
    assert "features" in cached.measured.phases
    assert "features" in cached.predicted.phases


@pytest.mark.parametrize(("changes", "rows"), [({"epochs": 3}, 60), ({"max_steps": 2}, 16 + 6)])
def test_the_encoder_runs_once_per_example(
    tiny_model: Path, reviews: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, changes: Any, rows: int
) -> None:
    """And not over examples that the run does not use."""
    from transformers.models.bert.modeling_bert import BertEncoder

    seen: list[int] = []
    forward = BertEncoder.forward

    def counted(self: Any, hidden: torch.Tensor, *args: Any, **kwargs: Any) -> Any:
        if type(hidden) is torch.Tensor and len(hidden) != 2:  # neither a simulation nor the probe of two rows
            seen.append(len(hidden))
        return forward(self, hidden, *args, **kwargs)

    warm_up(True)  # once per process: it trains a small BERT, which would be counted
    monkeypatch.setattr(BertEncoder, "forward", counted)
    run = train(job_of(tiny_model, reviews, **changes), ["freeze"], out=tmp_path / "run", device="cpu", quiet=True)
    assert sum(seen) == rows
    assert run.measured.epochs is not None
    assert len(run.measured.epochs) == changes.get("epochs", 1)


def test_a_resumed_run_ends_with_identical_weights(tiny_model: Path, reviews: Path, tmp_path: Path) -> None:
    job = job_of(tiny_model, reviews, epochs=2)
    whole = train(job, ["freeze"], out=tmp_path / "whole", device="cpu", quiet=True)
    shutil.copytree(tmp_path / "whole", tmp_path / "resumed")
    shutil.rmtree(tmp_path / "resumed" / f"checkpoint-{whole.steps}")
    (tmp_path / "resumed" / "run.json").unlink()
    train(job, ["freeze"], out=tmp_path / "resumed", device="cpu", quiet=True, resume=True)
    expected = weights_of(tmp_path / "whole")
    assert all(torch.equal(weight, expected[name]) for name, weight in weights_of(tmp_path / "resumed").items())


@pytest.mark.slow
def test_the_encoder_runs_in_smaller_batches_when_memory_is_short(
    tiny_model: Path, reviews: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Where not even one example fits, the run folder is removed."""
    from transformers.models.bert.modeling_bert import BertEncoder

    forward, max_rows = BertEncoder.forward, 3

    def limited(self: Any, hidden: torch.Tensor, *args: Any, **kwargs: Any) -> Any:
        simulated_or_probed = type(hidden) is not torch.Tensor or hidden.shape[1] <= 4
        if not simulated_or_probed and len(hidden) > max_rows:
            raise MemoryError
        return forward(self, hidden, *args, **kwargs)

    job = job_of(tiny_model, reviews)
    unlimited = train(job, ["freeze"], out=tmp_path / "unlimited", device="cpu", quiet=True)
    monkeypatch.setattr(BertEncoder, "forward", limited)
    run = train(job, ["freeze"], out=tmp_path / "run", device="cpu", quiet=True)
    assert any(note.endswith(": continuing with 2") for note in run.notes)
    assert run.metrics["eval_loss"] == pytest.approx(unlimited.metrics["eval_loss"], rel=1e-4)
    max_rows = 0
    with pytest.raises(PreflightFailed, match="a single text of"):
        train(job, ["freeze"], out=tmp_path / "no-memory", device="cpu", quiet=True)
    assert not (tmp_path / "no-memory").exists()


def test_features_are_cached_in_mixed_precision(tiny_model: Path, reviews: Path, tmp_path: Path) -> None:
    job = job_of(tiny_model, reviews)
    run = train(job, ["freeze", "mixed-precision"], out=tmp_path / "run", device="cpu", quiet=True)
    assert run.steps == 7
