"""Consoles that cannot encode what is shown: similar characters, no traceback."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

ENCODINGS = {
    "ascii": {"PYTHONIOENCODING": "ascii"},
    "cp1252": {"PYTHONIOENCODING": "cp1252"},
    "cp936": {"PYTHONIOENCODING": "cp936"},
    "C locale": {"LC_ALL": "C", "PYTHONUTF8": "0", "PYTHONCOERCECLOCALE": "0"},
}


def call(environment: dict[str, str], *arguments: object) -> subprocess.CompletedProcess[bytes]:
    command = [sys.executable, "-m", "tightfit", *map(str, arguments)]
    return subprocess.run(command, env={**os.environ, **environment}, capture_output=True)


@pytest.mark.parametrize("encoding", ENCODINGS)
@pytest.mark.parametrize("language", ["en", "zh"])
def test_every_encoding_shows_lists_help_and_errors(encoding: str, language: str) -> None:
    for arguments, code in ((["strategies"], 0), (["train", "--help"], 0), (["report", "沒有"], 2)):
        done = call(ENCODINGS[encoding], *arguments, "--lang", language)
        assert done.returncode == code, done.stderr
        assert b"Traceback" not in done.stderr
        assert (done.stdout or done.stderr).strip()


def test_characters_are_replaced_by_similar_ones() -> None:
    done = call(ENCODINGS["ascii"], "tasks")
    assert b"text (text, review, sentence, ..."[:6] in done.stdout
    assert b"..." in done.stdout
    assert b"?" not in done.stdout


@pytest.mark.slow
@pytest.mark.parametrize("encoding", ["ascii", "cp1252"])
def test_a_training_run_is_shown_in_any_encoding(
    encoding: str, tiny_model: Path, reviews: Path, tmp_path: Path
) -> None:
    job = ["--model", tiny_model, "--data", reviews, "--device", "cpu", "--max-length", 32, "--max-steps", 1]
    done = call(ENCODINGS[encoding], "train", *job, "--out", tmp_path / "run")
    assert done.returncode == 0, done.stderr
    assert b"####" in done.stdout
    assert b"<- peak" in done.stdout


def test_json_loses_nothing(trained: Path) -> None:
    text = "房间很干净 é 😀"
    done = call(ENCODINGS["cp1252"], "predict", trained, text, "--json")
    assert json.loads(done.stdout.decode("ascii"))["predictions"][0]["text"] == text
