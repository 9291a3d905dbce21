"""The import graph of src/tightfit: at the top of modules, inside functions, or for types only."""

from __future__ import annotations

import ast
from collections.abc import Collection, Iterator, Sequence
from dataclasses import dataclass, replace
from functools import cache, cached_property
from pathlib import Path

from tightfit.compat import _ALIASES

PACKAGE = "tightfit"
SOURCE = Path(__file__).parents[1] / "src" / PACKAGE
TOP, LAZY, TYPES = "top", "lazy", "types"
LIBRARIES = "torch transformers accelerate peft datasets pyarrow pandas bitsandbytes matplotlib sklearn numpy"
HEAVY = set(LIBRARIES.split())  # from 0.1 seconds on; the command line answers in under half a second


@dataclass(frozen=True)
class Import:
    """One module imports another; `kind` is where the statement is."""

    importer: str
    target: str
    kind: str = TOP


@dataclass(frozen=True)
class ImportGraph:
    """The modules of a package and all their imports, including those of other libraries."""

    modules: frozenset[str]
    imports: tuple[Import, ...]

    def own(self, *kinds: str) -> dict[str, set[str]]:
        """The imports between the package's own modules, for these kinds of imports."""
        graph: dict[str, set[str]] = {name: set() for name in self.modules}
        for found in self._own_imports:
            if found.kind in kinds:
                graph[found.importer].add(found.target)
        return graph

    def without(self, pairs: Collection[tuple[str, str]]) -> ImportGraph:
        """The graph without some imports."""
        return replace(self, imports=tuple(each for each in self.imports if (each.importer, each.target) not in pairs))

    def cycles(self, *kinds: str) -> list[list[str]]:
        """The groups of modules that reach each other."""
        graph = self.own(*kinds)
        reached = {name: _reachable(name, graph) for name in graph}
        groups = {frozenset(o for o in reached[name] if name in reached[o]) for name in graph if name in reached[name]}
        return sorted(sorted(group) for group in groups)

    def upward(self, layers: Sequence[Collection[str]], exempt: Collection[str] = ()) -> set[tuple[str, str]]:
        """Imports of any kind from a layer into a higher one; a layer is a set of modules directly in the package."""
        rank = {name: number for number, layer in enumerate(layers) for name in layer}
        found = ((each.importer, each.target) for each in self._own_imports if each.importer not in exempt)
        return {(importer, target) for importer, target in found if rank[_part(target)] > rank[_part(importer)]}

    def needless_lazy(self) -> set[tuple[str, str]]:
        """Own modules imported inside functions although that defers no heavy library."""
        return {
            (found.importer, found.target)
            for found in self._own_imports
            if found.kind == LAZY and self.heavy_libraries(found.target) <= self.heavy_libraries(found.importer)
        }

    def heavy_libraries(self, module: str) -> set[str]:
        """The heavy libraries that importing a module imports, including through its packages' `__init__`."""
        loaded = {module, *_reachable(module, self._loading)}
        return {
            library
            for found in self.imports
            if found.kind == TOP and found.importer in loaded and (library := found.target.split(".")[0]) in HEAVY
        }

    @cached_property
    def _own_imports(self) -> tuple[Import, ...]:
        return tuple(each for each in self.imports if each.target in self.modules and each.target != each.importer)

    @cached_property
    def _loading(self) -> dict[str, set[str]]:
        """The modules that importing a module loads: its packages, and what it imports at the top."""
        graph = self.own(TOP)
        for name in graph:
            parents = {name.rsplit(".", depth)[0] for depth in range(1, name.count(".") + 1)}
            graph[name] |= parents & graph.keys()
        return graph


@cache
def read_package() -> ImportGraph:
    """The import graph of the package."""
    files = {_name(path): path for path in sorted(SOURCE.rglob("*.py"))}
    imports = (
        Import(name, target, kind)
        for name, path in files.items()
        for target, kind in _imports_in(ast.parse(path.read_text(encoding="utf-8")), TOP, files)
    )
    return ImportGraph(frozenset(files), tuple(imports))


def _name(path: Path) -> str:
    parts = (PACKAGE, *path.relative_to(SOURCE).with_suffix("").parts)
    return ".".join(parts[:-1] if parts[-1] == "__init__" else parts)


def _part(module: str) -> str:
    """The module or package directly in the root package that a module belongs to; empty for the root itself."""
    return module.split(".")[1] if "." in module else ""


def _imports_in(node: ast.AST, kind: str, modules: Collection[str]) -> Iterator[tuple[str, str]]:
    for child in ast.iter_child_nodes(node):
        if isinstance(child, ast.Import):
            yield from ((alias.name, kind) for alias in child.names)
        elif isinstance(child, ast.ImportFrom) and child.module:
            yield from ((_target(child.module, alias.name, modules), kind) for alias in child.names)
        yield from _imports_in(child, _kind_inside(child, kind), modules)


def _kind_inside(node: ast.AST, kind: str) -> str:
    if isinstance(node, (ast.FunctionDef, ast.AsyncFunctionDef)):
        return LAZY
    return TYPES if isinstance(node, ast.If) and "TYPE_CHECKING" in ast.unparse(node.test) else kind


def _target(module: str, name: str, modules: Collection[str]) -> str:
    """The imported module: of `from package import module` that module, of `from module import name` the first one.

    An alias in `tightfit.compat` is an import of the library that has it.
    """
    if module == f"{PACKAGE}.compat" and name in _ALIASES:
        return _ALIASES[name].partition(":")[0]
    return f"{module}.{name}" if f"{module}.{name}" in modules else module


def _reachable(start: str, graph: dict[str, set[str]]) -> set[str]:
    seen: set[str] = set()
    stack = [start]
    while stack:
        for target in graph[stack.pop()] - seen:
            seen.add(target)
            stack.append(target)
    return seen
