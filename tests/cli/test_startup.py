"""The command line process does not import torch's compiler and distributed tensors until they are used."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

from tightfit.cli.startup import defer_torch_compiler

LARGE = ("torch._inductor", "torch._dynamo.symbolic_convert", "torch.distributed.tensor._api")
SLIM = "from tightfit.cli.startup import slim_process\nslim_process()\n"


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
