"""Optional libraries: their import is blocked until needed, to save memory and startup time.

transformers imports every integration it finds: datasets with pandas and pyarrow, peft, scikit-learn with scipy; and
peft imports bitsandbytes. Training uses them only if the recipe or the data requires it; with all of them installed
they take 185 MB of every process and a third of its start-up time. They are blocked in the command line's own process
only: a program that imports tightfit keeps its imports.
"""

from __future__ import annotations

import sys
from importlib.machinery import PathFinder

ARROW = ("datasets", "pandas", "pyarrow")
_slim = False
_BLOCKED = (*ARROW, "bitsandbytes", "peft", "scipy", "sklearn")
_CHECKERS = ("transformers.trainer", "transformers.trainer_utils")


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
