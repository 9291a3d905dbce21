"""The doctor command: what it prints, what it writes, and its exit codes, in both languages."""

from __future__ import annotations

import json
import sys
from pathlib import Path

import pytest
from parts import CPU

from tightfit import doctor
from tightfit.cli import app
from tightfit.doctor import Diagnosis
from tightfit.doctor.machine import Finding
from tightfit.doctor.self_check import CheckedRecipe, SelfCheck
from tightfit.messages import Message, msg, verbatim

Captured = pytest.CaptureFixture[str]
FINDINGS = [Finding("bf16", verbatim("bf16"), msg("the processor multiplies bf16 matrices"), True)]
PROBLEM = msg("torch cannot use {gpu}: {reason}", gpu="GTX 1650", reason="no kernels")
CHECK = SelfCheck([CheckedRecipe("baseline", 101 << 20, 100 << 20, 0.02, 1.5, None)], None)


def call(monkeypatch: pytest.MonkeyPatch, *arguments: object) -> int:
    monkeypatch.setattr(sys, "argv", ["tightfit", "doctor", *map(str, arguments)])
    with pytest.raises(SystemExit) as end:
        app.main()
    return int(end.value.code or 0)


@pytest.fixture
def machine(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> list[Message]:
    """A machine with these problems."""
    problems: list[Message] = []

    def diagnose(device: str | None, *, quick: bool, listener: object) -> Diagnosis:
        return Diagnosis(CPU, FINDINGS, problems, None if quick else CHECK)

    monkeypatch.setattr("tightfit.cli.doctor.diagnose", diagnose)
    monkeypatch.chdir(tmp_path)
    return problems


@pytest.mark.usefixtures("machine")
def test_it_shows_and_writes_what_it_found(monkeypatch: pytest.MonkeyPatch, capfd: Captured) -> None:
    assert call(monkeypatch) == 0
    lines = capfd.readouterr().out.splitlines()
    assert lines[0] == "bf16  the processor multiplies bf16 matrices"
    assert lines[4].split() == ["101", "MiB", "100", "MiB", "+1.0%", "20", "ms", "1.5", "s", "baseline"]
    found = json.loads(Path("doctor.json").read_text())
    assert found["findings"] == {"bf16": True}
    assert found["self_check"]["recipes"][0]["error"] == 0.01
    assert found["healthy"] is True


def test_a_gpu_that_cannot_be_used_is_exit_code_1(
    monkeypatch: pytest.MonkeyPatch, machine: list[Message], capfd: Captured
) -> None:
    machine.append(PROBLEM)
    assert call(monkeypatch, "--quick", "--lang", "zh") == 1
    assert "torch 无法使用 GTX 1650：no kernels" in capfd.readouterr().out
    assert not Path("doctor.json").exists()


@pytest.mark.usefixtures("machine")
def test_json_is_one_object(monkeypatch: pytest.MonkeyPatch, capfd: Captured) -> None:
    assert call(monkeypatch, "--quick", "--json", "--out", "found.json") == 0
    printed = json.loads(capfd.readouterr().out)
    assert printed == {**json.loads(Path("found.json").read_text()), "created_at": printed["created_at"]}
    assert printed["self_check"] is None


@pytest.mark.usefixtures("machine")
def test_a_folder_that_does_not_exist(monkeypatch: pytest.MonkeyPatch, capfd: Captured) -> None:
    assert call(monkeypatch, "--out", "missing/doctor.json") == 2
    assert "There is no folder 'missing' for doctor.json." in capfd.readouterr().err


def test_a_device_that_does_not_exist_is_bad_input(monkeypatch: pytest.MonkeyPatch, capfd: Captured) -> None:
    assert call(monkeypatch, "--device", "tpu", "--quick") == 2
    assert "Training on 'tpu' is not supported" in capfd.readouterr().err


def test_a_problem_of_the_gpu_makes_it_look_at_the_cpu(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(doctor, "gpu_problem", lambda: PROBLEM)
    for name in (None, "cuda"):
        device, problems = doctor._usable_device(name)
        assert (device.kind, problems) == ("cpu", [PROBLEM])
    assert doctor._usable_device("cpu")[1] == []
