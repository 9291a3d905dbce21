"""The simulation against the same training run on real tensors, phase by phase."""

from __future__ import annotations

from dataclasses import replace
from functools import partial
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
from heads import CONFIGS, DROPOUT, build, make_batch, small_config
from parts import CPU, skip_unless_installed

from tightfit import Job
from tightfit.data.batch_spec import BatchSpec
from tightfit.data.labels import Labels
from tightfit.engine.assembly import StepSettings
from tightfit.engine.model_source import GivenModel
from tightfit.simulation.estimate import PHASES, phases_of
from tightfit.simulation.job_simulation import Simulation, SimulationSetup
from tightfit.simulation.op_counts import OpCounts
from tightfit.simulation.scaling import NotExtrapolable, constant_sizes
from tightfit.simulation.simulate import BatchShapes
from tightfit.simulation.timeline import Timeline
from tightfit.simulation.worst_case import Lengths
from tightfit.strategies.base import MemoryKind
from tightfit.strategies.parts import Parts
from tightfit.strategies.recipe import Recipe

TOKENIZER: Any = SimpleNamespace(pad_token_id=0)
LABELS = Labels(("a", "b", "c"))
SETTINGS = StepSettings(batch_size=8, max_length=24, learning_rate=1e-3, weight_decay=0.0, max_grad_norm=1.0)
SHAPES = BatchShapes(((3, 24), (2, 20)), ((3, 22),), encoder=((3, 24),))
USUAL = set(PHASES) - {"features"}
RECIPES = [
    "",
    "micro-batch:size=3",
    "gradient-checkpointing",
    "adafactor",
    "adamw-8bit",
    "freeze",
    "freeze:cache=false",
    "freeze:layers=1",
    "mixed-precision",
    "max-length:tokens=8",
    "adamw:fused=false",
    "micro-batch:size=2 gradient-checkpointing adafactor",
    "chunked-layers:size=2",
    "optimizer-in-backward",
    "bf16-weights",
    "chunked-layers:size=2 adafactor optimizer-in-backward",
    "chunked-layers:size=2 adamw-8bit optimizer-in-backward",
    "lora",
    "lora:merge=false,dropout=0.1 gradient-checkpointing",
    "lora chunked-layers:size=2 adafactor optimizer-in-backward",
]
Phases = dict[str, dict[MemoryKind, int]]


def job_of(folder: Path) -> Job:
    return Job(model=str(folder), data="none", batch_size=8, max_length=24, random_weights=True)


def setup_of(folder: Path) -> SimulationSetup:
    return SimulationSetup.of(job_of(folder), CPU, LABELS, TOKENIZER)


def for_source(shapes: BatchShapes, parts: Parts) -> BatchShapes:
    """Without encoder batches, where every step runs the encoder."""
    return replace(shapes, encoder=()) if parts.source.runs_encoder else shapes


def traced(folder: Path, recipe: str = "", shapes: BatchShapes = SHAPES, *, fake: bool = True) -> Phases:
    parsed = Recipe.parse(recipe.split())
    trace = setup_of(folder)._trace_training(parsed, partial(for_source, shapes), fake=fake).trace
    return phases_of(Timeline.of(trace, constant_sizes(trace)), CPU, [(s.rows, s.length) for s in trace.sections])


def estimated_phases(folder: Path, recipe: str, lengths: Lengths) -> Phases:
    return Simulation(setup_of(folder), lengths).estimate(Recipe.parse(recipe.split())).phases


def total(kinds: dict[MemoryKind, int]) -> int:
    return sum(kinds.values())


@pytest.fixture
def folder(tmp_path: Path, request: pytest.FixtureRequest) -> Path:
    small_config(getattr(request, "param", "Bert")).save_pretrained(tmp_path)
    return tmp_path


@pytest.mark.parametrize("recipe", RECIPES)
def test_fake_tensors_allocate_as_real_ones(folder: Path, recipe: str, monkeypatch: pytest.MonkeyPatch) -> None:
    if "adamw-8bit" in recipe:
        skip_unless_installed("adamw-8bit")
        monkeypatch.setattr("tightfit.optimizers.adamw_8bit._SMALL", 256)  # the model is tiny
    predicted, found = traced(folder, recipe), traced(folder, recipe, fake=False)
    assert set(predicted) == set(found) == (set(PHASES) if recipe == "freeze" else USUAL)
    for phase, kinds in found.items():
        assert total(predicted[phase]) == pytest.approx(total(kinds), rel=0.01), phase


@pytest.mark.parametrize(
    "recipe", ["", "tiled-attention", "tiled-attention chunked-layers:size=2", "tiled-attention gradient-checkpointing"]
)
def test_dropout_on_fake_tensors_allocates_as_on_real_ones(tmp_path: Path, recipe: str) -> None:
    small_config("Bert", **DROPOUT).save_pretrained(tmp_path)
    predicted, found = traced(tmp_path, recipe), traced(tmp_path, recipe, fake=False)
    for phase in ("forward", "backward"):
        assert total(predicted[phase]) == pytest.approx(total(found[phase]), rel=0.02), phase


def test_tiled_attention_of_a_causal_model_keeps_no_scores(tmp_path: Path) -> None:
    small_config("GPT2", attn_pdrop=0.1).save_pretrained(tmp_path)
    predicted, found = (traced(tmp_path, "tiled-attention", fake=fake) for fake in (True, False))
    for phase in ("forward", "backward"):
        assert total(predicted[phase]) == pytest.approx(total(found[phase]), rel=0.02), phase


@pytest.mark.parametrize("tokens", [16, 1000])
@pytest.mark.parametrize(("architecture", "head"), [("Llama", "causal"), ("T5", "seq2seq")])
def test_a_loss_in_chunks_of_fake_tensors_allocates_as_one_of_real_tensors(
    architecture: str, head: str, tokens: int
) -> None:
    phases = []
    for fake in (True, False):
        spec = BatchSpec.of(make_batch(3, head, 12), make_batch(2, head, 18))
        model = GivenModel(build(architecture, head, vocab_size=600, dropout_rate=0.0)).without_weights()
        setup = SimulationSetup(model, SETTINGS, CPU, spec)
        recipe = Recipe.parse([f"chunked-loss:tokens={tokens}"])
        trace = setup._trace_training(recipe, partial(for_source, SHAPES), fake=fake).trace
        phases.append(
            phases_of(Timeline.of(trace, constant_sizes(trace)), CPU, [(s.rows, s.length) for s in trace.sections])
        )
    for phase in ("forward", "backward", "evaluate"):
        assert total(phases[0][phase]) == pytest.approx(total(phases[1][phase]), rel=0.01), phase


@pytest.mark.parametrize("folder", list(CONFIGS), indirect=True)
def test_every_architecture_can_be_simulated(folder: Path) -> None:
    predicted, found = traced(folder), traced(folder, fake=False)
    assert set(predicted) == USUAL
    for phase in ("forward", "backward", "step"):
        assert total(predicted[phase]) == pytest.approx(total(found[phase]), rel=0.02), phase


def test_a_trace_whose_op_counts_do_not_scale_is_fixed(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def fail(*args: object) -> None:
        raise NotExtrapolable

    assert Simulation(setup_of(folder), Lengths.uniform(8, 23))._trace(Recipe()).is_scalable
    monkeypatch.setattr(OpCounts, "by_shape", fail)
    assert not Simulation(setup_of(folder), Lengths.uniform(8, 23))._trace(Recipe()).is_scalable


@pytest.mark.parametrize("folder", list(CONFIGS), indirect=True)
@pytest.mark.parametrize(
    "recipe",
    [
        "",
        "micro-batch:size=3",
        "micro-batch:size=1 gradient-checkpointing",
        "micro-batch:size=2 max-length:tokens=11",
        "micro-batch:size=2 freeze",
        "micro-batch:tokens=60",
        "optimizer-in-backward",
        "gradient-checkpointing adafactor optimizer-in-backward",
    ],
)
def test_one_trace_gives_the_estimate_for_every_micro_batch_size(folder: Path, recipe: str) -> None:
    lengths = Lengths.uniform(8, 23)
    found = Simulation(setup_of(folder), lengths)._trace(Recipe.parse(recipe.split()))
    assert found.is_scalable
    shapes = lengths.worst_shapes(found.parts)
    exact = traced(
        folder,
        recipe,
        BatchShapes(shapes.micro_batches, [shapes.evaluation], encoder=shapes.encoder),
    )
    predicted = estimated_phases(folder, recipe, lengths)
    for phase, kinds in exact.items():
        assert total(predicted[phase]) == pytest.approx(total(kinds), rel=0.01), phase


@pytest.mark.parametrize("tokens", [23, 48, 70])
@pytest.mark.parametrize("recipe", ["", "tiled-attention"])
def test_the_largest_micro_batch_by_tokens_is_estimated(folder: Path, recipe: str, tokens: int) -> None:
    """Few long rows or many short ones, whichever needs more memory."""
    batches = np.array([[23] * 8, [12] * 8, [20, 20, 7, 7, 6, 5, 4, 3]])
    lengths, specs = Lengths(batches, (23,) * 8), f"{recipe} micro-batch:tokens={tokens}"
    parts = Simulation(setup_of(folder), lengths).traced(Recipe.parse(specs.split()))[1]
    shapes, evaluation = (
        set(parts.step_batching.micro_batches(lengths.batches)),
        [lengths.worst_shapes(parts).evaluation],
    )
    exact = [traced(folder, recipe, BatchShapes([shape, shape], evaluation)) for shape in shapes]
    predicted = estimated_phases(folder, specs, lengths)
    for phase in ("forward", "backward"):
        largest = max(total(kinds[phase]) for kinds in exact)
        assert total(predicted[phase]) == pytest.approx(largest, rel=0.01), phase


def test_the_estimate_has_four_four_and_eight_bytes_per_parameter(folder: Path) -> None:
    simulation = Simulation(setup_of(folder), Lengths.uniform(8, 24))
    estimate = simulation.estimate(Recipe())
    kinds = estimate.phases["step"]
    assert kinds[MemoryKind.WEIGHTS] == pytest.approx(4 * estimate.parameters, rel=0.02)
    assert kinds[MemoryKind.GRADIENTS] == 4 * estimate.parameters
    assert kinds[MemoryKind.OPTIMIZER_STATE] == pytest.approx(8 * estimate.parameters, rel=0.02)


@pytest.mark.parametrize(
    ("recipe", "kind", "phase"),
    [
        ("micro-batch:size=2", MemoryKind.ACTIVATIONS, "forward"),
        ("gradient-checkpointing", MemoryKind.ACTIVATIONS, "forward"),
        ("adafactor", MemoryKind.OPTIMIZER_STATE, "step"),
        ("freeze", MemoryKind.GRADIENTS, "step"),
        ("max-length:tokens=8", MemoryKind.ACTIVATIONS, "forward"),
    ],
)
def test_each_strategy_shrinks_its_memory_kind(folder: Path, recipe: str, kind: MemoryKind, phase: str) -> None:
    lengths = Lengths.uniform(8, 24)
    baseline, used = (estimated_phases(folder, specs, lengths) for specs in ("", recipe))
    assert used[phase][kind] < 0.7 * baseline[phase][kind]


def test_a_model_that_cannot_be_simulated_can_be_probed(
    tiny_model: Path, reviews: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Its code reads tensor values, which fake tensors do not have."""
    from transformers import BertForSequenceClassification

    from tightfit import estimate
    from tightfit.errors import ModelError

    whole = BertForSequenceClassification.forward

    def forward(self: Any, input_ids: Any, **rest: Any) -> Any:
        assert self.classifier.weight.sum().item() < 1000
        return whole(self, input_ids=input_ids, **rest)

    monkeypatch.setattr(BertForSequenceClassification, "forward", forward)
    job = Job(model=str(tiny_model), data=str(reviews), max_length=32)
    with pytest.raises(ModelError, match=r"cannot be simulated: .*--probe"):
        estimate(job)
    found = estimate(job, probe=True)
    assert found.phases["step"][MemoryKind.OPTIMIZER_STATE] == pytest.approx(8 * found.parameters, rel=0.02)


def test_the_op_that_reads_tensor_values_is_named(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    from transformers import BertForSequenceClassification

    from tightfit.errors import ModelError

    def forward(self: Any, input_ids: Any, **rest: Any) -> Any:
        return self.classifier(self.classifier.weight.nonzero().float())

    small_config("Bert").save_pretrained(tmp_path)
    monkeypatch.setattr(BertForSequenceClassification, "forward", forward)
    with pytest.raises(ModelError, match=r"reads tensor values \(aten.nonzero.default\)"):
        estimated_phases(tmp_path, "", Lengths.uniform(8, 24))


@pytest.mark.parametrize("folder", ["Bert", "T5"], indirect=True)
def test_a_recipe_has_one_estimate_whether_its_longest_rows_are_equal_or_not(folder: Path) -> None:
    """transformers drops a mask of ones, so whether there is one would depend on the micro-batch that is looked at."""
    equal, different = Lengths.uniform(8, 24), Lengths(np.array([[24, 24, 24, 24, 9, 9, 9, 8]]), (24,) * 8)
    assert estimated_phases(folder, "", equal) == estimated_phases(folder, "", different)


def test_estimates_do_not_depend_on_their_order(folder: Path) -> None:
    simulation = Simulation(setup_of(folder), Lengths.uniform(8, 24))
    recipes = [
        Recipe.parse(specs) for specs in (["micro-batch:size=2"], [], ["max-length:tokens=8"], ["micro-batch:size=2"])
    ]
    phases = [simulation.estimate(recipe).phases for recipe in recipes]
    assert phases[0] == phases[3]
    assert total(phases[0]["forward"]) < total(phases[1]["forward"])
    assert len(simulation._traced) == 1
