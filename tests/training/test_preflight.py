"""Pre-flight: it tries the largest batches first and changes nothing."""

from __future__ import annotations

import gc
from typing import Any
from unittest import mock

import pytest
from parts import parts_of
from small_machine import SmallMachine
from stress.fixtures import Workspace, losses, same_bits

from tightfit import Job
from tightfit.data.batches import LengthBuckets, batch_indices
from tightfit.errors import PreflightFailed
from tightfit.training import trainer
from tightfit.training.preflight import find_worst_batch


@pytest.fixture(scope="module")
def workspace(tmp_path_factory: pytest.TempPathFactory) -> Workspace:
    return Workspace(tmp_path_factory.mktemp("preflight") / "workspace")


@pytest.mark.slow
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
def test_the_training_is_bit_identical_with_and_without_preflight(workspace: Workspace, use: str) -> None:
    """Dropout on, also with optimizers that use random numbers and if checkpoint-0 holds only the trained weights."""
    name = use.replace(" ", "-").replace(":", "-")
    with_preflight = workspace.train(f"{name}-with", use.split(), epochs=1)
    without = workspace.train(f"{name}-without", use.split(), epochs=1, preflight=False)
    assert losses(with_preflight) == losses(without)
    assert same_bits(workspace.weights(f"{name}-with"), workspace.weights(f"{name}-without"))


def test_fp16_gradients_that_overflow_do_not_fail_the_preflight(workspace: Workspace) -> None:
    """A gradient scaler starts with a scale that is too large and lowers it, for which a pre-flight is too short."""
    run_preflight = trainer.run_preflight

    def overflowing(here: trainer.Trainer, worst: Any) -> float:
        hook = here.model.classifier.weight.register_hook(lambda gradient: gradient * float("inf"))
        try:
            return run_preflight(here, worst)
        finally:
            hook.remove()

    with mock.patch.object(trainer, "run_preflight", overflowing):
        workspace.train("overflowing", epochs=1)
    workspace.train("reference", epochs=1, preflight=False)
    assert same_bits(workspace.weights("overflowing"), workspace.weights("reference"))


def test_the_worst_batch_has_the_largest_micro_batches() -> None:
    job = Job(model="m", data="d", batch_size=8, max_length=24, epochs=2)
    lengths = [5 + (number * 7) % 17 for number in range(50)]
    lengths[33] = 200  # is truncated
    worst = find_worst_batch(job, parts_of("micro-batch:size=2"), lengths, [3, 9, 4])
    batch = next(batch for batch in batch_indices(job, 50) if 33 in batch)
    assert worst.train[0] == 33
    assert set(worst.train) <= {int(row) for row in batch}
    assert len(worst.train) == 4
    assert worst.evaluation == [1, 2, 0]
    chunked = find_worst_batch(job, parts_of("chunked-layers:size=2"), lengths, [3])
    tokens = [sum(min(24, lengths[row]) for row in batch) for batch in batch_indices(job, 50)]
    assert sum(min(24, lengths[row]) for row in chunked.train) == max(tokens)


def test_with_micro_batches_by_tokens_the_whole_batch_is_tried() -> None:
    """Any of them may be the largest; here many short texts have more tokens than any few long ones."""
    job = Job(model="m", data="d", batch_size=8, max_length=24)
    short = {int(row) for row in list(batch_indices(job, 50))[2]}
    lengths = [13 if row in short else 20 for row in range(50)]
    worst = find_worst_batch(job, parts_of("micro-batch:tokens=39"), lengths, [3])
    assert set(worst.train) == short


def test_the_worst_batch_depends_on_buckets_and_feature_cache() -> None:
    """Buckets hold rows of similar length; a cached feature is one token, so the whole batch is one micro-batch."""
    job = Job(model="m", data="d", batch_size=8, max_length=24)
    lengths = [5 + (number * 7) % 17 for number in range(50)]
    buckets = LengthBuckets(lengths, 8, 3)
    worst = find_worst_batch(job, parts_of("micro-batch:size=2", "length-bucketing:pool=3"), lengths, [3], buckets)
    longest_first = [sorted(batch.tolist(), key=lambda row: -lengths[row]) for batch in batch_indices(job, 50, buckets)]
    assert worst.train in [batch[:4] for batch in longest_first]
    assert lengths[worst.train[0]] == max(lengths)
    frozen = find_worst_batch(job, parts_of("micro-batch:size=2", "freeze"), lengths, [3, 9, 4])
    assert sorted(frozen.train) in [sorted(batch.tolist()) for batch in batch_indices(job, 50)]
    assert len(frozen.train) == 8


def test_out_of_memory_is_found_before_the_first_step(workspace: Workspace) -> None:
    """What fits only in smaller micro-batches is trained in them from the first step on."""
    with SmallMachine(rows=3).limited() as machine:
        run = workspace.train("limited", epochs=1)
        assert run.steps == 7
        assert next(note for note in run.notes if "out of memory" in note).startswith("out of memory in step 1 ")
        machine.rows, before = 0, len(machine.shapes)
        with pytest.raises(PreflightFailed, match="a single text of") as failure:
            workspace.train("failed")
    assert len(machine.shapes) == before + 1
    assert failure.value.__traceback__ is not None  # still referenced, as in a notebook
    alive = [thing for thing in gc.get_objects() if type(thing) is trainer.Trainer]
    assert not [each for each in alive if each.args.output_dir.endswith("failed")]
    assert not (workspace.folder / "failed").exists()
