"""Progress on stderr: activities, steps and rows, as lines in a log file and as a bar in a terminal."""

from __future__ import annotations

from io import StringIO
from types import SimpleNamespace
from typing import Any

import pytest
from rich.console import Console

from tightfit.activity import PLANNING, PREFLIGHT, READING, activity
from tightfit.messages import msg
from tightfit.report import bars
from tightfit.report.bars import RowProgress, _Clock
from tightfit.report.progress import Terminal
from tightfit.report.training_progress import Progress
from tightfit.tasks import find_task


@pytest.fixture
def clock(monkeypatch: pytest.MonkeyPatch) -> SimpleNamespace:
    """The time, which only a test advances."""
    now = SimpleNamespace(seconds=1000.0)
    monkeypatch.setattr(bars.time, "monotonic", lambda: now.seconds)
    return now


def console_of(*, terminal: bool = False) -> Console:
    return Console(file=StringIO(), force_terminal=terminal, width=120, highlight=False, soft_wrap=True)


def text_of(console: Console) -> str:
    assert isinstance(console.file, StringIO)
    return console.file.getvalue()


def terminal_of(console: Console) -> Terminal:
    terminal = Terminal()
    terminal.console = console
    return terminal


class Run:
    """Steps of a training run, as transformers reports them."""

    def __init__(self, console: Console, clock: SimpleNamespace, steps: int, start: int = 0) -> None:
        meter: Any = SimpleNamespace(probe=SimpleNamespace(now=lambda: 812 << 20))
        self.progress = Progress(console, meter, find_task("text-classification"))
        self.clock, self.state = clock, SimpleNamespace(max_steps=steps, global_step=start, epoch=0.0)
        self.call("train_begin")

    def call(self, event: str, **values: Any) -> None:
        getattr(self.progress, f"on_{event}")(None, self.state, None, **values)

    def step(self, loss: float, seconds: float = 1.0) -> None:
        self.call("step_begin")
        self.progress.on_loss(loss)
        self.clock.seconds += seconds
        self.state.global_step += 1
        self.state.epoch = self.state.global_step / 20
        self.call("step_end")


def test_a_line_shows_the_mean_loss_since_the_last_line(clock: SimpleNamespace) -> None:
    """Also in a run that is shorter than the interval at which transformers logs."""
    console = console_of()
    run = Run(console, clock, steps=40)
    run.progress.on_loss(99.0)  # in the pre-flight
    for number in range(1, 10):
        run.step(loss=number / 10)
    assert [line.split("loss ")[1].split()[0] for line in text_of(console).splitlines()] == [
        "0.1000",
        "0.3000",
        "0.6500",
    ]


def test_lines_show_epoch_step_time_memory_and_both_times(clock: SimpleNamespace) -> None:
    console = console_of()
    run = Run(console, clock, steps=10)
    run.step(0.5, seconds=2.0)
    run.clock.seconds += 4.0  # an evaluation
    run.step(0.5, seconds=2.0)
    _, line = text_of(console).splitlines()
    assert line == "  step 2/10  epoch 0.10  loss 0.5000  2.0 s per step  812 MiB  8.0 s elapsed, 32.0 s left"


@pytest.mark.parametrize("terminal", [False, True])
def test_the_time_left_is_known_for_steps_of_minutes(clock: SimpleNamespace, terminal: bool) -> None:
    console = console_of(terminal=terminal)
    run = Run(console, clock, steps=100)
    run.step(0.5, seconds=90.0)
    if not terminal:
        assert text_of(console).endswith("1 min 30 s elapsed, 2 h 28 min left\n")
        return
    run.clock.seconds += 45  # within the second step
    (task,) = run.progress.bar.tasks
    assert str(_Clock().render(task)).partition("<")[2] == "2:27:45"
    run.progress.stop()


def test_a_log_file_gets_a_line_after_some_minutes(clock: SimpleNamespace) -> None:
    console = console_of()
    run = Run(console, clock, steps=10_000)
    for _ in range(20):
        run.step(0.5, seconds=47.0)
    steps = [line.split("/")[0].split()[-1] for line in text_of(console).splitlines()]
    assert steps == ["1", "8", "15"]


def test_a_resumed_run_counts_its_own_steps_only(clock: SimpleNamespace) -> None:
    console = console_of()
    run = Run(console, clock, steps=100, start=90)
    run.step(0.5, seconds=2.0)
    assert text_of(console).endswith(
        "step 91/100  epoch 4.55  loss 0.5000  2.0 s per step  812 MiB  2.0 s elapsed, 18.0 s left\n"
    )


def test_rows_are_counted(clock: SimpleNamespace) -> None:
    console = console_of()
    rows = RowProgress(console, msg("predicting"))
    for done in range(0, 3200, 32):
        rows(done, 3200)
        clock.seconds += 0.1
    rows(3200, 3200)
    lines = text_of(console).splitlines()
    assert lines[0] == "  predicting: 32 of 3,200 rows, 0.1 s elapsed, 9.9 s left"
    assert lines[-1] == "  predicting: 3,200 of 3,200 rows, 10.0 s elapsed, 0.0 s left"
    assert len(lines) == 11


def test_activities_are_lines_in_a_log_file() -> None:
    console = console_of()
    with terminal_of(console).status(PLANNING):
        with activity(READING), activity(READING):
            pass
        with activity(PREFLIGHT):
            pass
    assert text_of(console) == "  planning …\n  reading the data …\n  pre-flight …\n"


def test_an_activity_inside_another_replaces_it_beside_the_spinner() -> None:
    console = console_of(terminal=True)
    terminal, shown = terminal_of(console), []
    with terminal.status(PLANNING):
        assert terminal._spinner is not None
        shown.append(terminal._spinner.status)
        with activity(READING):
            shown.append(terminal._spinner.status)
        shown.append(terminal._spinner.status)
    assert shown == ["planning …", "reading the data …", "planning …"]
    assert terminal._spinner is None


def test_the_spinner_makes_room_for_output_of_others() -> None:
    console = console_of(terminal=True)
    with terminal_of(console).status(PLANNING), activity(READING, own_output=True):
        before = text_of(console)
        console.file.write("50%")
        assert before.endswith("  reading the data …\n")
    assert "50%" in text_of(console)


def test_a_quiet_terminal_shows_nothing(capsys: pytest.CaptureFixture[str]) -> None:
    with Terminal(quiet=True).status(PLANNING), activity(READING):
        pass
    assert capsys.readouterr() == ("", "")
