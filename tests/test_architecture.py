"""The modules import each other in one direction only, and the root package stays small."""

from __future__ import annotations

import ast

import pytest
from imports import LAZY, SOURCE, TOP, TYPES, Import, ImportGraph, _imports_in, read_package

LAYERS = (
    {
        "messages",
        "activity",
        "hub",
        "errors",
        "units",
        "system",
        "compat",
        "optional_imports",
        "display",
    },
    {"job", "gpus", "device"},
    {"models", "data"},
    {"tasks"},
    {"ops"},
    {"optimizers"},
    {"strategies"},
    {"engine"},
    {"simulation"},
    {"timing"},
    {"planning"},
    {"runs"},
    {"training", "inference"},
    {"comparison", "explain"},
    {"i18n"},
    {"report"},
    {"api", "demo"},
    {"doctor"},
    {"cli"},
)
ENTRY_POINTS = ("tightfit", "tightfit.__main__")  # the public names and the command, from any layer
UPWARD = {("tightfit.display", "tightfit.report")}  # results render themselves, only when they are shown
NEEDLESS_LAZY_IMPORTS = UPWARD | {
    ("tightfit.training.run", "tightfit.training.trainer"),  # transformers.Trainer takes seconds to import
}
LIGHT = (
    "tightfit.api",
    "tightfit.cli.app",
    "tightfit.comparison.comparison",
    "tightfit.planning.plan",
    "tightfit.i18n",
    "tightfit.report.terminal",
    "tightfit.strategies",
)
MAX_ROOT_FILES = 16


def test_no_import_cycle_at_module_level() -> None:
    assert read_package().cycles(TOP) == []


def test_imports_inside_functions_make_no_other_cycle() -> None:
    assert read_package().without(UPWARD).cycles(TOP, LAZY) == []


def test_imports_point_down_the_layers() -> None:
    """Also imports inside functions and imports for types."""
    assert read_package().upward(LAYERS, ENTRY_POINTS) == UPWARD


def test_every_module_belongs_to_one_layer() -> None:
    names = {module.split(".")[1] for module in read_package().modules if module not in ENTRY_POINTS}
    assert sorted(name for layer in LAYERS for name in layer) == sorted(names)


def test_imports_inside_functions_defer_a_heavy_library() -> None:
    assert read_package().needless_lazy() == NEEDLESS_LAZY_IMPORTS


@pytest.mark.parametrize("module", LIGHT)
def test_light_modules_import_at_most_numpy(module: str) -> None:
    assert read_package().heavy_libraries(module) <= {"numpy"}


def test_the_root_package_has_few_files() -> None:
    assert len(list(SOURCE.glob("*.py"))) <= MAX_ROOT_FILES


# The checks themselves, on a small graph with the layers `low` and `high`, where `p.high` defers torch.

GRAPH = ImportGraph(
    frozenset({"p", "p.low", "p.low.a", "p.low.b", "p.high", "p.high.c"}),
    (
        Import("p.high.c", "p.low.a"),
        Import("p.low.a", "p.low.b"),
        Import("p.low.b", "torch.nn"),
        Import("p.low.b", "p.low.a", LAZY),
        Import("p.low.b", "p.high.c", TYPES),
        Import("p.high", "p.high.c", LAZY),
        Import("p.high.c", "json", LAZY),
    ),
)


def test_cycles_are_found() -> None:
    assert GRAPH.cycles(TOP) == []
    assert GRAPH.cycles(TOP, LAZY) == [["p.low.a", "p.low.b"]]
    assert GRAPH.cycles(TOP, LAZY, TYPES) == [["p.high.c", "p.low.a", "p.low.b"]]
    assert GRAPH.without({("p.low.a", "p.low.b")}).cycles(TOP, LAZY, TYPES) == []


def test_upward_imports_are_found() -> None:
    assert GRAPH.upward(({"low"}, {"high"})) == {("p.low.b", "p.high.c")}
    assert GRAPH.upward(({"low"}, {"high"}), exempt=["p.low.b"]) == set()
    assert GRAPH.upward(({"high"}, {"low"})) == {("p.high.c", "p.low.a")}


def test_heavy_libraries_are_found_through_other_modules() -> None:
    assert GRAPH.heavy_libraries("p.high.c") == {"torch"}
    assert GRAPH.heavy_libraries("p.high") == set()


def test_needless_lazy_imports_are_found() -> None:
    assert GRAPH.needless_lazy() == {("p.low.b", "p.low.a")}


def test_imports_are_sorted_by_their_place() -> None:
    source = """
import p.a
from p import b, name
if TYPE_CHECKING:
    from p.c import Name
def f():
    from p.d import g
    from tightfit.compat import FakeTensor
"""
    fake = "torch._subclasses.fake_tensor"
    found = list(_imports_in(ast.parse(source), TOP, {"p", "p.a", "p.b", "p.c", "p.d"}))
    assert found == [("p.a", TOP), ("p.b", TOP), ("p", TOP), ("p.c", TYPES), ("p.d", LAZY), (fake, LAZY)]
