"""Row files: rows in an anonymous temporary file, read in any order.

Only the offsets of the cells are in memory. The file disappears with the process, even after kill -9. It is read with
pread and not memory-mapped, as mapped pages count towards the process's memory. The datasets library does this too, but
would cost every training run 88 MiB and half a second.
"""

from __future__ import annotations

import errno
import json
import os
import sys
import tempfile
from array import array
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import IO, TYPE_CHECKING, Any, Protocol, overload

import numpy as np

if TYPE_CHECKING:
    import torch

    from tightfit.data.batches import Batch


IntArray = np.ndarray[Any, np.dtype[np.int64]]

_BATCH_ROWS = 1000
_READ_GAP = 4096  # bytes per row: reading that many unused bytes takes as long as one more call to read


class RowFile:
    """Rows with named columns: all that were written, or a selection of them in any order."""

    def __init__(self, columns: Mapping[str, _Column], rows: IntArray) -> None:
        self._columns, self._rows = columns, rows

    @property
    def column_names(self) -> list[str]:
        """The columns in the order of writing."""
        return list(self._columns)

    def __len__(self) -> int:
        return len(self._rows)

    @property
    def places(self) -> IntArray:
        """The place of each row among those that were written."""
        return self._rows

    @overload
    def __getitem__(self, which: str) -> list[Any]: ...

    @overload
    def __getitem__(self, which: int) -> dict[str, Any]: ...

    def __getitem__(self, which: str | int) -> list[Any] | dict[str, Any]:
        """A column by name, or a row by index."""
        if isinstance(which, str):
            return [cell for rows in self._index_batches() for cell in self._columns[which].read(rows)]
        return self.__getitems__([which])[0]

    def __getitems__(self, rows: Sequence[int]) -> list[dict[str, Any]]:
        """The rows of one batch; called by torch's DataLoader."""
        columns = self._read(self._rows[rows])
        return [dict(zip(columns, cells, strict=True)) for cells in zip(*columns.values(), strict=True)]

    def batches(self) -> Iterator[dict[str, list[Any]]]:
        """All rows in batches, as columns."""
        return map(self._read, self._index_batches())

    def select(self, rows: Sequence[int] | IntArray) -> RowFile:
        """These rows in this order, without copying."""
        return RowFile(self._columns, self._rows[np.asarray(rows, dtype=np.int64)])

    def drop(self, *names: str) -> RowFile:
        """The same rows without these columns; unknown names are ignored."""
        return RowFile({name: column for name, column in self._columns.items() if name not in names}, self._rows)

    def _index_batches(self) -> Iterator[IntArray]:
        return (self._rows[start : start + _BATCH_ROWS] for start in range(0, len(self), _BATCH_ROWS))

    def _read(self, rows: IntArray) -> dict[str, list[Any]]:
        return {name: column.read(rows) for name, column in self._columns.items()}


def store_rows(rows: Iterable[Mapping[str, Any]], kinds: Mapping[str, type]) -> RowFile:
    """Write rows to an anonymous file; a column holds str, integers (list), JSON values (tuple), int or float."""
    file = _anonymous_file()
    numbers = {name: array(_NUMBERS[kind]) for name, kind in kinds.items() if kind in _NUMBERS}
    in_file = {name: kind for name, kind in kinds.items() if kind not in _NUMBERS}
    offsets = _write(file, rows, in_file, numbers)
    columns: dict[str, _Column] = {name: _NumberColumn(np.array(values)) for name, values in numbers.items()}
    columns |= _bytes_columns(file, offsets, in_file)
    return RowFile({name: columns[name] for name in kinds}, np.arange((len(offsets) - 1) // len(in_file)))


def _write(
    file: IO[bytes], rows: Iterable[Mapping[str, Any]], in_file: dict[str, type], numbers: dict[str, array[Any]]
) -> IntArray:
    """Append numbers to their arrays and the other cells to the file; returns 0 and the end offset of each cell."""
    offsets = array("q", [0])
    for row in rows:
        for name, values in numbers.items():
            values.append(row[name])
        cells = [_PACK[kind](row[name]) for name, kind in in_file.items()]
        write_all(file, b"".join(cells))
        for cell in cells:
            offsets.append(offsets[-1] + len(cell))
    return np.array(offsets)


def write_all(file: IO[bytes], content: bytes) -> None:
    """Write to an unbuffered file; a full disk accepts only part of the bytes and raises nothing by itself."""
    if file.write(content) < len(content):
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))


class _Column(Protocol):
    def read(self, rows: IntArray) -> list[Any]: ...


_NUMBERS = {int: "q", float: "d"}


@dataclass(frozen=True)
class _NumberColumn:
    """One number per row, in memory: an offset into a file would take as much."""

    values: np.ndarray[Any, Any]

    def read(self, rows: IntArray) -> list[Any]:
        cells: list[Any] = self.values[rows].tolist()
        return cells


@dataclass(frozen=True)
class _BytesColumn:
    """Cells of one type in a file, with the start and end offset of each."""

    file: IO[bytes]
    kind: type
    starts: IntArray
    ends: IntArray

    def read(self, rows: IntArray) -> list[Any]:
        """Cells that are close together are read in one call."""
        if not len(rows):
            return []
        starts, ends = self.starts[rows], self.ends[rows]
        first, size = int(starts.min()), int(ends.max() - starts.min())
        unpack, spans = _UNPACK[self.kind], zip(starts.tolist(), ends.tolist(), strict=True)
        if size > _READ_GAP * len(rows):
            return [unpack(_read_at(self.file, start, end - start)) for start, end in spans]
        content = _read_at(self.file, first, size)
        return [unpack(content[start - first : end - first]) for start, end in spans]


def _bytes_columns(file: IO[bytes], offsets: IntArray, kinds: dict[str, type]) -> dict[str, _BytesColumn]:
    """The columns of a file written row by row: a cell starts where the previous one ends."""
    starts, ends = (side.reshape(-1, len(kinds)) for side in (offsets[:-1], offsets[1:]))
    return {name: _BytesColumn(file, kind, starts[:, i], ends[:, i]) for i, (name, kind) in enumerate(kinds.items())}


def _read_at(file: IO[bytes], offset: int, size: int) -> bytes:
    """Read without moving the file position, which forked processes share."""
    if sys.platform != "win32":
        return os.pread(file.fileno(), size, offset)
    file.seek(offset)  # Windows has no pread, and no fork either
    return file.read(size)


def _pack_integers(values: list[int]) -> bytes:
    return array("i", values).tobytes()


def _unpack_integers(content: bytes) -> list[int]:
    return array("i", content).tolist()


def _pack_json(values: tuple[Any, ...]) -> bytes:
    return json.dumps(values, ensure_ascii=False).encode()


def _unpack_json(content: bytes) -> tuple[Any, ...]:
    return tuple(json.loads(content))


_PACK: dict[type, Callable[[Any], bytes]] = {str: str.encode, list: _pack_integers, tuple: _pack_json}
_UNPACK: dict[type, Callable[[bytes], Any]] = {str: bytes.decode, list: _unpack_integers, tuple: _unpack_json}


def _anonymous_file() -> IO[bytes]:
    """A temporary file in the cache folder of the datasets library, which is on disk: /tmp may be in memory."""
    default = Path(os.environ.get("XDG_CACHE_HOME", "~/.cache"), "huggingface")
    given = os.environ.get("HF_DATASETS_CACHE")
    cache = Path(given or Path(os.environ.get("HF_HOME", default), "datasets")).expanduser()
    try:
        cache.mkdir(parents=True, exist_ok=True)
        return tempfile.TemporaryFile(dir=cache, buffering=0)
    except OSError:  # the cache folder is not writable
        return tempfile.TemporaryFile(buffering=0)


class FeatureFile:
    """The features that a frozen encoder computed for each row, in an anonymous temporary file; read as whole batches.

    Every row has the same size and a fixed offset, so rows can be written in any order, and rows that the run does not
    use take no disk space.
    """

    def __init__(self, rows: int, folder: Path) -> None:
        self._rows = rows
        self._file = tempfile.TemporaryFile(dir=folder, buffering=0)  # noqa: SIM115, open as long as the training runs
        self._columns: dict[str, tuple[torch.dtype, tuple[int, ...], int]] = {}

    def __len__(self) -> int:
        return self._rows

    def write(self, rows: Sequence[int], batch: Batch) -> None:
        """Write the features of a batch; every batch has the same columns."""
        columns = {name: _as_bytes(value) for name, value in batch.items()}
        if not self._columns:
            self._columns = {name: (v.dtype, v.shape[1:], columns[name].shape[1]) for name, v in batch.items()}
        joined = np.concatenate([columns[name] for name in self._columns], axis=1)
        for row, content in zip(rows, joined, strict=True):
            self._file.seek(row * len(content))
            write_all(self._file, content.tobytes())

    def __getitems__(self, rows: Sequence[int]) -> Batch:
        """One batch, already collated; called by torch's DataLoader."""
        import torch

        size = sum(width for _, _, width in self._columns.values())
        content = torch.frombuffer(bytearray().join(self._read(row, size) for row in rows), dtype=torch.uint8)
        parts = content.view(len(rows), size).split([width for _, _, width in self._columns.values()], dim=1)
        return {  # copied, so that every column starts at a multiple of its own size, also in a batch of one row
            name: part.clone(memory_format=torch.contiguous_format).view(dtype).reshape(len(rows), *shape)
            for (name, (dtype, shape, _)), part in zip(self._columns.items(), parts, strict=True)
        }

    def _read(self, row: int, size: int) -> bytes:
        """One row; zeros if it was never written: the data loader fetches one batch past the last step."""
        self._file.seek(row * size)
        return self._file.read(size).ljust(size, b"\0")


def identity_collate(batch: Batch) -> Batch:
    """The collator of a FeatureFile, whose batches are collated already."""
    return batch


def _as_bytes(values: torch.Tensor) -> np.ndarray[tuple[int, int], np.dtype[np.uint8]]:
    import torch

    flat = values.detach().cpu().reshape(len(values), -1).contiguous()
    return flat.view(torch.uint8).numpy()
