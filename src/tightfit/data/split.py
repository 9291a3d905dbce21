"""Split: which rows are trained on and which are held out, kept with the run so that the two never mix."""

from __future__ import annotations

import hashlib
import json
from array import array
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from tightfit.data.row_file import RowFile
from tightfit.data.rows import Rows
from tightfit.errors import BadInput
from tightfit.files import atomic_dir

HELD_OUT = 0.1
FOLDER = "split"


@dataclass(frozen=True)
class Split:
    """Training and validation rows."""

    train: RowFile
    validation: RowFile
    digest: str
    """Of the data the validation rows come from."""
    notes: tuple[str, ...] = ()


def split_rows(rows: Rows, validation: Rows | None, seed: int) -> Split:
    """Hold out the given validation rows, or a seeded tenth of each label."""
    if validation is not None:
        return _with_repeats_counted(Split(rows.dataset, validation.dataset, validation.digest))
    held_out = _draw(np.array(rows.dataset["label"]), np.random.default_rng(seed))
    train, test = (rows.dataset.select(np.flatnonzero(side)) for side in (~held_out, held_out))
    return _with_repeats_counted(Split(train, test, rows.digest))


def _draw(labels: np.ndarray[Any, Any], chance: np.random.Generator) -> np.ndarray[Any, np.dtype[np.bool_]]:
    """Which rows are held out: a tenth in all, the same share of every label, at least one row of each."""
    _, label, sizes = np.unique(labels, return_inverse=True, return_counts=True)
    wanted = max(len(sizes), round(HELD_OUT * len(labels)))
    shares = sizes * wanted / len(labels)
    counts = shares.astype(int)
    counts[np.argsort(counts - shares, kind="stable")[: wanted - counts.sum()]] += 1  # the largest rests first
    order = chance.permutation(len(labels))
    held_out = np.zeros(len(labels), dtype=bool)
    for number, count in enumerate(np.clip(counts, 1, np.maximum(sizes - 1, 1))):
        held_out[order[label[order] == number][:count]] = True
    return held_out


def save_split(folder: Path, split: Split) -> None:
    """Write the held-out lines and the fingerprints of the training rows into the run folder."""
    about = {"digest": split.digest, "validation_rows": split.validation["row"]}
    with atomic_dir(folder / FOLDER) as aside:
        (aside / "validation.json").write_text(json.dumps(about), "utf-8")
        np.save(aside / "train.npy", fingerprints(split.train), allow_pickle=False)


@dataclass(frozen=True)
class SavedSplit:
    """What a run folder remembers of its split."""

    digest: str
    validation_rows: list[int]
    trained: np.ndarray[Any, np.dtype[np.uint64]]

    def is_of(self, split: Split) -> bool:
        """Whether a split made now is the one of the run."""
        same_rows = self.validation_rows == split.validation["row"]
        return self.digest == split.digest and same_rows and np.array_equal(self.trained, fingerprints(split.train))


def load_split(folder: Path) -> SavedSplit:
    """Read what a run folder remembers of its split."""
    try:
        about = json.loads((folder / FOLDER / "validation.json").read_text("utf-8"))
        trained = np.load(folder / FOLDER / "train.npy", allow_pickle=False)
        return SavedSplit(about["digest"], about["validation_rows"], trained)
    except (OSError, ValueError, KeyError, TypeError, RecursionError, EOFError):
        raise BadInput(
            f"'{folder}' has lost its '{FOLDER}' folder, so its training rows are not known: train again."
        ) from None


def held_out_rows(folder: Path, rows: Rows) -> tuple[RowFile, tuple[str, ...]]:
    """The rows that this run did not train on, and a note on what was left out."""
    saved = load_split(folder)
    if saved.digest == rows.digest:
        held_out = set(saved.validation_rows)
        keep = [i for i, number in enumerate(rows.dataset["row"]) if number in held_out]
    else:
        keep = np.flatnonzero(~np.isin(fingerprints(rows.dataset), saved.trained)).tolist()
    left_out = len(rows) - len(keep)
    note = (f"{rows.name}: {left_out:,} of {len(rows):,} rows were trained on and are left out",) if left_out else ()
    return rows.dataset.select(keep), note


def fingerprints(dataset: RowFile) -> np.ndarray[Any, np.dtype[np.uint64]]:
    """One number per row that says whether two rows hold the same words and label."""
    found = array("Q")
    for rows in dataset.batches():
        pairs = rows.get("text_pair") or [""] * len(rows["text"])
        found.extend(_fingerprint(*row) for row in zip(rows["text"], pairs, rows["label"], strict=True))
    return np.array(found, dtype=np.uint64)


def _fingerprint(*words: str) -> int:
    digest = hashlib.blake2b("\0".join(words).encode("utf-8"), digest_size=8).digest()
    return int.from_bytes(digest, "little")


def _with_repeats_counted(split: Split) -> Split:
    """Rows that stand word for word on both sides make the score look better than it is: say so."""
    repeats = int(np.isin(fingerprints(split.validation), fingerprints(split.train)).sum())
    if not repeats:
        return split
    note = f"{repeats:,} of {len(split.validation):,} validation rows also stand word for word among the training rows"
    return Split(split.train, split.validation, split.digest, (*split.notes, note))
