"""Plans: least effect on the result first, then the fastest that fits, and suggestions if nothing fits."""

from __future__ import annotations

import pickle
import subprocess
import sys
from dataclasses import replace
from itertools import pairwise
from pathlib import Path

import pytest
from parts import CPU, OFFLOADING
from plans import RATES, budget, planner_of

from tightfit import plan
from tightfit.device import GPUS, Budget, Device, find_gpu
from tightfit.errors import BadInput, DoesNotFit, ModelError, RecipeError
from tightfit.i18n import using_language
from tightfit.job import Job
from tightfit.planning.candidates import candidates
from tightfit.planning.constraints import Constraints
from tightfit.planning.plan import Option, Reason
from tightfit.planning.planner import Planner
from tightfit.planning.training_recipe import Selector
from tightfit.report.terminal import plan_as_text
from tightfit.simulation.error_margin import PROCESS_NOISE
from tightfit.simulation.job_simulation import SimulationSetup
from tightfit.simulation.op_counts import MATMUL, MATMUL_16BIT
from tightfit.strategies import STRATEGIES
from tightfit.strategies.base import Case, Result, Stage
from tightfit.strategies.recipe import Recipe, parse_strategy
from tightfit.timing import StepTime, step_time_on
from tightfit.units import format_bytes

ANY = Constraints()
SLACK = PROCESS_NOISE["cpu"]
ROOMY = 1 << 30  # for the tiny model, and less than any machine has: more would be warned of
ORDER = list(Result)
FP32_CPU = replace(CPU, bf16_products=False)
LAST_RESORTS = (Stage.USUAL, Stage.SMALL, Stage.SMALLEST)


def recipes_of(*stages: Stage, device: Device = FP32_CPU, constraints: Constraints = ANY) -> list[Recipe]:
    """The candidates of these stages for a batch of 16 and six layers."""
    where = device, 16, 24, 6
    cases = [Case(*where, stage, avoided=constraints.avoided, pinned=constraints.pinned) for stage in stages]
    return [recipe for case in cases for recipe in candidates(case, constraints)]


@pytest.fixture(scope="module")
def planner(tmp_path_factory: pytest.TempPathFactory) -> Planner:
    return planner_of(tmp_path_factory.mktemp("model"))


def bare(planner: Planner) -> Budget:
    """What the process and the weights take: the smallest budget that is planned for."""
    simulation = planner.simulation
    return budget(simulation.process_bytes() + simulation.setup.weight_bytes(Recipe()))


def smallest(planner: Planner) -> int:
    with pytest.raises(DoesNotFit) as error:
        planner.plan(bare(planner), ANY)
    return error.value.plan.chosen.upper_bound


def evaluated(planner: Planner) -> list[Option]:
    return [planner.candidates.option(candidate) for candidate in planner.candidates._candidates.values() if candidate]


def test_the_process_size_is_measured_before_calibration(
    tiny_model: Path, reviews: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Calibration imports packages that training does not need, such as those of all optimizers."""
    done: list[str] = []
    monkeypatch.setattr(SimulationSetup, "process_bytes", lambda setup: done.append("process size") or 1)
    monkeypatch.setattr("tightfit.planning.planner.step_time_on", lambda device: done.append("calibration"))
    Planner.of(Job(model=str(tiny_model), data=str(reviews), max_length=32, seed=7), CPU)
    assert done == ["process size", "calibration"]


def test_a_planner_keeps_its_traces_when_the_rates_change(
    tiny_model: Path, reviews: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The rates of a busy machine expire; what was traced does not."""
    job, rates = Job(model=str(tiny_model), data=str(reviews), max_length=32, seed=8), [RATES]
    monkeypatch.setattr(SimulationSetup, "process_bytes", lambda setup: 1 << 20)
    monkeypatch.setattr("tightfit.planning.planner.step_time_on", lambda device: StepTime(rates[0]))
    first = Planner.of(job, CPU)
    assert Planner.of(job, CPU) is first
    before = first.option(Recipe())
    rates[0] = RATES.scaled(2.0, 2 * RATES.call_overhead)
    second = Planner.of(job, CPU)
    assert second.simulation is first.simulation
    after = second.option(Recipe())
    assert before is not None
    assert after is not None
    assert after.seconds_per_step > 1.5 * before.seconds_per_step
    assert after.estimate == before.estimate


@pytest.fixture
def slim(monkeypatch: pytest.MonkeyPatch) -> None:
    """Pretend to run in the slim process of the command line."""
    monkeypatch.setattr("tightfit.simulation.process_size.is_slim", lambda: True)


@pytest.mark.slow
@pytest.mark.usefixtures("slim")
def test_a_plan_reports_warnings_about_the_measured_rates(tmp_path: Path) -> None:
    """Times measured on a busy machine are unreliable, so JSON output has the warning too."""
    usual = planner_of(tmp_path)
    busy = replace(usual, step_time=StepTime(replace(usual.step_time.rates, warning="the machine is busy")))
    assert usual.plan(budget(ROOMY), ANY).to_json()["notes"] == []
    assert busy.plan(budget(ROOMY), ANY).to_json()["notes"] == ["the machine is busy"]
    with pytest.raises(DoesNotFit) as error:
        busy.plan(bare(busy), ANY)
    assert error.value.plan.notes == ("the machine is busy",)


@pytest.mark.slow
def test_a_gpu_whose_speed_is_not_known_gets_a_plan_without_times(tmp_path: Path) -> None:
    """The recipes are ranked all the same, but no time is told: neither in text nor in JSON."""
    gpu = find_gpu("6GB")
    assert gpu is not None
    here = replace(planner_of(tmp_path, gpu), step_time=step_time_on(gpu))
    baseline = here.option(Recipe())
    assert baseline is not None
    made = here.plan(budget(int(0.95 * baseline.peak), gpu), ANY)
    assert made.alternatives
    text = plan_as_text(made)
    assert "the speed of GPU 6GB is not known: no times are given" in text
    assert "epoch" not in text.replace("time/epoch", "")
    assert "of the time" not in text
    written = made.to_json()
    options = (written, written["baseline"], *written["alternatives"])
    assert {option[key] for option in options for key in ("seconds_per_epoch", "seconds_per_step")} == {None}
    with using_language("zh"):
        assert "每个 epoch 约" not in plan_as_text(made)


@pytest.mark.slow
def test_a_plan_made_in_python_notes_that_the_command_line_needs_less_memory(tmp_path: Path) -> None:
    here = planner_of(tmp_path)
    made = here.plan(budget(ROOMY), ANY)
    (note,) = made.notes
    assert note.startswith("The process itself takes 1.00 MiB here, with all that it holds already")
    assert "`tightfit train` on the command line needs less" in note
    assert made.baseline.estimate.notes == made.notes
    assert note in str(made)
    assert note in made._repr_html_()
    gpu = GPUS["T4 16GB"]
    assert planner_of(tmp_path / "gpu", gpu).plan(budget(8 << 30, gpu), ANY).notes == ()


@pytest.mark.slow
@pytest.mark.parametrize(("startup", "notes"), [("slim_process()", 0), ("", 1)])
def test_only_a_slim_process_has_no_process_size_note(
    startup: str, notes: int, tiny_model: Path, reviews: Path
) -> None:
    code = f"""
from tightfit.optional_imports import slim_process
{startup}
from tightfit import Job, estimate
from tightfit.units import format_bytes
found = estimate(Job(model={str(tiny_model)!r}, data={str(reviews)!r}, max_length=32), device="cpu")
print(len(found.notes), all(format_bytes(found.overhead) in note for note in found.notes))
"""
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=False)
    assert done.stdout.split() == [str(notes), "True"], done.stderr[-2000:]


def test_with_enough_memory_the_result_stays_the_same(planner: Planner) -> None:
    plan = planner.plan(budget(1 << 40), ANY)
    assert plan.fits
    assert plan.chosen.result is Result.SAME
    same = [option for option in evaluated(planner) if option.result is Result.SAME]
    assert plan.chosen.seconds_per_step == min(option.seconds_per_step for option in same)


def test_no_fitting_recipe_has_less_effect_or_the_same_effect_and_less_time(planner: Planner) -> None:
    least, baseline = smallest(planner), planner.option(Recipe())
    assert baseline is not None
    for share in (0.0, 0.2, 0.5, 0.8, 1.0):
        size = int(least + share * (baseline.upper_bound - least))
        plan = planner.plan(budget(size), ANY)
        rank = ORDER.index(plan.chosen.result), plan.chosen.seconds_per_step
        fitting = [o for o in evaluated(planner) if o.upper_bound <= size and o.result is not Result.DIFFERENT]
        assert plan.chosen.upper_bound <= size
        assert rank == min((ORDER.index(o.result), o.seconds_per_step) for o in fitting)
        assert all(option.upper_bound <= size for option in plan.alternatives)


def test_alternatives_differ_in_time_and_include_the_smallest(planner: Planner) -> None:
    """A recipe that takes about as long as another is not an alternative."""
    plan = planner.plan(budget(1 << 40), ANY)
    *shown, last = plan.chosen, *plan.alternatives
    seconds = sorted(option.seconds_per_step for option in shown)
    assert len(seconds) > 1
    assert all(longer > 1.05 * shorter for shorter, longer in pairwise(seconds))
    allowed = [option for option in evaluated(planner) if option.result is not Result.DIFFERENT]
    assert last.peak == min(option.peak for option in allowed)


@pytest.mark.slow
@pytest.mark.parametrize("gpu", [None, "GTX 1650 4GB"])
def test_the_lower_bound_is_never_above_the_estimate(tmp_path: Path, gpu: str | None) -> None:
    """A candidate that is skipped because of its lower bound would not have fitted."""
    device = GPUS[gpu] if gpu else CPU
    planner = planner_of(tmp_path, device)
    planner.plan(budget(1 << 40, device), ANY)
    candidates = [candidate for candidate in planner.candidates._candidates.values() if candidate]
    assert len(candidates) > 20
    for candidate in candidates:
        assert 0 <= planner.candidates.option(candidate).peak - candidate.lower_bound < (64 << 20)


@pytest.mark.slow
def test_on_a_gpu_only_the_options_needed_for_the_plan_are_estimated_fully(tmp_path: Path) -> None:
    """Simulating the CUDA allocator for every candidate would take a minute."""
    gpu = GPUS["GTX 1650 4GB"]
    planner = planner_of(tmp_path, gpu)
    planner.plan(budget(1 << 40, gpu), ANY)
    assert len(planner.candidates._options) < len(planner.candidates._candidates) / 4


def test_less_memory_never_gives_less_effect_or_a_faster_recipe(planner: Planner) -> None:
    least = smallest(planner)
    plans = [planner.plan(budget(least * times // 4), ANY).chosen for times in (4, 5, 6, 8, 12, 40)]
    ranks = [(ORDER.index(option.result), option.seconds_per_step) for option in plans]
    assert ranks == sorted(ranks, reverse=True)


def test_if_nothing_fits_the_closest_plan_suggests_a_budget_that_fits(planner: Planner) -> None:
    least = smallest(planner)
    with pytest.raises(DoesNotFit) as error:
        planner.plan(budget(least - SLACK), ANY)
    plan = error.value.plan
    assert not plan.fits
    assert plan.chosen.upper_bound == least
    assert "--budget" in plan.suggestions[0]
    needed = int(plan.suggestions[0].split()[1].removesuffix("MB:")) << 20
    assert planner.plan(budget(needed), ANY).fits
    assert error.value.exit_code == 1
    assert str(pickle.loads(pickle.dumps(error.value))) == str(error.value)


def test_a_budget_below_the_process_and_the_weights_is_refused_before_anything_is_simulated(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    planner = planner_of(tmp_path, FP32_CPU)  # in bf16 the weights would take half
    monkeypatch.setattr(SimulationSetup, "trace", lambda *_: pytest.fail("simulated"))
    least = bare(planner).size
    with pytest.raises(DoesNotFit, match=r"is less than 1\.00 MiB for the process itself and .* --budget") as error:
        planner.plan(budget(least - 1), Constraints.of(avoid=["quantize"]))  # a quarter of the weights
    assert error.value.plan is None
    assert error.value.exit_code == 1


@pytest.mark.slow
def test_a_format_that_halves_the_weights_is_counted(tmp_path: Path) -> None:
    gpu = GPUS["RTX 3050 Laptop 4GB"]
    planner = planner_of(tmp_path, gpu)
    weights = planner.simulation.setup.weight_bytes(Recipe())
    half = budget(planner.simulation.process_bytes() + weights // 2 + 4096, gpu)
    with pytest.raises(DoesNotFit) as error:
        planner.plan(half, ANY)
    assert error.value.plan is not None, "bf16-weights might have fitted"
    with pytest.raises(DoesNotFit) as error:
        planner.plan(half, Constraints.of(avoid=["bf16-weights", "quantize"]))
    assert error.value.plan is None


def test_without_a_budget_the_baseline_is_chosen_if_it_fits_what_is_free(planner: Planner) -> None:
    free = Budget(1 << 40, CPU, is_auto=True)
    plan = planner.plan(free, ANY)
    assert plan.recipe == Recipe()
    assert "Fits the 1.00 TiB free on this machine's CPU (no --budget given) with baseline" in str(plan)
    faster = planner.plan(budget(1 << 40), ANY)
    assert plan.alternatives[0].recipe == faster.recipe
    assert planner.plan(free, Constraints.of(use=["adafactor"])).recipe != Recipe()
    with pytest.raises(DoesNotFit) as error:
        planner.plan(replace(bare(planner), is_auto=True), ANY)
    assert error.value.plan.suggestions[0].startswith("close other programs until")


def test_an_alternative_can_be_taken(planner: Planner) -> None:
    plan = planner.plan(budget(1 << 40), ANY)
    taken = planner.plan(budget(1 << 40), ANY, take=2)
    assert taken.chosen == plan.alternatives[1]
    assert taken.alternatives[0] == plan.chosen
    assert len(taken.reasons) == len(taken.recipe.strategies)
    assert "\n  2.  " in str(plan)
    for number in (0, len(plan.alternatives) + 1):
        with pytest.raises(BadInput, match=f"--take {number} is not one of .*: give 1 to {len(plan.alternatives)}"):
            planner.plan(budget(1 << 40), ANY, take=number)


def test_close_results_are_suggested_if_only_same_is_allowed(planner: Planner) -> None:
    same = min(o.upper_bound for o in evaluated(planner) if o.result is Result.SAME)
    with pytest.raises(DoesNotFit) as error:
        planner.plan(budget(same - 1), Constraints.of(allow="same"))
    suggestions = error.value.plan.suggestions
    assert any(line.startswith("--allow close: ") for line in suggestions)
    assert not any(line.startswith("--allow different: ") for line in suggestions)  # `close` is enough


@pytest.mark.slow
def test_shorter_texts_are_suggested_if_they_would_fit(tmp_path: Path) -> None:
    planner = planner_of(tmp_path)
    closest = smallest(planner)
    with pytest.raises(DoesNotFit) as error:
        planner.plan(budget(closest - 1), ANY)
    [line] = [line for line in error.value.plan.suggestions if line.startswith("--max-length")]
    tokens = planner.simulation.lengths.longest // 2
    assert line.startswith(f"--max-length {tokens}: truncating at {tokens} tokens shortens ")
    with pytest.raises(DoesNotFit) as error:
        planner.plan(budget(closest // 2), ANY)
    assert not any(line.startswith("--max-length") for line in error.value.plan.suggestions)


@pytest.mark.parametrize("optimizer", ["adamw", "adamw-16bit"])
def test_length_bucketing_is_not_combined_with_a_pinned_adamw(planner: Planner, optimizer: str) -> None:
    constraints = Constraints.of([optimizer])
    offered = recipes_of(*LAST_RESORTS, constraints=constraints)
    assert any("optimizer-in-backward" in recipe.specs for recipe in offered)
    assert not any("length-bucketing" in recipe.specs for recipe in offered)
    both = Constraints.of([optimizer, "length-bucketing"])
    assert all("length-bucketing" in recipe.specs for recipe in recipes_of(Stage.USUAL, constraints=both))


def test_avoiding_one_strategy_rules_out_no_other() -> None:
    avoided = Constraints.of(avoid=["gradient-checkpointing", "micro-batch"], allow="different")
    assert any("lora" in recipe.specs for recipe in recipes_of(Stage.FEWER_PARAMETERS, constraints=avoided))
    last = [
        recipe
        for recipe in recipes_of(Stage.SMALL, Stage.SMALLEST, constraints=Constraints.of(avoid=["adafactor"]))
        if recipe.steps_in_backward
    ]
    assert last
    assert {recipe.optimizer for recipe in last} <= {"adamw-8bit", "adamw-16bit"}


def test_different_results_are_chosen_only_if_allowed(planner: Planner) -> None:
    least = smallest(planner)
    changed = [o for o in evaluated(planner) if o.result is Result.DIFFERENT]
    size = min(option.upper_bound for option in changed)
    assert size < least, "nothing to allow"
    with pytest.raises(DoesNotFit) as error:
        planner.plan(budget(size), ANY)
    assert any("--allow different" in line for line in error.value.plan.suggestions)
    plan = planner.plan(budget(size), Constraints.of(allow="different"))
    assert plan.fits
    assert plan.chosen.result is Result.DIFFERENT


def test_every_option_has_the_pinned_strategies_and_none_of_the_avoided(planner: Planner) -> None:
    plan = planner.plan(
        budget(1 << 40), Constraints.of(use=["micro-batch:size=4", "adafactor"], avoid=["tiled-attention"])
    )
    for option in (plan.chosen, *plan.alternatives):
        names = {strategy.name for strategy in option.recipe.strategies}
        assert {"micro-batch:size=4", "adafactor"} <= set(option.recipe.specs)
        assert "tiled-attention" not in names
        assert not names & {"adamw", "adamw-16bit", "optimizer-in-backward"}


def test_a_plan_names_exactly_the_result_changing_strategies_that_it_would_consider(planner: Planner) -> None:
    considered = [s for recipe in recipes_of(Stage.FEWER_PARAMETERS) for s in recipe.strategies]
    names = {s.name for s in considered if s.result is Result.DIFFERENT}
    line = next(line for line in planner.plan(budget(1 << 40), ANY).rejected if "--allow different" in line)
    assert set(line.partition(":")[0].split(", ")) == names == {"lora", "freeze"}


def test_a_printed_plan_states_why_close_alternatives_were_not_chosen(planner: Planner) -> None:
    plan = planner.plan(budget(1 << 40), ANY)
    rule = "`close` recipes (different numbers, same quality) are used only if no `same` recipe fits."
    if plan.speedup is not None:  # on a CPU that computes in 16 bits
        assert plan.alternatives[0].result is Result.CLOSE
        rule = f"A `close` recipe (different numbers, same quality) is {plan.speedup:.1f} × faster: --prefer speed"
    assert plan.chosen.result is Result.SAME
    assert Result.CLOSE in {option.result for option in plan.alternatives}
    assert rule in str(plan)
    assert rule not in str(planner.plan(budget(1 << 40), Constraints.of(allow="same")))
    assert rule not in str(planner.plan(budget(1 << 40), Constraints.of(use=["adafactor"])))


def test_who_prefers_speed_gets_the_fastest_of_same_and_close(tmp_path: Path) -> None:
    """The first alternative of the usual plan, where products in 16 bits take a hundredth of the time."""
    here = planner_of(tmp_path, replace(CPU, bf16_products=True))
    products = {MATMUL: [(1.0, 1e-8)], MATMUL_16BIT: [(1.0, 1e-10)]}
    here = replace(here, step_time=StepTime(replace(RATES, curves={**RATES.curves, **products})))
    exact, speed = (here.plan(budget(ROOMY), Constraints.of(prefer=prefer)) for prefer in ("exact", "speed"))
    assert (exact.chosen.result, speed.chosen.result) == (Result.SAME, Result.CLOSE)
    assert exact.alternatives[0].recipe == speed.recipe
    assert exact.speedup is not None
    assert exact.speedup == pytest.approx(exact.chosen.seconds_per_step / speed.chosen.seconds_per_step)
    assert f"{exact.speedup:.1f} × faster: --prefer speed" in str(exact)
    assert speed.speedup is None


def test_allow_same_gives_only_same_results(planner: Planner) -> None:
    plan = planner.plan(budget(1 << 40), Constraints.of(allow="same"))
    assert {option.result for option in (plan.chosen, *plan.alternatives)} == {Result.SAME}
    closest = smallest(planner)
    with pytest.raises(DoesNotFit) as error:
        planner.plan(budget(closest), Constraints.of(allow="same"))
    assert error.value.plan.chosen.result is Result.SAME


def test_contradictory_or_unknown_constraints_are_rejected() -> None:
    with pytest.raises(RecipeError, match="is given to both --use and --avoid"):
        Constraints.of(use=["gradient-checkpointing"], avoid=["gradient-checkpointing"])
    with pytest.raises(RecipeError, match="did you mean 'gradient-checkpointing'"):
        Constraints.of(avoid=["gradient-chekpointing"])
    with pytest.raises(BadInput, match="did you mean 'different'"):
        Constraints.of(allow="diferent")


def test_a_plan_has_one_reason_per_strategy(planner: Planner) -> None:
    plan = planner.plan(budget(smallest(planner)), ANY)
    assert [reason.partition(":")[0] for reason in plan.reasons] == [s.name for s in plan.recipe.strategies]
    assert "lora" in " ".join(plan.rejected)
    content = plan.to_json()
    assert {"fits", "budget_bytes", "peak_bytes", "seconds_per_epoch", "recipe", "result", "phase", "baseline"} <= set(
        content
    )
    assert {"reasons", "reason_details", "alternatives", "rejected"} <= set(content)
    assert {"length_advice", "suggestions", "notes"} <= set(content)
    assert plan.chosen.title in str(plan)
    assert plan.chosen.title in plan._repr_html_()
    assert "<script" not in plan._repr_html_()


def test_a_reason_names_no_difference_that_is_none(planner: Planner) -> None:
    chosen = planner.plan(budget(smallest(planner)), ANY).chosen
    assert chosen.seconds_per_step is not None
    larger = replace(chosen, estimate=replace(chosen.estimate, overhead=chosen.estimate.overhead + (1 << 30)))

    def said(without: Option, ratio: float) -> str:
        other = replace(without, seconds_per_step=chosen.seconds_per_step * ratio)
        reason = Reason(chosen.recipe.strategies[0], 0.0, other, chosen)
        return reason.text.partition("Without it: ")[2]

    assert said(chosen, 1.001) == said(chosen, 0.999) == "about the same peak and time."
    assert said(larger, 1.001) == f"peak {format_bytes(larger.peak)}, about the same time."
    assert said(chosen, 1.5).endswith("slower per epoch.")
    assert said(chosen, 0.5).endswith("faster per epoch.")


@pytest.mark.slow
def test_a_model_without_tiled_attention_is_planned_without_it(tmp_path: Path) -> None:
    planner = planner_of(tmp_path, architecture="Mpnet" if "Mpnet" in _names() else "MPNet")
    plan = planner.plan(budget(1 << 40), ANY)
    assert "tiled-attention" not in plan.recipe.specs
    assert any("finds no attention" in reason for reason in plan.rejected)


@pytest.mark.slow
def test_a_recipe_that_cannot_be_simulated_is_left_out(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """As with layers that a strategy calls in another way than their model does."""
    trace = SimulationSetup._trace_by_depth
    failing = {"gradient-checkpointing"}

    def fail(self: SimulationSetup, recipe: Recipe, *rest: object) -> object:
        if failing & {strategy.name for strategy in recipe.strategies} or (not failing and not recipe.strategies):
            raise RuntimeError("shapes of 55 and 64")
        return trace(self, recipe, *rest)

    monkeypatch.setattr(SimulationSetup, "_trace_by_depth", fail)
    planner = planner_of(tmp_path)
    recipe = Recipe((parse_strategy("gradient-checkpointing"),))
    planner.plan(budget(10**12), ANY)
    assert planner.candidates.candidate(recipe) is None
    assert "shapes of 55 and 64" in str(planner.candidates.rejection(recipe))
    failing.clear()
    with pytest.raises(ModelError, match="cannot be simulated: shapes of 55 and 64"):
        planner_of(tmp_path).candidates.candidate(Recipe())


@pytest.mark.slow
def test_mixed_precision_is_a_candidate_on_a_gpu(tmp_path: Path) -> None:
    gpu = GPUS["T4 16GB"]
    planner = planner_of(tmp_path, gpu)
    plan = planner.plan(budget(1 << 40, gpu), Constraints.of(use=["adafactor"]))
    assert "tiled-attention" not in plan.recipe.specs
    seen = {s.name for o in evaluated(planner) for s in o.recipe.strategies}
    assert "mixed-precision" in seen


def test_a_second_plan_traces_nothing(planner: Planner, monkeypatch: pytest.MonkeyPatch) -> None:
    planner.plan(budget(1 << 40), ANY)
    least = smallest(planner)  # evaluates the last resorts too

    def fail(*_: object) -> None:
        raise AssertionError("traced again")

    monkeypatch.setattr(type(planner.simulation), "_trace", fail)
    assert planner.plan(budget(1 << 39), ANY).fits
    assert planner.plan(budget(least), ANY).fits


@pytest.mark.slow
def test_a_plan_does_not_depend_on_plans_made_before(tmp_path: Path) -> None:
    """Neither the rejections nor the estimates without a strategy come from earlier plans."""
    planner, least = planner_of(tmp_path / "used"), smallest(planner_of(tmp_path / "other"))
    with pytest.raises(RecipeError, match=r"'freeze:layers=99' is more than the 6 layers"):
        planner.plan(budget(1 << 40), Constraints.of(use=["freeze:layers=99"]))
    for use in (
        ["optimizer-in-backward"],
        ["gradient-checkpointing", "adafactor"],
        ["micro-batch:size=2", "tiled-attention"],
        ["length-bucketing"],
    ):
        planner.plan(budget(1 << 40), Constraints.of(use=use, allow="different"))
    fresh = planner_of(tmp_path / "fresh")
    for size in (1 << 40, least):
        content = planner.plan(budget(size), ANY).to_json()
        assert content == planner.plan(budget(size), ANY).to_json()
        assert content == fresh.plan(budget(size), ANY).to_json()


def test_the_rejection_belongs_to_the_current_plan(planner: Planner, tmp_path: Path) -> None:
    """Not to an earlier plan, nor to a recipe that only probes the model."""
    without_tiled = planner_of(tmp_path, architecture="MPNet")
    for known in (planner, without_tiled):
        for layers in (99, 98):
            with pytest.raises(RecipeError, match=rf"^No recipe is possible: 'freeze:layers={layers}' is more"):
                known.plan(budget(1 << 40), Constraints.of(use=[f"freeze:layers={layers}"]))


def test_equal_requests_give_equal_plans(tiny_model: Path, reviews: Path) -> None:
    job = Job(model=str(tiny_model), data=str(reviews), batch_size=8, max_length=32)
    first = plan(job, "100GB", device="cpu")
    with pytest.raises(RecipeError, match="'freeze:layers=99' is more than the 2 layers"):
        plan(job, "100GB", device="cpu", use=["freeze:layers=99"])
    with pytest.raises(DoesNotFit):
        plan(job, "1MB", device="cpu")
    assert plan(job, "100GB", device="cpu") == first


def _names() -> list[str]:
    from heads import CONFIGS

    return list(CONFIGS)


def test_after_a_failed_preflight_a_clearly_smaller_recipe_is_selected(planner: Planner) -> None:
    selector = Selector(budget(1 << 40), ANY, planned=Recipe())
    first = selector.select_with(planner)
    assert first.recipe == Recipe()
    assert selector._limit.size == 1 << 40
    again = selector.excluding(first)
    assert again.planned is None
    assert again._limit.size < first.upper_bound * 0.91


@pytest.mark.slow
def test_a_strategy_without_its_package_is_rejected_with_the_pip_command(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(STRATEGIES["adamw-8bit"], "requires", "no_such_package")
    planner = planner_of(tmp_path)
    plan = planner.plan(budget(smallest(planner)), ANY)
    seen = {s.name for o in evaluated(planner) for s in o.recipe.strategies}
    assert "adamw-8bit" not in seen
    assert any("pip install no_such_package" in reason for reason in plan.rejected)
    with pytest.raises(RecipeError, match=r"needs the package no_such_package: pip install no_such_package\.$"):
        planner.plan(budget(1 << 40), Constraints.of(use=["adamw-8bit"]))


def test_offloading_is_a_candidate_only_on_a_gpu() -> None:
    def offloading(device: Device) -> set[str]:
        recipes = recipes_of(*LAST_RESORTS, device=device)
        return {s.name for recipe in recipes for s in recipe.strategies if s.name in OFFLOADING}

    assert offloading(CPU) == set()
    assert offloading(GPUS["T4 16GB"]) == {"offload-optimizer", "offload-activations"}
    exact = [recipe for recipe in recipes_of(Stage.USUAL, device=GPUS["T4 16GB"]) if recipe.result is Result.SAME]
    assert any("offload-optimizer" in recipe.specs for recipe in exact)


@pytest.mark.slow
def test_last_resorts_are_evaluated_only_if_the_others_do_not_fit(tmp_path: Path) -> None:
    """One group after the other: each takes longer to trace and to train."""
    planner = planner_of(tmp_path)
    usual, first, second = (planner._recipes(stage, ANY) for stage in LAST_RESORTS)
    first, second = [r for r in first if r not in usual], [r for r in second if r not in usual]
    options = [planner.option(recipe) for recipe in first]
    assert planner.plan(budget(min(option.upper_bound for option in options if option)), ANY).fits
    assert not any(recipe in planner.candidates for recipe in second)
    smallest(planner)
    assert all(recipe in planner.candidates for recipe in second)


@pytest.mark.parametrize(
    ("avoided", "expected"),
    [
        ((), {"adafactor", "length-bucketing"}),
        (("length-bucketing",), {"adafactor"}),
        (("adafactor", "adamw-8bit"), {"adamw-16bit"}),
    ],
)
def test_a_cpu_steps_in_backward_with_the_smallest_optimizer(avoided: tuple[str, ...], expected: set[str]) -> None:
    """With length bucketing unless avoided: a full batch has no micro-batches whose padding could be trimmed.

    Not with AdamW, whose moving averages are long: length bucketing lowers its F1.
    """
    offered = [
        {s.name for s in r.strategies}
        for r in recipes_of(Stage.USUAL, constraints=Constraints.of(avoid=[*avoided, "tiled-attention"]))
    ]
    in_backward = [names for names in offered if "optimizer-in-backward" in names]
    assert [names - expected - {"optimizer-in-backward"} for names in in_backward] == [
        {"gradient-checkpointing"},
        {"chunked-layers"},
    ]
    assert all(expected <= names for names in in_backward)
