"""Runs a command that sees fake GPUs: `python -m fake_gpu --memory 4GB --capability 7.5 -- COMMAND`."""

from __future__ import annotations

import argparse
import os
import sys

from fake_gpu import FakeGPU, NotBuilt, parse_bytes


def main(arguments: list[str]) -> None:
    """Replace this process by the command."""
    options = vars(_parser().parse_args(arguments))
    command = options.pop("command")
    try:
        os.execvpe(command[0], command, os.environ | FakeGPU(**options).environment())
    except (NotBuilt, OSError, ValueError) as error:
        sys.exit(_fail(str(error)))


def _fail(text: str) -> int:
    sys.stderr.write(f"fake GPU: {text}\n")
    return 2


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(
        prog="python -m fake_gpu",
        usage="python -m fake_gpu [OPTIONS] -- COMMAND",
        description="Run a command that sees fake GPUs: their memory is counted, their kernels do not run.",
        formatter_class=argparse.ArgumentDefaultsHelpFormatter,
    )
    add, default = parser.add_argument, FakeGPU()
    size = {"type": _size, "metavar": "SIZE"}
    add("--memory", default="4GB", help="memory of each GPU", **size)
    add("--capability", default=default.capability, metavar="X.Y", help="CUDA compute capability")
    add("--name", default=default.name, help="what the GPU is called")
    add("--count", type=int, default=default.count, choices=range(1, 5), help="how many GPUs there are")
    add("--others", default="0", help="memory that other processes hold on each GPU", **size)
    add("--context", default="400MB", help="memory of the CUDA context", **size)
    add("--multiprocessors", type=int, default=default.multiprocessors, help="multiprocessors of each GPU")
    add("--fail-at", default=default.fail_at, metavar="N[-M]", help="these allocations from the driver fail")
    add("--copy-speed", default="0", help="bytes per second between host and GPU; 0 for no time", **size)
    add("--driver", default=default.driver, metavar="X.Y", help="newest CUDA version of the driver; empty for any")
    add("--no-kernel-image", action="store_true", help="every kernel launch fails, as on a GPU too old for torch")
    add("--log", action="store_true", help="print every allocation from the driver")
    add("command", nargs="+", metavar="COMMAND", help="the command and its arguments")
    return parser


def _size(text: str) -> int:
    try:
        return parse_bytes(text)
    except ValueError as error:
        raise argparse.ArgumentTypeError(str(error)) from None


if __name__ == "__main__":
    main(sys.argv[1:])
