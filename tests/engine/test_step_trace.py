"""The real Trainer on real tensors against the simulation: every allocation and release, in order, by kind and size.

The Trainer trains two epochs of one batch, of which the first is the best. The simulation gets the shapes of the
batches that the Trainer ran. Compared are the features of a frozen encoder, forward and backward of both epochs, both
optimizer steps, the evaluation, loading the best weights, saving, and merging an adapter. Not compared are

- what happens between the phases: the data loader, cutting micro-batches, logging, callbacks, zeroing gradients;
- loading the model, whose weights are not initialized in a simulation;
- the inputs: a loader's batch is in memory beside its micro-batches, while the simulation makes each micro-batch alone;
- blocks of up to 128 bytes: accelerate divides each loss by one and converts logits to fp32 (96 bytes here),
  transformers repeats the evaluation loss per row, torch makes the scalars of a mask, chunked-layers reads the lengths
  of the rows (64 bytes), which a simulation is told, and cached features are checked by their logits;
- an inverted copy of the boolean attention mask, which the simulation makes in place of torch's fused attention and
  frees at once; torch 2.13 converts the mask without it;
- the order of releases between two allocations: autocast frees its cached weights in the order of their addresses.
"""

from __future__ import annotations

from collections import defaultdict
from dataclasses import dataclass, field, replace
from itertools import groupby
from math import prod
from pathlib import Path
from types import SimpleNamespace
from typing import Any, NamedTuple

import pytest
import torch
from heads import DROPOUT, small_config
from parts import CPU
from trainers import rows_of, scripted
from transformers import TrainerCallback

from tightfit import Job
from tightfit.data.labels import Labels
from tightfit.engine.assembly import assemble
from tightfit.engine.meter import OTHER, Meter
from tightfit.engine.step import finish_model
from tightfit.simulation.job_simulation import SimulationSetup
from tightfit.simulation.kernels import scratch_on
from tightfit.simulation.simulate import BatchShapes, tag_gradients, tag_state
from tightfit.simulation.trace import Block, Trace
from tightfit.simulation.tracer import Tracer
from tightfit.strategies.base import MemoryKind
from tightfit.strategies.parts import Parts
from tightfit.strategies.recipe import Recipe
from tightfit.training.features import _features
from tightfit.training.setup import training_arguments
from tightfit.training.trainer import Trainer

RECIPES = [
    "",
    "micro-batch:size=4",
    "micro-batch:tokens=70",
    "gradient-checkpointing",
    "chunked-layers:size=2",
    "chunked-layers:size=2 adafactor optimizer-in-backward",
    "adafactor",
    "adamw-16bit",
    "adamw:fused=false",
    "bf16-weights",
    "lora",
    "lora:merge=false micro-batch:size=4 gradient-checkpointing",
    "freeze",
    "freeze:layers=1",
    "mixed-precision:dtype=bf16",
    "mixed-precision:dtype=bf16 micro-batch:size=4 gradient-checkpointing adamw-16bit",
]
COMPARED = 129  # bytes
WIDE = {"hidden_size": 64, "num_attention_heads": 4, "intermediate_size": 128}  # all vectors are larger than that
LENGTHS = (24, 22, 21, 19, 17, 16, 14, 12)
TOKENIZER: Any = SimpleNamespace(pad_token_id=0)
LABELS = Labels(("a", "b", "c"))
SECTIONS = {"forward": "train", "evaluate": "evaluate", "features": "features"}
Batch = dict[str, torch.Tensor]


class Event(NamedTuple):
    """A block is allocated (+) or freed (-)."""

    what: str
    size: int
    kind: str


Phase = tuple[str, list[Event]]


class TracingMeter(Meter):
    """Starts the phases of a trace instead of measuring them."""

    def __init__(self, trace: Trace) -> None:
        self.trace, self._current = trace, OTHER

    def _enter(self, name: str) -> str:
        before, self._current = self._current, name
        self.trace.start_phase(name)
        return before


@dataclass
class RealRun:
    """A training run by the Trainer, under the tracer."""

    folder: Path
    recipe: Recipe
    tracer: Tracer = field(default_factory=lambda: Tracer(Trace(), scratch_on(CPU)))
    shapes: dict[str, list[tuple[int, int]]] = field(default_factory=dict)
    """Rows and tokens of the batches that went through the model."""

    @property
    def job(self) -> Job:
        how: dict[str, Any] = {"random_weights": True, "batch_size": len(LENGTHS), "max_length": max(LENGTHS)}
        return Job(model=str(self.folder), data="none", epochs=2, **how)

    @property
    def setup(self) -> SimulationSetup:
        return SimulationSetup.of(self.job, CPU, LABELS, TOKENIZER)

    def run(self) -> Trace:
        rows = rows_of(make_batch())
        with self.tracer, self.tracer.owners.tracking():
            self.tracer.trace.start_phase("load")
            parts = assemble(self.setup.model, self.setup.settings, self.recipe, CPU)
            self._mark(parts.model)
            trainer = self._trainer(parts, rows)
            if not parts.source.runs_encoder:
                self._cache_features(trainer)
            trainer.train()
            finish_model(parts, None, trainer.meter.phase)
        return self.tracer.trace

    def _mark(self, model: Any) -> None:
        """Mark weights, gradients and inputs as the simulation does."""
        self.tracer.owners.register(model)
        for weight in (*model.parameters(), *model.buffers()):
            self.tracer.mark_as_of(weight, [weight], MemoryKind.WEIGHTS)
        tag_gradients(model.parameters(), self.tracer)
        model.register_forward_pre_hook(self._on_forward, with_kwargs=True, prepend=True)

    def _on_forward(self, model: Any, args: Any, kwargs: dict[str, Any]) -> None:
        phase, (rows, length) = self.tracer.trace.phases[-1][1], kwargs["input_ids"].shape
        is_check = phase == "features" and length == 1  # that cached features give the same logits
        if phase in SECTIONS and not is_check:
            self.shapes.setdefault(SECTIONS[phase], []).append((rows, length))
            tensors = [value for value in kwargs.values() if isinstance(value, torch.Tensor) and value.dim()]
            self.tracer.mark(tensors, MemoryKind.INPUTS)

    def _trainer(self, parts: Parts, rows: Any) -> Trainer:
        class TagState(TrainerCallback):
            def on_optimizer_step(callback, *args: Any, **kwargs: Any) -> None:  # noqa: N805
                tag_state(trainer.inner_optimizer, self.tracer)

        trainer = Trainer(
            parts=parts,
            meter=TracingMeter(self.tracer.trace),
            args=training_arguments(self.job, parts, self.folder / "run", []),
            train_dataset=rows,
            eval_dataset=rows,
            compute_metrics=scripted("f1", (0.9, 0.5)),
            callbacks=[TagState()],
        )
        return trainer

    def _cache_features(self, trainer: Trainer) -> None:
        features = _features(trainer, trainer.prepare_rows(trainer.train_dataset, list(range(len(LENGTHS)))))
        trainer.train_dataset = trainer.eval_dataset = rows_of(features)
        trainer.args.remove_unused_columns = False


def make_batch() -> Batch:
    """Rows of different lengths, longest first."""
    mask = (torch.arange(max(LENGTHS))[None] < torch.tensor(LENGTHS)[:, None]).long()
    return {"input_ids": mask * 7, "attention_mask": mask, "labels": torch.arange(len(LENGTHS)) % 3}


def simulate(run: RealRun) -> Trace:
    """The simulation of the same batches."""
    train = run.shapes["train"]
    shapes = BatchShapes(
        micro_batches=train[: len(train) // 2],
        evaluation=run.shapes["evaluate"][:1],
        lengths=LENGTHS if any(s.name == "chunked-layers" for s in run.recipe.strategies) else None,
        encoder=run.shapes.get("features", ()),
    )
    trace = run.setup._trace_training(run.recipe, lambda _: shapes).trace
    return replace(trace, blocks=[block for block in trace.blocks if not is_inverted_mask(block)])


def is_inverted_mask(block: Block) -> bool:
    """Whether it is a boolean mask of rows x 1 x tokens x tokens, freed at once."""
    is_mask = block.shape is not None and len(block.shape) == 4 and block.shape[2] == block.shape[3]
    return is_mask and block.size == prod(block.shape or ()) and block.free_tick == block.alloc_tick + 1


def phases_in(trace: Trace) -> list[Phase]:
    """The phases in order with their events; an outer phase around an inner one of the same name is one phase."""
    blocks = zip(trace.blocks, trace.kinds(), strict=True)
    events = sorted(event for block, kind in blocks for event in events_of(block, kind))
    phases: list[Phase] = []
    for name, start, end, _ in trace.spans():
        inside = [event for tick, event in events if start < tick <= end]
        if phases and phases[-1][0] == name:
            phases[-1][1].extend(inside)
        else:
            phases.append((name, inside))
    return [(name, inside) for name, inside in phases if name not in (OTHER, "load")]


def events_of(block: Block, kind: MemoryKind) -> list[tuple[int, Event]]:
    if block.size < COMPARED or kind is MemoryKind.INPUTS:
        return []
    freed = [] if block.free_tick is None else [(block.free_tick, Event("-", block.size, kind.value))]
    return [(block.alloc_tick, Event("+", block.size, kind.value)), *freed]


def sort_releases(phase: Phase) -> Phase:
    """With the releases between two allocations in one order."""
    name, events = phase
    runs = (list(run) for _, run in groupby(events, lambda event: event.what))
    return name, [event for run in runs for event in (sorted(run) if run[0].what == "-" else run)]


def without_state(phase: Phase) -> Phase:
    """Without the optimizer state, which only the first pass allocates."""
    name, events = phase
    return name, [event for event in events if event.kind != MemoryKind.OPTIMIZER_STATE.value]


def expected_of(simulated: list[Phase]) -> list[Phase]:
    """The phases of two epochs, from a simulation of one pass, one clipping and two optimizer steps."""
    found: dict[str, list[Phase]] = defaultdict(list)
    for phase in simulated:
        found[SECTIONS.get(phase[0], phase[0])].append(phase)
    clip, first, second = found["step"]
    once = [phase for phase in simulated if phase[0] in ("forward", "backward")]
    again = [without_state(phase) for phase in once]
    epochs = [*once, clip, first, *found["evaluate"], *again, clip, second, *found["evaluate"]]
    return [*found["features"], *epochs, *found["load-best"], *found["save"]]


def assert_equal_events(folder: Path, specs: str) -> None:
    run = RealRun(folder, Recipe.parse(specs.split()))
    real = [sort_releases(phase) for phase in phases_in(run.run())]
    simulated = [sort_releases(phase) for phase in phases_in(simulate(run))]
    found, expected = ([phase for phase in each if phase[1]] for each in (real, expected_of(simulated)))
    assert [name for name, _ in found] == [name for name, _ in expected]
    for (name, events), (_, predicted) in zip(found, expected, strict=True):
        assert events == predicted, name


@pytest.mark.parametrize("specs", RECIPES)
def test_the_trainer_allocates_what_the_simulation_predicts(tmp_path: Path, specs: str) -> None:
    small_config("Bert", **WIDE).save_pretrained(tmp_path)
    assert_equal_events(tmp_path, specs)


@pytest.mark.parametrize(
    ("architecture", "changes"), [("Bert", {**WIDE, **DROPOUT}), ("Roberta", WIDE), ("DistilBert", {}), ("GPT2", {})]
)
def test_so_it_does_with_dropout_and_in_other_architectures(
    tmp_path: Path, architecture: str, changes: dict[str, Any]
) -> None:
    small_config(architecture, **changes).save_pretrained(tmp_path)
    assert_equal_events(tmp_path, "micro-batch:size=4")


def test_a_tensor_that_only_the_trainer_keeps_is_found(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The comparison is not blind: here the Trainer keeps one more copy of a weight."""
    loss = Trainer._loss

    def keeping(trainer: Trainer, model: Any, *args: Any, **kwargs: Any) -> torch.Tensor:
        trainer.kept = model.classifier.weight.detach().clone()
        return loss(trainer, model, *args, **kwargs)

    monkeypatch.setattr(Trainer, "_loss", keeping)
    small_config("Bert", **WIDE).save_pretrained(tmp_path)
    with pytest.raises(AssertionError, match="forward"):
        assert_equal_events(tmp_path, "")
