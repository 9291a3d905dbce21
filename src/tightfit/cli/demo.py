"""The demo command: it runs plan and train as a user would, each in a process of its own, and shows both commands."""

from __future__ import annotations

import shlex
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path

from tightfit.cli.output import stdout
from tightfit.demo import Demo
from tightfit.i18n import current_language, render
from tightfit.messages import Message, msg


def run_demo(demo: Demo, folder: Path, budget: str, *, as_json: bool) -> None:
    """Plan for the budget and train the plan, which also writes a report; ends with the exit code of what fails."""
    if demo.note and not as_json:
        _print(demo.note)
    plan = f"{folder}.yaml"
    job = ("--model", demo.job.model, "--data", demo.job.data, "--device", "cpu")
    changed = demo.job.model_dump(exclude_defaults=True, exclude={"model", "data"})
    settings = [word for key, value in changed.items() for word in (f"--{key.replace('_', '-')}", f"{value:g}")]
    _run(["plan", *job, *settings, "--budget", budget, "--out", plan], as_json=as_json, shown=not as_json)
    _run(["train", plan, "--out", str(folder)], as_json=as_json)
    if not as_json:
        _print(_next_steps(demo, folder))


def _run(arguments: Sequence[str], *, as_json: bool, shown: bool = True) -> None:
    """Run a command of tightfit in the language of this one; Ctrl-C ends it too, in its own way."""
    if not as_json:
        _print(f"$ {shlex.join(['tightfit', *arguments])}")
    command = [sys.executable, "-m", "tightfit", *arguments, "--lang", current_language(), *["--json"] * as_json]
    process = subprocess.Popen(command, stdout=None if shown else subprocess.DEVNULL)
    try:
        code = process.wait()
    except KeyboardInterrupt:
        code = process.wait()
    if code:
        raise SystemExit(code)


def _print(text: str) -> None:
    stdout().print(f"\n{render(text)}", markup=False)
    sys.stdout.flush()


def _next_steps(demo: Demo, folder: Path) -> Message:
    return msg(
        'Try it:        tightfit predict {folder} "{text}"\n'
        "On your file:  tightfit train --model bert-base-chinese --data reviews.csv --budget 4GB --out runs/mine\n"
        "               (it needs a text or review column and a label column; --text and --label select others)\n"
        "Its plan:      tightfit plan --model bert-base-chinese --data reviews.csv --budget 4GB",
        folder=folder,
        text=demo.example,
    )
