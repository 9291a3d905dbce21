"""Optional libraries: their import is blocked until needed, to save memory and startup time.

transformers imports every integration it finds: datasets with pandas and pyarrow, peft, scikit-learn with scipy; and
peft imports bitsandbytes. Training uses them only if the recipe or the data requires it; with all of them installed
they take 185 MB of every process and a third of its start-up time.

transformers also imports torch's compiler and distributed tensors, 75 MB and a second of every start, although training
uses them only to mark functions for the compiler and to test whether a tensor is distributed. Stubs answer those two;
any other use loads the real package.

Both are done only in tightfit's own processes, those of the command line and of a comparison: a program that imports
tightfit keeps its imports.
"""

from __future__ import annotations

import sys
from collections.abc import Sequence
from importlib import import_module
from importlib.abc import Loader, MetaPathFinder
from importlib.machinery import ModuleSpec, PathFinder
from importlib.util import find_spec
from types import ModuleType, SimpleNamespace
from typing import Any

from tightfit.compat import wrap_check

ARROW = ("datasets", "pandas", "pyarrow")
_slim = False
_BLOCKED = (*ARROW, "bitsandbytes", "peft", "scipy", "sklearn")
_CHECKERS = ("transformers.trainer", "transformers.trainer_utils")
_TORCH = "torch"


def slim_process() -> None:
    """Import only what training uses; call it in a process of its own, before other imports."""
    block_unused_imports()
    defer_torch_compiler()


def block_unused_imports() -> None:
    """Call before other imports: Python treats a module that is None in sys.modules as not installed."""
    global _slim
    _slim = True
    for name in _BLOCKED:
        sys.modules.setdefault(name, None)  # type: ignore[arg-type]


def is_slim() -> bool:
    """Whether unused libraries are blocked in this process, as they are on the command line."""
    return _slim


def allow_imports(*names: str) -> None:
    """Unblock these libraries, or all of them."""
    for name in names or _BLOCKED:
        if sys.modules.get(name, ...) is None:
            _freeze_availability(name)
            del sys.modules[name]


def is_installed(name: str) -> bool:
    """Whether a library could be imported, blocked or not; nothing is imported to find out."""
    return bool(sys.modules.get(name)) or PathFinder.find_spec(name) is not None


def _freeze_availability(name: str) -> None:
    """Modules that check availability at each call keep the answer False: they did not import the library's names."""
    for module in filter(None, map(sys.modules.get, _CHECKERS)):
        if hasattr(module, check := f"is_{name}_available"):
            setattr(module, check, lambda: False)


# torch's compiler and distributed tensors


def defer_torch_compiler() -> None:
    """Replace torch's compiler and distributed tensors by stubs that load on demand; call before importing torch."""
    if _TORCH not in sys.modules:
        sys.meta_path.insert(0, _Finder())


class _Finder(MetaPathFinder):
    def find_spec(self, name: str, path: Sequence[str] | None, target: ModuleType | None = None) -> ModuleSpec | None:
        loader = _LOADERS.get(name)
        spec = PathFinder.find_spec(name, path, target) if loader else None
        if loader and spec and spec.loader:
            spec.loader = loader(spec.loader)
        return spec


class _PatchingLoader(Loader):
    """Base of loaders that change a module."""

    def __init__(self, original: Loader) -> None:
        self.original = original

    def create_module(self, spec: ModuleSpec) -> ModuleType | None:
        return self.original.create_module(spec)

    def exec_original(self, module: ModuleType) -> None:
        """Run the module with its original loader and restore that loader in its attributes."""
        assert module.__spec__ is not None
        module.__spec__.loader = module.__loader__ = self.original
        self.original.exec_module(module)


class _TorchLoader(_PatchingLoader):
    """Loads torch without distributed support, which libraries check for, and with `torch.compile` disabled."""

    def exec_module(self, module: ModuleType) -> None:
        self.exec_original(module)
        module.distributed.is_available = lambda: False
        module.__dict__["compile"] = _identity_decorator  # bitsandbytes compiles functions that training does not call
        wrap_check(module, _skip_if_true)


class _LazyLoader(_PatchingLoader):
    """Loads stubs of a package, which load the real one on demand."""

    def create_module(self, spec: ModuleSpec) -> ModuleType:
        return _LazyPackage(spec.name)

    def exec_module(self, module: ModuleType) -> None:
        module.__dict__.update(_STUBS[module.__name__])


class _LazyPackage(ModuleType):
    """A stub package: its submodules can be imported without loading the package."""

    def __getattr__(self, name: str) -> Any:
        if name.startswith("__"):
            raise AttributeError(name)
        part = f"{self.__name__}.{name}"
        return import_module(part) if find_spec(part) else getattr(self._load_original(), name)

    def _load_original(self) -> ModuleType:
        self.__class__ = ModuleType  # type: ignore[assignment]
        for name in _STUBS[self.__name__]:
            self.__dict__.pop(name, None)
        assert self.__spec__ is not None
        assert isinstance(self.__spec__.loader, _LazyLoader)
        self.__spec__.loader.exec_original(self)
        return self


class _NeverInstance:
    """A class without instances, for isinstance checks that are always false."""


def _identity_decorator(function: Any = None, *_: Any, **how: Any) -> Any:
    """A decorator, with or without arguments, that returns the function unchanged."""
    return function if function is not None else _identity_decorator


def _skip_if_true(check: Any) -> Any:
    """Skip checks whose condition is True: torch would import sympy for them, 44 MB in a step of T5."""

    def checked(error: type[Exception], condition: Any, message: Any) -> None:
        if condition is not True:
            check(error, condition, message)

    return checked


def _do_nothing(*_: Any, **how: Any) -> None:
    pass


_STUBS: dict[str, dict[str, Any]] = {
    "torch._dynamo": {
        **dict.fromkeys(("allow_in_graph", "assume_constant_result", "disable"), _identity_decorator),
        "graph_break": _do_nothing,
        "eval_frame": SimpleNamespace(OptimizedModule=_NeverInstance),
    },
    "torch.distributed.tensor": {"DTensor": _NeverInstance},
}
_LOADERS: dict[str, type[_PatchingLoader]] = {_TORCH: _TorchLoader, **dict.fromkeys(_STUBS, _LazyLoader)}
