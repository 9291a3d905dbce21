"""Folder locks: one process at a time writes into a run folder."""

from __future__ import annotations

import errno
import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest
from conftest import write_reviews

from tightfit.comparison.runner import run_comparison
from tightfit.errors import OutputError
from tightfit.runs import lock
from tightfit.runs.folder import latest_checkpoint
from tightfit.runs.lock import FILE, locked_folder
from tightfit.system.processes import run_in_fork
from tightfit.training.checkpoints import latest_valid_checkpoint

_HOLD = """
import sys, time
from pathlib import Path
from tightfit.runs.lock import locked_folder
with locked_folder(Path(sys.argv[1])):
    print("locked", flush=True)
    time.sleep(60)
"""


def hold(folder: Path) -> subprocess.Popen[str]:
    """Another process that holds the lock."""
    process = subprocess.Popen([sys.executable, "-c", _HOLD, str(folder)], stdout=subprocess.PIPE, text=True)
    assert process.stdout
    assert process.stdout.readline() == "locked\n"
    return process


def test_the_second_process_is_told_which_process_holds_the_folder(tmp_path: Path) -> None:
    first = hold(tmp_path / "run")
    try:
        started = rf"is in use by process {first.pid}, started \d{{4}}-\d\d-\d\d \d\d:"
        with pytest.raises(OutputError, match=started), locked_folder(tmp_path / "run"):
            pass
    finally:
        first.kill()
        first.wait()


def test_the_lock_ends_with_its_process(tmp_path: Path) -> None:
    first = hold(tmp_path / "run")
    first.kill()
    first.wait()
    assert (tmp_path / "run" / FILE).exists()  # what a killed process leaves
    with locked_folder(tmp_path / "run"):
        pass
    assert not (tmp_path / "run" / FILE).exists()


def test_a_fork_that_outlives_the_process_does_not_keep_the_lock(tmp_path: Path) -> None:
    forking = "import os\n    os.fork() and os._exit(0)\n    print('forked', flush=True)\n    time.sleep(60)"
    script = _HOLD.replace("time.sleep(60)", forking)
    first = subprocess.Popen(
        [sys.executable, "-c", script, str(tmp_path / "run")], stdout=subprocess.PIPE, start_new_session=True
    )
    try:
        assert first.stdout
        assert first.stdout.readline() == b"locked\n"
        assert first.stdout.readline() == b"forked\n"
        first.wait()
        with locked_folder(tmp_path / "run"):
            pass
    finally:
        os.killpg(first.pid, signal.SIGKILL)


def test_a_fork_does_not_release_the_lock(tmp_path: Path) -> None:
    with locked_folder(tmp_path / "run"):
        run_in_fork(os.getpid)
        with pytest.raises(OutputError, match=f"process {os.getpid()}"), locked_folder(tmp_path / "run"):
            pass


def test_nothing_is_left_if_nothing_was_written(tmp_path: Path) -> None:
    with locked_folder(tmp_path / "runs" / "run"):
        assert (tmp_path / "runs" / "run" / FILE).exists()
    assert list(tmp_path.iterdir()) == []


def test_what_was_written_stays(tmp_path: Path) -> None:
    with locked_folder(tmp_path / "runs" / "run"):
        (tmp_path / "runs" / "run" / "run.json").write_text("{}")
    assert [path.name for path in (tmp_path / "runs" / "run").iterdir()] == ["run.json"]


def test_the_process_may_be_on_another_machine(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    with locked_folder(tmp_path):
        monkeypatch.setattr("socket.gethostname", lambda: "elsewhere")
        with pytest.raises(OutputError, match=rf"process {os.getpid()} on \S+, started"), locked_folder(tmp_path):
            pass


def test_a_file_system_without_locks_locks_nothing(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def unsupported(handle: int) -> None:
        raise OSError(errno.ENOLCK, "No locks available")

    monkeypatch.setattr(lock, "_lock", unsupported)
    entered = 0
    for _ in range(2):
        with locked_folder(tmp_path / "run"), locked_folder(tmp_path / "run"):
            entered += 1
    assert entered == 2


def train(model: Path, data: Path, out: Path, *options: str) -> subprocess.Popen[str]:
    command = [sys.executable, "-m", "tightfit", "train", "--model", model, "--data", data, "--out", out]
    command += ["--device", "cpu", "--max-length", "32", "--batch-size", "8", "--json", *options]
    return subprocess.Popen(list(map(str, command)), stderr=subprocess.PIPE, stdout=subprocess.PIPE, text=True)


@pytest.mark.parametrize("resume", [[], ["--resume"]])
def test_a_second_training_is_refused_and_the_first_one_continues(
    tiny_model: Path, tmp_path: Path, resume: list[str]
) -> None:
    data, out = write_reviews(tmp_path / "reviews.csv", 200), tmp_path / "run"
    first = train(tiny_model, data, out, "--epochs", "1000")
    end = time.monotonic() + 60
    while latest_checkpoint(out) is None and time.monotonic() < end:
        time.sleep(0.02)
    second = train(tiny_model, data, out, "--epochs", "1000", *resume)
    _, message = second.communicate()
    assert second.returncode == 2
    assert message.count("\n") == 1
    assert f"is in use by process {first.pid}, started " in message
    first.terminate()
    _, message = first.communicate()
    assert first.returncode == 143, message
    assert (latest_valid_checkpoint(out)[0] or out).name in message
    assert not (out / FILE).exists()


def test_a_second_comparison_is_refused(tmp_path: Path) -> None:
    with locked_folder(tmp_path), pytest.raises(OutputError, match="is in use by process"):
        run_comparison(None, [], train=None, steps=1, seeds=1, budget=None, device="cpu", out=tmp_path, terminal=None)
