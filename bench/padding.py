"""How many tokens an epoch computes against those of its texts: rows that meet by chance, and in buckets.

Nothing is trained: which rows meet follows from the seed. Needs ../shared. Writes records/padding.json.
"""

from __future__ import annotations

import json
from collections.abc import Iterable
from pathlib import Path

import numpy as np

from quality import ROOT, SHARED
from tightfit import Job
from tightfit.data.batches import LengthBuckets, batches_of
from tightfit.data.dataset import read_data
from tightfit.data.tokens import token_lengths
from tightfit.models import load_tokenizer
from tightfit.strategies.length_bucketing import Bucket

RECORD = ROOT / "records" / "padding.json"
MODEL = "chinese-macbert-large"
LIMITS, SLICE = (128, 512), 8


def main() -> None:
    shared = Path(SHARED)
    job = Job(model=str(shared / "models" / MODEL), data=str(shared / "data" / "ChnSentiCorp_htl_all.csv"))
    rows, tokenizer = read_data(job).split.train, load_tokenizer(job.model)
    runs = [one(job, limit, token_lengths(rows, tokenizer, limit)) for limit in LIMITS]
    record = {"data": Path(job.data).name, "rows": len(rows), "batch": job.batch_size, "runs": runs}
    RECORD.write_text(json.dumps(record, indent=1) + "\n", "utf-8")
    print(json.dumps(record, indent=1))


def one(job: Job, limit: int, lengths: list[int]) -> dict[str, float]:
    buckets = LengthBuckets(lengths, job.batch_size, Bucket().pool)
    computed = {}
    for name, how, at_once in (
        ("plain", None, job.batch_size),
        ("length-bucketing", buckets, job.batch_size),
        (f"micro-batch:size={SLICE}", None, SLICE),
        (f"micro-batch:size={SLICE} length-bucketing", buckets, SLICE),
    ):
        batches = [np.sort(np.array(lengths)[batch])[::-1] for batch in batches_of(job, len(lengths), how)]
        computed[name] = tokens(batches, at_once) / sum(lengths)
    return {"length": limit, **computed}


def tokens(batches: Iterable[np.ndarray], at_once: int) -> int:
    """Every slice is padded to its longest text, which comes first."""
    slices = [batch[start : start + at_once] for batch in batches for start in range(0, len(batch), at_once)]
    return sum(len(piece) * int(piece[0]) for piece in slices)


if __name__ == "__main__":
    main()
