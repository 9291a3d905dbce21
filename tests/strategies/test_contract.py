"""The contract of all strategies: result and memory are as declared, alone and combined with every other."""

from __future__ import annotations

import itertools
from collections.abc import Callable
from contextlib import nullcontext
from dataclasses import dataclass
from typing import Any

import pytest
import torch
from heads import DROPOUT, build
from memory import LiveBytes, bytes_of
from parts import ROWS, batch_of, parts_of

from tightfit.engine.assembly import build_optimizer
from tightfit.engine.micro_batch_loss import model_loss, weighted_micro_batches
from tightfit.engine.step import train_batch
from tightfit.errors import RecipeError
from tightfit.strategies import STRATEGIES
from tightfit.strategies.base import MemoryKind, Result, Strategy
from tightfit.strategies.parts import Parts, Precision
from tightfit.strategies.recipe import parse_strategy

SMALL = {  # settings that make a difference in a tiny model; other strategies are tried as they are
    "micro-batch:size": "micro-batch:size=2",
    "micro-batch:tokens": "micro-batch:tokens=48",
    "chunked-layers": "chunked-layers:size=2",
    "chunked-loss": "chunked-loss:tokens=16",
    "offload-activations": "offload-activations:smallest=1",
    "length-bucketing": "length-bucketing:pool=2",
    "lora": "lora:r=1",
    "freeze": "freeze:layers=1",
    "max-length": "max-length:tokens=8",
}
EXAMPLES = {
    variant: SMALL.get(variant, strategy.example())
    for strategy in STRATEGIES.values()
    for variant in strategy.variants()
}
STEPS = 40
SAME, CLOSE = 1e-5, 0.1  # relative tolerance of losses, and of how far they fall


@dataclass(frozen=True)
class Outcome:
    losses: list[float]
    kinds: dict[MemoryKind, int]


class PhaseProbe:
    """Measures the activations at the start of each backward pass, without gradients of earlier micro-batches."""

    def __init__(self, live: LiveBytes, model: torch.nn.Module) -> None:
        self.live, self.model, self.activations = live, model, 0

    def __call__(self, name: str) -> PhaseProbe:
        if name == "backward":
            self.activations = max(self.activations, self.live.now - gradient_bytes(self.model))
        return self

    def __enter__(self) -> None: ...

    def __exit__(self, *error: Any) -> None: ...


def gradient_bytes(model: torch.nn.Module) -> int:
    return bytes_of(p.grad for p in model.parameters() if p.grad is not None)


def next_batch(parts: Parts, step: int) -> dict[str, torch.Tensor]:
    """Two alternating batches, which the model memorizes; with length bucketing, two batches of the same rows."""
    if not parts.batching.bucket_batches:
        return batch_of(parts, seed=step % 2)
    both = [batch_of(parts, seed=seed) for seed in range(2)]
    rows = {key: torch.cat([batch[key] for batch in both]) for key in both[0]}
    order = parts.batching.buckets(rows["attention_mask"].sum(dim=1).tolist()).order(seed=step // 2)
    chosen = order[ROWS * (step % 2) : ROWS * (step % 2 + 1)]
    return {key: value[chosen] for key, value in rows.items()}


def losses_of(*specs: str) -> list[float]:
    """The losses of some steps as the trainer runs them."""
    parts = parts_of(*with_needed(specs), model=build(*model_for(*specs)))
    optimizer, losses = build_optimizer(parts), []
    for step in range(STEPS):
        losses.append(loss_of(parts, next_batch(parts, step), lambda name: nullcontext()))
        torch.nn.utils.clip_grad_norm_(parts.model.parameters(), parts.max_grad_norm)
        optimizer.step()
        optimizer.zero_grad()
    return losses


def loss_of(parts: Parts, batch: dict[str, torch.Tensor], phase: Callable[[str], Any]) -> float:
    with torch.autocast("cpu", torch.bfloat16, enabled=parts.precision is not Precision.FP32):
        weighted = weighted_micro_batches(parts.model, batch, parts.step_batching.limits(), sort=parts.batching.sorts)
        return float(train_batch(parts.model, weighted, model_loss, torch.Tensor.backward, phase))


def run(*specs: str, kind: tuple[str, str] | None = None, **model: float) -> Outcome:
    """The same, with the bytes of each kind of memory."""
    parts = parts_of(*with_needed(specs), model=build(*(kind or model_for(*specs)), **model))
    optimizer, losses, activations, inputs = build_optimizer(parts), [], 0, 0
    for step in range(STEPS):
        batch = next_batch(parts, step)
        inputs = bytes_of(batch.values())
        with LiveBytes() as live:
            phases = PhaseProbe(live, parts.model)
            losses.append(loss_of(parts, batch, phases))
        gradients = gradient_bytes(parts.model)
        activations = max(activations, phases.activations)
        torch.nn.utils.clip_grad_norm_(parts.model.parameters(), parts.max_grad_norm)
        with LiveBytes():  # marks what is allocated in host memory
            optimizer.step()
        optimizer.zero_grad()
    state = [value for values in optimizer.state.values() for value in values.values()]
    return Outcome(
        losses,
        {
            MemoryKind.WEIGHTS: bytes_of(parts.model.parameters()),
            MemoryKind.GRADIENTS: gradients,
            MemoryKind.OPTIMIZER_STATE: bytes_of(value for value in state if isinstance(value, torch.Tensor)),
            MemoryKind.ACTIVATIONS: activations,
            MemoryKind.INPUTS: inputs,
        },
    )


ENCODER, MASKED, CAUSAL = ("Bert", "sequence"), ("Bert", "masked"), ("Llama", "causal")
MODELS = {"packing": CAUSAL, "chunked-loss": MASKED}  # for strategies that are not for classification


def model_for(*specs: str) -> tuple[str, str]:
    """Architecture and head of the model to train."""
    return next((model for name, model in MODELS.items() if any(s.startswith(name) for s in specs)), ENCODER)


def with_needed(specs: tuple[str, ...]) -> list[str]:
    """The specs, and those of the strategies without which they cannot be used."""
    needed = [EXAMPLES[name] for spec in specs if (name := strategy_of(spec).needs) is not None]
    return [*specs, *(spec for spec in needed if spec not in specs)]


@pytest.fixture(scope="module")
def baselines() -> dict[tuple[str, str], Outcome]:
    return {kind: run(kind=kind) for kind in (ENCODER, MASKED, CAUSAL)}


@pytest.fixture(autouse=True)
def _quantize_small_tensors(monkeypatch: pytest.MonkeyPatch) -> None:
    """Most tensors of a tiny model are below the size from which adamw-8bit quantizes."""
    if STRATEGIES["adamw-8bit"].is_available():
        monkeypatch.setattr("tightfit.optimizers.adamw_8bit._SMALL", 256)


def strategy_of(variant: str) -> type[Strategy]:
    return STRATEGIES[variant.partition(":")[0]]


def test_every_strategy_is_in_the_list_under_its_own_name() -> None:
    assert all(strategy.name == name for name, strategy in STRATEGIES.items())
    assert set(SMALL) <= set(EXAMPLES)


@pytest.mark.parametrize("name", EXAMPLES)
def test_the_effect_on_the_result_is_as_declared(name: str, baselines: dict[tuple[str, str], Outcome]) -> None:
    baseline = baselines[model_for(EXAMPLES[name])]
    losses = run(EXAMPLES[name]).losses
    result = strategy_of(name).result
    if result is Result.SAME:
        assert losses == pytest.approx(baseline.losses, rel=SAME)
    elif result is Result.CLOSE:
        decrease, expected = losses[0] - losses[-1], baseline.losses[0] - baseline.losses[-1]
        assert expected > 0.5, "the baseline must learn something to be compared with"
        assert decrease == pytest.approx(expected, rel=CLOSE)
        assert losses != pytest.approx(baseline.losses, rel=SAME), "its result should be declared 'same'"
    else:
        assert losses != pytest.approx(baseline.losses, rel=SAME), "its result should be declared 'same'"


@pytest.fixture(scope="module")
def baselines_with_dropout() -> dict[tuple[str, str], Outcome]:
    return {kind: run(kind=kind, **DROPOUT) for kind in (ENCODER, MASKED, CAUSAL)}


@pytest.mark.parametrize("name", EXAMPLES)
def test_it_frees_the_declared_kinds_of_memory_and_no_kind_grows(
    name: str, baselines_with_dropout: dict[tuple[str, str], Outcome]
) -> None:
    before = baselines_with_dropout[model_for(EXAMPLES[name])].kinds
    for kind, size in run(EXAMPLES[name], **DROPOUT).kinds.items():
        if kind in strategy_of(name).frees:
            assert size < before[kind], f"{kind.value}: not freed"
        else:
            assert size <= 1.02 * before[kind], f"{kind.value}: grew"


@pytest.mark.parametrize(("first", "second"), list(itertools.combinations(EXAMPLES, 2)))
def test_pairs_work_or_are_rejected_with_a_reason(
    first: str, second: str, baselines: dict[tuple[str, str], Outcome]
) -> None:
    specs = EXAMPLES[first], EXAMPLES[second]
    if strategy_of(first).exclusive and strategy_of(first).exclusive == strategy_of(second).exclusive:
        twice = strategy_of(first) is strategy_of(second)
        message = r"are the same strategy twice: keep one\.$" if twice else r"clash: both set the [\w ]+\. Keep one\.$"
        with pytest.raises(RecipeError, match=message):
            losses_of(*specs)
        return
    if second == "optimizer-in-backward" and strategy_of(first).exclusive == "micro-batch":
        with pytest.raises(
            RecipeError, match=r"clash: a step would need 4 backward passes. Use chunked-layers:size=2 instead"
        ):
            losses_of(*specs)
        return
    losses = losses_of(*specs)
    assert all(loss == loss and loss > 0 for loss in losses)
    if Result.SAME is strategy_of(first).result is strategy_of(second).result:
        assert losses == pytest.approx(baselines[model_for(*specs)].losses, rel=SAME)


@pytest.mark.parametrize("name", EXAMPLES)
def test_its_spec_parses_to_the_same_strategy(name: str) -> None:
    strategy = parse_strategy(EXAMPLES[name])
    assert parse_strategy(strategy.spec) == strategy
    assert strategy.spec == EXAMPLES[name]


@pytest.mark.parametrize("name", EXAMPLES)
def test_its_module_docstring_and_summary_explain_it(name: str) -> None:
    strategy = strategy_of(name)
    module = __import__(strategy.__module__, fromlist=["x"])
    assert len(module.__doc__ or "") > 150, "a strategy's file opens with what it frees and why"
    assert strategy.summary
