"""Libraries that no training uses stay out of a process of our own, until one is asked for."""

from __future__ import annotations

import importlib
import subprocess
import sys
from pathlib import Path
from types import ModuleType, SimpleNamespace

import pytest

from tightfit.optional_imports import allow_imports, block_unused_imports, is_installed

UNUSED = ("datasets", "pandas", "pyarrow", "bitsandbytes", "peft", "scipy", "sklearn")

IN_A_PROCESS_OF_ITS_OWN = f"""
import sys
from tightfit.cli.startup import slim_process
from tightfit.optional_imports import let_in

slim_process()
import torch
import tightfit.training.trainer
from transformers.trainer_utils import _is_peft_model

print(sorted(name for name in {UNUSED} if sys.modules.get(name)))
let_in("peft")
import peft

print(peft.__name__, _is_peft_model(torch.nn.Linear(1, 1)), bool(sys.modules.get("datasets")))
"""


def test_a_trainer_is_loaded_without_them_and_peft_comes_when_it_is_asked_for() -> None:
    done = subprocess.run([sys.executable, "-c", IN_A_PROCESS_OF_ITS_OWN], capture_output=True, text=True, check=False)
    assert done.stdout.splitlines() == ["[]", "peft False False"], done.stderr[-2000:]


def test_the_command_line_is_a_process_of_our_own() -> None:
    code = "import sys, tightfit.cli.app\nsys.argv = ['tightfit', 'strategies', '--json']\ntightfit.cli.app.process()"
    found = f"{code}\nassert all(sys.modules[name] is None for name in {UNUSED})"
    done = subprocess.run([sys.executable, "-c", found], capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr[-2000:]
    project = Path(__file__).parents[1] / "pyproject.toml"
    assert 'tightfit = "tightfit.cli.app:process"' in project.read_text("utf-8")


@pytest.fixture
def absent(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> str:
    """A package that is installed and not loaded."""
    (tmp_path / "some_library.py").write_text("loaded = True\n")
    monkeypatch.syspath_prepend(tmp_path)
    monkeypatch.setattr("tightfit.optional_imports._UNUSED", ("some_library",))
    monkeypatch.delitem(sys.modules, "some_library", raising=False)
    yield "some_library"
    sys.modules.pop("some_library", None)


def test_what_is_left_out_is_not_found_until_it_is_let_in(absent: str) -> None:
    block_unused_imports()
    assert importlib.util.find_spec(absent) is None
    assert is_installed(absent)
    allow_imports()
    assert importlib.import_module(absent).loaded


def test_what_is_loaded_already_stays(absent: str) -> None:
    library = importlib.import_module(absent)
    block_unused_imports()
    allow_imports(absent)
    assert sys.modules[absent] is library


def test_those_who_asked_before_get_the_same_answer(absent: str, monkeypatch: pytest.MonkeyPatch) -> None:
    asking = SimpleNamespace(is_some_library_available=lambda: True)
    monkeypatch.setitem(sys.modules, "asking", asking)  # type: ignore[arg-type]
    monkeypatch.setattr("tightfit.optional_imports._ASKING", ("asking", "not_loaded"))
    block_unused_imports()
    allow_imports(absent)
    assert not asking.is_some_library_available()
    assert isinstance(importlib.import_module(absent), ModuleType)


def test_what_is_not_there_is_not_installed() -> None:
    assert not is_installed("no_such_library_at_all")
