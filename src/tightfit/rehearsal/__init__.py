"""Rehearsal: the memory bill of a training before its first step, without weights."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

from tightfit.device import Device, find_device
from tightfit.errors import BadInput, ModelError
from tightfit.job import Job
from tightfit.recipe import Recipe
from tightfit.rehearsal.bill import Bill

if TYPE_CHECKING:
    from transformers import PreTrainedTokenizerBase

    from tightfit.data.labels import Labels
    from tightfit.rehearsal.lengths import Lengths


def rehearse(job: Job, use: str | Sequence[str] = (), device: str | None = None) -> Bill:
    """Say what a training will take: bytes by moment and kind, from the model's shape and the data's lengths."""
    from tightfit.data.tokens import encode
    from tightfit.preparation import read_data
    from tightfit.rehearsal.lengths import Lengths
    from tightfit.weights import load_tokenizer

    where, recipe = find_device(device or "cpu"), Recipe.parse([use] if isinstance(use, str) else use)
    data, tokenizer = read_data(job), load_tokenizer(job.model)
    tokens = [encode(part, tokenizer, job.max_length) for part in (data.split.train, data.split.validation)]
    return make_bill(job, recipe, where, data.labels, tokenizer, Lengths.of(*tokens))


def make_bill(
    job: Job, recipe: Recipe, device: Device, labels: Labels, tokenizer: PreTrainedTokenizerBase, lengths: Lengths
) -> Bill:
    """Play the training on shapes and add it up; what the process holds already is the overhead."""
    from torch._subclasses.fake_tensor import DataDependentOutputException, DynamicOutputShapeException

    from tightfit.rehearsal.bill import moments_of
    from tightfit.rehearsal.stage import play

    if device.kind != "cpu":
        raise BadInput(f"A bill for '{device.name}' cannot be made yet: use --device cpu.")
    overhead = _process_bytes(device)
    try:
        performance = play(job, recipe, device, labels, tokenizer, lengths)
    except (DataDependentOutputException, DynamicOutputShapeException) as error:
        raise ModelError(
            f"'{job.model}' cannot be rehearsed: its code looks at the data ({error.func}), which a rehearsal has not."
        ) from error
    return Bill(
        moments=moments_of(performance.tape),
        overhead=overhead,
        device=device.title,
        parameters=performance.parts.parameters,
        trainable_parameters=performance.parts.trainable_parameters,
        worst=str(performance.shapes),
    )


def _process_bytes(device: Device) -> int:
    """What this process holds with everything loaded that a training loads."""
    import sklearn.metrics  # noqa: F401

    import tightfit.trainer  # noqa: F401
    from tightfit.meter import meter_for

    return meter_for(device).gauge.now()
