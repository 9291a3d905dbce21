"""Startup and exit of the command line process: few imports, error messages, fast exit.

transformers imports torch's compiler and distributed tensors, which costs 75 MB and a second at every start. Training
uses them only to mark functions for the compiler and to test whether a tensor is distributed. Stubs are enough for
these two uses; any other use loads the real package. This is done only in the process of the command line, never when
tightfit is imported as a library.
"""

from __future__ import annotations

import contextlib
import os
import sys
import threading
from collections.abc import Iterator, Sequence
from importlib import import_module
from importlib.abc import Loader, MetaPathFinder
from importlib.machinery import ModuleSpec, PathFinder
from importlib.util import find_spec
from types import ModuleType, SimpleNamespace
from typing import Any

from tightfit.compat import run_exit_functions, wrap_check
from tightfit.errors import TightfitError, is_out_of_memory
from tightfit.optional_imports import block_unused_imports

_TORCH = "torch"


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


def fast_exit() -> None:
    """Exit without freeing every Python object, which saves a second; call it last, in a `finally` clause.

    Exit functions run as usual. It returns, and Python exits normally, if a thread is still running, if the output
    cannot be flushed, or if the exception being handled is not a SystemExit with an integer code.
    """
    error = sys.exc_info()[1]
    code = error.code if isinstance(error, SystemExit) else error
    if code is None:
        code = 0
    if not isinstance(code, int) or _has_live_threads():
        return
    try:
        run_exit_functions()
        sys.stdout.flush()
        sys.stderr.flush()
    except OSError:
        return
    os._exit(code)


def _has_live_threads() -> bool:
    return any(not thread.daemon for thread in threading.enumerate() if thread is not threading.main_thread())


_NO_MEMORY = "there is not enough memory to load the data and the model: close other programs, or use a smaller model."


@contextlib.contextmanager
def exit_with_message(when_stopped: str = "stopped.") -> Iterator[None]:
    """Turn errors that a user can fix into one sentence and an exit code; all others are bugs and keep a traceback."""
    try:
        yield
    except TightfitError as error:
        _exit(str(error), error.exit_code)
    except OSError as error:
        reason = f"{error.strerror or error}{f': {error.filename}' if error.filename else ''}"
        _exit(f"{reason}. Check the path, its permissions and the disk.", 2)
    except (MemoryError, RuntimeError) as error:
        if not is_out_of_memory(error):
            raise
        _exit(_NO_MEMORY, 1)
    except KeyboardInterrupt:
        _exit(when_stopped, 130)


def _exit(message: str, code: int) -> None:
    sys.stderr.write(f"tightfit: {message}\n")
    raise SystemExit(code) from None


def slim_process() -> None:
    """Import only what training uses; call it in a process of its own, before other imports."""
    block_unused_imports()
    defer_torch_compiler()
