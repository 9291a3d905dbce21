"""Data that is read by a process beside: the same as if it was read here."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from dataclasses import asdict
from pathlib import Path

import pytest

from tightfit import Job
from tightfit.data import dataset
from tightfit.data.dataset import read_stats
from tightfit.processes import usable_cpus

_AS_A_PROGRAM = """
import json, multiprocessing, sys
from dataclasses import asdict
from tightfit.data import dataset
from tightfit.job import Job

job = Job(model=sys.argv[1], data=sys.argv[2])
dataset.start_prefetch(job)
dataset.read_stats = lambda job: "read here"
glance = dataset.prefetched_stats(job)
print(json.dumps(glance if isinstance(glance, str) else asdict(glance)))
for process in multiprocessing.active_children():
    process.join()
"""


def in_a_new_process(model: Path, data: Path, cache: Path) -> object:
    words = [sys.executable, "-c", _AS_A_PROGRAM, str(model), str(data)]
    done = subprocess.run(words, capture_output=True, check=True, env={**os.environ, "HF_DATASETS_CACHE": str(cache)})
    assert not done.stderr
    return json.loads(done.stdout)


@pytest.mark.skipif(usable_cpus() < 2, reason="needs two cores and fork")
def test_it_is_read_in_another_process_and_nothing_is_left_there(
    tiny_model: Path, reviews: Path, tmp_path: Path
) -> None:
    cache = tmp_path / "cache"
    here = read_stats(Job(model=str(tiny_model), data=str(reviews)))
    assert in_a_new_process(tiny_model, reviews, cache) == json.loads(json.dumps(asdict(here)))
    assert cache.is_dir()
    assert not list(cache.iterdir())


def test_what_cannot_be_read_there_is_read_here(tiny_model: Path, tmp_path: Path) -> None:
    empty = tmp_path / "empty.csv"
    empty.write_text("")
    assert in_a_new_process(tiny_model, empty, tmp_path / "cache") == "read here"


def test_with_torch_nothing_is_begun(tiny_model: Path, reviews: Path) -> None:
    import torch  # noqa: F401

    job = Job(model=str(tiny_model), data=str(reviews))
    dataset.start_prefetch(job)
    assert not dataset._begun
    assert dataset.prefetched_stats(job) == read_stats(job)


_GIVEN_UP = """
import sys
from tightfit.data import dataset
from tightfit.job import Job

job = Job(model=sys.argv[1], data=sys.argv[2])
dataset.start_prefetch(job)
begun = dict(dataset._begun)
dataset.stop_reading(job)
dataset.read_stats = lambda job: "read here"
print(len(begun), all(pipe.closed for pipe in begun.values()), dataset.prefetched_stats(job))
"""


@pytest.mark.skipif(usable_cpus() < 2, reason="needs two cores and fork")
def test_what_nobody_asked_for_is_not_kept_for_a_later_call(tiny_model: Path, reviews: Path) -> None:
    """The file may have changed by then."""
    words = [sys.executable, "-c", _GIVEN_UP, str(tiny_model), str(reviews)]
    done = subprocess.run(words, capture_output=True, text=True, check=True)
    assert done.stdout.split(maxsplit=2) == ["1", "True", "read here\n"]
    assert not done.stderr
