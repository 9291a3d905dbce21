"""Prefetch: data read in another process equals data read in this one."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from dataclasses import asdict
from pathlib import Path

import pytest

from tightfit import Job
from tightfit.engine import dataset
from tightfit.engine.dataset import read_stats
from tightfit.system.processes import usable_cpus

_PREFETCH = """
import json, multiprocessing, sys
from dataclasses import asdict
from tightfit.engine import dataset
from tightfit.job import Job

job = Job(model=sys.argv[1], data=sys.argv[2])
with dataset.prefetching(job):
    dataset.read_stats = lambda job: "read here"
    stats = dataset.prefetched_stats(job)
print(json.dumps(stats if isinstance(stats, str) else asdict(stats)))
for process in multiprocessing.active_children():
    process.join()
"""


def run_prefetch(model: Path, data: Path, cache: Path) -> object:
    command = [sys.executable, "-c", _PREFETCH, str(model), str(data)]
    done = subprocess.run(command, capture_output=True, check=True, env={**os.environ, "HF_DATASETS_CACHE": str(cache)})
    assert not done.stderr
    return json.loads(done.stdout)


@pytest.mark.skipif(usable_cpus() < 2, reason="needs two cores and fork")
def test_prefetch_reads_in_another_process_and_leaves_no_files(tiny_model: Path, reviews: Path, tmp_path: Path) -> None:
    cache = tmp_path / "cache"
    here = read_stats(Job(model=str(tiny_model), data=str(reviews)))
    assert run_prefetch(tiny_model, reviews, cache) == json.loads(json.dumps(asdict(here)))
    assert cache.is_dir()
    assert not list(cache.iterdir())


def test_data_is_read_here_if_the_prefetch_fails(tiny_model: Path, tmp_path: Path) -> None:
    empty = tmp_path / "empty.csv"
    empty.write_text("")
    assert run_prefetch(tiny_model, empty, tmp_path / "cache") == "read here"


def test_no_prefetch_once_torch_is_imported(tiny_model: Path, reviews: Path) -> None:
    import torch  # noqa: F401

    job = Job(model=str(tiny_model), data=str(reviews))
    with dataset.prefetching(job):
        assert dataset._prefetched.get() is None
        assert dataset.prefetched_stats(job) == read_stats(job)


_CANCEL = """
import sys
from tightfit.engine import dataset
from tightfit.job import Job

job = Job(model=sys.argv[1], data=sys.argv[2])
with dataset.prefetching(job):
    _, prefetch = dataset._prefetched.get()
dataset.read_stats = lambda job: "read here"
print(prefetch._receiver.closed, dataset.prefetched_stats(job))
"""


@pytest.mark.skipif(usable_cpus() < 2, reason="needs two cores and fork")
def test_a_prefetch_that_was_not_collected_is_not_used_by_a_later_call(tiny_model: Path, reviews: Path) -> None:
    """The file may have changed by then."""
    command = [sys.executable, "-c", _CANCEL, str(tiny_model), str(reviews)]
    done = subprocess.run(command, capture_output=True, text=True, check=True)
    assert done.stdout.split(maxsplit=1) == ["True", "read here\n"]
    assert not done.stderr
