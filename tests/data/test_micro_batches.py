"""Micro-batches: how a batch is cut, and which padding is trimmed."""

from __future__ import annotations

import torch

from tightfit.data.micro_batches import micro_batches, used_spans


def batch_of(*lengths: int, width: int = 6) -> dict[str, torch.Tensor]:
    mask = torch.tensor([[1] * n + [0] * (width - n) for n in lengths])
    ids = mask * torch.arange(1, len(lengths) + 1)[:, None]
    return {"input_ids": ids, "attention_mask": mask, "labels": torch.arange(len(lengths))}


def test_micro_batches_are_sorted_longest_first_and_trimmed() -> None:
    parts = list(micro_batches(batch_of(2, 6, 3, 1, 4), rows=2))
    assert [rows for rows, _ in parts] == [[1, 4], [2, 0], [3]]
    assert [tuple(part["input_ids"].shape) for _, part in parts] == [(2, 6), (2, 3), (1, 1)]
    assert [part["labels"].tolist() for _, part in parts] == [[1, 4], [2, 0], [3]]


def test_micro_batches_keep_every_token() -> None:
    batch = batch_of(5, 2, 6, 3, 4, 1, 6)
    total = sum(int(part["attention_mask"].sum()) for _, part in micro_batches(batch, rows=3))
    assert total == int(batch["attention_mask"].sum())


def test_a_single_micro_batch_keeps_the_row_order() -> None:
    (rows, part), *rest = micro_batches(batch_of(1, 4, 2), rows=8)
    assert (rows, rest) == ([0, 1, 2], [])
    assert part["input_ids"].shape == (3, 4)


def test_left_padding_is_trimmed() -> None:
    mask = torch.tensor([[0, 0, 0, 1, 1], [0, 0, 1, 1, 1]])
    (_, part), *_ = micro_batches({"input_ids": mask * 7, "attention_mask": mask}, rows=2)
    assert part["input_ids"].tolist() == [[0, 7, 7], [7, 7, 7]]


def test_scores_per_class_are_not_trimmed() -> None:
    batch = batch_of(2, 3, width=4)
    batch["labels"] = torch.rand(2, 4)
    (_, part), *_ = micro_batches(batch, rows=2)
    assert part["labels"].shape == (2, 4)


def test_decoder_labels_are_trimmed_to_their_own_length() -> None:
    batch = batch_of(2, 3, width=4)
    batch["labels"] = torch.tensor([[1, 2, 3, 4], [1, -100, -100, -100]])
    parts = list(micro_batches(batch, rows=1, encoder_decoder=True))
    assert [tuple(part["labels"].shape) for _, part in parts] == [(1, 1), (1, 4)]
    assert [tuple(part["input_ids"].shape) for _, part in parts] == [(1, 3), (1, 2)]


def test_used_spans() -> None:
    used = torch.tensor([[0, 1, 1, 0], [1, 1, 1, 1], [0, 0, 0, 0]]).bool()
    assert used_spans(used) == [(1, 3), (0, 4), (0, 0)]
