"""Default run folders: a new one is named by model and data and numbered; a resumed one is the newest unfinished."""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

from tightfit.errors import BadInput, TightfitError
from tightfit.job import Job, read_job_file
from tightfit.messages import msg
from tightfit.runs.folder import JOB_FILE
from tightfit.runs.header import FILE as HEADER_FILE
from tightfit.runs.record import FILE as RECORD_FILE
from tightfit.runs.record import load_run
from tightfit.runs.resume_checks import CHANGEABLE

RUNS = Path("runs")
_LONGEST = 40  # characters of a name


def new_run_folders(job: Job) -> Iterator[Path]:
    """`runs/MODEL-DATA-NUMBER`, from the first number that no run of this name has reached."""
    title = f"{_name_of(job.model)}-{_name_of(job.data)}"
    number = 1 + max((_number_of(path, title) for path in RUNS.glob("*")), default=0)
    while True:
        yield RUNS / f"{title}-{number}"
        number += 1


def _name_of(source: str) -> str:
    """The last part of a hub id or a path, in characters that need no quotes."""
    path = Path(source)
    last = path.parent.name if path.name == "model" else path.name
    name = re.sub(r"[^\w.+-]+", "-", last.removesuffix(path.suffix) if path.is_file() else last)
    return name.strip("-.")[:_LONGEST] or "run"


def _number_of(path: Path, title: str) -> int:
    number = path.name.removeprefix(f"{title}-")
    return int(number) if number.isdecimal() else 0


def unfinished_run(settings: Mapping[str, Any]) -> Path:
    """The newest run under `runs` of these settings that has something left to do; more epochs are that too."""
    found = [path.parent for path in RUNS.glob(f"*/{JOB_FILE}") if _is_unfinished(path.parent, settings)]
    if not found:
        raise BadInput(
            msg("There is no unfinished run of this job under '{folder}': name one with --out.", folder=RUNS)
        )
    return max(found, key=_last_started)


def _is_unfinished(folder: Path, settings: Mapping[str, Any]) -> bool:
    try:
        job = Job(**read_job_file(folder / JOB_FILE)[0])
        wanted = job.model_copy(update=dict(settings)).resolve_paths()
        if any(getattr(wanted, name) != getattr(job, name) for name in Job.model_fields if name not in CHANGEABLE):
            return False
        if not (folder / RECORD_FILE).is_file():
            return True
        done = load_run(folder).job
    except TightfitError:
        return False
    return any(getattr(wanted, name) != getattr(done, name) for name in CHANGEABLE)


def _last_started(folder: Path) -> float:
    header = folder / HEADER_FILE
    return header.stat().st_mtime if header.is_file() else 0.0
