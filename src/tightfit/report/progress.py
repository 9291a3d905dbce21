"""Progress on stderr: what is under way, and rows; a spinner or a bar in a terminal, lines in a log file."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator
from typing import TYPE_CHECKING

from rich.console import Console
from rich.status import Status

from tightfit.activity import Activities, activity
from tightfit.comparison.comparison import Comparison
from tightfit.i18n import render
from tightfit.messages import Message
from tightfit.report.bars import RowProgress
from tightfit.report.comparison_progress import ComparisonProgress
from tightfit.strategies.recipe import Recipe

if TYPE_CHECKING:
    from tightfit.engine.meter import Meter
    from tightfit.report.training_progress import Progress
    from tightfit.tasks.quality import Scoring


class Terminal:
    """Log lines and progress bars on stderr, so that stdout has nothing but results; silent if `quiet`."""

    def __init__(self, *, quiet: bool = False) -> None:
        self.quiet = quiet
        self.console = Console(stderr=True, quiet=quiet, highlight=False, soft_wrap=True)
        self._spinner: Status | None = None

    def log(self, line: Message) -> None:
        """Print one line, in the language of the command line."""
        self.console.print(f"· {render(line)}", markup=False)

    @contextlib.contextmanager
    def status(self, what: Message) -> Iterator[None]:
        """Show what is under way, and the activities inside it."""
        with Activities(self).followed(), activity(what):
            yield

    @contextlib.contextmanager
    def show(self, what: Message, *, own_output: bool = False) -> Iterator[None]:
        """Beside a spinner, which `own_output` would break, or as a line."""
        text = f"{render(what)} …"
        if not self.console.is_terminal or own_output:
            with self._without_spinner():
                self.console.print(f"  {text}", markup=False)
                yield
        elif self._spinner is None:
            with self._spinning(text):
                yield
        else:
            before = self._spinner.status
            self._spinner.update(text)
            try:
                yield
            finally:
                self._spinner.update(before)

    @contextlib.contextmanager
    def _spinning(self, text: str) -> Iterator[None]:
        try:
            with self.console.status(text) as self._spinner:
                yield
        finally:
            self._spinner = None

    @contextlib.contextmanager
    def _without_spinner(self) -> Iterator[None]:
        self._stop_spinner()
        try:
            yield
        finally:
            if self._spinner is not None:
                self._spinner.start()

    @contextlib.contextmanager
    def progress(self, meter: Meter, scoring: Scoring) -> Iterator[Progress]:
        """The progress bar of a training run; it is removed also after an error."""
        from tightfit.report.training_progress import Progress

        progress = Progress(self.console, meter, scoring)
        try:
            yield progress
        finally:
            progress.stop()

    @contextlib.contextmanager
    def rows(self, what: Message) -> Iterator[RowProgress]:
        """The progress of work on rows, after what comes before the first of them."""
        progress = RowProgress(self.console, what, self._stop_spinner)
        try:
            with self.status(what):
                yield progress
        finally:
            progress.stop()

    def _stop_spinner(self) -> None:
        if self._spinner is not None:
            self._spinner.stop()

    def comparison(self, comparison: Comparison, recipes: list[Recipe], seeds: int) -> ComparisonProgress:
        """The progress bar of a comparison."""
        return ComparisonProgress(self.console, comparison, recipes, seeds)
