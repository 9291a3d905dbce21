"""Checkpoints: complete or absent, verified by checksum, and a run that resumes from them."""

from __future__ import annotations

import contextlib
import errno
import os
import sys
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
import torch
from safetensors.torch import load_file, save_file
from stress.disk import FAULTS, FullDisk
from stress.fixtures import Workspace, same_bits
from stress.kills import Kills

from tightfit.engine.meter import ResidentProbe
from tightfit.errors import OutputError, SaveFailed
from tightfit.system.files import atomic_dir, atomic_write, remove_stale
from tightfit.system.memory import tuned_malloc
from tightfit.training.checkpoints import (
    MANIFEST,
    find_corruption,
    latest_checkpoint,
    latest_valid_checkpoint,
    load_weights_in_place,
    rotate_checkpoints,
    write_manifest,
    writing_checkpoint,
)

MIB = 1 << 20


def write_checkpoint(folder: Path, step: int, content: bytes = b"weights") -> Path:
    with writing_checkpoint(folder, step, needed=100) as tmp:
        (tmp / "model.safetensors").write_bytes(content)
        write_manifest(tmp, {})
    return folder / f"checkpoint-{step}"


def names(folder: Path) -> list[str]:
    return sorted(path.name for path in folder.iterdir())


def test_a_folder_appears_only_when_it_is_complete(tmp_path: Path) -> None:
    with atomic_dir(tmp_path / "a") as tmp:
        (tmp / "file").write_text("new")
        assert not (tmp_path / "a").exists()
    assert names(tmp_path) == ["a"]
    with atomic_dir(tmp_path / "a") as tmp:
        (tmp / "other").write_text("newer")
        assert names(tmp_path / "a") == ["file"]
    assert names(tmp_path / "a") == ["other"]


def test_a_failed_write_leaves_existing_files_unchanged(tmp_path: Path) -> None:
    atomic_write(tmp_path / "file", "old")
    write_checkpoint(tmp_path, 3)
    with pytest.raises(
        SaveFailed, match=r"checkpoint-4' could not be written \(no luck\).*last checkpoint is .*checkpoint-3\."
    ):
        fail_to_write(tmp_path, 4)
    with pytest.raises(UnicodeEncodeError):
        atomic_write(tmp_path / "file", "\ud800")
    assert names(tmp_path) == ["checkpoint-3", "file"]
    assert (tmp_path / "file").read_text() == "old"


def fail_to_write(folder: Path, step: int) -> None:
    with writing_checkpoint(folder, step, needed=100) as tmp:
        (tmp / "model.safetensors").write_bytes(b"half")
        raise RuntimeError("no luck")


def test_a_full_disk_is_noticed_before_anything_is_written(tmp_path: Path) -> None:
    with pytest.raises(SaveFailed, match=r"it needs 1048576 TiB and .* there is no earlier checkpoint"):
        writing_checkpoint(tmp_path, 1, needed=1 << 60).__enter__()
    assert names(tmp_path) == []


def test_a_disk_quota_that_is_reported_by_fsync_fails_the_save(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    write_checkpoint(tmp_path, 3)
    monkeypatch.setattr(os, "fsync", raising(OSError(errno.EDQUOT, "Disk quota exceeded")))
    with pytest.raises(SaveFailed, match=r"Disk quota exceeded.*last checkpoint is .*checkpoint-3\."):
        write_checkpoint(tmp_path, 4)
    assert names(tmp_path) == ["checkpoint-3"]
    monkeypatch.setattr(os, "fsync", raising(OSError(errno.EINVAL, "Invalid argument")))
    assert find_corruption(write_checkpoint(tmp_path, 4)) is None, "a file system without fsync is not a full one"


def raising(error: Exception) -> Callable[[int], None]:
    def fail(handle: int) -> None:
        raise error

    return fail


def test_out_of_memory_in_a_save_is_not_reported_as_a_full_disk(tmp_path: Path) -> None:
    def write() -> None:
        with writing_checkpoint(tmp_path, 3, needed=100):
            raise MemoryError

    with pytest.raises(MemoryError):
        write()
    assert names(tmp_path) == []


def test_every_changed_byte_of_the_manifest_is_detected(tmp_path: Path) -> None:
    with writing_checkpoint(tmp_path, 3, needed=100) as tmp:
        (tmp / "model.safetensors").write_bytes(b"weights")
        write_manifest(tmp, {"row_limits": {"micro_batches": {20: 3, 100: 1}}, "totals": {"loss_total": 0.25}})
    manifest = tmp_path / "checkpoint-3" / MANIFEST
    content = manifest.read_bytes()
    assert find_corruption(tmp_path / "checkpoint-3") is None
    for at in range(len(content)):
        manifest.write_bytes(content[:at] + bytes([content[at] ^ 1]) + content[at + 1 :])
        assert find_corruption(tmp_path / "checkpoint-3") is not None, content[:at]


def test_stale_files_of_a_killed_process_are_removed(tmp_path: Path) -> None:
    (tmp_path / ".checkpoint-3.part").mkdir()
    (tmp_path / ".checkpoint-1.gone").mkdir()
    (tmp_path / ".run.json.part").write_text("half")
    (tmp_path / ".mine").write_text("mine")
    remove_stale(tmp_path)
    assert names(tmp_path) == [".mine"]


def test_a_damaged_checkpoint_is_skipped_for_an_earlier_one(tmp_path: Path) -> None:
    earlier, later = write_checkpoint(tmp_path, 3), write_checkpoint(tmp_path, 12)
    assert latest_valid_checkpoint(tmp_path) == (later, [])
    (later / "model.safetensors").write_bytes(b"weighty")  # the same size
    assert find_corruption(later) == "model.safetensors is damaged"
    assert latest_valid_checkpoint(tmp_path) == (earlier, [f"{later} is skipped: model.safetensors is damaged"])
    (earlier / "model.safetensors").unlink()
    with pytest.raises(OutputError, match=r"Every checkpoint in .* is damaged"):
        latest_valid_checkpoint(tmp_path)


def test_rotation_keeps_the_best_and_the_last_checkpoint(tmp_path: Path) -> None:
    for step in (0, 3, 6, 9, 12):
        write_checkpoint(tmp_path, step)
        rotate_checkpoints(tmp_path, 2, tmp_path / "checkpoint-3")
    assert names(tmp_path) == ["checkpoint-12", "checkpoint-3"]
    (tmp_path / "checkpoint-mine").mkdir()
    assert latest_checkpoint(tmp_path) == tmp_path / "checkpoint-12"


@contextlib.contextmanager
def no_meter(phase: str) -> Iterator[None]:
    yield


def layers() -> torch.nn.Sequential:
    return torch.nn.Sequential(*(torch.nn.Linear(1024, 1024, bias=False) for _ in range(24)))


@pytest.mark.skipif(sys.platform != "linux", reason="reads the kernel's high-water mark")
def test_weights_are_loaded_one_tensor_at_a_time(tmp_path: Path) -> None:
    with tuned_malloc():
        saved, model = layers(), layers()
        save_file(saved.state_dict(), tmp_path / "model.safetensors")
        probe = ResidentProbe()
        before = probe.now()
        assert load_weights_in_place(tmp_path / "model.safetensors", model, no_meter)
        assert probe.pop_peak() - before < 24 * MIB  # all of them are 96 MiB
    for ours, theirs in zip(model.parameters(), saved.parameters(), strict=True):
        torch.testing.assert_close(ours, theirs, rtol=0, atol=0)


def test_weights_of_another_model_are_not_loaded(tmp_path: Path) -> None:
    save_file({"other": torch.ones(2)}, tmp_path / "model.safetensors")
    assert not load_weights_in_place(tmp_path / "model.safetensors", layers(), no_meter)
    assert not load_weights_in_place(tmp_path / "nothing.safetensors", layers(), no_meter)


@pytest.fixture(scope="module")
def workspace(tmp_path_factory: pytest.TempPathFactory) -> Workspace:
    workspace = Workspace(tmp_path_factory.mktemp("killed") / "workspace")
    workspace.train("warm", max_steps=1)
    return workspace


@pytest.mark.slow
@pytest.mark.parametrize("number", [0, 2, 4, 5, 6])
def test_a_killed_run_is_resumed_to_the_same_bits(workspace: Workspace, number: int) -> None:
    """Two killed while writing a checkpoint, one with optimizer-in-backward, two that save only trained weights, one
    with a 16-bit optimizer; many more in `make test-stress`, and other recipes in test_resume_checks.py."""
    result = Kills(workspace, seed=number).run_case(number)
    assert result["passed"], result


@pytest.mark.slow
def test_a_full_disk_keeps_the_last_checkpoint(tmp_path: Path) -> None:
    result = FullDisk(tmp_path / "workspace").run_case(FAULTS[1])
    assert result["passed"], result


def test_resuming_at_the_last_step_takes_no_further_step(workspace: Workspace) -> None:
    """Killed after the last checkpoint and before the record, in the middle of an epoch."""
    workspace.train("finished", max_steps=4)
    weights = workspace.weights("finished")
    (workspace.folder / "finished" / "run.json").unlink()
    (workspace.folder / "finished" / "model.safetensors").unlink()
    assert workspace.train("finished", max_steps=4, resume=True).steps == 4
    assert same_bits(workspace.weights("finished"), weights)


def test_row_limits_found_are_restored_from_the_checkpoint(workspace: Workspace) -> None:
    from unittest import mock

    from tightfit.training import trainer

    found: list[dict[str, dict[int, int]]] = []
    on_ready = trainer.Trainer.on_ready

    def then_tighten(self: trainer.Trainer) -> None:
        on_ready(self)
        found.append(self.recovery.found_limits())
        self.recovery.micro_batch_limits.tighten({20: 3})

    with mock.patch.object(trainer.Trainer, "on_ready", then_tighten):
        workspace.train("limited", epochs=1)
        workspace.train("limited", epochs=2, resume=True)
    assert found == [{}, {"micro_batches": {20: 3}}]


def test_a_damaged_best_checkpoint_is_not_loaded(workspace: Workspace, monkeypatch: pytest.MonkeyPatch) -> None:
    from tightfit.tasks.text_classification import TextClassification

    script = iter((0.9, 0.5, 0.4))
    monkeypatch.setattr(TextClassification, "score", lambda self, p, labels: {"f1": next(script)})
    workspace.train("best", epochs=2)
    (workspace.folder / "best" / "checkpoint-7" / "model.safetensors").write_bytes(b"no weights")
    run = workspace.train("best", epochs=3, resume=True)
    assert (
        "the best checkpoint was checkpoint-7, but model.safetensors is damaged: the weights of the last step are used "
        "instead" in run.notes
    )
    assert run.metrics["epoch"] == 3
    last = load_file(workspace.folder / "best" / "checkpoint-21" / "model.safetensors")
    assert same_bits(workspace.weights("best"), last)
