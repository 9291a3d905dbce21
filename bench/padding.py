"""Tokens computed in an epoch, padding included, against the tokens of its texts: shuffled and bucketed by length.

Nothing is trained: the batches follow from the seed. Needs ../shared. Writes records/padding.json.
"""

from __future__ import annotations

import json
from collections.abc import Iterable
from pathlib import Path

import numpy as np

from quality import ROOT, SHARED
from tightfit import Job
from tightfit.data.batches import LengthBuckets, batch_indices
from tightfit.engine.dataset import read_data
from tightfit.models import load_tokenizer
from tightfit.strategies.length_bucketing import LengthBucketing
from tightfit.tasks import find_task

RECORD = ROOT / "records" / "padding.json"
MODEL = "chinese-macbert-large"
MAX_LENGTHS, MICRO_BATCH = (128, 512), 8


def main() -> None:
    shared = Path(SHARED)
    job = Job(model=str(shared / "models" / MODEL), data=str(shared / "data" / "ChnSentiCorp_htl_all.csv"))
    data, tokenizer, task = read_data(job), load_tokenizer(job.model), find_task(job.task)
    rows = data.split.train
    lengths = {limit: task.token_lengths(rows, tokenizer, limit, data.labels) for limit in MAX_LENGTHS}
    runs = [measure(job, limit, lengths[limit]) for limit in MAX_LENGTHS]
    record = {"data": Path(job.data).name, "rows": len(rows), "batch": job.batch_size, "runs": runs}
    RECORD.write_text(json.dumps(record, indent=1) + "\n", "utf-8")
    print(json.dumps(record, indent=1))


def measure(job: Job, max_length: int, lengths: list[int]) -> dict[str, float]:
    buckets = LengthBuckets(lengths, job.batch_size, LengthBucketing().pool)
    computed = {}
    for name, sampler, size in (
        ("baseline", None, job.batch_size),
        ("length-bucketing", buckets, job.batch_size),
        (f"micro-batch:size={MICRO_BATCH}", None, MICRO_BATCH),
        (f"micro-batch:size={MICRO_BATCH} length-bucketing", buckets, MICRO_BATCH),
    ):
        batches = [np.sort(np.array(lengths)[batch])[::-1] for batch in batch_indices(job, len(lengths), sampler)]
        computed[name] = padded_tokens(batches, size) / sum(lengths)
    return {"length": max_length, **computed}


def padded_tokens(batches: Iterable[np.ndarray], size: int) -> int:
    """Each micro-batch is padded to its longest text, which comes first."""
    parts = [batch[start : start + size] for batch in batches for start in range(0, len(batch), size)]
    return sum(len(part) * int(part[0]) for part in parts)


if __name__ == "__main__":
    main()
