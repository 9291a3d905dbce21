"""Time estimates: op counts that scale with the data, calibration of the CPU, and cached rates."""

from __future__ import annotations

import json
from collections.abc import Iterator, Sequence
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
import torch
from parts import CPU
from plans import RATES, planner_of

from tightfit.device import GPUS
from tightfit.gpus import MeasuredSpeed, remember_gpu
from tightfit.planning.planner import Planner
from tightfit.simulation.op_counts import ELEMENTWISE, MATMUL, MATMUL_16BIT, MATMUL_BYTES, NORM
from tightfit.strategies import STRATEGIES
from tightfit.strategies.recipe import Recipe
from tightfit.timing import StepTime, calibrate, cpu_load, gpu_speed, microbench, step_time_on
from tightfit.timing.calibrate import Layer, fit_correction, predicted_seconds
from tightfit.timing.microbench import best_of
from tightfit.timing.predicted_step_time import Rates


@pytest.fixture(autouse=True)
def _no_other_load(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Hide the CPU load of other processes, such as parallel tests."""
    monkeypatch.setattr(cpu_load, "_PROC_STAT", tmp_path / "nowhere")


@pytest.fixture(scope="module")
def planner(tmp_path_factory: pytest.TempPathFactory) -> Planner:
    return planner_of(tmp_path_factory.mktemp("model"))


def total_cost(planner: Planner, specs: str, kind: str = MATMUL, rows: int = 4) -> float:
    """Floating-point operations, or bytes, of a micro-batch of some rows of 32 tokens."""
    traced, _ = planner.simulation.traced(Recipe.parse(specs.split()))
    return sum(
        weight * costs.sum()
        for weight, table in traced.tables(0)
        for found, costs, _ in table.at([(rows, 32)])
        if found == kind
    )


def test_matmul_flops_equal_those_of_torch(planner: Planner) -> None:
    """Plus the CPU's fused attention, which torch does not count: two matmuls forward and five backward."""
    import torch
    from torch.utils.flop_counter import FlopCounterMode
    from transformers import AutoConfig, AutoModelForSequenceClassification

    config = AutoConfig.from_pretrained(planner.simulation.setup.job.model)
    model = AutoModelForSequenceClassification.from_config(config).train()
    with FlopCounterMode(display=False) as counter:
        model(input_ids=torch.ones(4, 32, dtype=torch.long), labels=torch.zeros(4, dtype=torch.long)).loss.backward()
    attention = config.num_hidden_layers * 7 * 2 * 4 * 32 * 32 * config.hidden_size
    assert total_cost(planner, "") == pytest.approx(counter.get_total_flops() + attention, rel=0.01)


def test_recomputation_adds_a_third(planner: Planner) -> None:
    assert total_cost(planner, "gradient-checkpointing") / total_cost(planner, "") == pytest.approx(4 / 3, rel=0.03)


def test_the_first_tile_counts_for_all_tiles(planner: Planner) -> None:
    """Tiled attention computes its scores twice; all other ops are unchanged."""
    assert 1.0 <= total_cost(planner, "tiled-attention") / total_cost(planner, "") < 1.2


def test_micro_batches_cost_calls_and_save_padding(planner: Planner) -> None:
    without_overhead, with_overhead = (
        StepTime(Rates(RATES.curves, call_overhead, RATES.optimizers)) for call_overhead in (0.0, 1e-3)
    )
    lengths, seconds = planner.simulation.lengths, {}
    for specs in ("", "micro-batch:size=4", "micro-batch:size=1"):
        traced, parts = planner.simulation.traced(Recipe.parse(specs.split()))
        seconds[specs] = [
            step_time.forward_backward_seconds(traced, parts, lengths)
            for step_time in (without_overhead, with_overhead)
        ]
    assert seconds["micro-batch:size=4"][0] < seconds[""][0]
    assert seconds["micro-batch:size=1"][1] > seconds["micro-batch:size=4"][1] > seconds[""][1]


def test_unit_time_is_interpolated_by_the_size_of_a_call() -> None:
    rates = Rates({ELEMENTWISE: [(10.0, 2.0), (1000.0, 1.0)]}, 0.0, {})
    seconds = rates.seconds(ELEMENTWISE, np.array([10.0, 100.0, 1000.0, 5000.0]), np.ones(4))
    assert seconds == pytest.approx([20.0, 150.0, 1000.0, 5000.0])
    overlapping = Rates({ELEMENTWISE: [(1.0, 1.0), (2.0, 1.0)]}, 3.0, {}, async_launch=True)
    assert overlapping.seconds(ELEMENTWISE, np.array([1.0, 10.0]), np.ones(2)) == pytest.approx([3.0, 10.0])


def test_a_faster_gpu_has_a_shorter_time(tmp_path: Path) -> None:
    seconds = []
    for name in ("GTX 1650 4GB", "A100 40GB"):
        planner = planner_of(tmp_path, GPUS[name])
        traced, parts = planner.simulation.traced(Recipe())
        step_time = StepTime(Rates(step_time_on(GPUS[name]).rates.curves, 0.0, {}, async_launch=True))
        seconds.append(
            step_time.forward_backward_seconds(traced, parts, planner.simulation.lengths)
            + step_time.optimizer_seconds(traced, "")
        )
    assert seconds[0] > 5 * seconds[1]


@pytest.mark.parametrize(
    ("label", "gib", "gpu"),
    [
        ("NVIDIA A100-SXM4-40GB", 39.4, "A100 40GB"),
        ("NVIDIA GeForce RTX 3060", 11.6, "RTX 3060 12GB"),
        ("NVIDIA GeForce RTX 3060", 7.6, "RTX 3060 8GB"),
        ("NVIDIA GeForce RTX 3060 Laptop GPU", 5.8, "RTX 3060 Laptop 6GB"),
    ],
)
def test_a_gpu_of_this_machine_has_its_published_speed(label: str, gib: float, gpu: str) -> None:
    rates = step_time_on(replace(GPUS[gpu], label=label, total_bytes=int(gib * (1 << 30)))).rates
    assert rates == step_time_on(GPUS[gpu]).rates
    assert rates.warning is None
    assert rates.source == f"times are computed from the published speed of {gpu}, not measured"


def test_rates_measured_on_this_gpu_replace_published_ones(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    here, other = (replace(GPUS["T4 16GB"], uuid=uuid) for uuid in ("here", "other"))
    published = step_time_on(here).rates
    remember_gpu("here", speed=MeasuredSpeed(4.0, 20.0, 200.0, 5.0, 1e-5))
    rates = step_time_on(here).rates
    assert rates.source == "times are computed from rates that were measured on this GPU"
    assert rates.curves[MATMUL][0][1] == pytest.approx(1 / 4e12)
    assert rates.curves[MATMUL_16BIT][0][1] == pytest.approx(1 / 20e12)
    assert rates.call_overhead == 1e-5
    assert step_time_on(other).rates == published


def test_the_speed_of_a_device_is_measured(monkeypatch: pytest.MonkeyPatch) -> None:
    for name, value in (("_TOKENS", 64), ("_BYTES", 1 << 16), ("_LAUNCHES", 10), ("_SECONDS", 0.01)):
        monkeypatch.setattr(gpu_speed, name, value)
    assert all(value > 0 for value in gpu_speed.measure_speed(CPU))


@pytest.mark.parametrize("label", ["NVIDIA GeForce RTX 9990", "GPU 6GB", "RTX A1000 Laptop 6GB", "AMD Radeon Pro"])
def test_a_gpu_whose_speed_is_not_known_gets_no_times(label: str) -> None:
    rates = step_time_on(replace(GPUS["GTX 1060 6GB"], label=label)).rates
    assert rates.ranking_only
    assert f"the speed of {label} is not known" in str(rates.warning)


def test_rates_are_measured_once_per_machine(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    calls = []
    monkeypatch.setattr(calibrate, "calibrate", lambda: calls.append(1) or RATES)
    monkeypatch.setattr(calibrate, "is_idle", lambda: True)
    for _ in range(2):
        assert reloaded_rates().call_overhead == RATES.call_overhead
    assert len(calls) == 1
    file = tmp_path / "tightfit" / "rates.json"
    cached = json.loads(file.read_text())
    file.write_text(json.dumps(cached | {"machine": {"model": "another"}}))
    reloaded_rates()
    file.write_text("{ torn")
    reloaded_rates()
    assert len(calls) == 3


def test_rates_that_cannot_be_saved_are_measured_once_per_process(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "tightfit").write_text("not a folder")
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    calls = []
    monkeypatch.setattr(calibrate, "_measured_here", calibrate._Measured())
    monkeypatch.setattr(calibrate, "calibrate", lambda: calls.append(1) or RATES)
    monkeypatch.setattr(calibrate, "is_idle", lambda: True)
    assert calibrate.cpu_rates() == calibrate.cpu_rates() == RATES
    assert len(calls) == 1


def test_rates_of_a_busy_machine_are_used_until_it_is_idle_or_they_expire(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """In one process: a notebook or a server would otherwise show the times of its first, busy minute for ever."""
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    idle, busy = [False], [RATES.scaled(2.0, 1e-3), RATES.scaled(3.0, 1e-3)]
    monkeypatch.setattr(calibrate, "_measured_here", calibrate._Measured())
    monkeypatch.setattr(calibrate, "is_idle", lambda: idle[0])
    monkeypatch.setattr(calibrate, "calibrate_on_one_core", lambda: busy.pop(0))
    monkeypatch.setattr(calibrate, "calibrate", lambda: RATES)
    first = calibrate.cpu_rates()
    assert "busy" in str(first.warning)
    assert calibrate.cpu_rates() == first
    calibrate._measured_here.created_at -= 601
    second = calibrate.cpu_rates()
    assert "busy" in str(second.warning)
    assert second.curves != first.curves
    idle[0] = True
    assert calibrate.cpu_rates().curves == RATES.curves


@pytest.fixture
def two_threads() -> Iterator[None]:
    before = torch.get_num_threads()
    torch.set_num_threads(2)
    yield
    torch.set_num_threads(before)


def mock_idle(monkeypatch: pytest.MonkeyPatch, checks: Sequence[bool]) -> list[int]:
    """`is_idle` returns these values in turn, and True on one thread. Returns the threads of each trial."""
    idle, threads = iter(checks), list[int]()
    monkeypatch.setattr(calibrate, "is_idle", lambda: torch.get_num_threads() == 1 or next(idle))
    monkeypatch.setattr(calibrate, "bench_ops", lambda: threads.append(torch.get_num_threads()) or RATES)
    monkeypatch.setattr(calibrate, "bench_16bit", lambda call_overhead: [(1.0, call_overhead)])
    monkeypatch.setattr(calibrate, "fit_matmul", lambda rates: rates)
    return threads


@pytest.mark.usefixtures("two_threads")
@pytest.mark.parametrize("checks", [[False], [True, False, True, False]], ids=["busy", "became busy"])
def test_a_busy_machine_is_calibrated_on_one_core_and_not_cached(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, checks: list[bool]
) -> None:
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    threads = mock_idle(monkeypatch, checks)
    rates = reloaded_rates()
    assert not list(tmp_path.rglob("*.json"))
    assert threads == [2] * (len(checks) - 1) + [1, 1]
    assert torch.get_num_threads() == 2
    assert rates.warning is not None


@pytest.mark.parametrize(("worked", "steal"), [(20, 25), (40, 0)], ids=["by the host", "by other processes"])
def test_contended_rates_expire_after_ten_minutes(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, worked: int, steal: int
) -> None:
    """A virtual machine's host may give its cores to others for minutes, which must not affect all later plans."""
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    set_counters(monkeypatch, tmp_path, "cpu  100 0 100 100 0 0 0 10 9 9\ncpu0 1\n", 7.0)
    later = f"cpu  {100 + worked} 0 110 {190 - worked} 0 0 0 {10 + steal} 99 99\n"
    monkeypatch.setattr(calibrate, "calibrate", lambda: set_counters(monkeypatch, tmp_path, later, 7.3) or RATES)
    monkeypatch.setattr(calibrate, "is_idle", lambda: True)
    first, cached_rates = reloaded_rates(), reloaded_rates()
    assert "20%" in str(first.warning)
    assert first.warning == cached_rates.warning  # from the cache: a second calibration would find no other load
    file = tmp_path / "tightfit" / "rates.json"
    cached = json.loads(file.read_text())
    file.write_text(json.dumps(cached | {"created_at": cached["created_at"] - 601}))
    assert reloaded_rates().warning is None


def reloaded_rates() -> Rates:
    """The rates that a new process would load."""
    calibrate._measured_here.rates = None
    rates = calibrate.cpu_rates()
    calibrate._measured_here.rates = None
    return rates


def set_counters(monkeypatch: pytest.MonkeyPatch, folder: Path, counters: str, ours: float) -> None:
    """Set the system's CPU counters, and the CPU seconds of this process."""
    (folder / "stat").write_text(counters)
    monkeypatch.setattr(cpu_load, "_PROC_STAT", folder / "stat")
    monkeypatch.setattr(cpu_load.time, "process_time", lambda: ours)


@pytest.mark.usefixtures("two_threads")
@pytest.mark.parametrize(("idle", "expected"), [(100, False), (107, True)])
def test_cores_shared_with_many_processes_are_not_idle(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, idle: int, expected: bool
) -> None:
    set_counters(monkeypatch, tmp_path, "cpu  100 0 100 100 0 0 0 0\n", 7.0)
    after = f"cpu  {212 - idle} 0 100 {idle} 0 0 0 0\n"
    monkeypatch.setattr(cpu_load, "_threads_help", lambda: set_counters(monkeypatch, tmp_path, after, 7.04) or True)
    assert cpu_load.is_idle() is expected


@pytest.mark.parametrize("counters", [None, "", "cpu"])
def test_missing_counters_mean_no_other_load(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, counters: str | None
) -> None:
    monkeypatch.setattr(cpu_load, "_PROC_STAT", tmp_path / "stat")
    if counters is not None:
        (tmp_path / "stat").write_text(counters)
    assert cpu_load.CpuShare().steal == cpu_load.CpuShare().others == 0.0


@pytest.mark.usefixtures("two_threads")
def test_a_disturbed_trial_does_not_count(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    mock_idle(monkeypatch, [True, True, False, True])
    wrong = replace(RATES, call_overhead=RATES.call_overhead / 2)
    trials = iter([RATES, wrong, RATES])  # the second one would be the lowest
    monkeypatch.setattr(calibrate, "bench_ops", lambda: next(trials))
    fitted = []
    monkeypatch.setattr(calibrate, "fit_correction", lambda rates, layers: fitted.append(rates) or rates)
    assert reloaded_rates().warning is None
    assert fitted[0].call_overhead == RATES.call_overhead
    assert list(tmp_path.rglob("rates.json"))


@pytest.mark.usefixtures("two_threads")
def test_small_ops_are_timed_on_one_core_too(monkeypatch: pytest.MonkeyPatch) -> None:
    """Two threads that wait for each other need a scheduler time slice per call, however small."""
    contended = lambda run: 4e-3 if torch.get_num_threads() > 1 else 1e-6  # noqa: E731
    monkeypatch.setattr(microbench, "best_time", contended)
    curve = microbench._curve(microbench._SAMPLES[NORM], 0.0)
    assert [size * seconds for size, seconds in curve] == pytest.approx([1e-6, 1e-6, 4e-3, 4e-3])


def test_the_best_of_several_trials_is_taken_point_by_point() -> None:
    """A burst of other work slows down one size in one trial, and hardly the same one in the next."""
    first = Rates({ELEMENTWISE: [(1.0, 2.0), (9.0, 8.0)]}, 5.0, {"adamw": 1.0, "adafactor": 7.0})
    second = Rates({ELEMENTWISE: [(1.0, 6.0), (9.0, 3.0)]}, 4.0, {"adamw": 2.0, "adafactor": 3.0})
    expected = Rates({ELEMENTWISE: [(1.0, 2.0), (9.0, 3.0)]}, 4.0, {"adamw": 1.0, "adafactor": 3.0})
    assert best_of([first, second]) == expected


def measured_at(operation: float, byte: float) -> Rates:
    """The rates that would be measured with these seconds per operation and per byte."""
    points = []
    for tokens, inner, outer in microbench._MATMUL_SHAPES:
        flops, touched = 2.0 * tokens * inner * outer, 4.0 * (tokens * inner + inner * outer + tokens * outer)
        points.append((flops, (operation * flops + byte * touched) / flops))
    return Rates({MATMUL: points}, 1e-6, {})


def test_matmul_time_is_split_into_operations_and_bytes() -> None:
    rates = microbench.fit_matmul(measured_at(6e-12, 2e-10))
    assert [seconds for _, seconds in rates.curves[MATMUL]] == pytest.approx([6e-12])
    assert [seconds for _, seconds in rates.curves[MATMUL_BYTES]] == pytest.approx([2e-10])


def test_a_negative_time_per_byte_becomes_zero() -> None:
    rates = microbench.fit_matmul(measured_at(6e-12, -1e-11))
    assert rates.curves[MATMUL_BYTES] == [(1.0, 0.0)]
    assert 5e-12 < rates.curves[MATMUL][0][1] < 6e-12


def test_a_matmul_reads_its_weights_for_any_number_of_tokens(planner: Planner) -> None:
    """Two micro-batches of one row read them twice, one micro-batch of two rows once."""
    one, two = (total_cost(planner, "", MATMUL_BYTES, rows) for rows in (1, 2))
    layers = [p for p in planner.simulation.traced(Recipe())[0].parts.model.bert.encoder.parameters() if p.dim() == 2]
    forward_and_back = 3 * sum(weight.nbytes for weight in layers)
    assert 2 * one - two > forward_and_back


def test_rates_are_corrected_by_whole_layers() -> None:
    """Ops are 1.3 times slower in them, and a call takes 40 microseconds."""
    rates = Rates({ELEMENTWISE: [(4e3, 1e-9), (4e5, 1e-9)], MATMUL: [(1e5, 1e-9), (1e7, 1e-9)]}, 1e-6, {"adamw": 1.0})
    tables = [Layer.of(*shape).table for shape in ((1, 8, 64), (2, 16, 64), (8, 32, 128))]
    layers = [(table, predicted_seconds(rates.scaled(1.3, 4e-5), table)) for table in tables]
    corrected = fit_correction(rates, layers)
    assert corrected.call_overhead == pytest.approx(4e-5, rel=1e-3)
    assert [seconds for _, seconds in corrected.curves[ELEMENTWISE]] == pytest.approx([1.3e-9, 1.3e-9], rel=1e-3)
    assert corrected.optimizers == rates.optimizers


def test_contradictory_layers_leave_the_call_overhead_unchanged() -> None:
    rates = Rates({ELEMENTWISE: [(4e3, 1e-9), (4e5, 1e-9)]}, 1e-6, {})
    tables = [Layer.of(*shape).table for shape in ((1, 8, 64), (8, 32, 128))]
    small, large = (predicted_seconds(rates, table) for table in tables)
    corrected = fit_correction(rates, [(tables[0], 0.2 * small), (tables[1], 2 * large)])
    assert corrected.call_overhead == rates.call_overhead
    assert all(seconds > 0 for _, seconds in corrected.curves[ELEMENTWISE])


def test_measured_rates_are_plausible() -> None:
    rates = calibrate.calibrate_on_one_core()  # tests run in parallel
    assert 1e-7 < rates.call_overhead < 1e-2
    ((_, byte_seconds),) = rates.curves.pop(MATMUL_BYTES)
    assert byte_seconds >= 0  # 0 where the machine was busy meanwhile: then one rate has to do for all matmuls
    assert all(seconds > 0 for curve in rates.curves.values() for _, seconds in curve)
    optional = {"adamw-8bit"} if STRATEGIES["adamw-8bit"].is_available() else set()
    assert set(rates.optimizers) == {"adamw", "adamw-16bit", "adafactor"} | optional
