"""A sample of the bad inputs and mutated files of `make test-stress`."""

from __future__ import annotations

import random
from pathlib import Path

import pytest
from stress.bad_inputs import BadInputs
from stress.fixtures import Workspace
from stress.fuzz import Fuzz


@pytest.fixture(scope="module")
def inputs(tmp_path_factory: pytest.TempPathFactory) -> BadInputs:
    return BadInputs(Workspace(tmp_path_factory.mktemp("bad-inputs") / "workspace"))


def test_bad_inputs_end_in_one_sentence(
    inputs: BadInputs, tmp_path_factory: pytest.TempPathFactory, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Two dozen of more than a hundred; the simpler files and options are tested in cli/test_app.py."""
    monkeypatch.chdir(tmp_path_factory.mktemp("cwd"))
    checks = {name: check for name, check in inputs.cases().items() if not name.startswith(("options", "file"))}
    chosen = random.Random(3).sample(sorted(checks), 24)
    assert [name for name in chosen if not checks[name]()] == []


def test_mutated_files_are_read_or_rejected(inputs: BadInputs, tmp_path: Path) -> None:
    run = inputs.workspace.folder / "finished"
    record, manifest = (run / file for file in ("run.json", "checkpoint-14/manifest.json"))
    found = Fuzz(tmp_path / "fuzz", record.read_text("utf-8"), manifest.read_text("utf-8"), seed=11).run(400)
    assert found["unhandled"] == []
    assert found["read"] > 40
