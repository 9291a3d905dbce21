"""Row order: the predicted batches are those that the trainer's data loader delivers."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch

from tightfit import Job, train
from tightfit.data.batches import batch_indices, num_steps
from tightfit.simulation.worst_case import Lengths


def job(**changes: object) -> Job:
    return Job(**{"model": "m", "data": "d", "batch_size": 4, "seed": 7, **changes})


@pytest.mark.parametrize("epochs", [1, 3])
def test_batches_equal_those_of_transformers(tmp_path: Path, epochs: int) -> None:
    import transformers

    seen: list[list[int]] = []

    class Recording(transformers.Trainer):
        def training_step(self, model, inputs, num_items_in_batch=None):  # type: ignore[no-untyped-def]
            seen.append(inputs["labels"].tolist())
            return torch.zeros(())

    arguments = transformers.TrainingArguments(
        output_dir=str(tmp_path),
        per_device_train_batch_size=4,
        num_train_epochs=epochs,
        seed=7,
        use_cpu=True,
        report_to="none",
        disable_tqdm=True,
        save_strategy="no",
        remove_unused_columns=False,
    )
    rows = [{"labels": number} for number in range(10)]
    model = torch.nn.Linear(1, 1)
    Recording(model, arguments, train_dataset=rows, data_collator=transformers.default_data_collator).train()
    assert seen == [batch.tolist() for batch in batch_indices(job(epochs=epochs), 10)]


@pytest.mark.parametrize("use", ["length-bucketing", "length-bucketing:pool=2"])
def test_length_buckets_are_delivered_as_predicted(
    tiny_model: Path, reviews: Path, tmp_path: Path, use: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The model gets the batches that the estimate was made for, and every row once per epoch."""
    from tightfit.device import find_device
    from tightfit.strategies.recipe import Recipe
    from tightfit.training.setup import buckets_of, prepare
    from tightfit.training.trainer import Trainer

    seen: list[list[int]] = []
    training_step = Trainer.training_step

    def recorded(self, model, inputs, num_items_in_batch=None):  # type: ignore[no-untyped-def]
        seen.append(inputs["attention_mask"].sum(dim=1).tolist())
        return training_step(self, model, inputs, num_items_in_batch)

    bucket_job = Job(model=str(tiny_model), data=str(reviews), batch_size=8, max_length=32, epochs=2)
    setup = prepare(bucket_job, Recipe.parse([use]), find_device("cpu"))
    monkeypatch.setattr(Trainer, "training_step", recorded)
    train(bucket_job, [use], out=tmp_path / "run", device="cpu", quiet=True, preflight=False)
    lengths, buckets = setup.train.lengths, buckets_of(setup.parts, setup.train)
    expected = [batch.tolist() for batch in batch_indices(bucket_job, len(lengths), buckets)]
    assert seen == [[lengths[row] for row in batch] for batch in expected]
    assert sorted(row for batch in expected[: len(expected) // 2] for row in batch) == list(range(len(lengths)))
    predicted = Lengths.of(bucket_job, lengths, setup.validation.lengths)._sampled_batches(setup.parts.batching)
    assert [[n for n in row if n] for row in predicted.tolist()] == [sorted(batch, reverse=True) for batch in seen]


def test_length_buckets_reduce_padding() -> None:
    import numpy as np

    from tightfit.data.batches import LengthBuckets

    lengths = np.random.default_rng(0).integers(5, 129, size=1000)
    settings = job(batch_size=32)

    def computed(buckets: LengthBuckets | None) -> int:
        return sum(len(batch) * int(lengths[batch].max()) for batch in batch_indices(settings, 1000, buckets))

    assert computed(LengthBuckets(lengths.tolist(), 32, 10)) < 1.15 * lengths.sum()
    assert computed(None) > 1.7 * lengths.sum()


def test_num_steps() -> None:
    assert num_steps(job(), 10) == 3
    assert num_steps(job(epochs=1.5), 10) == 5
    assert num_steps(job(max_steps=2), 10) == 2
    assert len(list(batch_indices(job(max_steps=7), 10))) == 7


def test_the_worst_micro_batch_is_one_that_occurs(monkeypatch: pytest.MonkeyPatch) -> None:
    """A single long text makes one long micro-batch, not two; with few steps it may not occur at all."""
    from parts import parts_of

    lengths = [5] * 40
    lengths[17] = 24
    found = Lengths.of(job(), lengths, [6, 3])
    shapes = found.worst_shapes(parts_of("micro-batch:size=2"))
    assert shapes.micro_batches == ((2, 24), (2, 5))
    assert shapes.first_step == (1, 5)
    batch = next(i for i, rows in enumerate(batch_indices(job(), 40)) if 17 in rows)
    assert shapes.batch == batch + 1
    assert f"batch {batch + 1} of 10" in str(shapes)
    if batch:
        early = Lengths.of(job(max_steps=batch), lengths, [6, 3])
        assert early.worst_shapes(parts_of("micro-batch:size=2")).micro_batches == ((2, 5), (2, 5))


def test_the_largest_batch_counts_even_if_it_is_the_first() -> None:
    """The preflight runs it before the first step with the optimizer state in memory."""
    from parts import parts_of

    lengths = [5] * 40
    lengths[int(next(batch_indices(job(), 40))[0])] = 24
    for use in ("micro-batch:size=2", "chunked-layers:size=2"):
        shapes = Lengths.of(job(), lengths, [6, 3]).worst_shapes(parts_of(use))
        assert shapes.micro_batches[0][1] == 24
        assert shapes.lengths is None or sorted(shapes.lengths) == [5, 5, 5, 24]
