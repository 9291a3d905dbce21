"""What models read from tensors: true answers where they follow from the batch, else the answer that needs more."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import torch
import transformers as hf
from heads import small_config
from parts import CPU
from simulation.test_simulate import LABELS, TOKENIZER, estimated_phases, job_of, setup_of, total, traced

import tightfit
from tightfit import Job
from tightfit.simulation import known_values
from tightfit.simulation.job_simulation import Simulation, SimulationSetup
from tightfit.simulation.known_values import Unknowns, trace_answers
from tightfit.simulation.scaling import live_peak
from tightfit.simulation.simulate import BatchShapes, fake_tensors
from tightfit.simulation.trace import Trace
from tightfit.simulation.tracer import Tracer
from tightfit.simulation.worst_case import Lengths
from tightfit.strategies.recipe import Recipe

_SMALL: dict[str, Any] = {
    **{"vocab_size": 99, "pad_token_id": 0, "bos_token_id": 1, "eos_token_id": 2, "decoder_start_token_id": 2},
    **{"hidden_size": 32, "num_hidden_layers": 2, "num_attention_heads": 2, "intermediate_size": 64},
    **{"max_position_embeddings": 64, "num_labels": 3, "hidden_dropout_prob": 0.0, "attention_probs_dropout_prob": 0.0},
    **{"dropout": 0.0, "attention_dropout": 0.0, "use_cache": False},
}
_BART = {"d_model": 32, "encoder_layers": 2, "decoder_layers": 2, "encoder_ffn_dim": 64, "decoder_ffn_dim": 64}
_BART |= {"encoder_attention_heads": 2, "decoder_attention_heads": 2}
_OPT = {"ffn_dim": 64, "word_embed_proj_dim": 32}
_XLM = {"emb_dim": 32, "n_layers": 2, "n_heads": 2, "n_words": 99}
_EXPERTS = {"num_local_experts": 4, "num_experts_per_tok": 2, "num_key_value_heads": 2}
_HUNYUAN = {"num_experts": 4, "moe_topk": 2, "num_key_value_heads": 2, "head_dim": 16}
READING = {  # models that read tensors in their forward pass
    "BART": hf.BartConfig(**_SMALL, **_BART),
    "mBART": hf.MBartConfig(**_SMALL, **_BART),
    "OPT": hf.OPTConfig(**_SMALL, **_OPT),
    "BioGPT": hf.BioGptConfig(**_SMALL),
    "Flaubert": hf.FlaubertConfig(**_SMALL, **_XLM),
    "Longformer": hf.LongformerConfig(**_SMALL, attention_window=8),
    "JetMoE": hf.JetMoeConfig(**_SMALL, **_EXPERTS, kv_channels=16),
    "HunYuan-MoE": hf.HunYuanMoEV1Config(**_SMALL, **_HUNYUAN),
    "Mixtral": hf.MixtralConfig(**_SMALL, **_EXPERTS),
}
_WITHOUT_DEPTH = {name: value for name, value in _SMALL.items() if name != "num_hidden_layers"}
READING["Funnel"] = hf.FunnelConfig(  # has no end token
    **_WITHOUT_DEPTH, d_model=32, n_head=2, d_head=16, d_inner=64, block_sizes=[1, 1, 1]
)


@pytest.mark.parametrize("name", READING)
def test_a_model_that_reads_tensors_allocates_as_on_real_ones(tmp_path: Path, name: str) -> None:
    READING[name].save_pretrained(tmp_path)
    predicted, found = traced(tmp_path), traced(tmp_path, fake=False)
    for phase in ("forward", "backward", "step"):
        assert total(predicted[phase]) == pytest.approx(total(found[phase]), rel=0.03), phase


@pytest.mark.parametrize("length", [24, 200])
def test_a_model_that_pads_all_texts_is_predicted_at_every_length(tmp_path: Path, length: int) -> None:
    sizes = _SMALL | {"max_position_embeddings": 512}
    hf.LongformerConfig(**sizes, attention_window=128).save_pretrained(tmp_path)
    job = Job(model=str(tmp_path), data="none", batch_size=8, max_length=length, random_weights=True)
    setup, recipe = SimulationSetup.of(job, CPU, LABELS, TOKENIZER), Recipe.parse(["micro-batch:size=8"])
    predicted = Simulation(setup, Lengths.uniform(8, length), overhead=0).estimate(recipe).phases
    found = traced(tmp_path, "micro-batch:size=8", BatchShapes(((8, length),), ((8, length),)), fake=False)
    for phase in ("forward", "backward", "step", "evaluate"):
        assert total(predicted[phase]) == pytest.approx(total(found[phase]), rel=0.03), phase


def test_layers_that_may_be_dropped_count_and_the_estimate_says_so(tmp_path: Path) -> None:
    notes, phases = {}, {}
    for layerdrop in (0.0, 0.5):
        folder = tmp_path / str(layerdrop)
        hf.BartConfig(**_SMALL, **_BART, encoder_layerdrop=layerdrop).save_pretrained(folder)
        simulation = Simulation(setup_of(folder), Lengths.uniform(8, 24), overhead=0)
        notes[layerdrop] = simulation.traced(Recipe())[0].training.notes
        phases[layerdrop] = simulation.estimate(Recipe()).phases
    assert phases[0.5] == phases[0.0]
    assert notes[0.0] == ()
    assert "modeling_bart.py" in str(notes[0.5][0])


def test_experts_are_taken_to_get_equally_many_tokens_and_the_estimate_says_so(tmp_path: Path) -> None:
    READING["JetMoE"].save_pretrained(tmp_path)
    simulation = Simulation(setup_of(tmp_path), Lengths.uniform(8, 24), overhead=0)
    notes = simulation.traced(Recipe())[0].training.notes
    assert len(notes) == 1
    assert "modeling_jetmoe.py" in str(notes[0])
    assert notes[0] in simulation.estimate(Recipe()).notes


@pytest.fixture
def unknowns() -> Iterator[Unknowns]:
    """Inside, tensors are fake and operations are followed."""
    found = Unknowns()
    with fake_tensors(CPU), Tracer(Trace(), lambda *_: [], found):
        yield found


def test_what_follows_from_the_batch_is_read_as_it_is(unknowns: Unknowns) -> None:
    ids = torch.full((3, 5), 7)
    ids[:, -1] = 2
    mask = torch.ones_like(ids)
    mask[-1, -1] = 0
    assert not mask.all()
    assert mask[:2].bool().all()
    assert mask.sum(1).tolist() == [5, 5, 4]
    ends = ids.eq(2)
    assert torch.unique_consecutive(ends.sum(1)).shape == (1,)
    assert ends.nonzero().shape == (3, 2)
    hidden = torch.empty(3, 5, 4)
    assert hidden[ends].shape == (3, 4)
    assert torch.equal(ids, ids.clone())
    assert ids.max().item() == 7
    assert not unknowns.questions


def test_what_is_written_to_a_view_is_read_from_its_base(unknowns: Unknowns) -> None:
    base = torch.zeros(4)
    base[1:3] += 1
    assert base.tolist() == [0, 1, 1, 0]
    base[:2] = torch.empty(2).sigmoid()  # unknown
    assert (base > 0).any()
    assert unknowns.questions


@pytest.mark.parametrize("answer", [True, False])
def test_what_weights_decide_is_answered_by_the_simulation(answer: bool) -> None:
    found = Unknowns(answer)
    with fake_tensors(CPU), Tracer(Trace(), lambda *_: [], found):
        assert bool(torch.empty(3).sum() > 0) is answer
    (place,) = found.questions
    assert place.startswith(Path(__file__).name)


def test_a_branch_that_cannot_be_simulated_is_left_out_and_the_estimate_says_so() -> None:
    def trace(found: Unknowns) -> Trace:
        made = Trace()
        with fake_tensors(CPU), Tracer(made, lambda *_: [], found):
            values = torch.empty(3, 4).sigmoid()
            if (values > 1).any():
                values[(values > 1).nonzero()[:, 0]].clone()
        return made

    _, notes = trace_answers(trace, live_peak)
    assert [Path(__file__).name in str(note) and "left out" in str(note) for note in notes] == [True]


def test_a_loop_that_ends_by_an_unknown_value_is_left_out(monkeypatch: pytest.MonkeyPatch) -> None:
    def trace(found: Unknowns) -> Trace:
        made = Trace()
        with fake_tensors(CPU), Tracer(made, lambda *_: [], found):
            values = torch.empty(3, 4).sigmoid()
            while (values > 0.5).any():
                values = values / 2
        return made

    monkeypatch.setattr(known_values, "_MOST_QUESTIONS", 50)
    _, notes = trace_answers(trace, live_peak)
    assert [Path(__file__).name in str(note) and "left out" in str(note) for note in notes] == [True]


@pytest.mark.parametrize(("probability", "dropped"), [(0.0, False), (1.0, True)])
def test_a_random_number_is_compared_for_its_whole_range(unknowns: Unknowns, probability: float, dropped: bool) -> None:
    assert bool(torch.rand([]) < probability) is dropped
    assert not unknowns.questions
    assert bool(torch.rand([]) < 0.5)
    assert unknowns.questions


@pytest.mark.parametrize("swapped", [False, True])
def test_of_two_branches_of_a_loop_the_larger_is_predicted(swapped: bool) -> None:
    def training(rows: int | None = None) -> Any:
        model = torch.nn.Linear(64, 64)

        def step() -> None:
            large = bool(model.weight.sum() > 0) is not swapped
            model(torch.ones(rows or (4096 if large else 8), 64)).sum().backward()

        return step

    def peak(build: Any) -> tuple[int, Any]:
        estimate = tightfit.estimate(build, device="T4 16GB")
        return sum(estimate.phases["forward"].values()), estimate.notes

    largest, notes = peak(training)
    assert largest == peak(lambda: training(4096))[0]
    assert "test_known_values.py" in str(notes[0])


def test_a_check_that_fails_with_one_answer_has_the_other() -> None:
    def training() -> Any:
        model = torch.nn.Linear(4, 4)

        def step() -> None:
            loss = model(torch.ones(2, 4)).sum()
            if loss.isnan():
                raise ValueError("NaN")
            loss.backward()

        return step

    assert tightfit.estimate(training, device="T4 16GB").notes == ()


@pytest.mark.parametrize("architecture", ["ModernBert", "Llama"])
def test_layers_with_rotary_positions_are_chunked_at_the_length_of_their_head_size(
    tmp_path: Path, architecture: str
) -> None:
    """Rotary positions of tokens x head size are trimmed in their tokens, not as a mask of tokens x tokens."""
    small_config(architecture, layers=3, hidden_size=48, head_dim=24).save_pretrained(tmp_path)
    lengths = Lengths.of(job_of(tmp_path), [24, 20, 15, 9] * 2, [24])
    assert estimated_phases(tmp_path, "chunked-layers:size=2", lengths)
