"""Lean: a process of our own takes in only the libraries that a training uses.

transformers imports whatever it knows and finds: datasets with pandas and Arrow, peft, scikit-learn with scipy, and
peft imports bitsandbytes. No training that tightfit puts together uses them, unless its recipe or its data says so, and
with all of them installed they would be 185 MB of every process and a third of every start. So they are not to be found
until they are asked for. Only where the process is ours alone: who imports tightfit keeps what he has.
"""

from __future__ import annotations

import sys
from importlib.machinery import PathFinder

ARROW = ("datasets", "pandas", "pyarrow")
_slim = False
_UNUSED = (*ARROW, "bitsandbytes", "peft", "scipy", "sklearn")
_ASKING = ("transformers.trainer", "transformers.trainer_utils")


def block_unused_imports() -> None:
    """Before anything is imported. Python takes a module that is None for one that is not installed."""
    global _slim
    _slim = True
    for name in _UNUSED:
        sys.modules.setdefault(name, None)  # type: ignore[arg-type]


def is_slim() -> bool:
    """Whether unused libraries are blocked in this process, as they are on the command line."""
    return _slim


def allow_imports(*names: str) -> None:
    """Something here needs them, or all: from now on they are found."""
    for name in names or _UNUSED:
        if sys.modules.get(name, ...) is None:
            _freeze_availability(name)
            del sys.modules[name]


def is_installed(name: str) -> bool:
    """Whether it could be imported; nothing is imported to find out."""
    return bool(sys.modules.get(name)) or PathFinder.find_spec(name) is not None


def _freeze_availability(name: str) -> None:
    """These ask time and again whether it is there, and would use names that they have not imported."""
    for module in filter(None, map(sys.modules.get, _ASKING)):
        if hasattr(module, question := f"is_{name}_available"):
            setattr(module, question, lambda: False)
