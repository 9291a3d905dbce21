"""bf16 parameters with fp32 optimizer steps."""

from __future__ import annotations

import torch

from tightfit.optimizers.stochastic_rounding import StochasticRounding
from tightfit.strategies.adamw import AdamW


def test_steps_below_the_precision_of_bf16_happen_on_average() -> None:
    """A step of a hundredth of bf16's last digit: rounded to nearest, weights would not change."""
    for sign in (1.0, -1.0):
        weight = torch.nn.Parameter(torch.full((20_000,), sign, dtype=torch.bfloat16))
        optimizer = StochasticRounding([{"params": [weight], "weight_decay": 0.0}], 4e-5, AdamW().build)
        for _ in range(50):
            weight.grad = torch.full_like(weight, sign)
            optimizer.step()
        assert weight.dtype is torch.bfloat16
        assert abs(float(weight.detach().float().mean()) - sign * (1 - 50 * 4e-5)) < 2e-4
        assert optimizer.state[optimizer.inner.param_groups[0]["params"][0]]["exp_avg"].dtype is torch.float32


def test_fp32_parameters_are_updated_without_rounding() -> None:
    torch.manual_seed(0)
    weights = [torch.nn.Parameter(torch.ones(64, 3)) for _ in range(2)]
    mine = StochasticRounding([{"params": weights[:1], "weight_decay": 0.1}], 0.01, AdamW().build)
    peer = AdamW().build([{"params": weights[1:], "weight_decay": 0.1}], 0.01)
    for _ in range(3):
        gradient = torch.randn(64, 3)
        for weight, optimizer in zip(weights, (mine, peer), strict=True):
            weight.grad = gradient.clone()
            optimizer.step()
    assert torch.equal(*weights)


def test_state_can_be_saved_and_loaded() -> None:
    weights = [torch.nn.Parameter(torch.ones(64, dtype=torch.bfloat16)) for _ in range(2)]
    optimizers = [StochasticRounding([{"params": [w], "weight_decay": 0.0}], 0.01, AdamW().build) for w in weights]
    for step in range(4):
        for index, weight in enumerate(weights):
            torch.manual_seed(step)
            weight.grad = torch.randn(64).to(torch.bfloat16)
            optimizers[index].step()
        state = optimizers[1].state_dict()
        optimizers[1] = StochasticRounding([{"params": [weights[1]], "weight_decay": 0.0}], 0.01, AdamW().build)
        optimizers[1].load_state_dict(state)
    assert torch.equal(*weights)
