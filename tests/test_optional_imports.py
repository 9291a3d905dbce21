"""Optional imports: unused libraries are blocked in the command line's process until one is needed."""

from __future__ import annotations

import importlib
import subprocess
import sys
from pathlib import Path
from types import ModuleType, SimpleNamespace

import pytest

from tightfit.optional_imports import allow_imports, block_unused_imports, is_installed

BLOCKED = ("datasets", "pandas", "pyarrow", "bitsandbytes", "peft", "scipy", "sklearn")

SCRIPT = f"""
import sys
from tightfit.cli.startup import slim_process
from tightfit.optional_imports import allow_imports

slim_process()
import torch
import tightfit.training.trainer
from transformers.trainer_utils import _is_peft_model

print(sorted(name for name in {BLOCKED} if sys.modules.get(name)))
allow_imports("peft")
import peft

print(peft.__name__, _is_peft_model(torch.nn.Linear(1, 1)), bool(sys.modules.get("datasets")))
"""


def test_the_trainer_is_imported_without_them_and_peft_when_allowed() -> None:
    done = subprocess.run([sys.executable, "-c", SCRIPT], capture_output=True, text=True, check=False)
    assert done.stdout.splitlines() == ["[]", "peft False False"], done.stderr[-2000:]


def test_the_command_line_blocks_unused_imports() -> None:
    code = (
        "import sys, tightfit.cli.app\nsys.argv = ['tightfit', 'strategies', '--json']\ntightfit.cli.app.console_main()"
    )
    found = f"{code}\nassert all(sys.modules[name] is None for name in {BLOCKED})"
    done = subprocess.run([sys.executable, "-c", found], capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr[-2000:]
    project = Path(__file__).parents[1] / "pyproject.toml"
    assert 'tightfit = "tightfit.cli.app:console_main"' in project.read_text("utf-8")


@pytest.fixture
def absent(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> str:
    """An installed package that is not imported."""
    (tmp_path / "some_library.py").write_text("loaded = True\n")
    monkeypatch.syspath_prepend(tmp_path)
    monkeypatch.setattr("tightfit.optional_imports._BLOCKED", ("some_library",))
    monkeypatch.delitem(sys.modules, "some_library", raising=False)
    yield "some_library"
    sys.modules.pop("some_library", None)


def test_a_blocked_library_is_not_found_until_allowed(absent: str) -> None:
    block_unused_imports()
    assert importlib.util.find_spec(absent) is None
    assert is_installed(absent)
    allow_imports()
    assert importlib.import_module(absent).loaded


def test_an_imported_library_stays_imported(absent: str) -> None:
    library = importlib.import_module(absent)
    block_unused_imports()
    allow_imports(absent)
    assert sys.modules[absent] is library


def test_modules_that_checked_before_keep_their_answer(absent: str, monkeypatch: pytest.MonkeyPatch) -> None:
    checker = SimpleNamespace(is_some_library_available=lambda: True)
    monkeypatch.setitem(sys.modules, "checker", checker)  # type: ignore[arg-type]
    monkeypatch.setattr("tightfit.optional_imports._CHECKERS", ("checker", "not_imported"))
    block_unused_imports()
    allow_imports(absent)
    assert not checker.is_some_library_available()
    assert isinstance(importlib.import_module(absent), ModuleType)


def test_an_unknown_library_is_not_installed() -> None:
    assert not is_installed("no_such_library_at_all")
