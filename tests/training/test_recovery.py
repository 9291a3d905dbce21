"""Out-of-memory recovery: which errors count, that they free their memory, and that a step is repeated completely."""

from __future__ import annotations

import contextlib
import gc
import random
import weakref
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import torch
from engine.test_oom_message import CURRENT, OLD_OTHERS, OTHER_PROCESS
from parts import parts_of
from stress.allocations import RECIPES, Allocations, FailingAllocation, failing_allocation
from stress.fixtures import NO_DROPOUT, Workspace, same_bits
from stress.low_memory import ERRORS, Case, MemoryErrors

from tightfit.data.micro_batches import RowLimits
from tightfit.engine.oom import drop_frames, not_enough_memory, release_memory_on_error
from tightfit.errors import OutOfMemory, is_out_of_memory
from tightfit.messages import msg, verbatim
from tightfit.training.recovery import PartialStep, Recovery, TensorVersions, run_in_chunks
from tightfit.training.trainer import Trainer


@pytest.mark.parametrize("name", ERRORS)
def test_out_of_memory_errors_are_recognised(name: str) -> None:
    assert is_out_of_memory(ERRORS[name])


@pytest.mark.parametrize(
    "error", [RuntimeError("CUDA error: device-side assert"), ValueError("out of memory"), OSError()]
)
def test_other_errors_are_not_out_of_memory(error: Exception) -> None:
    assert not is_out_of_memory(error)


def test_drop_frames_frees_the_tensors_of_the_frames() -> None:
    alive: list[weakref.ref[torch.Tensor]] = []

    def fail() -> None:
        tensor = torch.ones(10)
        alive.append(weakref.ref(tensor))
        raise MemoryError

    try:
        fail()
    except MemoryError as error:
        assert alive[0]() is not None
        drop_frames(error)
        assert alive[0]() is None


def test_drop_frames_follows_causes_and_contexts() -> None:
    """Of an error raised from one while another was handled, even if they form a cycle."""
    first, second, third = MemoryError("first"), MemoryError("second"), MemoryError("third")
    for error in (first, second, third):
        with contextlib.suppress(MemoryError):
            raise error
    third.__cause__, third.__context__, first.__context__ = second, first, third
    drop_frames(third)
    assert [error.__traceback__ for error in (first, second, third)] == [None] * 3


def test_out_of_memory_before_the_training_frees_memory_and_raises_one_sentence() -> None:
    alive: list[weakref.ref[torch.Tensor]] = []

    @release_memory_on_error
    def load() -> None:
        weights = torch.ones(10)
        alive.append(weakref.ref(weights))
        raise ERRORS["CPU allocator"]

    with pytest.raises(OutOfMemory, match=r"DefaultCPUAllocator.*close other programs"):
        load()
    assert alive[0]() is None


@pytest.mark.parametrize(
    ("reason", "others"),
    [
        (OTHER_PROCESS, r"Other processes hold 6\.42 GiB of the GPU's 14\.6 GiB \(process 20123, 411\): end them"),
        (OLD_OTHERS, r"Other processes hold 26\.0 GiB of the GPU's 31\.8 GiB: end them"),
        (CURRENT, ""),
    ],
)
def test_recovery_that_fails_because_of_other_processes_says_so(reason: str, others: str) -> None:
    def fail(batch: Any) -> None:
        raise torch.OutOfMemoryError(reason)

    batch = {"input_ids": torch.ones(1, 4, dtype=torch.long)}
    with pytest.raises(OutOfMemory, match=f"not enough memory to evaluate a single text.*{others}") as raised:
        run_in_chunks(fail, batch, RowLimits(1), lambda message: None)
    assert ("Other processes" in str(raised.value)) is bool(others)


@pytest.mark.parametrize(("available", "rss", "told"), [(1, 2, True), (1, 20, False), (12, 2, False)])
def test_host_memory_that_other_processes_hold_is_told(
    monkeypatch: pytest.MonkeyPatch, available: int, rss: int, told: bool
) -> None:
    """Of 24 GiB: not where this process holds most of it, and not where a limit of its own was reached."""
    import psutil

    memory = SimpleNamespace(total=24 << 30, available=available << 30)
    monkeypatch.setattr(psutil, "virtual_memory", lambda: memory)
    own = SimpleNamespace(memory_info=lambda: SimpleNamespace(rss=rss << 30))
    monkeypatch.setattr(psutil, "Process", lambda: own)
    error = not_enough_memory(msg("It failed."), verbatim("MemoryError"))
    assert ("Other processes hold 21.0 GiB of this machine's 24.0 GiB" in str(error)) is told


def test_row_limits_apply_to_a_length_and_longer_ones() -> None:
    limits = RowLimits(8)
    assert limits.halve(8, 64)
    assert [limits.rows_for(length) for length in (16, 55, 56, 64, 128)] == [8, 8, 4, 4, 4]
    assert limits.halve(4, 128)
    assert [limits.rows_for(length) for length in (56, 112, 128)] == [4, 2, 2]
    assert not limits.halve(1, 128)


def test_a_batch_that_is_too_large_runs_in_chunks() -> None:
    """Five rows fit; the order is kept, and the next batch of that length starts with the limit found."""
    limits, messages, sizes = RowLimits(16), [], []

    def run(batch: dict[str, torch.Tensor]) -> list[int]:
        sizes.append(len(batch["input_ids"]))
        if sizes[-1] > 5:
            raise MemoryError
        return batch["labels"].tolist()

    batch = {"input_ids": torch.zeros(12, 7), "labels": torch.arange(12)}
    outputs = run_in_chunks(run, batch, limits, messages.append)
    assert [label for chunk in outputs for label in chunk] == list(range(12))
    assert sizes == [12, 6, 3, 3, 3, 3]
    assert len(messages) == 2
    sizes.clear()
    run_in_chunks(run, batch, limits, messages.append)
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
def test_tensor_versions_detect_every_step(make: Any, steps_before: int) -> None:
    parameters = [torch.nn.Parameter(torch.ones(shape)) for shape in ((65, 64), (4,))]
    optimizer = make(parameters)
    for parameter in parameters:
        parameter.grad = torch.ones_like(parameter)
    for _ in range(steps_before):
        optimizer.step()
    versions = TensorVersions(optimizer)
    assert versions.unchanged()
    optimizer.step()
    assert not versions.unchanged()


def test_newly_allocated_state_is_dropped() -> None:
    parameter = torch.nn.Parameter(torch.ones(4))
    optimizer = torch.optim.AdamW([parameter], lr=0.1)
    versions = TensorVersions(optimizer)
    optimizer.state[parameter]["step"] = torch.zeros(())  # and then memory ran out
    assert versions.unchanged()
    versions.restore()
    parameter.grad = torch.ones(4)
    optimizer.step()


def recovery_of(*specs: str) -> tuple[Recovery, torch.optim.Optimizer, list[str]]:
    messages: list[str] = []
    parts = parts_of(*specs)
    recovery = Recovery(parts, messages.append)
    recovery._current_shape = (8, 24)
    return recovery, torch.optim.AdamW(parts.model.parameters(), lr=0.1), messages


def test_a_repeated_attempt_uses_the_same_random_numbers() -> None:
    recovery, optimizer, messages = recovery_of("micro-batch:size=8")
    drawn: list[float] = []

    def attempt() -> float:
        drawn.append(float(torch.rand(())))
        if len(drawn) < 3:
            raise MemoryError
        return drawn[-1]

    assert recovery.train(attempt, optimizer, 4) == drawn[0] == drawn[1]
    assert recovery.micro_batch_limits.rows_for(24) == 2
    assert "step 5" in messages[0]
    assert len(messages) == 2


def test_a_single_row_or_a_step_that_does_not_fit_ends_the_run() -> None:
    recovery, optimizer, _ = recovery_of()
    recovery._current_shape = (1, 24)
    with pytest.raises(OutOfMemory, match="a single text of 24 tokens"):
        recovery.train(failing, optimizer, 0)
    recovery, optimizer, messages = recovery_of()
    with pytest.raises(OutOfMemory, match="optimizer step 1 "):
        recovery.step(failing, optimizer, 0)
    assert len(messages) == 1


def test_memory_short_before_the_first_micro_batch_of_every_repetition_ends_the_run() -> None:
    recovery, optimizer, messages = recovery_of("micro-batch:size=8")
    with pytest.raises(OutOfMemory, match="a single text of 24 tokens"):
        recovery.train(failing, optimizer, 0)
    assert ["8 texts" in messages[0], "4 texts" in messages[1], "2 texts" in messages[2]] == [True] * 3
    assert len(messages) == 3


def failing() -> None:
    raise MemoryError


def test_other_errors_are_raised_unchanged() -> None:
    recovery, optimizer, messages = recovery_of()

    def fail() -> None:
        raise KeyError("a mistake")

    with pytest.raises(KeyError):
        recovery.train(fail, optimizer, 0)
    assert not messages


def test_out_of_memory_outside_a_batch_is_tolerated_once_per_step() -> None:
    recovery, _, _ = recovery_of()
    assert recovery.on_other_oom(ERRORS["CUDA error"], 6) == "out of memory around step 7 (CUDA error: out of memory)"
    with pytest.raises(OutOfMemory, match="step 7 "):
        recovery.on_other_oom(ERRORS["CUDA error"], 6)
    with pytest.raises(KeyError):
        recovery.on_other_oom(KeyError("a mistake"), 6)


def test_optimizer_in_backward_alone_cannot_split_the_batch() -> None:
    recovery, optimizer, _ = recovery_of("optimizer-in-backward")
    with pytest.raises(OutOfMemory, match=r"8 texts of 24 tokens \(.*: add chunked-layers:size=4\."):
        recovery.train(failing, optimizer, 0)


def test_dropping_state_resets_the_gradient_scaler() -> None:
    """torch's scaler marks gradients as unscaled until the step completes, which a failed step never does."""
    model = torch.nn.Linear(2, 2)
    optimizer = torch.optim.AdamW(model.parameters())
    scaler = torch.amp.GradScaler("cpu")

    def unscale() -> None:
        scaler.scale(model(torch.ones(1, 2)).sum()).backward()
        scaler.unscale_(optimizer)

    unscale()
    with pytest.raises(RuntimeError, match="already been called"):  # without the reset
        unscale()
    accelerator = SimpleNamespace(scaler=scaler)
    Trainer.drop_state(SimpleNamespace(model=model, optimizer=None, inner_optimizer=None, accelerator=accelerator))
    assert all(parameter.grad is None for parameter in model.parameters())
    unscale()
    assert torch.equal(model.weight.grad, torch.ones(2, 2))  # unscaled exactly once


def test_a_partial_step_is_not_continued() -> None:
    recovery, optimizer, _ = recovery_of("chunked-layers:size=4", "optimizer-in-backward")

    def fail() -> None:
        with torch.no_grad():
            next(recovery.parts.model.parameters()).add_(1)
        raise MemoryError

    with pytest.raises(PartialStep, match="continuing with 2"):
        recovery.train(fail, optimizer, 0)


def test_a_failed_attempt_frees_its_tensors(tiny_model: Path) -> None:
    """The second attempt has as much free memory as the first: nothing of the graph is alive."""
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


def test_prediction_recovers_if_only_two_rows_fit(trained: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    from transformers import BertForSequenceClassification

    from tightfit import predict

    texts = [f"clean room {number}" if number % 3 else "dirty rude cold" for number in range(9)]
    expected = predict(trained, texts, device="cpu")
    forward, sizes = BertForSequenceClassification.forward, []

    def limited(self: Any, **batch: torch.Tensor) -> Any:
        sizes.append(len(batch["input_ids"]))
        if sizes[-1] > 2:
            raise ERRORS["CPU allocator"]
        return forward(self, **batch)

    monkeypatch.setattr(BertForSequenceClassification, "forward", limited)
    found = predict(trained, texts, device="cpu")
    assert [p.label for p in found] == [p.label for p in expected]
    assert [p.confidence for p in found] == pytest.approx([p.confidence for p in expected], rel=1e-5)
    assert sizes == [9, 4, 2, 2, 2, 2, 1]


SHORT = [
    Case("forward", "middle", "CPU allocator", "micro-batches"),
    Case("backward", "last", "cuBLAS", "optimizer in backward"),
    Case("optimizer step", "middle", "MemoryError", "baseline"),
    Case("evaluation", "first", "torch's error", "chunked layers"),
    Case("backward", "middle", "CUDA error", "lora"),
    Case("optimizer step", "last", "CPU allocator", "lora"),
    Case("forward", "first", "MemoryError", "frozen encoder"),
    Case("optimizer step", "middle", "cuBLAS", "frozen encoder"),
]


@pytest.fixture(scope="module")
def memory_errors(tmp_path_factory: pytest.TempPathFactory) -> MemoryErrors:
    return MemoryErrors(Workspace(tmp_path_factory.mktemp("memory-errors") / "workspace", **NO_DROPOUT))


@pytest.mark.parametrize(
    "case",
    [*SHORT[:3], *(pytest.param(case, marks=pytest.mark.slow) for case in SHORT[3:])],
    ids=lambda case: f"{case.phase} {case.recipe}",
)
def test_a_run_that_recovers_matches_the_uninterrupted_run(memory_errors: MemoryErrors, case: Case) -> None:
    result = memory_errors.run_case(case)
    assert result["passed"], result


# Any allocation of a step


@pytest.fixture(scope="module")
def allocations(tmp_path_factory: pytest.TempPathFactory) -> Allocations:
    return Allocations(Workspace(tmp_path_factory.mktemp("allocations") / "workspace", **NO_DROPOUT))


def test_a_step_recovers_whichever_allocation_fails(allocations: Allocations) -> None:
    """Its first and last one, and others at random; `make test-stress` fails each of them."""
    count = allocations.count("micro-batches", 0)
    for fail_at in (1, *random.Random(0).sample(range(2, count), 3), count):
        result = allocations.run_case("micro-batches", 0, fail_at)
        assert result["passed"], result


@pytest.mark.slow
@pytest.mark.parametrize("recipe", RECIPES)
@pytest.mark.parametrize("step", [0, 1])
def test_every_recipe_recovers_whichever_allocation_fails(allocations: Allocations, recipe: str, step: int) -> None:
    picker = random.Random(step)
    results = [
        allocations.run_case(recipe, step, fail_at)
        for fail_at in picker.sample(range(1, allocations.count(recipe, step) + 1), 8)
    ]
    assert [result for result in results if not result["passed"]] == []


def test_where_no_text_fits_the_run_ends_with_a_sentence_and_can_be_resumed(allocations: Allocations) -> None:
    """Memory runs out in the third step, with every number of texts; later there is enough."""
    workspace, recipe = allocations.workspace, RECIPES["micro-batches"]
    expected = allocations.undisturbed("micro-batches", 2)
    how: dict[str, Any] = {"max_steps": 3, "preflight": False, "save_every": "1 steps"}
    with failing_allocation(FailingAllocation(20, always=True), 2), pytest.raises(OutOfMemory) as raised:
        workspace.train("too_little", recipe, **how)
    assert str(raised.value).startswith("There is not enough memory to train on a single text of ")
    assert raised.value.__cause__ is None
    workspace.train("too_little", recipe, resume=True, **how)
    assert same_bits(workspace.weights("too_little"), expected)
