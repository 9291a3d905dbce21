"""The public names, and what importing them costs."""

from __future__ import annotations

import ast
import subprocess
import sys
from pathlib import Path

import tightfit

SOURCE = Path(tightfit.__file__).parent


def test_every_public_name_exists_and_has_a_docstring() -> None:
    assert sorted(tightfit.__all__) == tightfit.__all__
    for name in tightfit.__all__:
        assert getattr(tightfit, name).__doc__, name


def test_importing_tightfit_imports_no_heavy_library() -> None:
    script = "import sys, tightfit; print([m for m in ('torch', 'transformers', 'datasets') if m in sys.modules])"
    done = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "[]"


def test_every_module_has_a_docstring() -> None:
    for path in SOURCE.rglob("*.py"):
        first = (ast.get_docstring(ast.parse(path.read_text("utf-8"))) or "").splitlines()
        assert first, f"{path} has no docstring"
