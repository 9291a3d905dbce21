"""Store: rows in a file without a name; in memory is only where each of their cells lies.

What is written once is read in any order and some of it at a time. The file is gone with the process, however that
ends. It is read by place and not mapped: mapped pages count as a process's own memory. A library that does all this
and much more would cost every training 88 MiB and half a second.
"""

from __future__ import annotations

import errno
import os
import sys
import tempfile
from array import array
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import IO, TYPE_CHECKING, Any, Protocol, overload

import numpy as np
import torch

if TYPE_CHECKING:
    from tightfit.data.batches import Batch


Numbers = np.ndarray[Any, np.dtype[np.int64]]

_ROWS_AT_ONCE = 1000
_READ_GAP = 4096  # bytes a row; one more call to read costs about as much as so many that are read in vain


class RowFile:
    """Rows with named columns: all that were written, or some of them in an order of their own."""

    def __init__(self, columns: Mapping[str, _Column], rows: Numbers) -> None:
        self._columns, self._rows = columns, rows

    @property
    def column_names(self) -> list[str]:
        """In the order they were given."""
        return list(self._columns)

    def __len__(self) -> int:
        return len(self._rows)

    @overload
    def __getitem__(self, which: str) -> list[Any]: ...

    @overload
    def __getitem__(self, which: int) -> dict[str, Any]: ...

    def __getitem__(self, which: str | int) -> list[Any] | dict[str, Any]:
        """A whole column by its name, or a row by its number."""
        if isinstance(which, str):
            return [cell for rows in self._some_rows() for cell in self._columns[which].read(rows)]
        return self.__getitems__([which])[0]

    def __getitems__(self, rows: Sequence[int]) -> list[dict[str, Any]]:
        """What torch's loader asks for."""
        columns = self._read(self._rows[rows])
        return [dict(zip(columns, cells, strict=True)) for cells in zip(*columns.values(), strict=True)]

    def batches(self) -> Iterator[dict[str, list[Any]]]:
        """All rows, some at a time, as columns."""
        return map(self._read, self._some_rows())

    def select(self, rows: Sequence[int] | Numbers) -> RowFile:
        """These rows in this order; nothing is copied."""
        return RowFile(self._columns, self._rows[np.asarray(rows, dtype=np.int64)])

    def without(self, *names: str) -> RowFile:
        """The same rows without these columns, whether they are there or not."""
        return RowFile({name: column for name, column in self._columns.items() if name not in names}, self._rows)

    def _some_rows(self) -> Iterator[Numbers]:
        return (self._rows[start : start + _ROWS_AT_ONCE] for start in range(0, len(self), _ROWS_AT_ONCE))

    def _read(self, rows: Numbers) -> dict[str, list[Any]]:
        return {name: column.read(rows) for name, column in self._columns.items()}


def store_rows(rows: Iterable[Mapping[str, Any]], kinds: Mapping[str, type]) -> RowFile:
    """Write rows whose columns are texts (str), lists of whole numbers (list) or whole numbers (int)."""
    file = _file_without_name()
    numbers = {name: array("q") for name, kind in kinds.items() if kind is int}
    wide = {name: kind for name, kind in kinds.items() if kind is not int}
    places = _write(file, rows, wide, numbers)
    columns: dict[str, _Column] = {name: _Numbers(np.array(values)) for name, values in numbers.items()}
    columns |= _cells(file, places, wide)
    return RowFile({name: columns[name] for name in kinds}, np.arange((len(places) - 1) // len(wide)))


def _write(
    file: IO[bytes], rows: Iterable[Mapping[str, Any]], wide: dict[str, type], numbers: dict[str, array[int]]
) -> Numbers:
    """What is wide to the file, what is a number to its list; where each cell in the file ends, from 0 on."""
    places = array("q", [0])
    for row in rows:
        for name, values in numbers.items():
            values.append(row[name])
        cells = [_PACK[kind](row[name]) for name, kind in wide.items()]
        write_all(file, b"".join(cells))
        for cell in cells:
            places.append(places[-1] + len(cell))
    return np.array(places)


def write_all(file: IO[bytes], content: bytes) -> None:
    """To a file without a buffer; a disk that fills up takes what it can and says nothing."""
    if file.write(content) < len(content):
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))


class _Column(Protocol):
    def read(self, rows: Numbers) -> list[Any]: ...


@dataclass(frozen=True)
class _Numbers:
    """One number a row takes no more memory than its place in a file would."""

    values: Numbers

    def read(self, rows: Numbers) -> list[int]:
        return self.values[rows].tolist()


@dataclass(frozen=True)
class _Cells:
    """Cells of one kind in a file, each from its first byte to the one behind its last."""

    file: IO[bytes]
    kind: type
    begins: Numbers
    ends: Numbers

    def read(self, rows: Numbers) -> list[Any]:
        """Cells that lie close together are read as one."""
        if not len(rows):
            return []
        begins, ends = self.begins[rows], self.ends[rows]
        first, size = int(begins.min()), int(ends.max() - begins.min())
        unpack, places = _UNPACK[self.kind], zip(begins.tolist(), ends.tolist(), strict=True)
        if size > _READ_GAP * len(rows):
            return [unpack(_read_at(self.file, begin, end - begin)) for begin, end in places]
        content = _read_at(self.file, first, size)
        return [unpack(content[begin - first : end - first]) for begin, end in places]


def _cells(file: IO[bytes], places: Numbers, kinds: dict[str, type]) -> dict[str, _Cells]:
    """The columns of a file that holds them row by row; a cell begins where the one before it ends."""
    begins, ends = (side.reshape(-1, len(kinds)) for side in (places[:-1], places[1:]))
    return {name: _Cells(file, kind, begins[:, i], ends[:, i]) for i, (name, kind) in enumerate(kinds.items())}


def _read_at(file: IO[bytes], place: int, size: int) -> bytes:
    """Forked processes share the place that a file has been read to; reading at a place of one's own does not."""
    if sys.platform != "win32":
        return os.pread(file.fileno(), size, place)
    file.seek(place)  # where there is no such way, nothing forks
    return file.read(size)


def _pack_numbers(numbers: list[int]) -> bytes:
    return array("i", numbers).tobytes()


def _unpack_numbers(content: bytes) -> list[int]:
    return array("i", content).tolist()


_PACK: dict[type, Callable[[Any], bytes]] = {str: str.encode, list: _pack_numbers}
_UNPACK: dict[type, Callable[[bytes], Any]] = {str: bytes.decode, list: _unpack_numbers}


def _file_without_name() -> IO[bytes]:
    """On disk, where a library of data sets would keep them: what lies in /tmp may lie in memory."""
    caches = Path(os.environ.get("XDG_CACHE_HOME", "~/.cache"), "huggingface")
    home = Path(os.environ.get("HF_DATASETS_CACHE") or Path(os.environ.get("HF_HOME", caches), "datasets")).expanduser()
    try:
        home.mkdir(parents=True, exist_ok=True)
        return tempfile.TemporaryFile(dir=home, buffering=0)
    except OSError:  # a home that cannot be written to
        return tempfile.TemporaryFile(buffering=0)


# Kept rows: what a frozen trunk made of each row, in a file instead of in memory.
#
# The file has no name and is gone with the process, however that ends. A row is a fixed number of bytes at its own
# place, so rows can be written in any order and those that a training never meets take no room.


class FeatureFile(torch.utils.data.Dataset):
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
            write_all(self._file, content.tobytes())

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


def identity_collate(batch: Batch) -> Batch:
    """The collator of kept rows."""
    return batch


def _as_bytes(values: torch.Tensor) -> np.ndarray[tuple[int, int], np.dtype[np.uint8]]:
    flat = values.detach().cpu().reshape(len(values), -1).contiguous()
    return flat.view(torch.uint8).numpy()
