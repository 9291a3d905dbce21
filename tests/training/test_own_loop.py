"""Functions for a training loop of one's own, each alone; the examples of the documentation run."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

import pytest
import torch
from heads import build, make_batch

import tightfit
from tightfit.errors import BadInput, OutOfMemory

PAGE = Path(__file__).parents[2] / "docs" / "your-own-loop.md"
EXAMPLES = re.findall(r"```python\n(.*?)```", PAGE.read_text("utf-8"), re.DOTALL)


def gradients(model: torch.nn.Module) -> dict[str, torch.Tensor]:
    return {name: p.grad.clone() for name, p in model.named_parameters() if p.grad is not None}


def assert_gradients_of_the_batch(model: torch.nn.Module, batch: dict[str, torch.Tensor]) -> None:
    """What is in the gradients is what one pass over the whole batch gives."""
    found = gradients(model)
    model.zero_grad()
    model(**batch).loss.backward()
    for name, expected in gradients(model).items():
        torch.testing.assert_close(found[name], expected, rtol=1e-4, atol=1e-6)


@pytest.mark.parametrize(("architecture", "head"), [("Bert", "sequence"), ("Bert", "token"), ("Llama", "causal")])
@pytest.mark.parametrize("limit", [{"size": 3}, {"tokens": 40}])
def test_micro_batches_add_up_to_the_batch(architecture: str, head: str, limit: dict[str, int]) -> None:
    model, batch = build(architecture, head), make_batch(8, head)
    parts = list(tightfit.micro_batches(batch, model=model, **limit))
    assert len(parts) > 1
    for weight, part in parts:
        (model(**part).loss * weight).backward()
    assert sum(weight for weight, _ in parts) == pytest.approx(1)
    assert_gradients_of_the_batch(model, batch)


def test_micro_batches_need_a_limit() -> None:
    with pytest.raises(BadInput, match=r"size=ROWS or tokens=TOKENS"):
        tightfit.micro_batches(make_batch(8))


def test_a_step_that_runs_out_of_memory_is_repeated_in_parts(capsys: pytest.CaptureFixture[str]) -> None:
    model, batch, seen = build("Bert", "token"), make_batch(8, "token"), []

    def step(weight: float, part: dict[str, torch.Tensor]) -> torch.Tensor:
        loss = model(**part).loss * weight
        loss.backward()
        seen.append(part["input_ids"].shape)
        if seen[-1].numel() > 2 * 20:
            raise torch.OutOfMemoryError("CUDA out of memory")
        return loss

    train = tightfit.recovering(step, model)
    loss = train(batch)
    assert seen[:3] == [(8, 20), (4, 20), (2, 20)]
    assert "continuing with 2; the batch size stays 8" in capsys.readouterr().err
    assert loss == pytest.approx(model(**batch).loss.item(), rel=1e-4)
    assert_gradients_of_the_batch(model, batch)
    with pytest.raises(OutOfMemory):
        tightfit.recovering(lambda weight, part: _run_out(), model)(batch)


def _run_out() -> Any:
    raise torch.OutOfMemoryError("CUDA out of memory")


def test_an_optimizer_in_backward_updates_as_it_does_after_it() -> None:
    models, batch = [build("Bert"), build("Bert")], make_batch(8)
    optimizers = [torch.optim.AdamW(model.parameters(), lr=1e-2) for model in models]
    tightfit.optimizer_in_backward(models[0], optimizers[0])
    for _ in range(3):
        for model in models:
            model(**batch).loss.backward()
        assert gradients(models[0]) == {}
        optimizers[1].step()
        optimizers[1].zero_grad()
    for one, other in zip(models[0].parameters(), models[1].parameters(), strict=True):
        torch.testing.assert_close(one, other)


def test_an_optimizer_without_a_trained_parameter_is_refused() -> None:
    model = build("Bert")
    optimizer = torch.optim.AdamW(model.classifier.parameters())
    with pytest.raises(BadInput, match="does not have the parameter 'bert"):
        tightfit.optimizer_in_backward(model, optimizer)


@pytest.mark.parametrize(
    ("change", "architecture", "head"),
    [
        (lambda model: tightfit.chunked_layers(model, rows=2), "Bert", "sequence"),
        (lambda model: tightfit.chunked_loss(model, tokens=16), "Llama", "causal"),
    ],
)
def test_changed_models_have_the_same_gradients(change: Any, architecture: str, head: str) -> None:
    model, batch = change(build(architecture, head)), make_batch(8, head)
    model(**batch).loss.backward()
    found, plain = gradients(model), build(architecture, head)
    plain(**batch).loss.backward()
    for name, expected in gradients(plain).items():
        torch.testing.assert_close(found[name], expected, rtol=1e-4, atol=1e-6)


def test_a_meter_measures_phases() -> None:
    meter = tightfit.meter("cpu")
    with meter.phase("forward"):
        torch.ones(1 << 20)
    assert meter.measured["forward"] <= meter.peak


@pytest.mark.parametrize("number", range(len(EXAMPLES)))
def test_the_examples_of_the_documentation_run(number: int) -> None:
    """After the first one, which builds what the others use."""
    names: dict[str, Any] = {}
    exec(EXAMPLES[0], names)
    if number:
        exec(EXAMPLES[number], names)


def test_an_example_has_about_ten_lines() -> None:
    assert len(EXAMPLES) >= 9
    assert max(len(example.splitlines()) for example in EXAMPLES) <= 20
