"""Beside: a job's data is read on another core while this one still imports torch.

Both take seconds and neither needs the other. Where there is no fork, or no second core, it is read when it is asked
for, as it is by everyone who did not begin early.
"""

from __future__ import annotations

import multiprocessing
import os
import sys
from multiprocessing.connection import Connection
from pathlib import Path

from tightfit.cores import cores
from tightfit.data.reading import Glance, glance_at
from tightfit.job import Job

_begun: dict[Job, Connection] = {}


def begin_reading(job: Job) -> None:
    """Only before torch is there: the other process begins small, and no thread's locks are copied into it."""
    if "torch" in sys.modules or cores() < 2 or not Path(job.data).is_file():
        return
    mine, its = multiprocessing.Pipe(duplex=False)
    process = multiprocessing.get_context("fork").Process(target=_read, args=(job, its), daemon=True)
    process.start()
    its.close()
    _begun[job] = mine


def glance_beside(job: Job) -> Glance:
    """What was read beside, or is read now. What went wrong there goes wrong again, aloud."""
    begun = _begun.pop(job, None)
    if begun is None:
        return glance_at(job)
    try:
        with begun:
            glance: Glance | None = begun.recv()
    except (EOFError, OSError):
        glance = None
    return glance if glance is not None else glance_at(job)


def stop_reading(job: Job) -> None:
    """Nobody asks for what is read beside any more: a later call reads the file as it is then."""
    begun = _begun.pop(job, None)
    if begun is not None:
        begun.close()


def _read(job: Job, answer: Connection) -> None:
    # Nothing is said here: stdout and stderr belong to the one who waits.
    with Path(os.devnull).open("w") as nowhere:
        for stream in (1, 2):
            os.dup2(nowhere.fileno(), stream)
    sys.modules.setdefault("torch", None)  # type: ignore[arg-type]  # tokenizers do without, and it takes long to import
    try:
        answer.send(glance_at(job))
    except Exception:
        answer.send(None)
