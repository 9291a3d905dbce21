"""Rehearsal: the memory bill of a training before its first step, without weights."""

from __future__ import annotations

from collections.abc import Sequence

from tightfit.device import find_device
from tightfit.errors import BadInput, ModelError
from tightfit.job import Job
from tightfit.recipe import Recipe
from tightfit.rehearsal.bill import Bill


def rehearse(job: Job, use: str | Sequence[str] = (), device: str | None = None) -> Bill:
    """Say what a training will take: bytes by moment and kind, from the model's shape and the data's lengths."""
    from torch._subclasses.fake_tensor import DataDependentOutputException, DynamicOutputShapeException

    from tightfit.data.tokens import encode
    from tightfit.meter import meter_for
    from tightfit.preparation import read_data
    from tightfit.rehearsal.bill import moments_of
    from tightfit.rehearsal.lengths import Lengths
    from tightfit.rehearsal.stage import play
    from tightfit.weights import load_tokenizer

    where, recipe = find_device(device or "cpu"), Recipe.parse([use] if isinstance(use, str) else use)
    if where.kind != "cpu":
        raise BadInput(f"A bill for '{where.name}' cannot be made yet: use --device cpu.")
    data, tokenizer = read_data(job), load_tokenizer(job.model)
    tokens = [encode(part, tokenizer, job.max_length) for part in (data.split.train, data.split.validation)]
    overhead = meter_for(where).gauge.now()
    try:
        performance = play(job, recipe, where, data.labels, tokenizer, Lengths.of(*tokens))
    except (DataDependentOutputException, DynamicOutputShapeException) as error:
        raise ModelError(
            f"'{job.model}' cannot be rehearsed: its code looks at the data ({error.func}), which a rehearsal has not."
        ) from error
    return Bill(
        moments=moments_of(performance.tape),
        overhead=overhead,
        device=where.title,
        parameters=performance.parts.parameters,
        trainable_parameters=performance.parts.trainable_parameters,
        worst=str(performance.shapes),
    )
