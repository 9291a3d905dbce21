"""The order of rows is known beforehand: it is the one that the trainer's loader deals out."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch

from tightfit import Job
from tightfit.data.batches import batches_of, num_steps
from tightfit.simulation.worst_case import Lengths


def job(**changes: object) -> Job:
    return Job(**{"model": "m", "data": "d", "batch_size": 4, "seed": 7, **changes})


@pytest.mark.parametrize("epochs", [1, 3])
def test_batches_are_those_of_transformers(tmp_path: Path, epochs: int) -> None:
    import transformers

    seen: list[list[int]] = []

    class Watching(transformers.Trainer):
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
    Watching(model, arguments, train_dataset=rows, data_collator=transformers.default_data_collator).train()
    assert seen == [batch.tolist() for batch in batches_of(job(epochs=epochs), 10)]


@pytest.mark.parametrize("use", ["length-bucketing", "length-bucketing:pool=2"])
def test_buckets_are_dealt_out_as_foretold(
    tiny_model: Path, reviews: Path, tmp_path: Path, use: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The texts that the model meets, batch by batch, are those of which the bill was made; every row comes once."""
    from tightfit.device import find_device
    from tightfit.strategies.recipe import Recipe
    from tightfit.training.run import train
    from tightfit.training.setup import buckets_of, prepare
    from tightfit.training.trainer import Trainer

    seen: list[list[int]] = []
    plain = Trainer.training_step

    def watched(self, model, inputs, num_items_in_batch=None):  # type: ignore[no-untyped-def]
        seen.append(inputs["attention_mask"].sum(dim=1).tolist())
        return plain(self, model, inputs, num_items_in_batch)

    given = Job(model=str(tiny_model), data=str(reviews), batch_size=8, max_length=32, epochs=2)
    setup = prepare(given, Recipe.parse([use]), find_device("cpu"))
    monkeypatch.setattr(Trainer, "training_step", watched)
    train(given, [use], out=tmp_path / "run", device="cpu", quiet=True, preflight=False)
    lengths, buckets = setup.train.lengths, buckets_of(setup.parts, setup.train)
    dealt = [batch.tolist() for batch in batches_of(given, len(lengths), buckets)]
    assert seen == [[lengths[row] for row in batch] for batch in dealt]
    assert sorted(row for batch in dealt[: len(dealt) // 2] for row in batch) == list(range(len(lengths)))
    predicted = Lengths.of(given, lengths, setup.validation.lengths)._batches(setup.parts)
    assert [[n for n in row if n] for row in predicted.tolist()] == [sorted(batch, reverse=True) for batch in seen]


def test_buckets_leave_little_padding() -> None:
    import numpy as np

    from tightfit.data.batches import LengthBuckets

    lengths = np.random.default_rng(0).integers(5, 129, size=1000)
    settings = job(batch_size=32)

    def computed(buckets: LengthBuckets | None) -> int:
        return sum(len(batch) * int(lengths[batch].max()) for batch in batches_of(settings, 1000, buckets))

    assert computed(LengthBuckets(lengths.tolist(), 32, 10)) < 1.15 * lengths.sum()
    assert computed(None) > 1.7 * lengths.sum()


def test_steps() -> None:
    assert num_steps(job(), 10) == 3
    assert num_steps(job(epochs=1.5), 10) == 5
    assert num_steps(job(max_steps=2), 10) == 2
    assert len(list(batches_of(job(max_steps=7), 10))) == 7


def test_the_worst_slice_is_one_that_comes(monkeypatch: pytest.MonkeyPatch) -> None:
    """One long text alone makes one long slice, not two; with few steps it may not come at all."""
    from parts import parts_of

    lengths = [5] * 40
    lengths[17] = 24
    found = Lengths.of(job(), lengths, [6, 3])
    shapes = found.worst(parts_of("micro-batch:size=2"))
    assert ((2, 24), (2, 5)) in (shapes.slices, shapes.first)
    batch = next(i for i, rows in enumerate(batches_of(job(), 40)) if 17 in rows)
    assert shapes.batch == batch + 1
    assert f"batch {batch + 1} of 10" in str(shapes)
    if batch:
        early = Lengths.of(job(max_steps=batch), lengths, [6, 3])
        assert early.worst(parts_of("micro-batch:size=2")).slices == ((2, 5), (2, 5))


def test_the_largest_batch_counts_also_if_it_is_the_first() -> None:
    """Before the first step it is tried out with the optimizer's state in memory."""
    from parts import parts_of

    lengths = [5] * 40
    lengths[int(next(batches_of(job(), 40))[0])] = 24
    for use in ("micro-batch:size=2", "chunked-layers:size=2"):
        shapes = Lengths.of(job(), lengths, [6, 3]).worst(parts_of(use))
        assert shapes.slices[0][1] == 24
        assert shapes.texts is None or sorted(shapes.texts) == [5, 5, 5, 24]


def test_lengths_are_those_of_the_encoded_rows(tiny_model: Path, reviews: Path) -> None:
    from tightfit.data.row_file import store_rows
    from tightfit.data.rows import load_rows
    from tightfit.data.tokens import encode, token_lengths
    from tightfit.models import load_tokenizer

    rows, _ = load_rows(str(reviews))
    tokenizer = load_tokenizer(str(tiny_model))
    pairs = store_rows(
        ({"text": text, "text_pair": text[:10]} for text in rows.dataset["text"]), {"text": str, "text_pair": str}
    )
    for dataset in (rows.dataset, pairs):
        assert token_lengths(dataset, tokenizer, 12) == encode(dataset, tokenizer, 12).lengths
    assert max(token_lengths(rows.dataset, tokenizer, 99)) > 12
