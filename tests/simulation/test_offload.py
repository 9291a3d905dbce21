"""Offloaded memory leaves the GPU's estimate and is reported as host memory."""

from __future__ import annotations

from dataclasses import replace
from io import StringIO
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from rich.console import Console
from transformers import BertConfig, BertForSequenceClassification

from tightfit import Job
from tightfit.data.labels import Labels
from tightfit.device import GPUS
from tightfit.report.terminal import show_estimate
from tightfit.simulation.estimate import Estimate
from tightfit.simulation.job_simulation import Simulation, SimulationSetup
from tightfit.simulation.worst_case import Lengths
from tightfit.strategies.base import MemoryKind
from tightfit.strategies.recipe import Recipe

GPU = GPUS["RTX 3050 Laptop 4GB"]
TOKENIZER: Any = SimpleNamespace(pad_token_id=0)
ROWS, LENGTH, WIDTH, LAYERS = 32, 128, 1024, 6
STATES = 4 * ROWS * LENGTH * WIDTH  # bytes of a batch's hidden states
TENSORS = 16 * LAYERS + 9  # trainable: of every layer, the embeddings, the pooler and the head


@pytest.fixture(scope="module")
def simulation(tmp_path_factory: pytest.TempPathFactory) -> Simulation:
    """BERT-Large's width, fewer layers."""
    folder: Path = tmp_path_factory.mktemp("large")
    shape = {"hidden_size": WIDTH, "num_attention_heads": 16, "intermediate_size": 4096, "num_hidden_layers": LAYERS}
    names = [BertForSequenceClassification.__name__]
    BertConfig(vocab_size=21128, architectures=names, **shape).save_pretrained(folder)
    job = Job(model=str(folder), data="none", batch_size=ROWS, max_length=LENGTH)
    return Simulation(SimulationSetup.of(job, GPU, Labels(("a", "b")), TOKENIZER), Lengths.uniform(ROWS, LENGTH))


def estimate_of(simulation: Simulation, recipe: str) -> Estimate:
    return simulation.estimate(Recipe.parse(recipe.split()))


def most(estimate: Estimate, kind: MemoryKind) -> int:
    return max(kinds[kind] for kinds in estimate.phases.values())


def in_use(estimate: Estimate, phase: str) -> int:
    return sum(size for kind, size in estimate.phases[phase].items() if kind is not MemoryKind.ALLOCATOR)


@pytest.mark.parametrize("other", ["", "gradient-checkpointing", "chunked-layers:size=8"])
def test_activations_leave_the_gpu(simulation: Simulation, other: str) -> None:
    kept, offloaded = (estimate_of(simulation, f"{other}{more}") for more in ("", " offload-activations"))
    assert kept.host == 0
    assert most(offloaded, MemoryKind.ACTIVATIONS) < 0.35 * most(kept, MemoryKind.ACTIVATIONS)
    assert in_use(offloaded, "backward") < in_use(kept, "backward")
    assert offloaded.peak <= kept.peak
    assert MemoryKind.HOST not in offloaded.phases["backward"]
    moved = most(kept, MemoryKind.ACTIVATIONS) - most(offloaded, MemoryKind.ACTIVATIONS)
    assert 0.9 * moved < offloaded.host < 2.1 * moved  # pinned memory comes in powers of two
    assert offloaded.to_json()["host_bytes"] == offloaded.host


@pytest.mark.slow
def test_checkpointing_offloads_one_batch_of_hidden_states_per_layer(simulation: Simulation) -> None:
    assert (
        LAYERS * STATES
        <= estimate_of(simulation, "gradient-checkpointing offload-activations").host
        <= (LAYERS + 4) * STATES
    )


@pytest.mark.slow
@pytest.mark.parametrize("more", ["", " optimizer-in-backward", " adamw-16bit"])
def test_optimizer_state_leaves_the_gpu(simulation: Simulation, more: str) -> None:
    kept, moved = (estimate_of(simulation, f"gradient-checkpointing{use}{more}") for use in ("", " offload-optimizer"))
    state = most(kept, MemoryKind.OPTIMIZER_STATE)
    assert state > 3.9 * kept.parameters
    norms = 4 * TENSORS if "optimizer-in-backward" in more else 0  # gradient norms, which stay on the GPU
    assert most(moved, MemoryKind.OPTIMIZER_STATE) == norms
    assert moved.peak < kept.peak - 0.5 * state
    assert state < moved.host < 2.2 * state


def test_the_host_memory_must_be_large_enough(simulation: Simulation) -> None:
    estimate = estimate_of(simulation, "gradient-checkpointing offload-optimizer optimizer-in-backward")
    assert estimate.fits  # the host memory of a GPU elsewhere is unknown
    small = replace(estimate, device=replace(GPU, host_bytes=estimate.host - 1))
    assert small.fits is False
    assert replace(estimate, device=replace(GPU, host_bytes=estimate.host)).fits
    page = StringIO()
    show_estimate(small, Console(file=page, width=200))
    assert ": it does not fit." in page.getvalue()
    assert "It does not fit: there is too little host memory." in page.getvalue()


@pytest.mark.slow
def test_weights_are_moved_to_the_gpu_in_their_final_dtype(simulation: Simulation) -> None:
    """They are loaded in bf16: there is no copy in fp32, neither on the GPU nor in host memory."""
    wide, narrow = (
        estimate_of(simulation, f"{weights} gradient-checkpointing adafactor optimizer-in-backward")
        for weights in ("", "bf16-weights")
    )
    assert narrow.host == wide.host == 0
    assert most(narrow, MemoryKind.WEIGHTS) == pytest.approx(2 * narrow.parameters, rel=0.01)
    assert most(wide, MemoryKind.WEIGHTS) == pytest.approx(4 * wide.parameters, rel=0.01)
    assert narrow.peak < wide.peak - narrow.parameters
