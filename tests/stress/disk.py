"""Disk: it fills up in the middle of a run, on a small file system of its own where that can be had.

Twice: full before a checkpoint is begun, and full while it is being written. Then room is made and the run resumed.
"""

from __future__ import annotations

import contextlib
import resource
import shutil
import subprocess
from collections.abc import Iterator
from pathlib import Path
from types import SimpleNamespace
from typing import Any
from unittest import mock

from stress.fixtures import Ground, ending_of, in_child, same_bits

from tightfit.errors import SaveFailed
from tightfit.training import checkpoints
from tightfit.training.checkpoints import find_corruption, latest_checkpoint

SIZE = 8 << 20
WAYS = ("full before a checkpoint", "full within a checkpoint")


class Disk:
    """Runs on a disk that fills up, beside one that had room."""

    def __init__(self, folder: Path) -> None:
        self.ground = Ground(folder)
        self.ground.train("roomy")

    def suffer(self, way: str) -> dict[str, Any]:
        out = f"disk/{way.replace(' ', '-')}"
        said = self.ground.folder / "said.txt"
        with _small_disk(self.ground.folder / "disk") as kind:
            code = ending_of(in_child(lambda: self._work(out, way, said, kind), self.ground.folder / "disk.log"))
            sentence = said.read_text() if said.exists() else ""
            last = latest_checkpoint(self.ground.folder / out)
            whole = last is not None and last.name == "checkpoint-7" and find_corruption(last) is None
            left = [path.name for path in (self.ground.folder / out).glob(".*")]
            (self.ground.folder / "disk" / "filler").unlink(missing_ok=True)
            self.ground.train(out, resume=True)
            same = same_bits(self.ground.weights(out), self.ground.weights("roomy"))
        clear = "could not be written" in sentence and "checkpoint-7 is whole" in sentence
        passed = code == 1 and whole and clear and same and not left
        return {"way": way, "disk": kind, "ended": code, "said": sentence, "last_whole": whole, "passed": passed}

    def _work(self, out: str, way: str, said: Path, kind: str) -> int:
        checked = contextlib.nullcontext() if way == WAYS[0] else _believing_in_room()
        try:
            with checked, _filling(self.ground.folder / "disk" / "filler", kind):
                self.ground.train(out)
        except SaveFailed as error:
            said.write_text(str(error).replace(str(self.ground.folder), "…"))
            return error.exit_code
        return 0


@contextlib.contextmanager
def _small_disk(folder: Path) -> Iterator[str]:
    """A file system of 8 MiB in memory; without the right to mount one, a limit for the size of files instead."""
    folder.mkdir(exist_ok=True)
    mounted = _mount(folder)
    try:
        yield "tmpfs of 8 MiB" if mounted else "file size limit"
    finally:
        if mounted:
            subprocess.run(["umount", folder], check=True)
        shutil.rmtree(folder)


def _mount(folder: Path) -> bool:
    command = ["mount", "-t", "tmpfs", "-o", f"size={SIZE}", "tmpfs", folder]
    try:
        return subprocess.run(command, capture_output=True).returncode == 0
    except OSError:
        return False


@contextlib.contextmanager
def _filling(filler: Path, kind: str) -> Iterator[None]:
    """After the first epoch's checkpoint somebody else takes all but a little of the disk."""
    write = checkpoints.writing_checkpoint

    def filled(folder: Path, step: int, needed: int) -> Any:
        if step > 7 and kind == "file size limit":
            resource.setrlimit(resource.RLIMIT_FSIZE, (20_000, resource.RLIM_INFINITY))
        elif step > 7:
            free = shutil.disk_usage(filler.parent).free
            filler.write_bytes(b"\0" * (free - 60_000))
        return write(folder, step, needed)

    with mock.patch("tightfit.training.trainer.writing_checkpoint", filled):
        yield


@contextlib.contextmanager
def _believing_in_room() -> Iterator[None]:
    """The disk fills only after its room was looked at."""
    plenty = SimpleNamespace(disk_usage=lambda path: SimpleNamespace(free=1 << 40))
    with mock.patch.object(checkpoints, "shutil", plenty):
        yield
