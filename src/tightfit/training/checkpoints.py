"""Checkpoints: written whole or not at all, and gone on from only if every byte is still there."""

from __future__ import annotations

import contextlib
import json
import shutil
import zlib
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Any

from tightfit.errors import OutputError, SaveFailed, first_line, is_out_of_memory
from tightfit.files import atomic_dir, atomic_remove, chunks_of
from tightfit.runs.folder import MANIFEST, checkpoints_in, latest_checkpoint, step_of
from tightfit.units import format_bytes

if TYPE_CHECKING:
    import torch


@contextlib.contextmanager
def writing_checkpoint(folder: Path, step: int, needed: int) -> Iterator[Path]:
    """A folder for a checkpoint. A full disk, or whatever else fails, leaves the earlier ones as they are."""
    target = folder / f"checkpoint-{step}"
    free = shutil.disk_usage(folder).free
    if free < needed:
        raise _failed(target, f"it needs {format_bytes(needed)} and {format_bytes(free)} are free")
    with as_save_failed(target), atomic_dir(target) as aside:
        yield aside


@contextlib.contextmanager
def as_save_failed(target: Path) -> Iterator[None]:
    """Every library has its own error for a full disk."""
    try:
        yield
    except SaveFailed:
        raise
    except Exception as error:
        if is_out_of_memory(error):  # which no room on the disk would mend
            raise
        reason = first_line(error)
        raise _failed(target, reason) from error


def _failed(target: Path, reason: str) -> SaveFailed:
    last = latest_checkpoint(target.parent)
    kept = f"{last} is whole" if last else "there is no earlier checkpoint"
    return SaveFailed(
        f"'{target}' could not be written ({reason}), so the run stopped; {kept}. "
        "Make room on the disk and go on with train --resume."
    )


def write_manifest(checkpoint: Path, content: dict[str, Any]) -> None:
    """The last file of a checkpoint: what every other must be, and a mark on itself."""
    files = {path.name: _mark(path) for path in sorted(checkpoint.iterdir())}
    said = {**content, "files": files}
    (checkpoint / MANIFEST).write_text(json.dumps({**said, "checksum": _checksum(said)}), "utf-8")


def read_manifest(checkpoint: Path) -> dict[str, Any]:
    """What a checkpoint says of itself; nothing if that cannot be read or is not what was written."""
    try:
        content = json.loads((checkpoint / MANIFEST).read_text("utf-8"))
        whole = isinstance(content, dict) and content.pop("checksum", None) == _checksum(content)
    except (OSError, ValueError, RecursionError):
        return {}
    return content if whole else {}


def latest_valid_checkpoint(folder: Path) -> tuple[Path | None, list[str]]:
    """The last checkpoint without damage, and what there is to say about later ones."""
    notes: list[str] = []
    for checkpoint in sorted(checkpoints_in(folder), key=step_of, reverse=True):
        damage = find_corruption(checkpoint)
        if damage is None:
            return checkpoint, notes
        notes.append(f"{checkpoint} is passed over: {damage}")
    if notes:
        raise OutputError(f"No checkpoint in '{folder}' is whole ({damage}): start another run with another --out.")
    return None, notes


def find_corruption(checkpoint: Path) -> str | None:
    """The first file that is not as it was written."""
    files = read_manifest(checkpoint).get("files")
    if not isinstance(files, dict) or not files:
        return f"{MANIFEST} cannot be read"
    for name, mark in files.items():
        path = checkpoint / Path(name).name
        try:
            if mark != _mark(path):
                return f"{path.name} is damaged"
        except (OSError, ValueError):  # a name that no file can have
            return f"{path.name} cannot be read"
    return None


@contextlib.contextmanager
def loading(checkpoint: str | Path | None) -> Iterator[None]:
    """Only plain tensors are read. What holds anything else, or nothing of use, was not written by a run."""
    try:
        yield
    except Exception as error:
        if is_out_of_memory(error):
            raise
        raise OutputError(
            f"'{checkpoint}' is no checkpoint that can be loaded safely ({type(error).__name__}): "
            "remove it, or start another run with another --out."
        ) from error


def rotate_checkpoints(folder: Path, count: int, best: Path | None) -> None:
    """Remove the oldest, never the best nor the last; the beginning goes as soon as there is another."""
    oldest_first = sorted(checkpoints_in(folder), key=step_of)
    spare = [path for path in oldest_first[:-1] if path != best]
    too_many = max(0, len(oldest_first) - count)
    for number, path in enumerate(spare):
        if number < too_many or step_of(path) == 0:
            atomic_remove(path)


def _checksum(content: dict[str, Any]) -> int:
    return zlib.crc32(json.dumps(content).encode())


def _mark(path: Path) -> list[int]:
    """Size and checksum."""
    size = checksum = 0
    for chunk in chunks_of(path):
        size, checksum = size + len(chunk), zlib.crc32(chunk, checksum)
    return [size, checksum]


def load_weights_in_place(file: Path, model: torch.nn.Module) -> bool:
    """Copy saved weights into a model one tensor at a time; False if the file is not of this model's shape."""
    if not file.is_file():
        return False
    import torch
    from safetensors import safe_open

    own = model.state_dict()
    # Mapped into memory, the whole file would end up resident beside the weights.
    with safe_open(file, framework="pt", backend="pread") as saved, torch.no_grad():
        if not set(saved.keys()) <= set(own):
            return False
        for name in saved.keys():  # noqa: SIM118, it is not a dict
            own[name].copy_(saved.get_tensor(name))
    return True
