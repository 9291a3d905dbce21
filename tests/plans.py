"""A planner for a small job, shared by tests."""

from __future__ import annotations

from pathlib import Path
from types import SimpleNamespace
from typing import Any

from heads import small_config
from parts import CPU

from tightfit import Job
from tightfit.data.labels import Labels
from tightfit.device import Budget, Device
from tightfit.planning.planner import Planner
from tightfit.simulation.job_simulation import Simulation, SimulationSetup
from tightfit.simulation.op_counts import ELEMENTWISE, MATMUL, MATMUL_16BIT, MATMUL_BYTES
from tightfit.simulation.worst_case import Lengths
from tightfit.timing import Rates, StepTime

OVERHEAD = 1 << 20
RATES = Rates(
    {ELEMENTWISE: [(1.0, 1e-10)], MATMUL: [(1.0, 1e-11)], MATMUL_BYTES: [(1.0, 0.0)], MATMUL_16BIT: [(1.0, 5e-12)]},
    call_overhead=1e-6,
    optimizers={"adamw": 1e-9, "adamw-16bit": 7e-9, "adamw-8bit": 2e-8, "adafactor": 3e-9},
)


def planner_of(folder: Path, device: Device = CPU, architecture: str = "Bert", layers: int = 6) -> Planner:
    """A planner for texts of many lengths, with made-up rates."""
    small_config(architecture, layers).save_pretrained(folder)
    job = Job(model=str(folder), data="none", batch_size=16, max_length=48, random_weights=True)
    tokenizer: Any = SimpleNamespace(pad_token_id=0)
    lengths = Lengths.of(job, [3 + 7 * row % 46 for row in range(160)], [5 + row for row in range(30)])
    setup = SimulationSetup.of(job, device, Labels(("a", "b")), tokenizer)
    return Planner(Simulation(setup, lengths, overhead=OVERHEAD), StepTime(RATES))


def budget(size: int, device: Device = CPU) -> Budget:
    return Budget(size, device)
