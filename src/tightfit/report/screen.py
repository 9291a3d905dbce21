"""The screen: lines and progress on standard error, so that standard output stays free for results."""

from __future__ import annotations

import contextlib
import os
import sys
from collections.abc import Iterator
from typing import TYPE_CHECKING

from rich.console import Console

if TYPE_CHECKING:
    from tightfit.meter import Meter
    from tightfit.report.progress import Progress


class Screen:
    """Says what is going on, or nothing when quiet."""

    def __init__(self, *, quiet: bool = False) -> None:
        self.console = Console(stderr=True, quiet=quiet, highlight=False, soft_wrap=True)
        _silence_libraries()

    def say(self, line: str) -> None:
        """One line for the user."""
        self.console.print(f"· {line}", markup=False)

    @contextlib.contextmanager
    def status(self, what: str) -> Iterator[None]:
        """Something that takes a moment."""
        with self.console.status(f"{what} …"):
            yield

    @contextlib.contextmanager
    def progress(self, meter: Meter) -> Iterator[Progress]:
        """The training's progress bar; the terminal is given back whatever happens."""
        from tightfit.report.progress import Progress

        progress = Progress(self.console, meter)
        try:
            yield progress
        finally:
            progress.bar.stop()


def _silence_libraries() -> None:
    """The libraries' own progress bars and reports would tear ours apart."""
    from transformers.utils import logging

    datasets = sys.modules.get("datasets")
    if datasets is not None:
        datasets.disable_progress_bars()
    else:  # it takes a second to import, and few commands read what it reads
        os.environ.setdefault("HF_DATASETS_DISABLE_PROGRESS_BARS", "1")
    logging.disable_progress_bar()
    logging.set_verbosity_error()
