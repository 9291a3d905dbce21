"""Split: training and validation rows, saved so that a later evaluation never uses training rows."""

from __future__ import annotations

import hashlib
import json
from array import array
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from tightfit.data.row_file import RowFile
from tightfit.data.rows import Rows
from tightfit.errors import BadInput, DataError
from tightfit.messages import Message, msg
from tightfit.system.files import atomic_dir

HELD_OUT = 0.1
FOLDER = "split"


@dataclass(frozen=True)
class Split:
    """Training and validation rows."""

    train: RowFile
    validation: RowFile
    digest: str
    """Digest of the data that the validation rows come from."""
    notes: tuple[Message, ...] = ()


def split_rows(rows: Rows, validation: Rows | None, seed: int, strata: Sequence[object] | None = None) -> Split:
    """Use the given validation rows, or hold out a random tenth: of each stratum, if the task has one for each row."""
    if validation is not None:
        return _note_duplicates(Split(rows.dataset, validation.dataset, validation.digest))
    if len(rows) < 2:
        raise DataError(
            msg("{name}: one row cannot be split into training and validation rows: add rows.", name=rows.name)
        )
    held_out = stratified_sample([0] * len(rows) if strata is None else strata, seed)
    train, test = (rows.dataset.select(np.flatnonzero(side)) for side in (~held_out, held_out))
    return _note_duplicates(Split(train, test, rows.digest))


def stratified_sample(strata: Sequence[object], seed: int) -> NDArray[np.bool_]:
    """A mask of the held-out rows: a tenth in total, the same share of every stratum, at least one row of each."""
    _, stratum, sizes = np.unique(np.array(strata), return_inverse=True, return_counts=True)
    wanted = max(len(sizes), round(HELD_OUT * len(strata)))
    shares = sizes * wanted / len(strata)
    counts = shares.astype(int)
    counts[np.argsort(counts - shares, kind="stable")[: wanted - counts.sum()]] += 1  # largest remainders first
    order = np.random.default_rng(seed).permutation(len(strata))
    held_out = np.zeros(len(strata), dtype=bool)
    for index, count in enumerate(np.clip(counts, 1, np.maximum(sizes - 1, 1))):
        held_out[order[stratum[order] == index][:count]] = True
    return held_out


def save_split(folder: Path, split: Split) -> None:
    """Write the indices of the held-out rows and the fingerprints of the training rows into the run folder."""
    validation = {"digest": split.digest, "validation_rows": split.validation["row"]}
    with atomic_dir(folder / FOLDER) as tmp:
        (tmp / "validation.json").write_text(json.dumps(validation), "utf-8")
        np.save(tmp / "train.npy", fingerprints(split.train), allow_pickle=False)


@dataclass(frozen=True)
class SavedSplit:
    """The split as saved in a run folder."""

    digest: str
    validation_rows: list[int]
    trained: np.ndarray[Any, np.dtype[np.uint64]]

    def matches(self, split: Split) -> bool:
        """Whether a new split equals the one of the run."""
        same_rows = self.validation_rows == split.validation["row"]
        return self.digest == split.digest and same_rows and np.array_equal(self.trained, fingerprints(split.train))


def load_split(folder: Path) -> SavedSplit:
    """Read the split of a run folder."""
    try:
        validation = json.loads((folder / FOLDER / "validation.json").read_text("utf-8"))
        trained = np.load(folder / FOLDER / "train.npy", allow_pickle=False)
        return SavedSplit(validation["digest"], validation["validation_rows"], trained)
    except (OSError, ValueError, KeyError, TypeError, RecursionError, EOFError):
        raise BadInput(
            msg(
                "'{folder}' has no readable '{split}' folder, so its training rows are unknown: train again.",
                folder=folder,
                split=FOLDER,
            )
        ) from None


def held_out_rows(folder: Path, rows: Rows) -> tuple[RowFile, tuple[Message, ...]]:
    """The rows that this run did not train on, and a note on how many were dropped."""
    saved = load_split(folder)
    if saved.digest == rows.digest:
        held_out = set(saved.validation_rows)
        keep = [i for i, row in enumerate(rows.dataset["row"]) if row in held_out]
    else:
        keep = np.flatnonzero(~np.isin(fingerprints(rows.dataset), saved.trained)).tolist()
    dropped = len(rows) - len(keep)
    note = msg(
        "{name}: {dropped:,} of {rows:,} rows were trained on and are not used",
        name=rows.name,
        dropped=dropped,
        rows=len(rows),
    )
    return rows.dataset.select(keep), (note,) if dropped else ()


def fingerprints(dataset: RowFile) -> np.ndarray[Any, np.dtype[np.uint64]]:
    """A hash of the cells of each row, wherever in the file it is."""
    found = array("Q")
    for rows in dataset.drop("line", "row").batches():
        found.extend(_fingerprint(*cells) for cells in zip(*rows.values(), strict=True))
    return np.array(found, dtype=np.uint64)


def _fingerprint(*cells: object) -> int:
    digest = hashlib.blake2b("\0".join(map(str, cells)).encode("utf-8"), digest_size=8).digest()
    return int.from_bytes(digest, "little")


def _note_duplicates(split: Split) -> Split:
    """Add a note on validation rows that are training rows too: they make the score look better than it is."""
    duplicates = int(np.isin(fingerprints(split.validation), fingerprints(split.train)).sum())
    if not duplicates:
        return split
    note = msg(
        "{count:,} of {rows:,} validation rows are exact duplicates of training rows",
        count=duplicates,
        rows=len(split.validation),
    )
    return Split(split.train, split.validation, split.digest, (*split.notes, note))
