"""Checkpoints and files that are whole or not there, whatever happens while they are written."""

from __future__ import annotations

import errno
import os
from collections.abc import Callable
from pathlib import Path

import pytest
from safetensors.torch import load_file
from stress.disk import WAYS, Disk
from stress.fixtures import Ground, same_bits
from stress.kills import Kills

from tightfit.errors import OutputError, SaveFailed
from tightfit.files import atomic_dir, remove_stale, write_whole
from tightfit.training.checkpoints import (
    MANIFEST,
    find_corruption,
    latest_checkpoint,
    latest_valid_checkpoint,
    rotate_checkpoints,
    write_manifest,
    writing_checkpoint,
)


def write_checkpoint(folder: Path, step: int, content: bytes = b"weights") -> Path:
    with writing_checkpoint(folder, step, needed=100) as aside:
        (aside / "model.safetensors").write_bytes(content)
        write_manifest(aside, {})
    return folder / f"checkpoint-{step}"


def names(folder: Path) -> list[str]:
    return sorted(path.name for path in folder.iterdir())


def test_a_folder_takes_its_name_when_it_is_whole(tmp_path: Path) -> None:
    with atomic_dir(tmp_path / "a") as aside:
        (aside / "file").write_text("new")
        assert not (tmp_path / "a").exists()
    assert names(tmp_path) == ["a"]
    with atomic_dir(tmp_path / "a") as aside:
        (aside / "other").write_text("newer")
        assert names(tmp_path / "a") == ["file"]
    assert names(tmp_path / "a") == ["other"]


def test_what_fails_leaves_everything_as_it_was(tmp_path: Path) -> None:
    write_whole(tmp_path / "file", "old")
    write_checkpoint(tmp_path, 3)
    with pytest.raises(SaveFailed, match=r"checkpoint-4' could not be written \(no luck\).*checkpoint-3 is whole"):
        fail_to_write(tmp_path, 4)
    with pytest.raises(UnicodeEncodeError):
        write_whole(tmp_path / "file", "\ud800")
    assert names(tmp_path) == ["checkpoint-3", "file"]
    assert (tmp_path / "file").read_text() == "old"


def fail_to_write(folder: Path, step: int) -> None:
    with writing_checkpoint(folder, step, needed=100) as aside:
        (aside / "model.safetensors").write_bytes(b"half")
        raise RuntimeError("no luck")


def test_no_room_is_found_before_anything_is_written(tmp_path: Path) -> None:
    with pytest.raises(SaveFailed, match=r"it needs 1048576 TiB and .* there is no earlier checkpoint"):
        writing_checkpoint(tmp_path, 1, needed=1 << 60).__enter__()
    assert names(tmp_path) == []


def test_a_disk_that_says_only_when_synced_that_it_is_full(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    write_checkpoint(tmp_path, 3)
    monkeypatch.setattr(os, "fsync", raising(OSError(errno.EDQUOT, "Disk quota exceeded")))
    with pytest.raises(SaveFailed, match=r"Disk quota exceeded.*checkpoint-3 is whole"):
        write_checkpoint(tmp_path, 4)
    assert names(tmp_path) == ["checkpoint-3"]
    monkeypatch.setattr(os, "fsync", raising(OSError(errno.EINVAL, "Invalid argument")))
    assert find_corruption(write_checkpoint(tmp_path, 4)) is None, "a file system that cannot sync is none that is full"


def raising(error: Exception) -> Callable[[int], None]:
    def fail(handle: int) -> None:
        raise error

    return fail


def test_memory_that_runs_out_in_a_save_is_not_called_a_full_disk(tmp_path: Path) -> None:
    def write() -> None:
        with writing_checkpoint(tmp_path, 3, needed=100):
            raise MemoryError

    with pytest.raises(MemoryError):
        write()
    assert names(tmp_path) == []


def test_a_checkpoint_notices_every_changed_byte_of_its_list(tmp_path: Path) -> None:
    with writing_checkpoint(tmp_path, 3, needed=100) as aside:
        (aside / "model.safetensors").write_bytes(b"weights")
        write_manifest(aside, {"row_limits": {"slices": {20: 3, 100: 1}}, "losses": {"before": 0.25}})
    list_of_files = tmp_path / "checkpoint-3" / MANIFEST
    content = list_of_files.read_bytes()
    assert find_corruption(tmp_path / "checkpoint-3") is None
    for at in range(len(content)):
        list_of_files.write_bytes(content[:at] + bytes([content[at] ^ 1]) + content[at + 1 :])
        assert find_corruption(tmp_path / "checkpoint-3") is not None, content[:at]


def test_leftovers_of_a_killed_process_are_removed(tmp_path: Path) -> None:
    (tmp_path / ".checkpoint-3.part").mkdir()
    (tmp_path / ".checkpoint-1.gone").mkdir()
    (tmp_path / ".run.json.part").write_text("half")
    (tmp_path / ".mine").write_text("mine")
    remove_stale(tmp_path)
    assert names(tmp_path) == [".mine"]


def test_damage_is_seen_and_an_earlier_checkpoint_taken(tmp_path: Path) -> None:
    earlier, later = write_checkpoint(tmp_path, 3), write_checkpoint(tmp_path, 12)
    assert latest_valid_checkpoint(tmp_path) == (later, [])
    (later / "model.safetensors").write_bytes(b"weighty")  # as long as before
    assert find_corruption(later) == "model.safetensors is damaged"
    assert latest_valid_checkpoint(tmp_path) == (earlier, [f"{later} is passed over: model.safetensors is damaged"])
    (earlier / "model.safetensors").unlink()
    with pytest.raises(OutputError, match=r"No checkpoint in .* is whole"):
        latest_valid_checkpoint(tmp_path)


def test_the_best_and_the_last_stay(tmp_path: Path) -> None:
    for step in (0, 3, 6, 9, 12):
        write_checkpoint(tmp_path, step)
        rotate_checkpoints(tmp_path, 2, tmp_path / "checkpoint-3")
    assert names(tmp_path) == ["checkpoint-12", "checkpoint-3"]
    (tmp_path / "checkpoint-mine").mkdir()
    assert latest_checkpoint(tmp_path) == tmp_path / "checkpoint-12"


@pytest.fixture(scope="module")
def ground(tmp_path_factory: pytest.TempPathFactory) -> Ground:
    ground = Ground(tmp_path_factory.mktemp("killed") / "ground")
    ground.train("warm", max_steps=1)
    return ground


@pytest.mark.parametrize("number", [0, 2, 4, 5, 6])
def test_a_killed_run_is_resumed_to_the_same_bits(ground: Ground, number: int) -> None:
    """Two killed while they write a checkpoint, one that steps in backward, two that save only what learns, one in
    16 bits; many more in `make stress`, and other recipes in test_resuming.py."""
    result = Kills(ground, seed=number).suffer(number)
    assert result["passed"], result


def test_a_full_disk_keeps_the_last_checkpoint(tmp_path: Path) -> None:
    result = Disk(tmp_path / "ground").suffer(WAYS[1])
    assert result["passed"], result


def test_resuming_at_the_last_step_takes_no_further_one(ground: Ground) -> None:
    """Killed after the last checkpoint and before the record, in the middle of an epoch."""
    ground.train("whole", max_steps=4)
    weights = ground.weights("whole")
    (ground.folder / "whole" / "run.json").unlink()
    (ground.folder / "whole" / "model.safetensors").unlink()
    assert ground.train("whole", max_steps=4, resume=True).steps == 4
    assert same_bits(ground.weights("whole"), weights)


def test_what_was_learned_about_memory_is_kept(ground: Ground) -> None:
    from unittest import mock

    from tightfit.training import trainer

    learned: list[dict[str, dict[int, int]]] = []
    begin = trainer.Trainer.begin

    def begun(self: trainer.Trainer) -> None:
        begin(self)
        learned.append(self.recovery.table())
        self.recovery.slices.learn({20: 3})

    with mock.patch.object(trainer.Trainer, "begin", begun):
        ground.train("learning", epochs=1)
        ground.train("learning", epochs=2, resume=True)
    assert learned == [{}, {"slices": {20: 3}}]


def test_a_damaged_best_epoch_is_not_loaded(ground: Ground, monkeypatch: pytest.MonkeyPatch) -> None:
    from tightfit.tasks.text_classification import TextClassification

    script = iter((0.9, 0.5, 0.4))
    monkeypatch.setattr(TextClassification, "metrics", lambda self, p: {"f1": next(script), "accuracy": 0.0})
    ground.train("best", epochs=2)
    (ground.folder / "best" / "checkpoint-7" / "model.safetensors").write_bytes(b"no weights")
    run = ground.train("best", epochs=3, resume=True)
    assert (
        "checkpoint-7 was the best, but model.safetensors is damaged: the weights of the last step are kept"
        in run.notes
    )
    assert run.metrics["epoch"] == 3
    last = load_file(ground.folder / "best" / "checkpoint-21" / "model.safetensors")
    assert same_bits(ground.weights("best"), last)
