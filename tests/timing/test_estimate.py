"""The clock: work that grows as data does, and rates that are kept."""

from __future__ import annotations

import json
from collections.abc import Iterator, Sequence
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
import torch
from plans import RATES, planner_of

from tightfit.device import GPUS
from tightfit.planning.planner import Planner
from tightfit.simulation.op_counts import ELEMENTWISE, MATMUL, MATMUL_BYTES, NORM
from tightfit.strategies import STRATEGIES
from tightfit.strategies.recipe import Recipe
from tightfit.timing import (
    StepTime,
    step_time_on,
)
from tightfit.timing import (
    calibrate as measured,
)
from tightfit.timing import (
    cpu_load as quiet,
)
from tightfit.timing import (
    microbench as chunks,
)
from tightfit.timing import (
    microbench as products,
)
from tightfit.timing.calibrate import Layer, fit_correction, predicted
from tightfit.timing.estimate import Rates
from tightfit.timing.microbench import fastest


@pytest.fixture(autouse=True)
def _nobody_else_is_there(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Whoever runs beside the tests."""
    monkeypatch.setattr(quiet, "_COUNTERS", tmp_path / "nowhere")


@pytest.fixture(scope="module")
def planner(tmp_path_factory: pytest.TempPathFactory) -> Planner:
    return planner_of(tmp_path_factory.mktemp("model"))


def amount(planner: Planner, words: str, sort: str = MATMUL, rows: int = 4) -> float:
    """Floating-point operations of a slice of some texts of 32 tokens, or bytes that they go through."""
    traced, _ = planner.simulation.traced(Recipe.parse(words.split()))
    return sum(
        weight * amounts.sum()
        for weight, table in traced.tables(0)
        for found, amounts, _ in table.at([(rows, 32)])
        if found == sort
    )


def test_products_are_counted_as_torch_counts_them(planner: Planner) -> None:
    """And the fused attention of a CPU, which it leaves out: two products forward and five backward."""
    import torch
    from torch.utils.flop_counter import FlopCounterMode
    from transformers import AutoConfig, AutoModelForSequenceClassification

    config = AutoConfig.from_pretrained(planner.simulation.setup.job.model)
    model = AutoModelForSequenceClassification.from_config(config).train()
    with FlopCounterMode(display=False) as counter:
        model(input_ids=torch.ones(4, 32, dtype=torch.long), labels=torch.zeros(4, dtype=torch.long)).loss.backward()
    attention = config.num_hidden_layers * 7 * 2 * 4 * 32 * 32 * config.hidden_size
    assert amount(planner, "") == pytest.approx(counter.get_total_flops() + attention, rel=0.01)


def test_a_second_run_of_the_layers_is_a_third_more(planner: Planner) -> None:
    assert amount(planner, "gradient-checkpointing") / amount(planner, "") == pytest.approx(4 / 3, rel=0.03)


def test_tiles_stand_for_all_rows(planner: Planner) -> None:
    """Attention in tiles computes its scores twice; all else is as it was."""
    assert 1.0 <= amount(planner, "tiled-attention") / amount(planner, "") < 1.2


def test_slices_cost_calls_and_save_padding(planner: Planner) -> None:
    free, dear = (StepTime(Rates(RATES.curves, call, RATES.optimizers)) for call in (0.0, 1e-3))
    lengths, seconds = planner.simulation.lengths, {}
    for words in ("", "micro-batch:size=4", "micro-batch:size=1"):
        traced, parts = planner.simulation.traced(Recipe.parse(words.split()))
        seconds[words] = [clock.forward_backward_seconds(traced, parts, lengths) for clock in (free, dear)]
    assert seconds["micro-batch:size=4"][0] < seconds[""][0]
    assert seconds["micro-batch:size=1"][1] > seconds["micro-batch:size=4"][1] > seconds[""][1]


def test_prices_follow_the_size_of_a_call() -> None:
    rates = Rates({ELEMENTWISE: [(10.0, 2.0), (1000.0, 1.0)]}, 0.0, {})
    seconds = rates.seconds(ELEMENTWISE, np.array([10.0, 100.0, 1000.0, 5000.0]), np.ones(4))
    assert seconds == pytest.approx([20.0, 150.0, 1000.0, 5000.0])
    overlapping = Rates({ELEMENTWISE: [(1.0, 1.0), (2.0, 1.0)]}, 3.0, {}, overlaps=True)
    assert overlapping.seconds(ELEMENTWISE, np.array([1.0, 10.0]), np.ones(2)) == pytest.approx([3.0, 10.0])


def test_a_faster_card_is_faster(tmp_path: Path) -> None:
    seconds = []
    for name in ("GTX 1650 4GB", "A100 40GB"):
        planner = planner_of(tmp_path, GPUS[name])
        traced, parts = planner.simulation.traced(Recipe())
        clock = StepTime(Rates(step_time_on(GPUS[name]).rates.curves, 0.0, {}, overlaps=True))
        seconds.append(
            clock.forward_backward_seconds(traced, parts, planner.simulation.lengths)
            + clock.optimizer_seconds(traced, "")
        )
    assert seconds[0] > 5 * seconds[1]


@pytest.mark.parametrize(
    ("title", "gib", "card", "listed"),
    [
        ("NVIDIA A100-SXM4-40GB", 39.4, "A100 40GB", True),
        ("NVIDIA GeForce RTX 3060 Laptop GPU", 5.8, "RTX 3060 12GB", True),
        ("NVIDIA GeForce GTX 1080", 7.79, "RTX 3050 8GB", False),
        ("NVIDIA A10G", 22.19, "A10 24GB", False),
    ],
)
def test_a_card_is_known_by_its_whole_name_or_taken_for_one_of_its_size(
    title: str, gib: float, card: str, listed: bool
) -> None:
    here = replace(GPUS[card], title=title, memory=int(gib * (1 << 30)))
    rates = step_time_on(here).rates
    assert rates.curves == step_time_on(GPUS[card]).rates.curves
    assert (rates.note is None) is listed


def test_rates_are_measured_once_for_a_machine(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    calls = []
    monkeypatch.setattr(measured, "measure", lambda: calls.append(1) or RATES)
    monkeypatch.setattr(measured, "is_idle", lambda: True)
    for _ in range(2):
        measured.cpu_rates.cache_clear()
        assert measured.cpu_rates().call == RATES.call
    assert len(calls) == 1
    file = tmp_path / "tightfit" / "rates.json"
    kept = json.loads(file.read_text())
    file.write_text(json.dumps(kept | {"machine": {"model": "another"}}))
    measured.cpu_rates.cache_clear()
    measured.cpu_rates()
    file.write_text("{ torn")
    measured.cpu_rates.cache_clear()
    measured.cpu_rates()
    assert len(calls) == 3
    measured.cpu_rates.cache_clear()


@pytest.fixture
def two_threads() -> Iterator[None]:
    before = torch.get_num_threads()
    torch.set_num_threads(2)
    yield
    torch.set_num_threads(before)


def quiet_then(monkeypatch: pytest.MonkeyPatch, looks: Sequence[bool]) -> list[int]:
    """The cores are found so at each look, and free where only one is in use. Returns each round's threads."""
    told, threads = iter(looks), list[int]()
    monkeypatch.setattr(measured, "is_idle", lambda: torch.get_num_threads() == 1 or next(told))
    monkeypatch.setattr(measured, "bench_ops", lambda: threads.append(torch.get_num_threads()) or RATES)
    monkeypatch.setattr(measured, "bench_16bit", lambda call: [(1.0, call)])
    monkeypatch.setattr(measured, "fit_matmul", lambda rates: rates)
    return threads


@pytest.mark.usefixtures("two_threads")
@pytest.mark.parametrize("looks", [[False], [True, False, True, False]], ids=["busy", "became busy"])
def test_rates_of_a_busy_machine_are_those_of_one_core_and_not_kept(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, looks: list[bool]
) -> None:
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    threads = quiet_then(monkeypatch, looks)
    measured.cpu_rates.cache_clear()
    rates = measured.cpu_rates()
    measured.cpu_rates.cache_clear()
    assert not list(tmp_path.rglob("*.json"))
    assert threads == [2] * (len(looks) - 1) + [1, 1]
    assert torch.get_num_threads() == 2
    assert rates.note is not None


@pytest.mark.parametrize(("worked", "stolen"), [(20, 25), (40, 0)], ids=["by the host", "by other processes"])
def test_rates_of_time_that_went_to_others_are_good_for_ten_minutes(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, worked: int, stolen: int
) -> None:
    """A virtual machine's host may lend its cores to others for minutes; all later plans would be spoilt."""
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    now(monkeypatch, tmp_path, "cpu  100 0 100 100 0 0 0 10 9 9\ncpu0 1\n", 7.0)
    later = f"cpu  {100 + worked} 0 110 {190 - worked} 0 0 0 {10 + stolen} 99 99\n"
    monkeypatch.setattr(measured, "measure", lambda: now(monkeypatch, tmp_path, later, 7.3) or RATES)
    monkeypatch.setattr(measured, "is_idle", lambda: True)
    noted, again = rates_anew(), rates_anew()
    assert "20%" in str(noted.note)
    assert noted.note == again.note  # of the first measuring: a second one would find nobody there
    file = tmp_path / "tightfit" / "rates.json"
    kept = json.loads(file.read_text())
    file.write_text(json.dumps(kept | {"made": kept["made"] - 601}))
    assert rates_anew().note is None


def rates_anew() -> Rates:
    """As a new process finds them."""
    measured.cpu_rates.cache_clear()
    rates = measured.cpu_rates()
    measured.cpu_rates.cache_clear()
    return rates


def now(monkeypatch: pytest.MonkeyPatch, folder: Path, counters: str, ours: float) -> None:
    """The system counts so for all processes, and so many seconds for this one."""
    (folder / "stat").write_text(counters)
    monkeypatch.setattr(quiet, "_COUNTERS", folder / "stat")
    monkeypatch.setattr(quiet.time, "process_time", lambda: ours)


@pytest.mark.usefixtures("two_threads")
@pytest.mark.parametrize(("idle", "free"), [(100, False), (107, True)])
def test_two_threads_among_many_processes_are_not_free_though_faster_than_one(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, idle: int, free: bool
) -> None:
    now(monkeypatch, tmp_path, "cpu  100 0 100 100 0 0 0 0\n", 7.0)
    after = f"cpu  {212 - idle} 0 100 {idle} 0 0 0 0\n"
    monkeypatch.setattr(quiet, "_all_beat_one", lambda: now(monkeypatch, tmp_path, after, 7.04) or True)
    assert quiet.is_idle() is free


@pytest.mark.parametrize("counters", [None, "", "cpu"])
def test_where_the_system_does_not_say_nobody_else_is_there(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, counters: str | None
) -> None:
    monkeypatch.setattr(quiet, "_COUNTERS", tmp_path / "stat")
    if counters is not None:
        (tmp_path / "stat").write_text(counters)
    assert quiet.CpuShare().stolen == quiet.CpuShare().others == 0.0


@pytest.mark.usefixtures("two_threads")
def test_a_round_that_somebody_disturbed_does_not_count(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    quiet_then(monkeypatch, [True, True, False, True])
    wrong = replace(RATES, call=RATES.call / 2)
    rounds = iter([RATES, wrong, RATES])  # the second one would be the lowest
    monkeypatch.setattr(measured, "bench_ops", lambda: next(rounds))
    told = []
    monkeypatch.setattr(measured, "fit_correction", lambda rates, layers: told.append(rates) or rates)
    measured.cpu_rates.cache_clear()
    assert measured.cpu_rates().note is None
    measured.cpu_rates.cache_clear()
    assert told[0].call == RATES.call
    assert list(tmp_path.rglob("rates.json"))


@pytest.mark.usefixtures("two_threads")
def test_little_work_costs_no_more_than_one_core_takes(monkeypatch: pytest.MonkeyPatch) -> None:
    """Two threads that wait for one another take a time slice for every call, however small."""
    waiting = lambda run: 4e-3 if torch.get_num_threads() > 1 else 1e-6  # noqa: E731
    monkeypatch.setattr(chunks, "quickest", waiting)
    curve = chunks._curve(chunks._SAMPLES[NORM], 0.0)
    assert [size * price for size, price in curve] == pytest.approx([1e-6, 1e-6, 4e-3, 4e-3])


def test_of_several_rounds_the_fastest_counts_point_by_point() -> None:
    """A burst of somebody else's work makes one size dear in one round, and hardly the same one in the next."""
    first = Rates({ELEMENTWISE: [(1.0, 2.0), (9.0, 8.0)]}, 5.0, {"adamw": 1.0, "adafactor": 7.0})
    second = Rates({ELEMENTWISE: [(1.0, 6.0), (9.0, 3.0)]}, 4.0, {"adamw": 2.0, "adafactor": 3.0})
    expected = Rates({ELEMENTWISE: [(1.0, 2.0), (9.0, 3.0)]}, 4.0, {"adamw": 1.0, "adafactor": 3.0})
    assert fastest([first, second]) == expected


def measured_at(operation: float, byte: float) -> Rates:
    """As they would be measured if these were the prices."""
    told = []
    for tokens, inner, outer in products._SHAPES:
        flops, touched = 2.0 * tokens * inner * outer, 4.0 * (tokens * inner + inner * outer + tokens * outer)
        told.append((flops, (operation * flops + byte * touched) / flops))
    return Rates({MATMUL: told}, 1e-6, {})


def test_products_of_few_tokens_are_told_by_what_they_read() -> None:
    rates = products.fit_matmul(measured_at(6e-12, 2e-10))
    assert [price for _, price in rates.curves[MATMUL]] == pytest.approx([6e-12])
    assert [price for _, price in rates.curves[MATMUL_BYTES]] == pytest.approx([2e-10])


def test_where_reading_would_win_time_it_costs_nothing() -> None:
    rates = products.fit_matmul(measured_at(6e-12, -1e-11))
    assert rates.curves[MATMUL_BYTES] == [(1.0, 0.0)]
    assert 5e-12 < rates.curves[MATMUL][0][1] < 6e-12


def test_a_product_reads_its_weights_whatever_the_tokens(planner: Planner) -> None:
    """Two slices of one text read them twice, one slice of two texts once."""
    one, two = (amount(planner, "", MATMUL_BYTES, rows) for rows in (1, 2))
    layers = [p for p in planner.simulation.traced(Recipe())[0].parts.model.bert.encoder.parameters() if p.dim() == 2]
    forward_and_back = 3 * sum(weight.nbytes for weight in layers)
    assert 2 * one - two > forward_and_back


def test_rates_are_set_right_by_layers_as_a_whole() -> None:
    """Work is 1.3 times slower in them, and a call takes 40 microseconds."""
    rates = Rates({ELEMENTWISE: [(4e3, 1e-9), (4e5, 1e-9)], MATMUL: [(1e5, 1e-9), (1e7, 1e-9)]}, 1e-6, {"adamw": 1.0})
    tables = [Layer.of(*shape).table for shape in ((1, 8, 64), (2, 16, 64), (8, 32, 128))]
    layers = [(table, predicted(rates.slower(1.3, 4e-5), table)) for table in tables]
    right = fit_correction(rates, layers)
    assert right.call == pytest.approx(4e-5, rel=1e-3)
    assert [price for _, price in right.curves[ELEMENTWISE]] == pytest.approx([1.3e-9, 1.3e-9], rel=1e-3)
    assert right.optimizers == rates.optimizers


def test_layers_that_contradict_each_other_leave_the_calls_as_they_are() -> None:
    rates = Rates({ELEMENTWISE: [(4e3, 1e-9), (4e5, 1e-9)]}, 1e-6, {})
    tables = [Layer.of(*shape).table for shape in ((1, 8, 64), (8, 32, 128))]
    small, large = (predicted(rates, table) for table in tables)
    right = fit_correction(rates, [(tables[0], 0.2 * small), (tables[1], 2 * large)])
    assert right.call == rates.call
    assert all(price > 0 for _, price in right.curves[ELEMENTWISE])


def test_measured_rates_are_plausible() -> None:
    rates = measured.measure_on_one_core()  # tests run side by side
    assert 1e-7 < rates.call < 1e-2
    assert all(price > 0 for curve in rates.curves.values() for _, price in curve)
    optional = {"adamw-8bit"} if STRATEGIES["adamw-8bit"].is_available() else set()
    assert set(rates.optimizers) == {"adamw", "adamw-16bit", "adafactor"} | optional
