"""Out of memory: which errors it is, what it leaves alive, and that a step is done again or not at all."""

from __future__ import annotations

import contextlib
import gc
import weakref
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import torch
from parts import parts_of
from stress.fixtures import Ground
from stress.low_memory import ERRORS, Case, Hunger

from tightfit.data.batches import RowLimits
from tightfit.engine.oom import forget, release_memory_on_error
from tightfit.errors import OutOfMemory, is_out_of_memory
from tightfit.training.recovery import PartialStep, Recovery, TensorVersions, run_in_chunks
from tightfit.training.trainer import Trainer


@pytest.mark.parametrize("name", ERRORS)
def test_every_text_is_known(name: str) -> None:
    assert is_out_of_memory(ERRORS[name])


@pytest.mark.parametrize(
    "error", [RuntimeError("CUDA error: device-side assert"), ValueError("out of memory"), OSError()]
)
def test_other_errors_are_not_taken_for_it(error: Exception) -> None:
    assert not is_out_of_memory(error)


def test_forgetting_frees_what_the_frames_hold() -> None:
    alive: list[weakref.ref[torch.Tensor]] = []

    def fail() -> None:
        tensor = torch.ones(10)
        alive.append(weakref.ref(tensor))
        raise MemoryError

    try:
        fail()
    except MemoryError as error:
        assert alive[0]() is not None
        forget(error)
        assert alive[0]() is None


def test_forgetting_goes_through_causes_and_contexts() -> None:
    """An error that was raised from one while another was handled, in a circle even."""
    first, second, third = MemoryError("first"), MemoryError("second"), MemoryError("third")
    for error in (first, second, third):
        with contextlib.suppress(MemoryError):
            raise error
    third.__cause__, third.__context__, first.__context__ = second, first, third
    forget(third)
    assert [error.__traceback__ for error in (first, second, third)] == [None] * 3


def test_memory_that_runs_out_before_the_training_is_a_sentence_and_frees_it() -> None:
    alive: list[weakref.ref[torch.Tensor]] = []

    @release_memory_on_error
    def load() -> None:
        weights = torch.ones(10)
        alive.append(weakref.ref(weights))
        raise ERRORS["CPU allocator"]

    with pytest.raises(OutOfMemory, match=r"DefaultCPUAllocator.*close other programs"):
        load()
    assert alive[0]() is None


def test_limits_learn_for_a_length_and_longer_ones() -> None:
    limits = RowLimits(8)
    assert limits.halve(8, 64)
    assert [limits.at(length) for length in (16, 55, 56, 64, 128)] == [8, 8, 4, 4, 4]
    assert limits.halve(4, 128)
    assert [limits.at(length) for length in (56, 112, 128)] == [4, 2, 2]
    assert not limits.halve(1, 128)


def test_a_batch_that_is_too_large_comes_in_pieces() -> None:
    """Only five rows fit; the order stays, and the next batch of that length knows."""
    limits, said, sizes = RowLimits(16), [], []

    def answer(batch: dict[str, torch.Tensor]) -> list[int]:
        sizes.append(len(batch["input_ids"]))
        if sizes[-1] > 5:
            raise MemoryError
        return batch["labels"].tolist()

    batch = {"input_ids": torch.zeros(12, 7), "labels": torch.arange(12)}
    answers = run_in_chunks(answer, batch, limits, said.append)
    assert [label for chunk in answers for label in chunk] == list(range(12))
    assert sizes == [12, 6, 3, 3, 3, 3]
    assert len(said) == 2
    sizes.clear()
    run_in_chunks(answer, batch, limits, said.append)
    assert sizes == [3, 3, 3, 3]


def optimizers() -> list[Any]:
    from tightfit.optimizers.adafactor import Adafactor
    from tightfit.optimizers.adamw_16bit import AdamW16

    return [
        *(lambda p, kind=kind: torch.optim.AdamW(p, lr=0.1, **{kind: True}) for kind in ("fused", "foreach")),
        lambda p: Adafactor(p, lr=0.1),
        lambda p: AdamW16(p, lr=0.1),
        _adamw8,
    ]


def _adamw8(parameters: list[torch.nn.Parameter]) -> torch.optim.Optimizer:
    pytest.importorskip("bitsandbytes")
    from tightfit.optimizers.adamw_8bit import AdamW8

    return AdamW8(parameters, lr=0.1)


@pytest.mark.parametrize("make", optimizers())
@pytest.mark.parametrize("steps_before", [0, 1])
def test_the_ledger_sees_every_step(make: Any, steps_before: int) -> None:
    parameters = [torch.nn.Parameter(torch.ones(shape)) for shape in ((65, 64), (4,))]
    optimizer = make(parameters)
    for parameter in parameters:
        parameter.grad = torch.ones_like(parameter)
    for _ in range(steps_before):
        optimizer.step()
    ledger = TensorVersions(optimizer)
    assert ledger.unchanged()
    optimizer.step()
    assert not ledger.unchanged()


def test_state_that_was_being_made_is_forgotten() -> None:
    parameter = torch.nn.Parameter(torch.ones(4))
    optimizer = torch.optim.AdamW([parameter], lr=0.1)
    ledger = TensorVersions(optimizer)
    optimizer.state[parameter]["step"] = torch.zeros(())  # and then memory ran out
    assert ledger.unchanged()
    ledger.restore()
    parameter.grad = torch.ones(4)
    optimizer.step()


def recovery_of(*words: str) -> tuple[Recovery, torch.optim.Optimizer, list[str]]:
    said: list[str] = []
    parts = parts_of(*words)
    recovery = Recovery(parts, said.append)
    recovery._extent = (8, 24)
    return recovery, torch.optim.AdamW(parts.model.parameters(), lr=0.1), said


def test_the_same_random_numbers_are_drawn_again() -> None:
    recovery, optimizer, said = recovery_of("micro-batch:size=8")
    drawn: list[float] = []

    def attempt() -> float:
        drawn.append(float(torch.rand(())))
        if len(drawn) < 3:
            raise MemoryError
        return drawn[-1]

    assert recovery.train(attempt, optimizer, 4) == drawn[0] == drawn[1]
    assert recovery.slices.at(24) == 4
    assert "step 5" in said[0]
    assert len(said) == 2


def test_nothing_left_to_halve_is_said() -> None:
    recovery, optimizer, _ = recovery_of()
    recovery._extent = (1, 24)
    with pytest.raises(OutOfMemory, match="a single text of 24 tokens"):
        recovery.train(failing, optimizer, 0)
    recovery, optimizer, said = recovery_of()
    with pytest.raises(OutOfMemory, match="optimizer's step 1 "):
        recovery.step(failing, optimizer, 0)
    assert len(said) == 1


def failing() -> None:
    raise MemoryError


def test_other_errors_pass() -> None:
    recovery, optimizer, said = recovery_of()

    def fail() -> None:
        raise KeyError("a mistake")

    with pytest.raises(KeyError):
        recovery.train(fail, optimizer, 0)
    assert not said


def test_memory_that_runs_out_elsewhere_is_bad_luck_once() -> None:
    recovery, _, _ = recovery_of()
    assert recovery.on_other_oom(ERRORS["CUDA error"], 6) == "out of memory around step 7 (CUDA error: out of memory)"
    with pytest.raises(OutOfMemory, match="step 7 "):
        recovery.on_other_oom(ERRORS["CUDA error"], 6)
    with pytest.raises(KeyError):
        recovery.on_other_oom(KeyError("a mistake"), 6)


def test_a_batch_that_cannot_be_cut_is_not_called_a_single_text() -> None:
    recovery, optimizer, _ = recovery_of("optimizer-in-backward")
    with pytest.raises(OutOfMemory, match=r"8 texts of 24 tokens at once .*: add chunked-layers:size=4\."):
        recovery.train(failing, optimizer, 0)


def test_half_a_step_leaves_no_half_unscaled_gradients() -> None:
    """torch's scaler counts what it has unscaled until the step is over, which a failed one never is."""
    model = torch.nn.Linear(2, 2)
    optimizer = torch.optim.AdamW(model.parameters())
    scaler = torch.amp.GradScaler("cpu")

    def half_a_step() -> None:
        scaler.scale(model(torch.ones(1, 2)).sum()).backward()
        scaler.unscale_(optimizer)

    half_a_step()
    with pytest.raises(RuntimeError, match="already been called"):  # what would happen if it was only tried again
        half_a_step()
    Trainer._drop_state(SimpleNamespace(model=model, optimizer=None, accelerator=SimpleNamespace(scaler=scaler)))
    assert all(parameter.grad is None for parameter in model.parameters())
    half_a_step()
    assert torch.equal(model.weight.grad, torch.ones(2, 2))  # unscaled once, and whole


def test_half_a_step_is_never_kept() -> None:
    recovery, optimizer, _ = recovery_of("chunked-layers:size=4", "optimizer-in-backward")

    def fail() -> None:
        with torch.no_grad():
            next(recovery.parts.model.parameters()).add_(1)
        raise MemoryError

    with pytest.raises(PartialStep, match="going on with 2"):
        recovery.train(fail, optimizer, 0)


def test_a_failed_attempt_leaves_no_tensor(tiny_model: Path) -> None:
    """What the second attempt finds free is what the first found: nothing of the graph is alive."""
    recovery, optimizer, _ = recovery_of("micro-batch:size=8")
    alive: list[weakref.ref[torch.Tensor]] = []

    def attempt() -> int:
        gc.collect()
        assert all(reference() is None for reference in alive)
        weight = torch.ones(4, requires_grad=True)
        result = (weight * 2).exp()
        alive.extend((weakref.ref(weight), weakref.ref(result)))
        if len(alive) < 5:
            raise MemoryError
        return len(alive)

    assert recovery.train(attempt, optimizer, 0) == 6


def test_predictions_come_though_only_two_rows_fit(trained: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    from transformers import BertForSequenceClassification

    from tightfit import predict

    texts = [f"clean room {number}" if number % 3 else "dirty rude cold" for number in range(9)]
    expected = predict(trained, texts, device="cpu")
    forward, sizes = BertForSequenceClassification.forward, []

    def hungry(self: Any, **batch: torch.Tensor) -> Any:
        sizes.append(len(batch["input_ids"]))
        if sizes[-1] > 2:
            raise ERRORS["CPU allocator"]
        return forward(self, **batch)

    monkeypatch.setattr(BertForSequenceClassification, "forward", hungry)
    found = predict(trained, texts, device="cpu")
    assert [p.label for p in found] == [p.label for p in expected]
    assert [p.confidence for p in found] == pytest.approx([p.confidence for p in expected], rel=1e-5)
    assert sizes == [9, 4, 2, 2, 2, 2, 1]


SHORT = [
    Case("forward", "middle", "CPU allocator", "slices"),
    Case("backward", "last", "cuBLAS", "in backward"),
    Case("optimizer step", "middle", "MemoryError", "plain"),
    Case("evaluation", "first", "torch's error", "layers"),
    Case("backward", "middle", "CUDA error", "adapter"),
    Case("optimizer step", "last", "CPU allocator", "adapter"),
    Case("forward", "first", "MemoryError", "frozen"),
    Case("optimizer step", "middle", "cuBLAS", "frozen"),
]


@pytest.fixture(scope="module")
def hunger(tmp_path_factory: pytest.TempPathFactory) -> Hunger:
    from stress.fixtures import NO_DROPOUT

    return Hunger(Ground(tmp_path_factory.mktemp("hunger") / "ground", **NO_DROPOUT))


@pytest.mark.parametrize("case", SHORT, ids=lambda case: f"{case.place} {case.recipe}")
def test_a_run_that_fails_once_ends_as_if_it_had_not(hunger: Hunger, case: Case) -> None:
    result = hunger.suffer(case)
    assert result["passed"], result
