"""An optimizer in host memory against the same one on the device of the weights."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from optimizers.peers import parameters, set_gradients
from parts import skip_unless_installed

from tightfit.optimizers.cpu_offload import CPUOffload
from tightfit.strategies.recipe import parse_strategy

SHAPES = ((64, 65), (129,), (3, 4, 5))


def build(name: str) -> Any:
    skip_unless_installed(name)
    return parse_strategy(name).build  # type: ignore[attr-defined]


def groups(params: list[torch.nn.Parameter]) -> list[dict[str, Any]]:
    return [{"params": params[:1], "weight_decay": 0.1}, {"params": params[1:], "weight_decay": 0.0}]


@pytest.mark.parametrize("name", ["adamw", "adamw-16bit", "adamw-8bit", "adafactor"])
def test_updates_are_identical_and_each_loads_the_state_of_the_other(name: str) -> None:
    mine, their = parameters(SHAPES), parameters(SHAPES)
    optimizer, peer = CPUOffload(groups(mine), 0.01, build(name)), build(name)(groups(their), 0.01)
    for step in range(6):
        set_gradients(step, mine, their)
        for group in (*optimizer.param_groups, *peer.param_groups):
            group["lr"] = 0.01 / (step + 1)  # as a scheduler does
        for one in (optimizer, peer):
            torch.manual_seed(step)
            one.step()
        if step == 2:
            saved, other = optimizer.state_dict(), peer.state_dict()
            optimizer, peer = CPUOffload(groups(mine), 0.01, build(name)), build(name)(groups(their), 0.01)
            optimizer.load_state_dict(other)
            peer.load_state_dict(saved)
            assert [group["lr"] for group in optimizer.param_groups] == [0.01 / 3] * 2
    assert all(torch.equal(one, other) for one, other in zip(mine, their, strict=True))


def test_shadows_are_empty_between_steps() -> None:
    mine = parameters(SHAPES)
    optimizer = CPUOffload(groups(mine), 0.01, build("adamw"))
    set_gradients(1, mine)
    optimizer.step()
    shadows = [shadow for group in optimizer.inner.param_groups for shadow in group["params"]]
    assert all(shadow.numel() == 0 and shadow.grad is None for shadow in shadows)
    assert len(optimizer.state) == len(SHAPES)
