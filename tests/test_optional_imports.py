"""Optional imports: unused libraries and torch's compiler are not imported by tightfit's own processes until needed."""

from __future__ import annotations

import importlib
import subprocess
import sys
from pathlib import Path
from types import ModuleType, SimpleNamespace

import pytest

from tightfit.optional_imports import allow_imports, block_unused_imports, defer_torch_compiler, is_installed

BLOCKED = ("datasets", "pandas", "pyarrow", "bitsandbytes", "peft", "scipy", "sklearn")

SCRIPT = f"""
import sys
from tightfit.optional_imports import allow_imports, slim_process

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


# torch's compiler and distributed tensors

LARGE = ("torch._inductor", "torch._dynamo.symbolic_convert", "torch.distributed.tensor._api")
SLIM = "from tightfit.optional_imports import slim_process\nslim_process()\n"


def output_of(code: str) -> list[str]:
    done = subprocess.run([sys.executable, "-c", SLIM + code], capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr[-2000:]
    return done.stdout.splitlines()


@pytest.mark.slow
@pytest.mark.parametrize(
    "recipe",
    ["baseline", "tiled-attention chunked-layers:size=4 adafactor optimizer-in-backward", "gradient-checkpointing"],
)
def test_a_training_does_not_import_them(tiny_model: Path, reviews: Path, tmp_path: Path, recipe: str) -> None:
    args = [
        "train",
        "--json",
        "--model",
        tiny_model,
        "--data",
        reviews,
        "--max-steps",
        2,
        "--batch-size",
        8,
        "--max-length",
        32,
    ]
    args += ["--device", "cpu", "--out", tmp_path / "run"]
    args += [arg for spec in recipe.split() if spec != "baseline" for arg in ("--use", spec)]
    code = f"""
import sys
from tightfit.cli.app import app
sys.argv = {["tightfit", *map(str, args)]!r}
try:
    app()
finally:
    print([name for name in {LARGE} if name in sys.modules])
"""
    assert output_of(code)[-1] == "[]"
    assert (tmp_path / "run" / "run.json").is_file()


def test_compiler_decorators_return_functions_unchanged() -> None:
    code = """
import sys, torch
import torch._dynamo
def f(): pass
print(torch.compile(f) is f, torch.compile(dynamic=True)(f) is f, torch.compiler.disable(recursive=False)(f) is f)
print(torch._dynamo.graph_break(), torch._dynamo.config.__name__)
from torch.distributed.tensor import DTensor
print(isinstance(torch.ones(1), DTensor), torch.distributed.is_available(), "sympy" in sys.modules)
"""
    assert output_of(code) == ["True True True", "None torch._dynamo.config", "False False False"]


def test_torch_checks_do_not_import_sympy() -> None:
    """T5 calls them in every forward pass with a condition that is a plain bool."""
    code = """
import sys, torch
torch._check(True, lambda: "nothing")
torch._check_value(True)
print("sympy" in sys.modules)
for check, error in ((torch._check, RuntimeError), (torch._check_value, ValueError)):
    try:
        check(False, lambda: "failed")
    except error as raised:
        print(raised)
try:
    torch._check(torch.tensor(True))
except TypeError:
    print("no bool")
"""
    assert output_of(code) == ["False", "failed", "failed", "no bool"]


def test_other_attributes_load_the_real_packages() -> None:
    code = """
import torch._dynamo
print(torch._dynamo.reset.__module__, torch._dynamo.disable.__module__, type(torch._dynamo).__name__)
import torch.distributed.tensor as tensors
print(tensors.Replicate.__module__, tensors.DTensor.__module__)
"""
    compiler, distributed = output_of(code)
    assert compiler == "torch._dynamo torch._dynamo.decorators module"
    assert distributed == "torch.distributed.tensor.placement_types torch.distributed.tensor"


def test_nothing_changes_if_torch_is_already_imported() -> None:
    import torch

    finders = list(sys.meta_path)
    defer_torch_compiler()
    assert sys.meta_path == finders
    assert torch.compile.__module__ == "torch"
