"""torch's compiler and its distributed tensors stay out of a process of our own, and come when they are asked for."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

from tightfit.cli.startup import defer_torch_compiler

LARGE = ("torch._inductor", "torch._dynamo.symbolic_convert", "torch.distributed.tensor._api")
LEAN = "from tightfit.cli.startup import slim_process\nslim_process()\n"


def told(code: str) -> list[str]:
    done = subprocess.run([sys.executable, "-c", LEAN + code], capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr[-2000:]
    return done.stdout.splitlines()


@pytest.mark.parametrize(
    "recipe",
    ["plain", "tiled-attention chunked-layers:size=4 adafactor optimizer-in-backward", "gradient-checkpointing"],
)
def test_a_whole_training_does_without_them(tiny_model: Path, reviews: Path, tmp_path: Path, recipe: str) -> None:
    words = [
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
    words += ["--device", "cpu", "--out", tmp_path / "run"]
    words += [word for strategy in recipe.split() if strategy != "plain" for word in ("--use", strategy)]
    code = f"""
import sys
from tightfit.cli import app
sys.argv = {["tightfit", *map(str, words)]!r}
try:
    app()
finally:
    print([name for name in {LARGE} if name in sys.modules])
"""
    assert told(code)[-1] == "[]"
    assert (tmp_path / "run" / "run.json").is_file()


def test_marks_for_the_compiler_leave_functions_as_they_are() -> None:
    code = """
import sys, torch
import torch._dynamo
def f(): pass
print(torch.compile(f) is f, torch.compile(dynamic=True)(f) is f, torch.compiler.disable(recursive=False)(f) is f)
print(torch._dynamo.graph_break(), torch._dynamo.config.__name__)
from torch.distributed.tensor import DTensor
print(isinstance(torch.ones(1), DTensor), torch.distributed.is_available(), "sympy" in sys.modules)
"""
    assert told(code) == ["True True True", "None torch._dynamo.config", "False False False"]


def test_what_a_model_checks_brings_no_algebra_system() -> None:
    """As T5 does in every forward, with a condition that is known."""
    code = """
import sys, torch
torch._check(True, lambda: "nothing")
torch._check_value(True)
print("sympy" in sys.modules)
for check, error in ((torch._check, RuntimeError), (torch._check_value, ValueError)):
    try:
        check(False, lambda: "so it is")
    except error as raised:
        print(raised)
try:
    torch._check(torch.tensor(True))
except TypeError:
    print("no bool")
"""
    assert told(code) == ["False", "so it is", "so it is", "no bool"]


def test_who_asks_for_more_gets_the_whole() -> None:
    code = """
import torch._dynamo
print(torch._dynamo.reset.__module__, torch._dynamo.disable.__module__, type(torch._dynamo).__name__)
import torch.distributed.tensor as tensors
print(tensors.Replicate.__module__, tensors.DTensor.__module__)
"""
    compiler, distributed = told(code)
    assert compiler == "torch._dynamo torch._dynamo.decorators module"
    assert distributed == "torch.distributed.tensor.placement_types torch.distributed.tensor"


def test_where_torch_is_there_already_nothing_changes() -> None:
    import torch

    finders = list(sys.meta_path)
    defer_torch_compiler()
    assert sys.meta_path == finders
    assert torch.compile.__module__ == "torch"
