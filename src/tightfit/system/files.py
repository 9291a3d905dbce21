"""Atomic file writes: a file or folder is either complete or absent, even after kill -9."""

from __future__ import annotations

import contextlib
import errno
import hashlib
import os
import shutil
from collections.abc import Iterable, Iterator
from pathlib import Path

_TMP, _TRASH = ".part", ".gone"
_NO_FSYNC = (errno.EINVAL, errno.ENOTSUP, errno.ENOSYS, errno.EROFS, errno.EBADF)  # EBADF: Windows


def atomic_write(path: Path, text: str) -> None:
    """Write a small text file."""
    with atomic_file(path) as tmp:
        tmp.write_text(text, "utf-8")


@contextlib.contextmanager
def atomic_file(path: Path) -> Iterator[Path]:
    """Yield a temporary path to write to; it is synced to disk and then renamed to `path`."""
    tmp = path.with_name(f".{path.name}{_TMP}")
    try:
        yield tmp
        _sync(tmp)
        tmp.replace(path)
    except BaseException:
        tmp.unlink(missing_ok=True)
        raise
    _sync(path.parent)


@contextlib.contextmanager
def atomic_dir(target: Path) -> Iterator[Path]:
    """Yield a temporary folder to write into; its files are synced to disk, then it is renamed to `target`."""
    tmp = target.with_name(f".{target.name}{_TMP}")
    shutil.rmtree(tmp, ignore_errors=True)
    tmp.mkdir(parents=True)
    try:
        yield tmp
        for path in tmp.rglob("*"):
            _sync(path)
        _sync(tmp)
        if target.exists():
            atomic_remove(target)
        tmp.rename(target)
    except BaseException:
        shutil.rmtree(tmp, ignore_errors=True)
        raise
    _sync(target.parent)


def atomic_remove(folder: Path) -> None:
    """Remove a folder; it is renamed first, so that no partial folder keeps its name."""
    tmp = folder.with_name(f".{folder.name}{_TRASH}")
    shutil.rmtree(tmp, ignore_errors=True)
    folder.rename(tmp)
    shutil.rmtree(tmp, ignore_errors=True)


def remove_stale(folder: Path) -> None:
    """Remove what a killed process was writing or removing."""
    for path in folder.glob(".*"):
        if path.name.endswith((_TMP, _TRASH)):
            shutil.rmtree(path) if path.is_dir() else path.unlink()


def is_stale(path: Path) -> bool:
    """Whether this is a leftover of a killed process."""
    return path.name.startswith(".") and path.name.endswith((_TMP, _TRASH))


def _sync(path: Path) -> None:
    """Flush to disk, not only to the page cache."""
    try:
        handle = os.open(path, os.O_RDONLY)
    except OSError:  # Windows cannot open folders
        return
    try:
        os.fsync(handle)
    except OSError as error:  # some file systems cannot; others report a full disk only here
        if error.errno not in _NO_FSYNC:
            raise
    finally:
        os.close(handle)


def chunks_of(path: Path) -> Iterator[bytes]:
    """The bytes of a file, in chunks of one MiB."""
    with path.open("rb") as file:
        while chunk := file.read(1 << 20):
            yield chunk


def digest_of(paths: Iterable[Path]) -> str:
    """The SHA-256 of the concatenated bytes of some files."""
    digest = hashlib.sha256()
    for path in paths:
        for chunk in chunks_of(path):
            digest.update(chunk)
    return digest.hexdigest()
