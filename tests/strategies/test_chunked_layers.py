"""Layers run a few rows at a time: the same gradients for every architecture, less padding, one backward pass."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from heads import CONFIGS, build, gradients
from parts import ROWS, parts_of, sorted_batch

from tightfit.data.batches import partition_by_tokens
from tightfit.errors import RecipeError
from tightfit.ops import buffer_pool


@pytest.fixture(autouse=True)
def rooms_for_small_tensors(monkeypatch: pytest.MonkeyPatch) -> None:
    """Those of the models here are small."""
    monkeypatch.setattr(buffer_pool, "SMALLEST", 0)


@pytest.mark.parametrize("architecture", CONFIGS)
@pytest.mark.parametrize("size", [1, 3])
def test_gradients_are_those_of_the_whole_batch(architecture: str, size: int) -> None:
    _has_plain_gradients(f"chunked-layers:size={size}", architecture)


APART = {"T5", "MPNet", "DebertaV2", "DebertaV3", "ModernBert"}  # layers that hand on more, or are given other masks


@pytest.mark.parametrize("architecture", [name for name in CONFIGS if name not in APART])
@pytest.mark.parametrize("together", [2, 3])
def test_layers_that_run_together_give_the_same_gradients(architecture: str, together: int) -> None:
    """The last group may be smaller than the others."""
    _has_plain_gradients(f"chunked-layers:size=3,layers={together}", architecture, layers=3)


def _has_plain_gradients(word: str, architecture: str, layers: int = 2) -> None:
    batch, plain = sorted_batch(), build(architecture, layers=layers)
    plain(**batch).loss.backward()
    expected = gradients(plain)
    parts = parts_of(word, model=build(architecture, layers=layers))
    parts.model(**batch).loss.backward()
    found = gradients(parts.model)
    assert (found - expected).norm() <= 1e-5 * expected.norm()


def test_layers_that_run_together_keep_fewer_states() -> None:
    def kept(words: str) -> int:
        model, seen = parts_of(words, model=build("Bert", layers=4)).model, set()

        def pack(tensor: torch.Tensor) -> torch.Tensor:
            seen.add(tensor.untyped_storage().data_ptr())
            return tensor

        with torch.autograd.graph.saved_tensors_hooks(pack, lambda tensor: tensor):
            alive = model(**sorted_batch())
        assert alive.loss is not None
        return len(seen)

    assert kept("chunked-layers:size=3,layers=2") < kept("chunked-layers:size=3")


@pytest.mark.parametrize("architecture", sorted(APART))
def test_layers_that_cannot_run_together_say_so(architecture: str) -> None:
    parts = parts_of("chunked-layers:size=3,layers=2", model=build(architecture))
    with pytest.raises(RecipeError, match=r"cannot run several layers together: a .* Leave layers=1\.$"):
        parts.model(**sorted_batch())


def test_padding_is_not_computed() -> None:
    parts = parts_of("chunked-layers:size=2")
    widths: list[int] = []
    parts.model.bert.encoder.layer[0].attention.register_forward_hook(
        lambda module, args, out: widths.append(out[0].shape[1] if isinstance(out, tuple) else out.shape[1])
    )
    batch = sorted_batch()
    chunks = partition_by_tokens(batch["attention_mask"].sum(dim=1).tolist(), 2 * batch["input_ids"].shape[1])
    with torch.no_grad():
        parts.model(**batch)
    assert widths == [chunk.length for chunk in chunks]
    assert widths[-1] < widths[0]


def test_each_gradient_arrives_once() -> None:
    """So that an optimizer can step when it does."""
    parts = parts_of("chunked-layers:size=2")
    times: dict[int, int] = {}
    for parameter in parts.model.parameters():
        parameter.register_post_accumulate_grad_hook(lambda p: times.update({id(p): times.get(id(p), 0) + 1}))
    parts.model(**sorted_batch()).loss.backward()
    assert set(times.values()) == {1}


def test_evaluation_is_left_alone() -> None:
    parts = parts_of("chunked-layers:size=2")
    calls: list[int] = []
    parts.model.bert.encoder.layer[0].attention.register_forward_hook(lambda *_: calls.append(1))
    parts.model.eval()(**sorted_batch())
    assert len(calls) == 1
    assert parts.evaluation_rows == ROWS


def test_a_model_without_layers_is_told_so() -> None:
    class NoLayers(torch.nn.Module):
        pass

    with pytest.raises(RecipeError, match="use slice in its place"):
        parts_of("chunked-layers:size=2", model=NoLayers())


def steps(*words: str, clip: float) -> Any:
    from dataclasses import replace

    from tightfit.engine.assembly import build_optimizer

    parts = replace(parts_of(*words), max_grad_norm=clip)
    optimizer = build_optimizer(parts)
    for _ in range(5):
        parts.model(**sorted_batch()).loss.backward()
        optimizer.step()
        optimizer.zero_grad()
    return torch.cat([p.detach().flatten() for p in parts.model.parameters()]), optimizer


@pytest.mark.parametrize("optimizer", ["adamw", "adafactor"])
def test_stepping_in_the_backward_pass_is_the_same_step(optimizer: str) -> None:
    expected, _ = steps(optimizer, clip=0.0)
    found, stepped = steps(optimizer, "optimizer-in-backward", clip=0.0)
    assert torch.allclose(found, expected, rtol=1e-5, atol=1e-7)
    assert all(p.grad is None for group in stepped.param_groups for p in group["params"])


def test_gradients_are_clipped_one_by_one() -> None:
    free, _ = steps("adafactor", "optimizer-in-backward", clip=0.0)
    clipped, _ = steps("adafactor", "optimizer-in-backward", clip=1e-6)
    assert not torch.allclose(free, clipped)
