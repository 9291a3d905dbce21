"""Where memory is short, a recipe is selected in a process that ends before the libraries of training are loaded."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path
from types import ModuleType

import pytest

from tightfit.job import Job
from tightfit.planning.constraints import Constraints
from tightfit.planning.selection import is_chosen
from tightfit.strategies.recipe import Recipe
from tightfit.training import select_apart as module
from tightfit.training.select_apart import Request, select_apart

GIB = 1 << 30


def test_a_recipe_is_chosen_unless_it_is_given() -> None:
    given, nothing = Recipe.parse(["adafactor"]), Recipe()
    assert [is_chosen(budget, nothing) for budget in (None, "auto", "4GB", 4 << 30, "none")] == [True] * 4 + [False]
    assert [is_chosen(budget, given) for budget in (None, "auto", "4GB", 4 << 30, "none")] == [False] + [True] * 3 + [
        False
    ]


@pytest.mark.parametrize(
    ("usable", "budget", "torch", "apart"),
    [
        (8 * GIB, "700MB", False, True),
        (GIB // 2, "4GB", False, True),
        (GIB // 2, "auto", False, True),
        (8 * GIB, "4GB", False, False),
        (8 * GIB, "auto", False, False),
        (8 * GIB, "700MB", True, False),
    ],
)
def test_it_is_selected_apart_where_memory_is_short_and_nothing_is_loaded_yet(
    usable: int, budget: str, torch: bool, apart: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    calls: list[int] = []

    class Worker:
        def __init__(self, setup: object) -> None: ...
        def __enter__(self) -> Worker:
            return self

        def __exit__(self, *_: object) -> None: ...
        def call(self, function: object, request: Request, size: int) -> None:
            calls.append(size)

    monkeypatch.setattr(module, "Worker", Worker)
    monkeypatch.setattr(module, "usable_memory", lambda: usable)
    if torch:
        monkeypatch.setitem(sys.modules, "torch", ModuleType("torch"))
    else:
        monkeypatch.delitem(sys.modules, "torch", raising=False)
    select_apart(Request(Job(model="m", data="d"), budget, "cpu", Constraints(), None))
    assert calls == ([usable if budget == "auto" else module.parse_bytes(budget)] if apart else [])


SCRIPT = """
import sys
from tightfit.job import Job
from tightfit.training import select_apart as apart
from tightfit.planning.constraints import Constraints

job = Job(model=sys.argv[1], data=sys.argv[2], max_length=32)
apart.usable_memory = lambda: 1 << 30
found = apart.select_apart(apart.Request(job, "1000MB", "cpu", Constraints.of(["adafactor"]), None))
print("torch" in sys.modules, "adafactor" in found.recipe.specs, 0 < found.upper_bound <= 1000 << 20)
"""


@pytest.mark.slow
def test_the_process_that_asked_has_not_loaded_torch(tiny_model: Path, reviews: Path) -> None:
    done = subprocess.run([sys.executable, "-c", SCRIPT, tiny_model, reviews], capture_output=True, text=True)
    assert done.stdout.split() == ["False", "True", "True"], done.stderr


IN_A_TRAINING = """
import sys
from tightfit import api
from tightfit.cli.app import main

def select_apart(request):
    print("torch" in sys.modules)
    sys.exit()

api.select_apart = select_apart
main()
"""


def test_a_training_has_not_loaded_torch_when_its_recipe_is_selected(tmp_path: Path) -> None:
    options = ["train", "--model", "m", "--data", "d", "--budget", "500MB", "--out", tmp_path / "run"]
    done = subprocess.run([sys.executable, "-c", IN_A_TRAINING, *map(str, options)], capture_output=True, text=True)
    assert done.stdout.split() == ["False"], done.stderr
