"""Pre-flight: it meets the worst first, and leaves no trace."""

from __future__ import annotations

import gc
from dataclasses import replace
from typing import Any
from unittest import mock

import pytest
from parts import parts_of
from small_machine import SmallMachine
from stress.fixtures import Ground, losses, same_bits

from tightfit import Job
from tightfit.data.batches import LengthBuckets, batches_of
from tightfit.errors import PreflightFailed
from tightfit.training import trainer
from tightfit.training.preflight import find_worst_batch


@pytest.fixture(scope="module")
def ground(tmp_path_factory: pytest.TempPathFactory) -> Ground:
    return Ground(tmp_path_factory.mktemp("flown") / "ground")


@pytest.mark.parametrize(
    "use",
    [
        "chunked-layers:size=4 adafactor optimizer-in-backward",
        "micro-batch:size=3 adamw-16bit",
        "micro-batch:size=3 length-bucketing",
        "lora micro-batch:size=3",
        "freeze",
    ],
)
def test_the_training_is_the_same_bits_with_and_without(ground: Ground, use: str) -> None:
    """Dropout on, also with optimizers that draw random numbers and where checkpoint 0 holds only what learns."""
    name = use.replace(" ", "-").replace(":", "-")
    flown = ground.train(f"{name}-with", use.split(), epochs=1)
    plain = ground.train(f"{name}-without", use.split(), epochs=1, preflight=False)
    assert losses(flown) == losses(plain)
    assert same_bits(ground.weights(f"{name}-with"), ground.weights(f"{name}-without"))


def test_gradients_that_overflow_in_16_bits_are_no_failure(ground: Ground) -> None:
    """A scaler begins with a scale that is too large, then takes a smaller one; a pre-flight has no time for that."""
    run_preflight = trainer.run_preflight

    def overflowing(here: trainer.Trainer, worst: Any) -> float:
        hook = here.model.classifier.weight.register_hook(lambda gradient: gradient * float("inf"))
        try:
            return run_preflight(here, worst)
        finally:
            hook.remove()

    with mock.patch.object(trainer, "fly", overflowing):
        ground.train("overflowing", epochs=1)
    ground.train("calm", epochs=1, preflight=False)
    assert same_bits(ground.weights("overflowing"), ground.weights("calm"))


def test_the_worst_rows_are_those_of_the_largest_slices() -> None:
    job = Job(model="m", data="d", batch_size=8, max_length=24, epochs=2)
    lengths = [5 + (number * 7) % 17 for number in range(50)]
    lengths[33] = 200  # is cut
    worst = find_worst_batch(job, parts_of("micro-batch:size=2"), lengths, [3, 9, 4])
    batch = next(batch for batch in batches_of(job, 50) if 33 in batch)
    assert worst.train[0] == 33
    assert set(worst.train) <= {int(row) for row in batch}
    assert len(worst.train) == 4
    assert worst.evaluation == [1, 2, 0]
    layered = find_worst_batch(job, replace(parts_of("chunked-layers:size=2"), max_length=24), lengths, [3])
    tokens = [sum(min(24, lengths[row]) for row in batch) for batch in batches_of(job, 50)]
    assert sum(min(24, lengths[row]) for row in layered.train) == max(tokens)


def test_of_slices_by_tokens_all_of_a_batch_are_tried_out() -> None:
    """Any of them may be the largest; here many short texts have more tokens than any few long ones."""
    job = Job(model="m", data="d", batch_size=8, max_length=24)
    short = {int(row) for row in list(batches_of(job, 50))[2]}
    lengths = [13 if row in short else 20 for row in range(50)]
    worst = find_worst_batch(job, parts_of("micro-batch:tokens=39"), lengths, [3])
    assert set(worst.train) == short


def test_the_worst_rows_are_those_that_the_recipe_makes() -> None:
    """Rows of like length meet; of a text that a frozen trunk has read one token is left, and all go at once."""
    job = Job(model="m", data="d", batch_size=8, max_length=24)
    lengths = [5 + (number * 7) % 17 for number in range(50)]
    buckets = LengthBuckets(lengths, 8, 3)
    worst = find_worst_batch(job, parts_of("micro-batch:size=2", "length-bucketing:pool=3"), lengths, [3], buckets)
    longest_first = [sorted(batch.tolist(), key=lambda row: -lengths[row]) for batch in batches_of(job, 50, buckets)]
    assert worst.train in [batch[:4] for batch in longest_first]
    assert lengths[worst.train[0]] == max(lengths)
    frozen = find_worst_batch(job, parts_of("micro-batch:size=2", "freeze"), lengths, [3, 9, 4])
    assert sorted(frozen.train) in [sorted(batch.tolist()) for batch in batches_of(job, 50)]
    assert len(frozen.train) == 8


def test_what_does_not_fit_is_found_before_the_first_step(ground: Ground) -> None:
    """And what fits only in smaller slices is trained in them from the first step on."""
    with SmallMachine(rows=3).training_on() as machine:
        run = ground.train("hungry", epochs=1)
        assert run.steps == 7
        assert next(note for note in run.notes if "out of memory" in note).startswith("out of memory in step 1 ")
        machine.rows, before = 0, len(machine.extents)
        with pytest.raises(PreflightFailed, match="a single text of") as failure:
            ground.train("starved")
    assert len(machine.extents) == before + 1
    assert failure.value.__traceback__ is not None  # kept, as a notebook keeps it
    alive = [thing for thing in gc.get_objects() if type(thing) is trainer.Trainer]
    assert not [each for each in alive if each.args.output_dir.endswith("starved")]
    assert not (ground.folder / "starved").exists()
