"""A little of what `make stress` feeds to the command line and to the readers of files."""

from __future__ import annotations

import random
from pathlib import Path

import pytest
from stress.bad_inputs import Inputs
from stress.fixtures import Ground
from stress.fuzz import Fuzz


@pytest.fixture(scope="module")
def inputs(tmp_path_factory: pytest.TempPathFactory) -> Inputs:
    return Inputs(Ground(tmp_path_factory.mktemp("rubbish") / "ground"))


def test_bad_inputs_end_in_a_sentence(
    inputs: Inputs, tmp_path_factory: pytest.TempPathFactory, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Two dozen of the more than a hundred; files and words of the simpler kind are in test_cli.py."""
    monkeypatch.chdir(tmp_path_factory.mktemp("cwd"))
    checks = {name: check for name, check in inputs.cases().items() if not name.startswith(("words", "file"))}
    chosen = random.Random(3).sample(sorted(checks), 24)
    assert [name for name in chosen if not checks[name]()] == []


def test_mutated_files_are_read_or_refused(inputs: Inputs, tmp_path: Path) -> None:
    run = inputs.ground.folder / "finished"
    record, about = (run / file for file in ("run.json", "checkpoint-14/tightfit.json"))
    found = Fuzz(tmp_path / "fuzz", record.read_text("utf-8"), about.read_text("utf-8"), seed=11).suffer(400)
    assert found["unhandled"] == []
    assert found["read"] > 40
