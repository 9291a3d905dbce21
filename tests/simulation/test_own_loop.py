"""The memory of any PyTorch training step can be estimated."""

from __future__ import annotations

from collections.abc import Callable

import pytest
import torch

from tightfit import estimate
from tightfit.errors import BadInput, ModelError
from tightfit.strategies.base import MemoryKind


def training(optimizer: type[torch.optim.Optimizer] = torch.optim.AdamW) -> Callable[[], Callable[[], None]]:
    def build() -> Callable[[], None]:
        model = torch.nn.Sequential(torch.nn.Linear(1000, 2000), torch.nn.ReLU(), torch.nn.Linear(2000, 10))
        stepper = optimizer(model.parameters(), lr=0.1)
        batch = torch.ones(500, 1000)

        def step() -> None:
            model(batch).square().mean().backward()
            stepper.step()
            stepper.zero_grad()

        return step

    return build


PARAMETERS = 1000 * 2000 + 2000 + 2000 * 10 + 10


def test_weights_gradients_and_optimizer_state_are_counted() -> None:
    found = estimate(training())
    assert found.parameters == found.trainable_parameters == PARAMETERS
    kinds = found.phases["step"]
    assert kinds[MemoryKind.WEIGHTS] == kinds[MemoryKind.GRADIENTS] == 4 * PARAMETERS
    assert kinds[MemoryKind.OPTIMIZER_STATE] == pytest.approx(8 * PARAMETERS, rel=0.001)
    assert found.phases["forward"][MemoryKind.ACTIVATIONS] >= 4 * 500 * 2000


def test_an_optimizer_without_state_has_none() -> None:
    assert estimate(training(torch.optim.SGD)).phases["step"][MemoryKind.OPTIMIZER_STATE] == 0


def test_a_gpu_estimate_includes_context_and_segments() -> None:
    found = estimate(training(), device="RTX 3050 4GB")
    assert found.overhead == 512 << 20
    assert found.fits
    assert sum(found.phases["step"].values()) % (2 << 20) == 0


def test_torch_is_unpatched_afterwards() -> None:
    before = torch.Tensor.backward, torch.nn.Module.register_parameter, torch.nn.functional.dropout
    estimate(training(), device="T4")
    assert before == (torch.Tensor.backward, torch.nn.Module.register_parameter, torch.nn.functional.dropout)
    assert torch.ones(3).sum().item() == 3


def test_a_function_that_returns_no_step_is_rejected() -> None:
    with pytest.raises(BadInput, match="return its step"):
        estimate(lambda: None)


def test_a_step_that_reads_tensor_values_is_rejected() -> None:
    def build() -> Callable[[], None]:
        return lambda: torch.ones(3).nonzero().sum().backward()

    with pytest.raises(ModelError, match="cannot be simulated"):
        estimate(build)


@pytest.mark.parametrize("uses", [1, 2, 3])
def test_gradients_of_a_reused_embedding_accumulate_in_place(uses: int) -> None:
    """As autograd does without a dispatch mode: there are never more than two gradients beside the weight."""

    def build() -> Callable[[], None]:
        table, ids = torch.nn.Embedding(10_000, 100), torch.zeros(7, dtype=torch.long)

        def step() -> None:
            sum((table(ids) * number).sum() for number in range(uses)).backward()
            table.zero_grad()

        return step

    kinds = estimate(build).phases["backward"]
    assert sum(kinds.values()) == pytest.approx((1 + min(uses, 2)) * 4 * 10_000 * 100, rel=0.05)
