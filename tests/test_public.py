"""The public names, and how the house is built."""

from __future__ import annotations

import ast
import subprocess
import sys
from pathlib import Path

import tightfit

SOURCE = Path(tightfit.__file__).parent


def test_every_public_name_is_there() -> None:
    assert sorted(tightfit.__all__) == tightfit.__all__
    for name in tightfit.__all__:
        assert getattr(tightfit, name).__doc__, name


def test_importing_tightfit_is_light() -> None:
    script = "import sys, tightfit; print([m for m in ('torch', 'transformers', 'datasets') if m in sys.modules])"
    done = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "[]"


def test_every_file_says_what_it_is_for() -> None:
    for path in SOURCE.rglob("*.py"):
        first = (ast.get_docstring(ast.parse(path.read_text("utf-8"))) or "").splitlines()
        assert first, f"{path} has no docstring"
