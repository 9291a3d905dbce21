"""Which run `train --resume` continues."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from tightfit.cli.startup import command_terminal
from tightfit.job import read_job_file
from tightfit.messages import msg
from tightfit.runs.default_folder import unfinished_run


def folder_to_resume(file: Path | None, settings: Mapping[str, Any], *, quiet: bool) -> Path:
    """For --resume without --out: the newest unfinished run of these settings."""
    values = read_job_file(file)[0] if file else {}
    folder = unfinished_run({**values, **settings})
    command_terminal(quiet=quiet).log(msg("{folder} is the newest unfinished run", folder=folder))
    return folder
