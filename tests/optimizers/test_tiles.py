"""Optimizers that update a parameter in tiles: in a simulation, by the tiles of the simulated device."""

from __future__ import annotations

import re
from pathlib import Path

import pytest
import torch
from parts import CPU, GPU

import tightfit
from tightfit.device import Device
from tightfit.ops.fake import on_host
from tightfit.optimizers.adafactor import Adafactor
from tightfit.optimizers.adamw_16bit import AdamW16
from tightfit.optimizers.base import tile_elements
from tightfit.simulation.simulate import fake_tensors
from tightfit.simulation.trace import Trace
from tightfit.simulation.tracer import Tracer


@pytest.mark.parametrize(("cls", "tile"), [(Adafactor, 1 << 19), (AdamW16, 1 << 18)])
@pytest.mark.parametrize(("device", "on_cpu"), [(CPU, True), (GPU, False)], ids=["CPU", "GPU"])
def test_a_step_allocates_tiles_for_the_device(
    cls: type[torch.optim.Optimizer], tile: int, device: Device, on_cpu: bool
) -> None:
    tracer = Tracer(trace := Trace(), lambda func, args: [])
    with fake_tensors(device):
        weight = torch.nn.Parameter(torch.ones(4096, 1024))
        weight.grad = torch.ones(4096, 1024)
        with tracer:
            cls([weight], lr=0.1).step()
    scratch = tile if on_cpu else weight.numel()  # a GPU's tile is larger than this parameter
    assert ({block.size for block in trace.blocks} >= {4 * tile}) is on_cpu
    assert sum(block.size == 4 * scratch for block in trace.blocks) >= 3


def test_an_optimizer_that_is_offloaded_runs_on_the_cpu() -> None:
    with fake_tensors(GPU), on_host():
        assert tile_elements(torch.ones(1), 7) == 7
    with fake_tensors(GPU):
        assert tile_elements(torch.ones(1), 7) > 7
    assert tile_elements(torch.ones(1), 7) == 7


def test_optimizers_and_strategies_do_not_read_the_device_of_a_tensor() -> None:
    """Fake tensors are on the CPU, whatever is simulated: `device_kind` knows."""
    package = Path(tightfit.__file__).parent
    sources = {
        path: path.read_text("utf-8") for name in ("optimizers", "strategies") for path in (package / name).glob("*.py")
    }
    assert [path.name for path, text in sources.items() if re.search(r"\.device\.type|\.is_cuda", text)] == []
