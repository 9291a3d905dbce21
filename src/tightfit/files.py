"""Whole: files and folders that are there whole or not at all, whatever kills the process while it writes."""

from __future__ import annotations

import contextlib
import errno
import hashlib
import os
import shutil
from collections.abc import Iterable, Iterator
from pathlib import Path

_PART, _GONE = ".part", ".gone"
_CANNOT = (errno.EINVAL, errno.ENOTSUP, errno.ENOSYS, errno.EROFS, errno.EBADF)  # EBADF: Windows


def write_whole(path: Path, text: str) -> None:
    """Write a small file."""
    with atomic_file(path) as aside:
        aside.write_text(text, "utf-8")


@contextlib.contextmanager
def atomic_file(path: Path) -> Iterator[Path]:
    """A file to write aside; brought to the disk, it takes its name."""
    aside = path.with_name(f".{path.name}{_PART}")
    try:
        yield aside
        _sync(aside)
        aside.replace(path)
    except BaseException:
        aside.unlink(missing_ok=True)
        raise
    _sync(path.parent)


@contextlib.contextmanager
def atomic_dir(target: Path) -> Iterator[Path]:
    """A folder to write into; it takes the target's name when everything in it is on the disk."""
    aside = target.with_name(f".{target.name}{_PART}")
    shutil.rmtree(aside, ignore_errors=True)
    aside.mkdir(parents=True)
    try:
        yield aside
        for path in aside.rglob("*"):
            _sync(path)
        _sync(aside)
        if target.exists():
            atomic_remove(target)
        aside.rename(target)
    except BaseException:
        shutil.rmtree(aside, ignore_errors=True)
        raise
    _sync(target.parent)


def atomic_remove(folder: Path) -> None:
    """Remove a folder; never leave half of it under its name."""
    aside = folder.with_name(f".{folder.name}{_GONE}")
    shutil.rmtree(aside, ignore_errors=True)
    folder.rename(aside)
    shutil.rmtree(aside, ignore_errors=True)


def remove_stale(folder: Path) -> None:
    """What a killed process was writing or removing."""
    for path in folder.glob(".*"):
        if path.name.endswith((_PART, _GONE)):
            shutil.rmtree(path) if path.is_dir() else path.unlink()


def is_stale(path: Path) -> bool:
    """Whether a killed process left this behind."""
    return path.name.startswith(".") and path.name.endswith((_PART, _GONE))


def _sync(path: Path) -> None:
    """To the disk, not only to the system's memory."""
    try:
        handle = os.open(path, os.O_RDONLY)
    except OSError:  # Windows opens no folders
        return
    try:
        os.fsync(handle)
    except OSError as error:  # some file systems cannot; others say only now that a disk was full
        if error.errno not in _CANNOT:
            raise
    finally:
        os.close(handle)


def chunks_of(path: Path) -> Iterator[bytes]:
    """A file's bytes, a megabyte at a time."""
    with path.open("rb") as file:
        while chunk := file.read(1 << 20):
            yield chunk


def digest_of(paths: Iterable[Path]) -> str:
    """The sha256 of some files' bytes, one after the other."""
    digest = hashlib.sha256()
    for path in paths:
        for chunk in chunks_of(path):
            digest.update(chunk)
    return digest.hexdigest()
