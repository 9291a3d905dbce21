"""Memory of one piece used again by the next, and by nobody while it is in use."""

from __future__ import annotations

import weakref
from collections.abc import Iterator
from dataclasses import replace
from typing import Any

import pytest
import torch
from heads import build
from parts import CARD, parts_of, sorted_batch

from tightfit.engine.oom import free_memory
from tightfit.ops import buffer_pool
from tightfit.ops.buffer_pool import BufferPool, empty
from tightfit.strategies.chunked_layers import SliceLayers

SHAPE = (4, 8, 2048)
LIKE = torch.empty(0)


@pytest.fixture
def opened() -> Iterator[BufferPool]:
    found = BufferPool()
    found.open()
    yield found
    found.close()


def place(tensor: torch.Tensor) -> int:
    return tensor.untyped_storage().data_ptr()


def test_what_nobody_uses_is_used_again(opened: BufferPool) -> None:
    first, second = empty(SHAPE, LIKE), empty(SHAPE, LIKE)
    assert first.shape == SHAPE
    assert place(first) != place(second)
    freed = place(first)
    del first
    assert place(empty(SHAPE, LIKE)) == freed


def test_a_small_piece_uses_what_was_made_for_the_largest(opened: BufferPool) -> None:
    """Else it would make a new block of the largest piece's size for every tensor."""
    tokens = SHAPE[0] * SHAPE[1]
    opened.meet(torch.empty(SHAPE), most_tokens=5 * tokens)
    made = empty(SHAPE, LIKE)
    freed, size = place(made), made.untyped_storage().nbytes()
    del made
    assert size == 5 * tokens * SHAPE[2] * LIKE.element_size()
    assert place(empty(SHAPE, LIKE)) == freed


def test_what_a_view_or_a_graph_holds_is_in_use(opened: BufferPool) -> None:
    viewed = empty(SHAPE, LIKE)
    held = place(viewed)
    viewed = viewed[0].transpose(0, 1)
    assert place(empty(SHAPE, LIKE)) != held
    saved = empty(SHAPE, LIKE).fill_(3)
    held, weight = place(saved), torch.ones((), requires_grad=True)
    product = saved * weight
    del saved
    assert place(empty(SHAPE, LIKE).zero_()) != held
    product.sum().backward()
    assert weight.grad == 3 * torch.Size(SHAPE).numel()


def test_a_tensor_in_a_room_is_no_view(opened: BufferPool) -> None:
    """autograd forbids much of what is done to views that a function returns."""
    assert not empty(SHAPE, LIKE)._is_view()


def test_a_block_that_a_short_piece_made_does_for_the_longest(opened: BufferPool) -> None:
    opened.meet(torch.empty(2, 90, 1), most_tokens=200)
    short = empty((2, 90, 256), LIKE)
    freed = place(short)
    del short
    opened.meet(torch.empty(4, 50, 1), most_tokens=200)
    assert place(empty((4, 50, 256), LIKE)) == freed


def test_a_block_that_is_far_too_large_is_left_alone(opened: BufferPool) -> None:
    block = empty(SHAPE, LIKE)
    freed = place(block)
    del block
    assert place(empty((4, 8, 512), LIKE)) != freed


def test_a_card_has_none() -> None:
    """Its tensors are on a card only in name where it is rehearsed."""
    card = BufferPool("cuda")
    card.open()
    assert buffer_pool.pooled_or_none(SHAPE, LIKE) is None


def test_where_no_room_is_open_memory_goes_back() -> None:
    tensor = empty(SHAPE, LIKE)
    storage = weakref.ref(tensor.untyped_storage())
    del tensor
    assert storage() is None


@pytest.mark.parametrize(
    "words", ["chunked-layers:size=3", "freeze:layers=1 chunked-layers:size=3"], ids=["all", "some"]
)
def test_a_training_step_leaves_nothing_in_rooms(words: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(buffer_pool, "SMALLEST", 0)
    model, made = parts_of(*words.split(), model=build("Bert", layers=2)).model, followed(monkeypatch)
    loss = model(**sorted_batch()).loss
    assert made
    assert buffer_pool._open is None
    loss.backward()
    assert buffer_pool._open is None
    del loss
    assert not [block for block in made if block() is not None]


def test_layers_on_a_card_use_none(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(buffer_pool, "SMALLEST", 0)
    parts, made = replace(parts_of(), device=CARD), followed(monkeypatch)
    SliceLayers(size=3).apply(parts).model(**sorted_batch()).loss.backward()
    assert not made


def test_nobody_uses_rooms_of_a_pass_that_failed(monkeypatch: pytest.MonkeyPatch) -> None:
    """There, or back. A rehearsal's would have no memory at all."""
    monkeypatch.setattr(buffer_pool, "SMALLEST", 0)
    model = parts_of("chunked-layers:size=3", model=build("Bert", layers=2)).model
    linear = model.bert.encoder.layer[0].output.dense
    back = linear.weight.register_hook(fail)
    with pytest.raises(ZeroDivisionError):
        model(**sorted_batch()).loss.backward()
    assert buffer_pool.pooled_or_none(SHAPE, LIKE) is None
    back.remove()
    linear.register_forward_pre_hook(fail)
    with pytest.raises(ZeroDivisionError):
        model(**sorted_batch())
    assert buffer_pool.pooled_or_none(SHAPE, LIKE) is None


def fail(*_: Any) -> None:
    raise ZeroDivisionError


def test_rooms_of_a_pass_that_failed_are_left() -> None:
    opened = BufferPool()
    opened.open()
    storage = weakref.ref(empty(SHAPE, LIKE).untyped_storage())
    assert storage() is not None
    free_memory()
    assert storage() is None
    assert buffer_pool._open is None


def followed(monkeypatch: pytest.MonkeyPatch) -> list[weakref.ref[Any]]:
    """The blocks that are made from now on."""
    made: list[weakref.ref[Any]] = []
    plain = BufferPool.empty

    def follow(self: BufferPool, *args: Any) -> torch.Tensor:
        tensor = plain(self, *args)
        made.append(weakref.ref(tensor.untyped_storage()))
        return tensor

    monkeypatch.setattr(BufferPool, "empty", follow)
    return made
