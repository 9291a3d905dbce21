"""The import graph of src/tightfit: who imports whom, at the top of a module, inside functions, or for types only."""

from __future__ import annotations

import ast
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from functools import cache
from pathlib import Path

SOURCE = Path(__file__).parents[1] / "src" / "tightfit"
TOP, LAZY, TYPES = "top", "lazy", "types"
HEAVY = {"torch", "transformers", "accelerate", "peft", "datasets", "pyarrow", "pandas", "bitsandbytes", "matplotlib"}


@dataclass(frozen=True)
class Import:
    """One module imports another; `kind` says where the statement stands."""

    importer: str
    target: str
    kind: str


@cache
def modules() -> dict[str, Path]:
    """Every module of the package by its dotted name."""
    return {_name(path): path for path in sorted(SOURCE.rglob("*.py"))}


def _name(path: Path) -> str:
    parts = ("tightfit", *path.relative_to(SOURCE).with_suffix("").parts)
    return ".".join(parts[:-1] if parts[-1] == "__init__" else parts)


@cache
def imports() -> tuple[Import, ...]:
    """All imports, of the package's own modules and of others."""
    return tuple(
        Import(name, target, kind)
        for name, path in modules().items()
        for target, kind in _imports_in(ast.parse(path.read_text(encoding="utf-8")), TOP)
    )


def _imports_in(node: ast.AST, kind: str) -> Iterator[tuple[str, str]]:
    for child in ast.iter_child_nodes(node):
        if isinstance(child, ast.Import):
            yield from ((alias.name, kind) for alias in child.names)
        elif isinstance(child, ast.ImportFrom) and child.module:
            yield from ((_target(child.module, alias.name), kind) for alias in child.names)
        yield from _imports_in(child, _kind_inside(child, kind))


def _kind_inside(node: ast.AST, kind: str) -> str:
    if isinstance(node, (ast.FunctionDef, ast.AsyncFunctionDef)):
        return LAZY
    return TYPES if isinstance(node, ast.If) and "TYPE_CHECKING" in ast.unparse(node.test) else kind


def _target(module: str, name: str) -> str:
    """`from package import module` means the module, `from module import name` the module that has the name."""
    return f"{module}.{name}" if f"{module}.{name}" in modules() else module


def own(kinds: Iterable[str]) -> dict[str, set[str]]:
    """The graph of the package's own modules by these kinds of imports."""
    graph: dict[str, set[str]] = {name: set() for name in modules()}
    for found in imports():
        if found.kind in set(kinds) and found.target in modules() and found.target != found.importer:
            graph[found.importer].add(found.target)
    return graph


def cycles(graph: dict[str, set[str]]) -> list[list[str]]:
    """The groups of modules that reach each other."""
    reached = {name: _reachable(name, graph) for name in graph}
    groups = {frozenset(o for o in reached[name] if name in reached[o]) for name in graph if name in reached[name]}
    return sorted(sorted(group) for group in groups)


def _reachable(start: str, graph: dict[str, set[str]]) -> set[str]:
    seen: set[str] = set()
    stack = [start]
    while stack:
        for target in graph[stack.pop()] - seen:
            seen.add(target)
            stack.append(target)
    return seen


@cache
def heavy_libraries(module: str) -> frozenset[str]:
    """The heavy libraries that importing a module imports, its packages' `__init__` included."""
    graph = _with_parents()
    loaded = {module, *_reachable(module, graph)}
    libraries = {found.target.split(".")[0] for found in imports() if found.importer in loaded and found.kind == TOP}
    return frozenset(libraries & HEAVY)


@cache
def _with_parents() -> dict[str, set[str]]:
    graph = own([TOP])
    for name in graph:
        parents = {name.rsplit(".", depth)[0] for depth in range(1, name.count(".") + 1)}
        graph[name] = graph[name] | (parents & graph.keys())
    return graph


def needless_lazy_imports() -> set[tuple[str, str]]:
    """Own modules imported inside functions although that defers no heavy library."""
    return {
        (found.importer, found.target)
        for found in imports()
        if found.kind == LAZY and found.target in modules()
        if heavy_libraries(found.target) <= heavy_libraries(found.importer)
    }
