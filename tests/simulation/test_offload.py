"""What is moved to host memory leaves the card's bill and stands on a line of its own."""

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
from tightfit.data.rows import Labels
from tightfit.device import GPUS
from tightfit.report.terminal import show_estimate
from tightfit.simulation.estimate import Estimate
from tightfit.simulation.simulation import Simulation, SimulationSetup
from tightfit.simulation.worst_case import Lengths
from tightfit.strategies.base import MemoryKind
from tightfit.strategies.recipe import Recipe

CARD = GPUS["RTX 3050 4GB"]
TOKENIZER: Any = SimpleNamespace(pad_token_id=0)
ROWS, LENGTH, WIDTH, LAYERS = 32, 128, 1024, 6
STATES = 4 * ROWS * LENGTH * WIDTH  # bytes of a batch between two layers
TENSORS = 16 * LAYERS + 9  # that learn: of every layer, the embeddings, the pooler and the head


@pytest.fixture(scope="module")
def simulation(tmp_path_factory: pytest.TempPathFactory) -> Simulation:
    """BERT-Large's width, fewer layers."""
    folder: Path = tmp_path_factory.mktemp("large")
    shape = {"hidden_size": WIDTH, "num_attention_heads": 16, "intermediate_size": 4096, "num_hidden_layers": LAYERS}
    names = [BertForSequenceClassification.__name__]
    BertConfig(vocab_size=21128, architectures=names, **shape).save_pretrained(folder)
    job = Job(model=str(folder), data="none", batch_size=ROWS, max_length=LENGTH)
    return Simulation(SimulationSetup(job, CARD, Labels(("a", "b")), TOKENIZER), Lengths.uniform(ROWS, LENGTH))


def bill_of(simulation: Simulation, recipe: str) -> Estimate:
    return simulation.estimate(Recipe.parse(recipe.split()))


def most(estimate: Estimate, kind: MemoryKind) -> int:
    return max(kinds[kind] for kinds in estimate.phases.values())


def in_use(estimate: Estimate, phase: str) -> int:
    return sum(size for kind, size in estimate.phases[phase].items() if kind is not MemoryKind.ALLOCATOR)


@pytest.mark.parametrize("other", ["", "gradient-checkpointing", "chunked-layers:size=8"])
def test_activations_leave_the_card(simulation: Simulation, other: str) -> None:
    kept, waiting = (bill_of(simulation, f"{other}{more}") for more in ("", " offload-activations"))
    assert kept.host == 0
    assert most(waiting, MemoryKind.ACTIVATIONS) < 0.35 * most(kept, MemoryKind.ACTIVATIONS)
    assert in_use(waiting, "backward") < in_use(kept, "backward")
    assert waiting.peak <= kept.peak
    assert MemoryKind.HOST not in waiting.phases["backward"]
    gone = most(kept, MemoryKind.ACTIVATIONS) - most(waiting, MemoryKind.ACTIVATIONS)
    assert 0.9 * gone < waiting.host < 2.1 * gone  # pinned memory comes in powers of two
    assert waiting.to_json()["host_bytes"] == waiting.host


def test_a_checkpointed_stack_leaves_one_batch_of_states_a_layer(simulation: Simulation) -> None:
    assert (
        LAYERS * STATES
        <= bill_of(simulation, "gradient-checkpointing offload-activations").host
        <= (LAYERS + 4) * STATES
    )


@pytest.mark.parametrize("more", ["", " optimizer-in-backward", " adamw-16bit"])
def test_optimizer_state_leaves_the_card(simulation: Simulation, more: str) -> None:
    kept, moved = (bill_of(simulation, f"checkpoint{word}{more}") for word in ("", " offload-optimizer"))
    state = most(kept, MemoryKind.OPTIMIZER_STATE)
    assert state > 3.9 * kept.parameters
    norms = 4 * TENSORS if "optimizer-in-backward" in more else 0  # of the gradients, which come to the card one by one
    assert most(moved, MemoryKind.OPTIMIZER_STATE) == norms
    assert moved.peak < kept.peak - 0.5 * state
    assert state < moved.host < 2.2 * state


def test_the_machine_around_the_card_must_have_room(simulation: Simulation) -> None:
    estimate = bill_of(simulation, "gradient-checkpointing offload-optimizer optimizer-in-backward")
    assert estimate.fits  # a card elsewhere: what is around it is not known
    small = replace(estimate, device=replace(CARD, host_memory=estimate.host - 1))
    assert small.fits is False
    assert replace(estimate, device=replace(CARD, host_memory=estimate.host)).fits
    page = StringIO()
    show_estimate(small, Console(file=page, width=200))
    assert "too little" in page.getvalue()
    assert "does not fit the machine around the card" in page.getvalue()


def test_weights_come_to_the_card_in_their_own_format(simulation: Simulation) -> None:
    """They are loaded in 32 bits and made narrow in the memory around it."""
    wide, narrow = (
        bill_of(simulation, f"{word} checkpoint adafactor optimizer-in-backward") for word in ("", "bf16-weights")
    )
    assert wide.host == 0
    assert most(narrow, MemoryKind.WEIGHTS) == pytest.approx(2 * narrow.parameters, rel=0.01)
    assert most(wide, MemoryKind.WEIGHTS) == pytest.approx(4 * wide.parameters, rel=0.01)
    assert narrow.peak < wide.peak - narrow.parameters
    assert 4 * narrow.parameters <= narrow.host < 8 * narrow.parameters
