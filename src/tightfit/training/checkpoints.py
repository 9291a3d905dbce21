"""Checkpoints: written atomically, verified by checksum before a run resumes from them."""

from __future__ import annotations

import contextlib
import json
import shutil
import zlib
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Any

from tightfit.engine.step import restore
from tightfit.errors import OutputError, SaveFailed, first_line, is_out_of_memory
from tightfit.messages import Message, msg
from tightfit.runs.folder import MANIFEST, checkpoints_in, latest_checkpoint, resume_command, step_of
from tightfit.system.files import atomic_dir, atomic_remove, chunks_of
from tightfit.units import format_bytes

if TYPE_CHECKING:
    import torch

    from tightfit.engine.step import PhaseContext


@contextlib.contextmanager
def writing_checkpoint(folder: Path, step: int, needed: int) -> Iterator[Path]:
    """Yield a temporary folder that becomes the checkpoint; earlier checkpoints stay intact if anything fails."""
    target = folder / f"checkpoint-{step}"
    free = shutil.disk_usage(folder).free
    if free < needed:
        sizes = {"needed": format_bytes(needed), "free": format_bytes(free)}
        raise _failed(target, msg("it needs {needed} and {free} are free", **sizes))
    with as_save_failed(target), atomic_dir(target) as tmp:
        yield tmp


@contextlib.contextmanager
def as_save_failed(target: Path) -> Iterator[None]:
    """Turn any error but out of memory into SaveFailed: every library has its own error for a full disk."""
    try:
        yield
    except SaveFailed:
        raise
    except Exception as error:
        if is_out_of_memory(error):  # more disk space would not help
            raise
        raise _failed(target, first_line(error)) from error


def _failed(target: Path, reason: Message) -> SaveFailed:
    last = latest_checkpoint(target.parent)
    kept = msg("the last checkpoint is {last}", last=last) if last else msg("there is no earlier checkpoint")
    return SaveFailed(
        msg(
            "'{target}' could not be written ({reason}), so the run stopped; {kept}. "
            "Free some disk space and continue with: {command}",
            target=target,
            command=resume_command(target.parent),
            reason=reason,
            kept=kept,
        )
    )


def write_manifest(checkpoint: Path, content: dict[str, Any]) -> None:
    """Write the last file of a checkpoint: size and checksum of all the others, and a checksum of itself."""
    files = {path.name: _digest(path) for path in sorted(checkpoint.iterdir())}
    manifest = {**content, "files": files}
    (checkpoint / MANIFEST).write_text(json.dumps({**manifest, "checksum": _checksum(manifest)}), "utf-8")


def read_manifest(checkpoint: Path) -> dict[str, Any]:
    """Read the manifest of a checkpoint; empty if it cannot be read or does not match its checksum."""
    try:
        content = json.loads((checkpoint / MANIFEST).read_text("utf-8"))
        valid = isinstance(content, dict) and content.pop("checksum", None) == _checksum(content)
    except (OSError, ValueError, RecursionError):
        return {}
    return content if valid else {}


def latest_valid_checkpoint(folder: Path) -> tuple[Path | None, list[Message]]:
    """The last checkpoint that is not damaged, and a note about each later one that is."""
    notes: list[Message] = []
    for checkpoint in sorted(checkpoints_in(folder), key=step_of, reverse=True):
        damage = find_corruption(checkpoint)
        if damage is None:
            return checkpoint, notes
        notes.append(msg("{checkpoint} is skipped: {damage}", checkpoint=checkpoint, damage=damage))
    if notes:
        raise OutputError(
            msg(
                "Every checkpoint in '{folder}' is damaged ({damage}): start another run with another --out.",
                folder=folder,
                damage=damage,
            )
        )
    return None, notes


def find_corruption(checkpoint: Path) -> Message | None:
    """The first problem with the files of a checkpoint; None if they are as written."""
    files = read_manifest(checkpoint).get("files")
    if not isinstance(files, dict) or not files:
        return msg("{file} cannot be read", file=MANIFEST)
    for name, digest in files.items():
        path = checkpoint / Path(name).name
        try:
            if digest != _digest(path):
                return msg("{file} is damaged", file=path.name)
        except (OSError, ValueError):  # ValueError: not a valid file name
            return msg("{file} cannot be read", file=path.name)
    return None


@contextlib.contextmanager
def as_load_error(checkpoint: str | Path | None) -> Iterator[None]:
    """Turn any error but out of memory into OutputError, such as torch's refusal to unpickle other than tensors."""
    try:
        yield
    except Exception as error:
        if is_out_of_memory(error):
            raise
        raise OutputError(
            msg(
                "'{checkpoint}' is not a checkpoint that can be loaded safely ({error}): "
                "remove it, or start another run with another --out.",
                checkpoint=checkpoint,
                error=type(error).__name__,
            )
        ) from error


def rotate_checkpoints(folder: Path, limit: int | None, best: Path | None) -> None:
    """Remove the oldest beyond `limit`, never the best or the last; checkpoint-0 goes as soon as there is another."""
    oldest_first = sorted(checkpoints_in(folder), key=step_of)
    spare = [path for path in oldest_first[:-1] if path != best]
    too_many = max(0, len(oldest_first) - limit) if limit and limit > 0 else 0  # as in TrainingArguments
    for number, path in enumerate(spare):
        if number < too_many or step_of(path) == 0:
            atomic_remove(path)


def keep_checkpoints(folder: Path, count: int) -> None:
    """Of a finished run: remove all but the last ones."""
    for path in sorted(checkpoints_in(folder), key=step_of, reverse=True)[count:]:
        atomic_remove(path)


def _checksum(content: dict[str, Any]) -> int:
    return zlib.crc32(json.dumps(content).encode())


def _digest(path: Path) -> list[int]:
    """Size and checksum."""
    size = checksum = 0
    for chunk in chunks_of(path):
        size, checksum = size + len(chunk), zlib.crc32(chunk, checksum)
    return [size, checksum]


def load_weights_in_place(file: Path, model: torch.nn.Module, phase: PhaseContext) -> bool:
    """Copy saved weights into a model one tensor at a time; False if the file is missing or has other tensor names."""
    if not file.is_file():
        return False
    from safetensors import safe_open

    own = model.state_dict()
    # With mmap the whole file would become resident in addition to the weights.
    with safe_open(file, framework="pt", backend="pread") as saved:
        names = set(saved.keys())
        if not names <= set(own):
            return False
        restore({name: weight for name, weight in own.items() if name in names}, saved.get_tensor, phase)
    return True
