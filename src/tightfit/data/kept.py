"""Kept rows: what a frozen trunk made of each row, in a file instead of in memory.

The file has no name and is gone with the process, however that ends. A row is a fixed number of bytes at its own
place, so rows can be written in any order and those that a training never meets take no room.
"""

from __future__ import annotations

import tempfile
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np
import torch

from tightfit.data.store import write_whole

if TYPE_CHECKING:
    from tightfit.data.slices import Batch


class KeptRows(torch.utils.data.Dataset):
    """Rows to train on, read as whole batches."""

    def __init__(self, rows: int, folder: Path) -> None:
        self._rows = rows
        self._file = tempfile.TemporaryFile(dir=folder, buffering=0)  # noqa: SIM115, it lives as long as the training
        self._columns: dict[str, tuple[torch.dtype, tuple[int, ...], int]] = {}

    def __len__(self) -> int:
        return self._rows

    def write(self, rows: Sequence[int], batch: Batch) -> None:
        """Keep a batch; every batch has the same columns."""
        columns = {name: _as_bytes(value) for name, value in batch.items()}
        if not self._columns:
            self._columns = {name: (v.dtype, v.shape[1:], columns[name].shape[1]) for name, v in batch.items()}
        joined = np.concatenate([columns[name] for name in self._columns], axis=1)
        for row, content in zip(rows, joined, strict=True):
            self._file.seek(row * len(content))
            write_whole(self._file, content.tobytes())

    def __getitems__(self, rows: Sequence[int]) -> Batch:
        """What torch's loader asks for; nothing is left to collate."""
        size = sum(width for _, _, width in self._columns.values())
        content = torch.frombuffer(bytearray().join(self._read(row, size) for row in rows), dtype=torch.uint8)
        pieces = content.view(len(rows), size).split([width for _, _, width in self._columns.values()], dim=1)
        return {
            name: piece.contiguous().view(dtype).reshape(len(rows), *shape)
            for (name, (dtype, shape, _)), piece in zip(self._columns.items(), pieces, strict=True)
        }

    def _read(self, row: int, size: int) -> bytes:
        """Zeros where nothing was written: the loader looks a batch ahead of the last step."""
        self._file.seek(row * size)
        return self._file.read(size).ljust(size, b"\0")


def as_it_is(batch: Batch) -> Batch:
    """The collator of kept rows."""
    return batch


def _as_bytes(values: torch.Tensor) -> np.ndarray[tuple[int, int], np.dtype[np.uint8]]:
    flat = values.detach().cpu().reshape(len(values), -1).contiguous()
    return flat.view(torch.uint8).numpy()
