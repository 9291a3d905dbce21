"""Allocations of GPU kernels, simulated without a GPU."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import torch
from transformers import BertConfig, BertForSequenceClassification, BertLMHeadModel

from tightfit import Job
from tightfit.data.labels import Labels
from tightfit.device import GPUS
from tightfit.simulation.estimate import Estimate
from tightfit.simulation.job_simulation import Simulation, SimulationSetup
from tightfit.simulation.kernels import kernels_of, scratch_on
from tightfit.simulation.own_loop import estimate_loop
from tightfit.simulation.trace import Trace
from tightfit.simulation.tracer import Tracer
from tightfit.simulation.worst_case import Lengths
from tightfit.strategies.base import MemoryKind
from tightfit.strategies.recipe import Recipe

GPU, OLD_GPU = GPUS["RTX 3060 12GB"], GPUS["T4 16GB"]
TOKENIZER: Any = SimpleNamespace(pad_token_id=0)


def live_blocks(function: Callable[[], Any], gpu: Any = GPU) -> list[int]:
    """Sizes of the blocks that are live when the function returns."""
    tracer = Tracer(Trace(), scratch_on(gpu))
    with torch._subclasses.FakeTensorMode(), kernels_of(gpu), tracer:
        needs_grad = function()
        alive = [block.size for block in tracer.trace.blocks if block.free_tick is None]
        del needs_grad
    return sorted(alive)


def test_dropout_keeps_a_one_byte_mask() -> None:
    def run() -> Any:
        numbers = torch.ones(1000, requires_grad=True)
        return numbers, torch.nn.functional.dropout(numbers, 0.1, training=True)

    assert live_blocks(run) == [1000, 4000, 4000]


@pytest.mark.parametrize("dtype", [torch.float32, torch.float16])
@pytest.mark.parametrize("gpu", [GPU, OLD_GPU], ids=["flash", "memory-efficient"])
def test_fused_attention_keeps_no_score_matrix(gpu: Any, dtype: torch.dtype) -> None:
    def run() -> Any:
        rows = torch.ones(2, 4, 512, 64, dtype=dtype, requires_grad=True)
        return rows, torch.nn.functional.scaled_dot_product_attention(rows, rows, rows, dropout_p=0.1)

    assert max(live_blocks(run, gpu)) == 2 * 4 * 512 * 64 * dtype.itemsize


def test_autocast_keeps_norms_in_fp32() -> None:
    def run() -> Any:
        numbers = torch.ones(8, 64, dtype=torch.float16, requires_grad=True)
        with torch.autocast("cpu", torch.float16):
            return torch.nn.functional.layer_norm(numbers, (64,)).dtype

    assert live_blocks(run) is not None
    with torch._subclasses.FakeTensorMode(), kernels_of(GPU):
        assert run() == torch.float32


def test_the_estimate_matches_a_published_measurement() -> None:
    """BERT-Base in fp16, SDPA, 8 x 512, forward and backward on an A100: 2035.4 MiB allocated."""

    def build() -> Callable[[], None]:
        model = BertLMHeadModel._from_config(BertConfig(), dtype=torch.float16, attn_implementation="sdpa").train()
        model.tie_weights()
        ids = torch.ones(8, 512, dtype=torch.long)

        def step() -> None:
            model.zero_grad()
            out = model(input_ids=ids)
            loss = out.logits.sum()
            loss.backward()

        return step

    estimate = estimate_loop(build, GPUS["A100 80GB"])
    allocated = max(sum(kinds.values()) - kinds[MemoryKind.ALLOCATOR] for kinds in estimate.phases.values())
    assert allocated / (1 << 20) == pytest.approx(2035.4, rel=0.03)


STEPS = ["", "micro-batch:size=1", "gradient-checkpointing", "adafactor", "freeze", "max-length:tokens=32"]
SHRINKS = [
    MemoryKind.ACTIVATIONS,
    MemoryKind.ACTIVATIONS,
    MemoryKind.OPTIMIZER_STATE,
    MemoryKind.GRADIENTS,
    MemoryKind.TEMPORARY,
]


@pytest.fixture(scope="module")
def estimates(tmp_path_factory: pytest.TempPathFactory) -> list[Estimate]:
    """The tutorials' steps, each added to the last; BERT-Large's width, fewer layers."""
    folder: Path = tmp_path_factory.mktemp("large")
    shape = {"hidden_size": 1024, "num_attention_heads": 16, "intermediate_size": 4096, "num_hidden_layers": 6}
    BertConfig(vocab_size=21128, architectures=[BertForSequenceClassification.__name__], **shape).save_pretrained(
        folder
    )
    job = Job(model=str(folder), data="none", batch_size=32, max_length=128)
    simulation = Simulation(SimulationSetup.of(job, GPU, Labels(("a", "b")), TOKENIZER), Lengths.uniform(32, 128))
    return [simulation.estimate(Recipe.parse(STEPS[1 : count + 1])) for count in range(len(STEPS))]


def test_each_tutorial_step_lowers_the_peak(estimates: list[Estimate]) -> None:
    peaks = [estimate.peak for estimate in estimates]
    assert peaks == sorted(peaks, reverse=True)
    assert peaks[0] > 2 * peaks[-1]


def test_each_tutorial_step_shrinks_its_own_memory_kind(estimates: list[Estimate]) -> None:
    def most(estimate: Estimate, kind: MemoryKind) -> int:
        return max(kinds[kind] for kinds in estimate.phases.values())

    for before, after, kind in zip(estimates, estimates[1:], SHRINKS, strict=False):
        assert most(after, kind) < 0.9 * most(before, kind), after
