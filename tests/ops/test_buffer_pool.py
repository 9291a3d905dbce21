"""The buffer pool reuses the memory of one chunk for the next, and never memory that is in use."""

from __future__ import annotations

import weakref
from collections.abc import Iterator
from dataclasses import replace
from typing import Any

import pytest
import torch
from heads import build
from parts import GPU, parts_of, sorted_batch

from tightfit.engine.oom import free_memory
from tightfit.ops import buffer_pool
from tightfit.ops.buffer_pool import BufferPool, pooled_empty
from tightfit.strategies.chunked_layers import ChunkedLayers

SHAPE = (4, 8, 2048)
LIKE = torch.empty(0)


@pytest.fixture
def pool() -> Iterator[BufferPool]:
    found = BufferPool()
    found.activate()
    yield found
    found.release()


def address(tensor: torch.Tensor) -> int:
    return tensor.untyped_storage().data_ptr()


def test_an_unused_block_is_reused(pool: BufferPool) -> None:
    first, second = pooled_empty(SHAPE, LIKE), pooled_empty(SHAPE, LIKE)
    assert first.shape == SHAPE
    assert address(first) != address(second)
    freed = address(first)
    del first
    assert address(pooled_empty(SHAPE, LIKE)) == freed


def test_a_small_chunk_reuses_blocks_made_for_the_largest(pool: BufferPool) -> None:
    """Otherwise it would allocate a new block of the largest chunk's size for every tensor."""
    tokens = SHAPE[0] * SHAPE[1]
    pool.size_for(torch.empty(SHAPE), most_tokens=5 * tokens)
    made = pooled_empty(SHAPE, LIKE)
    freed, size = address(made), made.untyped_storage().nbytes()
    del made
    assert size == 5 * tokens * SHAPE[2] * LIKE.element_size()
    assert address(pooled_empty(SHAPE, LIKE)) == freed


def test_a_block_held_by_a_view_or_a_graph_is_in_use(pool: BufferPool) -> None:
    viewed = pooled_empty(SHAPE, LIKE)
    held = address(viewed)
    viewed = viewed[0].transpose(0, 1)
    assert address(pooled_empty(SHAPE, LIKE)) != held
    saved = pooled_empty(SHAPE, LIKE).fill_(3)
    held, weight = address(saved), torch.ones((), requires_grad=True)
    product = saved * weight
    del saved
    assert address(pooled_empty(SHAPE, LIKE).zero_()) != held
    product.sum().backward()
    assert weight.grad == 3 * torch.Size(SHAPE).numel()


def test_a_pooled_tensor_is_not_a_view(pool: BufferPool) -> None:
    """autograd forbids many in-place operations on views that a function returns."""
    assert not pooled_empty(SHAPE, LIKE)._is_view()


def test_a_block_made_for_a_short_chunk_is_large_enough_for_the_longest(pool: BufferPool) -> None:
    pool.size_for(torch.empty(2, 90, 1), most_tokens=200)
    short = pooled_empty((2, 90, 256), LIKE)
    freed = address(short)
    del short
    pool.size_for(torch.empty(4, 50, 1), most_tokens=200)
    assert address(pooled_empty((4, 50, 256), LIKE)) == freed


def test_a_block_that_is_far_too_large_is_not_used(pool: BufferPool) -> None:
    block = pooled_empty(SHAPE, LIKE)
    freed = address(block)
    del block
    assert address(pooled_empty((4, 8, 512), LIKE)) != freed


def test_a_gpu_uses_no_pool() -> None:
    """In a simulation the tensors of a GPU are CPU tensors, so the pool goes by the device's name."""
    gpu_pool = BufferPool("cuda")
    gpu_pool.activate()
    assert buffer_pool.pooled_or_none(SHAPE, LIKE) is None


def test_without_an_active_pool_memory_is_freed() -> None:
    tensor = pooled_empty(SHAPE, LIKE)
    storage = weakref.ref(tensor.untyped_storage())
    del tensor
    assert storage() is None


@pytest.mark.parametrize(
    "specs", ["chunked-layers:size=3", "freeze:layers=1 chunked-layers:size=3"], ids=["all", "some"]
)
def test_a_training_step_leaves_no_blocks(specs: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(buffer_pool, "MIN_BYTES", 0)
    model, made = parts_of(*specs.split(), model=build("Bert", layers=2)).model, record_blocks(monkeypatch)
    loss = model(**sorted_batch()).loss
    assert made
    assert buffer_pool._this_thread.active is None
    loss.backward()
    assert buffer_pool._this_thread.active is None
    del loss
    assert not [block for block in made if block() is not None]


def test_chunked_layers_on_a_gpu_use_no_pool(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(buffer_pool, "MIN_BYTES", 0)
    parts, made = replace(parts_of(), device=GPU), record_blocks(monkeypatch)
    ChunkedLayers(size=3).apply(parts).model(**sorted_batch()).loss.backward()
    assert not made


def test_the_pool_of_a_failed_pass_is_not_used(monkeypatch: pytest.MonkeyPatch) -> None:
    """Neither after a failed forward nor after a failed backward pass; a simulation's pool holds fake tensors."""
    monkeypatch.setattr(buffer_pool, "MIN_BYTES", 0)
    model = parts_of("chunked-layers:size=3", model=build("Bert", layers=2)).model
    linear = model.bert.encoder.layer[0].output.dense
    backward_hook = linear.weight.register_hook(fail)
    with pytest.raises(ZeroDivisionError):
        model(**sorted_batch()).loss.backward()
    assert buffer_pool.pooled_or_none(SHAPE, LIKE) is None
    backward_hook.remove()
    linear.register_forward_pre_hook(fail)
    with pytest.raises(ZeroDivisionError):
        model(**sorted_batch())
    assert buffer_pool.pooled_or_none(SHAPE, LIKE) is None


def fail(*_: Any) -> None:
    raise ZeroDivisionError


def test_free_memory_releases_the_pool_of_a_failed_pass() -> None:
    failed = BufferPool()
    failed.activate()
    storage = weakref.ref(pooled_empty(SHAPE, LIKE).untyped_storage())
    assert storage() is not None
    free_memory()
    assert storage() is None
    assert buffer_pool._this_thread.active is None


def record_blocks(monkeypatch: pytest.MonkeyPatch) -> list[weakref.ref[Any]]:
    """Weak references to the blocks allocated from now on."""
    made: list[weakref.ref[Any]] = []
    original = BufferPool.empty

    def recording(self: BufferPool, *args: Any) -> torch.Tensor:
        tensor = original(self, *args)
        made.append(weakref.ref(tensor.untyped_storage()))
        return tensor

    monkeypatch.setattr(BufferPool, "empty", recording)
    return made
