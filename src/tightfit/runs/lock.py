"""Folder lock: one process at a time writes into a run folder.

The lock is the operating system's, so it ends with the process that holds it, whatever ends that process. The file that
is locked says which process that is; it is removed with the lock.
"""

from __future__ import annotations

import contextlib
import errno
import json
import os
import socket
import sys
from collections.abc import Iterator
from datetime import datetime
from pathlib import Path
from typing import Any

from tightfit.errors import FolderInUse, OutputError
from tightfit.messages import Message, msg

FILE = ".lock"
_BEYOND = 1 << 30  # Windows locks bytes, and nobody else can read those: lock one that the file does not have
_TAKEN = (errno.EAGAIN, errno.EACCES, errno.EDEADLK)  # EDEADLK: Windows


@contextlib.contextmanager
def locked_folder(folder: Path) -> Iterator[None]:
    """Hold the lock of a folder, which is made if it does not exist, and removed again if nothing was written into it.

    Raises FolderInUse with the process that holds it. On a file system without locks, nothing is locked.
    """
    made = _missing(folder)
    try:
        with _locked_file(folder / FILE, folder):
            yield
    finally:
        for path in made:
            with contextlib.suppress(OSError):  # not empty: a run was written
                path.rmdir()


def _missing(folder: Path) -> list[Path]:
    """The folders that do not exist yet, the innermost first."""
    if folder.exists() and not folder.is_dir():
        raise OutputError(msg("'{folder}' is a file: give --out the name of a folder.", folder=folder))
    return [path for path in (folder, *folder.parents) if not path.exists()]


@contextlib.contextmanager
def _locked_file(path: Path, folder: Path) -> Iterator[None]:
    handle = _open_locked(path, folder)
    holder = json.dumps({"pid": os.getpid(), "host": socket.gethostname(), "since": _now()})
    os.write(handle, holder.encode())
    _held.add(handle)
    try:
        yield
    finally:
        _held.discard(handle)
        if sys.platform == "win32":  # which does not remove a file that is open
            os.close(handle)
        with contextlib.suppress(OSError):
            path.unlink()
        if sys.platform != "win32":
            os.close(handle)


def _open_locked(path: Path, folder: Path) -> int:
    """Open and lock the file; again if the process that held it has removed it in between."""
    while True:
        folder.mkdir(parents=True, exist_ok=True)
        try:
            handle = os.open(path, os.O_RDWR | os.O_CREAT, 0o644)
        except FileNotFoundError:  # the folder too
            continue
        try:
            _lock(handle)
        except OSError as error:
            if error.errno in _TAKEN:
                os.close(handle)
                raise FolderInUse(_in_use(path, folder)) from None
        if _is_same_file(handle, path):
            os.ftruncate(handle, 0)
            return handle
        os.close(handle)


def _lock(handle: int) -> None:
    if sys.platform == "win32":
        import msvcrt

        os.lseek(handle, _BEYOND, os.SEEK_SET)
        msvcrt.locking(handle, msvcrt.LK_NBLCK, 1)
        os.lseek(handle, 0, os.SEEK_SET)
    else:
        import fcntl

        fcntl.flock(handle, fcntl.LOCK_EX | fcntl.LOCK_NB)


def _is_same_file(handle: int, path: Path) -> bool:
    try:
        return os.path.samestat(os.fstat(handle), path.stat())
    except OSError:
        return False


def _in_use(path: Path, folder: Path) -> Message:
    holder = _read_holder(path)
    if holder is None:
        return msg("'{folder}' is in use by another process: wait until it ends, or give another --out.", folder=folder)
    elsewhere = msg(" on {host}", host=holder["host"]) if holder["host"] != socket.gethostname() else ""
    return msg(
        "'{folder}' is in use by process {pid}{elsewhere}, started {since}: wait until it ends, or give another --out.",
        folder=folder,
        pid=str(holder["pid"]),
        elsewhere=elsewhere,
        since=holder["since"],
    )


def _read_holder(path: Path) -> dict[str, Any] | None:
    try:
        holder = json.loads(path.read_text("utf-8"))
    except (OSError, ValueError):  # locked a moment ago and not written yet
        return None
    return holder if isinstance(holder, dict) and {"pid", "host", "since"} <= holder.keys() else None


def _now() -> str:
    return datetime.now().astimezone().strftime("%Y-%m-%d %H:%M:%S")


_held: set[int] = set()
"""The open files of the locks that this process holds."""


def _close_in_fork() -> None:
    """A forked process shares the locks, and would keep them if it outlived this one."""
    for handle in _held:
        os.close(handle)
    _held.clear()


if sys.platform != "win32":
    os.register_at_fork(after_in_child=_close_in_fork)
