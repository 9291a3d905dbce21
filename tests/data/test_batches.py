"""Cutting and trimming, exactly."""

from __future__ import annotations

import torch

from tightfit.data.batches import micro_batches, used_spans


def batch_of(*lengths: int, width: int = 6) -> dict[str, torch.Tensor]:
    mask = torch.tensor([[1] * n + [0] * (width - n) for n in lengths])
    ids = mask * torch.arange(1, len(lengths) + 1)[:, None]
    return {"input_ids": ids, "attention_mask": mask, "labels": torch.arange(len(lengths))}


def test_longest_first_and_trimmed() -> None:
    slices = list(micro_batches(batch_of(2, 6, 3, 1, 4), rows=2))
    assert [rows for rows, _ in slices] == [[1, 4], [2, 0], [3]]
    assert [tuple(chunk["input_ids"].shape) for _, chunk in slices] == [(2, 6), (2, 3), (1, 1)]
    assert [chunk["labels"].tolist() for _, chunk in slices] == [[1, 4], [2, 0], [3]]


def test_nothing_is_lost() -> None:
    batch = batch_of(5, 2, 6, 3, 4, 1, 6)
    total = sum(int(chunk["attention_mask"].sum()) for _, chunk in micro_batches(batch, rows=3))
    assert total == int(batch["attention_mask"].sum())


def test_one_slice_keeps_the_order_of_rows() -> None:
    (rows, chunk), *rest = micro_batches(batch_of(1, 4, 2), rows=8)
    assert (rows, rest) == ([0, 1, 2], [])
    assert chunk["input_ids"].shape == (3, 4)


def test_padding_on_the_left_is_trimmed_on_the_left() -> None:
    mask = torch.tensor([[0, 0, 0, 1, 1], [0, 0, 1, 1, 1]])
    (_, chunk), *_ = micro_batches({"input_ids": mask * 7, "attention_mask": mask}, rows=2)
    assert chunk["input_ids"].tolist() == [[0, 7, 7], [7, 7, 7]]


def test_scores_per_class_are_never_cut() -> None:
    batch = batch_of(2, 3, width=4)
    batch["labels"] = torch.rand(2, 4)
    (_, chunk), *_ = micro_batches(batch, rows=2)
    assert chunk["labels"].shape == (2, 4)


def test_a_decoders_labels_are_cut_by_their_own_length() -> None:
    batch = batch_of(2, 3, width=4)
    batch["labels"] = torch.tensor([[1, 2, 3, 4], [1, -100, -100, -100]])
    slices = list(micro_batches(batch, rows=1, encoder_decoder=True))
    assert [tuple(chunk["labels"].shape) for _, chunk in slices] == [(1, 1), (1, 4)]
    assert [tuple(chunk["input_ids"].shape) for _, chunk in slices] == [(1, 3), (1, 2)]


def test_spans_of_rows() -> None:
    used = torch.tensor([[0, 1, 1, 0], [1, 1, 1, 1], [0, 0, 0, 0]]).bool()
    assert used_spans(used) == [(1, 3), (0, 4), (0, 0)]
