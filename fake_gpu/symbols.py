"""Generates what the fake libraries need beside the written code: stubs of all other functions, and symbol versions.

`python symbols.py stubs LIBRARY OBJECT...` writes C code: one function for every symbol that the real library has and
the object files lack. `python symbols.py versions LIBRARY` writes the linker's version script. LIBRARY is the real
library from the installed wheel; for the driver, which no wheel has, it is its header, cuda.h.
"""

from __future__ import annotations

import re
import subprocess
import sys
from pathlib import Path

NOT_SUPPORTED = 801  # cudaErrorNotSupported and CUDA_ERROR_NOT_SUPPORTED
SUCCEEDS = "libcublas"
"""Libraries whose functions succeed without doing anything, as kernels do; the others' answer "not supported"."""

HEAD = f"""\
#include <stdio.h>
#define SUCCEEDS(name) int name() {{ return 0; }}
#define NOT_SUPPORTED(name)                                                    \\
    int name() {{                                                              \\
        static int said;                                                       \\
        if (!said++) fprintf(stderr, "fake GPU: %s is not supported\\n", #name);\\
        return {NOT_SUPPORTED};                                                \\
    }}
"""


def defined(library: Path) -> dict[str, str]:
    """The functions that a library or object file defines, with their versions."""
    symbols = {}
    for line in _run("nm", "--defined-only", *(["-D"] if ".so" in library.name else []), str(library)).splitlines():
        kind, name = line.split()[-2:]
        if kind in "TW":
            name, _, version = name.partition("@@")
            symbols[name] = version
    return symbols


def declared(header: Path) -> set[str]:
    """The driver functions that cuda.h declares, with the version suffixes that its macros add."""
    return set(re.findall(r"\bCUresult\s+(cu\w+)\s*\(", _run("cpp", "-P", str(header))))


def stubs(library: Path, objects: list[Path]) -> str:
    """C code of the functions that are not written by hand."""
    wanted = declared(library) if library.suffix == ".h" else set(defined(library))
    written = {name for path in objects for name in defined(path)}
    macro = "SUCCEEDS" if library.name.startswith(SUCCEEDS) else "NOT_SUPPORTED"
    return HEAD + "".join(f"{macro}({name})\n" for name in sorted(wanted - written))


def versions(library: Path) -> str:
    """A version script with the symbol versions of the real library; cuda.h's functions have none."""
    names = set() if library.suffix == ".h" else set(defined(library).values()) - {""}
    return "".join(f"{name} {{ global: *; }};\n" for name in sorted(names)) or "{ global: *; };\n"


def _run(*command: str) -> str:
    return subprocess.run(command, check=True, capture_output=True, text=True).stdout


if __name__ == "__main__":
    what, library, *objects = sys.argv[1:]
    sys.stdout.write(stubs(Path(library), [Path(o) for o in objects]) if what == "stubs" else versions(Path(library)))
