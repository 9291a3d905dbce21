"""Full disks: a small file system, where one can be mounted, fills up during a run.

It is full before a checkpoint is written, or becomes full while one is. Then space is freed and the run resumed.
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

from stress.fixtures import Workspace, same_bits, start_child, wait_for

from tightfit.errors import SaveFailed
from tightfit.training import checkpoints
from tightfit.training.checkpoints import find_corruption, latest_checkpoint

SIZE = 8 << 20
FAULTS = ("full before a checkpoint", "full while a checkpoint is written")


class FullDisk:
    """Runs on a disk that fills up, compared with a run on one with enough space."""

    def __init__(self, folder: Path) -> None:
        self.workspace = Workspace(folder)
        self.workspace.train("reference")

    def run_case(self, fault: str) -> dict[str, Any]:
        out = f"disk/{fault.replace(' ', '-')}"
        message_file = self.workspace.folder / "message.txt"
        with _small_disk(self.workspace.folder / "disk") as kind:
            code = wait_for(
                start_child(lambda: self._work(out, fault, message_file, kind), self.workspace.folder / "disk.log")
            )
            message = message_file.read_text() if message_file.exists() else ""
            last = latest_checkpoint(self.workspace.folder / out)
            valid = last is not None and last.name == "checkpoint-7" and find_corruption(last) is None
            leftovers = [path.name for path in (self.workspace.folder / out).glob(".*")]
            (self.workspace.folder / "disk" / "filler").unlink(missing_ok=True)
            self.workspace.train(out, resume=True)
            same = same_bits(self.workspace.weights(out), self.workspace.weights("reference"))
        clear = "could not be written" in message and f"the last checkpoint is …/{out}/checkpoint-7." in message
        passed = code == 1 and valid and clear and same and not leftovers
        return {
            "fault": fault,
            "disk": kind,
            "exit_code": code,
            "message": message,
            "last_checkpoint_valid": valid,
            "passed": passed,
        }

    def _work(self, out: str, fault: str, message_file: Path, kind: str) -> int:
        space_check = contextlib.nullcontext() if fault == FAULTS[0] else _without_space_check()
        try:
            with space_check, _filling(self.workspace.folder / "disk" / "filler", kind):
                self.workspace.train(out)
        except SaveFailed as error:
            message_file.write_text(str(error).replace(str(self.workspace.folder), "…"))
            return error.exit_code
        return 0


@contextlib.contextmanager
def _small_disk(folder: Path) -> Iterator[str]:
    """A tmpfs of 8 MiB; without the right to mount one, a limit on the file size instead."""
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
    """After the checkpoint of the first epoch another file takes nearly all of the disk."""
    write = checkpoints.writing_checkpoint

    def filled(folder: Path, step: int, needed: int) -> Any:
        if step > 7 and kind == "file size limit":
            resource.setrlimit(resource.RLIMIT_FSIZE, (20_000, resource.RLIM_INFINITY))
        elif step > 7:
            free = shutil.disk_usage(filler.parent).free
            filler.write_bytes(b"\0" * (free - 60_000))
        return write(folder, step, needed)

    with mock.patch("tightfit.training.trainer_checkpoints.writing_checkpoint", filled):
        yield


@contextlib.contextmanager
def _without_space_check() -> Iterator[None]:
    """The disk fills up after its free space was checked."""
    plenty = SimpleNamespace(disk_usage=lambda path: SimpleNamespace(free=1 << 40))
    with mock.patch.object(checkpoints, "shutil", plenty):
        yield
