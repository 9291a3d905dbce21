"""Uncompiled: torch's compiler and its distributed tensors stay out of a process that neither compiles nor distributes.

transformers brings them along, 75 MB and a second of every start. All that is asked of them is to mark functions for
the compiler, and whether a tensor is a distributed one: that is answered here. Whoever asks for more gets them as they
are. Only where the process is ours alone, as in lean.py.
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
    """Before torch is imported."""
    if _TORCH not in sys.modules:
        sys.meta_path.insert(0, _Finder())


class _Finder(MetaPathFinder):
    def find_spec(self, name: str, path: Sequence[str] | None, target: ModuleType | None = None) -> ModuleSpec | None:
        loader = _LOADERS.get(name)
        spec = PathFinder.find_spec(name, path, target) if loader else None
        if loader and spec and spec.loader:
            spec.loader = loader(spec.loader)
        return spec


class _Changing(Loader):
    """Loads a module as we want it."""

    def __init__(self, whole: Loader) -> None:
        self.whole = whole

    def create_module(self, spec: ModuleSpec) -> ModuleType | None:
        return self.whole.create_module(spec)

    def exec_original(self, module: ModuleType) -> None:
        """As anybody else would, so that nobody sees that we were here."""
        assert module.__spec__ is not None
        module.__spec__.loader = module.__loader__ = self.whole
        self.whole.exec_module(module)


class _Alone(_Changing):
    """torch, as where it was built without its distributed part: libraries ask, and do without. It compiles nothing."""

    def exec_module(self, module: ModuleType) -> None:
        self.exec_original(module)
        module.distributed.is_available = lambda: False
        module.__dict__["compile"] = _unmarked  # bitsandbytes has functions compiled that no training calls
        wrap_check(module, _unless_true)


class _Later(_Changing):
    """A package that comes when it is asked for something that only it can do."""

    def create_module(self, spec: ModuleSpec) -> ModuleType:
        return _Package(spec.name)

    def exec_module(self, module: ModuleType) -> None:
        module.__dict__.update(_ANSWERS[module.__name__])


class _Package(ModuleType):
    """Each of its parts can be had without the rest."""

    def __getattr__(self, name: str) -> Any:
        if name.startswith("__"):
            raise AttributeError(name)
        part = f"{self.__name__}.{name}"
        return import_module(part) if find_spec(part) else getattr(self._whole(), name)

    def _whole(self) -> ModuleType:
        self.__class__ = ModuleType  # type: ignore[assignment]
        for name in _ANSWERS[self.__name__]:
            self.__dict__.pop(name, None)
        assert self.__spec__ is not None
        assert isinstance(self.__spec__.loader, _Later)
        self.__spec__.loader.exec_original(self)
        return self


class _Nothing:
    """What no object here is an instance of."""


def _unmarked(function: Any = None, *_: Any, **how: Any) -> Any:
    """A decorator, or one with settings, that leaves a function as it is."""
    return function if function is not None else _unmarked


def _unless_true(check: Any) -> Any:
    """What plainly holds is not looked into: torch would import an algebra system for it, 44 MB in a step of T5."""

    def checked(error: type[Exception], holds: Any, message: Any) -> None:
        if holds is not True:
            check(error, holds, message)

    return checked


def _do_nothing(*_: Any, **how: Any) -> None:
    pass


_ANSWERS: dict[str, dict[str, Any]] = {
    "torch._dynamo": {
        **dict.fromkeys(("allow_in_graph", "assume_constant_result", "disable"), _unmarked),
        "graph_break": _do_nothing,
        "eval_frame": SimpleNamespace(OptimizedModule=_Nothing),
    },
    "torch.distributed.tensor": {"DTensor": _Nothing},
}
_LOADERS: dict[str, type[_Changing]] = {_TORCH: _Alone, **dict.fromkeys(_ANSWERS, _Later)}


# Leaving: a process that has said all it had to say ends, and does not take a million objects apart one by one.


def fast_exit() -> None:
    """In the last line of a program, with what is being raised as its end; a second sooner than Python would.

    Whatever wanted to be called at the end is called. Where something is still going on, or nobody takes what was
    written, and for any end but a plain one, this returns, and Python ends the process its own way.
    """
    end = sys.exc_info()[1]
    code = end.code if isinstance(end, SystemExit) else end
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


# Sentences: what a user can mend is one sentence on standard error and an exit code.


_NO_MEMORY = (
    "there is not enough memory even to read the data and the model: close other programs, or use a smaller model."
)


@contextlib.contextmanager
def exit_with_message(when_stopped: str = "stopped.") -> Iterator[None]:
    """Ours, the system's and want of memory; whatever else is our mistake and stays a traceback."""
    try:
        yield
    except TightfitError as error:
        _leave(str(error), error.exit_code)
    except OSError as error:
        about = f"{error.strerror or error}{f': {error.filename}' if error.filename else ''}"
        _leave(f"the system says: {about}. Check the path, its permissions and the disk.", 2)
    except (MemoryError, RuntimeError) as error:
        if not is_out_of_memory(error):
            raise
        _leave(_NO_MEMORY, 1)
    except KeyboardInterrupt:
        _leave(when_stopped, 130)


def _leave(sentence: str, code: int) -> None:
    sys.stderr.write(f"tightfit: {sentence}\n")
    raise SystemExit(code) from None


def slim_process() -> None:
    """Import only what a training uses, in a process of our own. To be called before anything is imported."""
    block_unused_imports()
    defer_torch_compiler()
