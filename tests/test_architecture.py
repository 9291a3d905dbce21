"""How the modules may import each other. The numbers of exceptions may only shrink."""

from __future__ import annotations

from imports import LAZY, TOP, cycles, needless_lazy_imports, own

CYCLES = 5  # made by imports inside functions
NEEDLESS_LAZY_IMPORTS = 75


def test_no_cycle_at_module_level() -> None:
    assert cycles(own([TOP])) == []


def test_imports_inside_functions_make_no_new_cycle() -> None:
    assert len(cycles(own([TOP, LAZY]))) <= CYCLES


def test_imports_inside_functions_defer_a_heavy_library() -> None:
    assert len(needless_lazy_imports()) <= NEEDLESS_LAZY_IMPORTS
