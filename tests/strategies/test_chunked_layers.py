"""Chunked layers: the same gradients for every architecture, less padding, one backward pass."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from heads import CONFIGS, build, gradients
from parts import ROWS, parts_of, sorted_batch

from tightfit.data.micro_batches import partition_by_tokens
from tightfit.errors import RecipeError
from tightfit.ops import buffer_pool


@pytest.fixture(autouse=True)
def pool_small_tensors(monkeypatch: pytest.MonkeyPatch) -> None:
    """The tensors of the test models are below the pool's usual minimum."""
    monkeypatch.setattr(buffer_pool, "MIN_BYTES", 0)


@pytest.mark.parametrize("architecture", CONFIGS)
@pytest.mark.parametrize("size", [1, 3])
def test_gradients_equal_those_of_the_whole_batch(architecture: str, size: int) -> None:
    _check_gradients(f"chunked-layers:size={size}", architecture)


NOT_GROUPABLE = {"T5", "MPNet", "DebertaV2", "DebertaV3", "ModernBert"}  # layers with more outputs, or other masks


@pytest.mark.parametrize("architecture", [name for name in CONFIGS if name not in NOT_GROUPABLE])
@pytest.mark.parametrize("layers_per_block", [2, 3])
def test_layers_that_run_together_give_the_same_gradients(architecture: str, layers_per_block: int) -> None:
    """The last block may be smaller than the others."""
    _check_gradients(f"chunked-layers:size=3,layers={layers_per_block}", architecture, layers=3)


def _check_gradients(spec: str, architecture: str, layers: int = 2) -> None:
    batch, baseline = sorted_batch(), build(architecture, layers=layers)
    baseline(**batch).loss.backward()
    expected = gradients(baseline)
    parts = parts_of(spec, model=build(architecture, layers=layers))
    parts.model(**batch).loss.backward()
    found = gradients(parts.model)
    assert (found - expected).norm() <= 1e-5 * expected.norm()


def test_layers_that_run_together_save_fewer_hidden_states() -> None:
    def saved_tensors(specs: str) -> int:
        model, seen = parts_of(specs, model=build("Bert", layers=4)).model, set()

        def pack(tensor: torch.Tensor) -> torch.Tensor:
            seen.add(tensor.untyped_storage().data_ptr())
            return tensor

        with torch.autograd.graph.saved_tensors_hooks(pack, lambda tensor: tensor):
            output = model(**sorted_batch())
        assert output.loss is not None
        return len(seen)

    assert saved_tensors("chunked-layers:size=3,layers=2") < saved_tensors("chunked-layers:size=3")


@pytest.mark.parametrize("architecture", sorted(NOT_GROUPABLE))
def test_layers_that_cannot_run_together_are_rejected(architecture: str) -> None:
    parts = parts_of("chunked-layers:size=3,layers=2", model=build(architecture))
    with pytest.raises(RecipeError, match=r"cannot run several layers together: a .* Use layers=1\.$"):
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


def test_each_gradient_is_computed_once() -> None:
    """So that optimizer-in-backward can step right after it."""
    parts = parts_of("chunked-layers:size=2")
    times: dict[int, int] = {}
    for parameter in parts.model.parameters():
        parameter.register_post_accumulate_grad_hook(lambda p: times.update({id(p): times.get(id(p), 0) + 1}))
    parts.model(**sorted_batch()).loss.backward()
    assert set(times.values()) == {1}


def test_evaluation_is_not_chunked() -> None:
    parts = parts_of("chunked-layers:size=2")
    calls: list[int] = []
    parts.model.bert.encoder.layer[0].attention.register_forward_hook(lambda *_: calls.append(1))
    parts.model.eval()(**sorted_batch())
    assert len(calls) == 1
    assert parts.step_batching.no_grad_rows == ROWS


def test_a_model_without_layers_is_rejected() -> None:
    class NoLayers(torch.nn.Module):
        pass

    with pytest.raises(RecipeError, match="use micro-batch instead"):
        parts_of("chunked-layers:size=2", model=NoLayers())


def steps(*specs: str, clip: float) -> Any:
    from dataclasses import replace

    from tightfit.engine.assembly import build_optimizer

    parts = replace(parts_of(*specs), max_grad_norm=clip)
    optimizer = build_optimizer(parts)
    for _ in range(5):
        parts.model(**sorted_batch()).loss.backward()
        optimizer.step()
        optimizer.zero_grad()
    return torch.cat([p.detach().flatten() for p in parts.model.parameters()]), optimizer


@pytest.mark.parametrize("optimizer", ["adamw", "adafactor"])
def test_optimizer_in_backward_takes_the_same_steps(optimizer: str) -> None:
    expected, _ = steps(optimizer, clip=0.0)
    found, in_backward = steps(optimizer, "optimizer-in-backward", clip=0.0)
    assert torch.allclose(found, expected, rtol=1e-5, atol=1e-7)
    assert all(p.grad is None for group in in_backward.param_groups for p in group["params"])


def test_optimizer_in_backward_clips_gradients() -> None:
    free, _ = steps("adafactor", "optimizer-in-backward", clip=0.0)
    clipped, _ = steps("adafactor", "optimizer-in-backward", clip=1e-6)
    assert not torch.allclose(free, clipped)
