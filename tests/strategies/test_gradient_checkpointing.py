"""Gradient checkpointing on every architecture, and with frozen layers."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from heads import CONFIGS, build, gradients, make_batch
from parts import parts_of

from tightfit.strategies.freeze import freeze


def checkpointed(model: Any, every: int = 1) -> Any:
    return parts_of(f"gradient-checkpointing:every={every}", model=model).model


@pytest.mark.parametrize("architecture", CONFIGS)
@pytest.mark.parametrize("every", [1, 2])
def test_gradients_are_unchanged_and_layers_are_recomputed(architecture: str, every: int) -> None:
    batch = make_batch(4)
    model = build(architecture)
    model(**batch).loss.backward()
    expected = gradients(model)
    calls = count_layer_calls(model)
    checkpointed(model, every)(**batch).loss.backward()
    assert (gradients(model) - expected).norm() <= 1e-6 * expected.norm()
    recomputed = {name: seen["forward"] for name, seen in calls.items()}
    assert any(count > 1 for count in recomputed.values()), "no layer was recomputed"
    if every == 2 and architecture not in ("Albert", "T5"):
        once, twice = sorted(recomputed.values())  # DeBERTa-v3 uses its first linear layer twice in one pass
        assert twice == 2 * once


def count_layer_calls(model: Any) -> dict[str, dict[str, int]]:
    """Counts the calls of each layer's first module with parameters."""
    from tightfit.models import layer_stacks

    seen: dict[str, dict[str, int]] = {}
    for stack_number, stack in enumerate(layer_stacks(model)):
        for number, layer in enumerate(stack):
            count = seen.setdefault(f"{stack_number}.{number}", {"forward": 0})
            inner = next(m for m in layer.modules() if m is not layer and list(m.parameters(recurse=False)))
            inner.register_forward_pre_hook(lambda *_, count=count: count.update(forward=count["forward"] + 1))
    return seen


def test_frozen_layers_stay_out_of_the_backward_pass() -> None:
    """gradient_checkpointing_enable() makes the embeddings' output require a gradient, and so every frozen layer's."""
    model = build("Bert")
    freeze(model)
    outputs: list[torch.Tensor] = []
    model.bert.encoder.register_forward_hook(lambda module, args, out: outputs.append(out[0]))
    checkpointed(model)(**make_batch(4)).loss.backward()
    assert not outputs[0].requires_grad
    model.enable_input_require_grads()  # what gradient_checkpointing_enable() alone leaves behind
    model(**make_batch(4)).loss.backward()
    assert outputs[1].requires_grad
