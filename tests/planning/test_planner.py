"""Plans: the gentlest and then the fastest of what fits, and a way out where nothing does."""

from __future__ import annotations

import pickle
import subprocess
import sys
from dataclasses import replace
from itertools import chain, pairwise
from pathlib import Path

import pytest
from parts import CPU
from plans import budget, planner_of

from tightfit.device import GPUS, Device
from tightfit.errors import BadInput, DoesNotFit, RecipeError
from tightfit.job import Job
from tightfit.planning import plan
from tightfit.planning.candidates import candidates, different, last_resorts
from tightfit.planning.constraints import Constraints
from tightfit.planning.plan import Option
from tightfit.planning.planner import Planner
from tightfit.planning.select import Selector
from tightfit.simulation.estimate import WANDERS
from tightfit.simulation.simulation import SimulationSetup
from tightfit.strategies import STRATEGIES
from tightfit.strategies.base import Result
from tightfit.strategies.recipe import Recipe
from tightfit.timing import StepTime

ANY = Constraints()
SLACK = WANDERS["cpu"]
ORDER = list(Result)


@pytest.fixture(scope="module")
def planner(tmp_path_factory: pytest.TempPathFactory) -> Planner:
    return planner_of(tmp_path_factory.mktemp("model"))


def smallest(planner: Planner) -> int:
    with pytest.raises(DoesNotFit) as error:
        planner.plan(budget(1), ANY)
    return error.value.plan.chosen.at_most


def looked_at(planner: Planner) -> list[Option]:
    return [planner.candidates.option(candidate) for candidate in planner.candidates._candidates.values() if candidate]


def test_the_process_is_weighed_before_the_machine_is_measured(
    tiny_model: Path, reviews: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Measuring imports what no training does, such as the packages of all optimizers."""
    done: list[str] = []
    monkeypatch.setattr(SimulationSetup, "overhead", lambda setup: done.append("weighed") or 1)
    monkeypatch.setattr("tightfit.planning.planner.step_time_on", lambda device: done.append("measured"))
    Planner.of(Job(model=str(tiny_model), data=str(reviews), max_length=32, seed=7), CPU)
    assert done == ["weighed", "measured"]


@pytest.fixture
def slim(monkeypatch: pytest.MonkeyPatch) -> None:
    """As on the command line."""
    monkeypatch.setattr("tightfit.simulation.process_size.is_slim", lambda: True)


@pytest.mark.usefixtures("slim")
def test_a_plan_says_what_is_odd_about_its_times(tmp_path: Path) -> None:
    """Also to scripts: on a busy machine they are not worth much."""
    usual = planner_of(tmp_path)
    busy = replace(usual, clock=StepTime(replace(usual.clock.rates, note="the machine is busy")))
    assert usual.plan(budget(1 << 40), ANY).to_json()["notes"] == []
    assert busy.plan(budget(1 << 40), ANY).to_json()["notes"] == ["the machine is busy"]
    with pytest.raises(DoesNotFit) as error:
        busy.plan(budget(1), ANY)
    assert error.value.plan.notes == ("the machine is busy",)


def test_outside_the_command_line_a_plan_says_that_its_process_is_larger(tmp_path: Path) -> None:
    here = planner_of(tmp_path)
    made = here.plan(budget(1 << 40), ANY)
    (note,) = made.notes
    assert note.startswith("The process itself takes 1.00 MiB here; `tightfit train` on the command line needs less")
    assert made.baseline.estimate.notes == made.notes
    assert note in str(made)
    assert note in made._repr_html_()
    gpu = GPUS["T4 16GB"]
    assert planner_of(tmp_path / "gpu", gpu).plan(budget(8 << 30, gpu), ANY).notes == ()


@pytest.mark.parametrize(("begins", "notes"), [("slim_process()", 0), ("", 1)])
def test_only_the_command_lines_own_process_is_as_small_as_it_can_be(
    begins: str, notes: int, tiny_model: Path, reviews: Path
) -> None:
    code = f"""
from tightfit.cli.startup import slim_process
{begins}
from tightfit import Job, estimate
from tightfit.units import format_bytes
found = estimate(Job(model={str(tiny_model)!r}, data={str(reviews)!r}, max_length=32), device="cpu")
print(len(found.notes), all(format_bytes(found.overhead) in note for note in found.notes))
"""
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=False)
    assert done.stdout.split() == [str(notes), "True"], done.stderr[-2000:]


def test_with_room_for_all_the_result_stays_the_same(planner: Planner) -> None:
    plan = planner.plan(budget(1 << 40), ANY)
    assert plan.fits
    assert plan.chosen.result is Result.SAME
    gentle = [option for option in looked_at(planner) if option.result is Result.SAME]
    assert plan.chosen.seconds_per_step == min(option.seconds_per_step for option in gentle)


def test_nothing_that_fits_is_gentler_or_as_gentle_and_faster(planner: Planner) -> None:
    least, baseline = smallest(planner), planner.option(Recipe())
    assert baseline is not None
    for share in (0.0, 0.2, 0.5, 0.8, 1.0):
        size = int(least + share * (baseline.at_most - least))
        plan = planner.plan(budget(size), ANY)
        rank = ORDER.index(plan.chosen.result), plan.chosen.seconds_per_step
        fitting = [o for o in looked_at(planner) if o.at_most <= size and o.result is not Result.DIFFERENT]
        assert plan.chosen.at_most <= size
        assert rank == min((ORDER.index(o.result), o.seconds_per_step) for o in fitting)
        assert all(option.at_most <= size for option in plan.alternatives)


def test_alternatives_are_apart_in_time_and_the_smallest_is_among_them(planner: Planner) -> None:
    """What takes as long as another, as far as anybody can tell, is none."""
    plan = planner.plan(budget(1 << 40), ANY)
    *shown, last = plan.chosen, *plan.alternatives
    seconds = sorted(option.seconds_per_step for option in shown)
    assert len(seconds) > 1
    assert all(longer > 1.05 * shorter for shorter, longer in pairwise(seconds))
    allowed = [option for option in looked_at(planner) if option.result is not Result.DIFFERENT]
    assert last.peak == min(option.peak for option in allowed)


@pytest.mark.parametrize("card", [None, "GTX 1650 4GB"])
def test_a_draft_takes_no_more_than_its_bill(tmp_path: Path, card: str | None) -> None:
    """So what is set aside because of its draft would not have fitted."""
    device = GPUS[card] if card else CPU
    planner = planner_of(tmp_path, device)
    planner.plan(budget(1 << 40, device), ANY)
    candidates = [candidate for candidate in planner.candidates._candidates.values() if candidate]
    assert len(candidates) > 20
    for candidate in candidates:
        assert 0 <= planner.candidates.option(candidate).peak - candidate.at_least < (64 << 20)


def test_on_a_card_only_what_is_shown_is_written_out(tmp_path: Path) -> None:
    """A card's allocator is replayed block by block: for all that is looked at it would take a minute."""
    card = GPUS["GTX 1650 4GB"]
    planner = planner_of(tmp_path, card)
    planner.plan(budget(1 << 40, card), ANY)
    assert len(planner.candidates._options) < len(planner.candidates._candidates) / 4


def test_less_memory_never_means_a_gentler_or_faster_recipe(planner: Planner) -> None:
    least = smallest(planner)
    plans = [planner.plan(budget(least * times // 4), ANY).chosen for times in (4, 5, 6, 8, 12, 40)]
    ranks = [(ORDER.index(option.result), option.seconds_per_step) for option in plans]
    assert ranks == sorted(ranks, reverse=True)


def test_where_nothing_fits_the_closest_plan_says_what_would(planner: Planner) -> None:
    least = smallest(planner)
    with pytest.raises(DoesNotFit) as error:
        planner.plan(budget(least - SLACK), ANY)
    plan = error.value.plan
    assert not plan.fits
    assert plan.chosen.at_most == least
    assert "--budget" in plan.suggestions[0]
    needed = int(plan.suggestions[0].split()[1].removesuffix("MB:")) << 20
    assert planner.plan(budget(needed), ANY).fits
    assert error.value.exit_code == 1
    assert str(pickle.loads(pickle.dumps(error.value))) == str(error.value)


def test_where_only_equal_results_are_allowed_close_ones_are_offered(planner: Planner) -> None:
    same = min(o.at_most for o in looked_at(planner) if o.result is Result.SAME)
    with pytest.raises(DoesNotFit) as error:
        planner.plan(budget(same - 1), Constraints.of(allow="same"))
    ways = error.value.plan.suggestions
    assert any(way.startswith("--allow close: ") for way in ways)
    assert not any(way.startswith("--allow different: ") for way in ways)  # there is something gentler


def test_shorter_texts_are_offered_where_they_would_fit(tmp_path: Path) -> None:
    planner = planner_of(tmp_path)
    closest = smallest(planner)
    with pytest.raises(DoesNotFit) as error:
        planner.plan(budget(closest - 1), ANY)
    [way] = [way for way in error.value.plan.suggestions if way.startswith("--max-length")]
    tokens = planner.simulation.lengths.longest // 2
    assert way.startswith(f"--max-length {tokens}: cutting at {tokens} tokens touches ")
    with pytest.raises(DoesNotFit) as error:
        planner.plan(budget(closest // 2), ANY)
    assert not any(way.startswith("--max-length") for way in error.value.plan.suggestions)


@pytest.mark.parametrize("optimizer", ["adamw", "adamw-16bit"])
def test_batches_of_like_texts_never_meet_a_pinned_adamw(planner: Planner, optimizer: str) -> None:
    constraints = Constraints.of([optimizer])
    offered = [*candidates(CPU, 16, constraints, attention=True, longest=48)]
    offered += [recipe for resort in last_resorts(CPU, 16, constraints, attention=True) for recipe in resort]
    assert any("optimizer-in-backward" in recipe.specs for recipe in offered)
    assert not any("length-bucketing" in recipe.specs for recipe in offered)
    asked = Constraints.of([optimizer, "length-bucketing"])
    assert all("length-bucketing" in recipe.specs for recipe in candidates(CPU, 16, asked, attention=True, longest=48))


def test_what_is_avoided_takes_no_more_along_than_itself() -> None:
    less = list(
        different(
            6, 16, Constraints.of(avoid=["gradient-checkpointing", "micro-batch"], allow="different"), attention=True
        )
    )
    assert any("lora" in recipe.specs for recipe in less)
    resorts = [
        r for resort in last_resorts(CPU, 16, Constraints.of(avoid=["adafactor"]), attention=True) for r in resort
    ]
    assert resorts
    assert {recipe.optimizer for recipe in resorts} <= {"adamw-8bit", "adamw-16bit"}


def test_different_is_taken_only_where_it_is_allowed(planner: Planner) -> None:
    least = smallest(planner)
    changed = [o for o in looked_at(planner) if o.result is Result.DIFFERENT]
    size = min(option.at_most for option in changed)
    assert size < least, "else there is nothing to allow"
    with pytest.raises(DoesNotFit) as error:
        planner.plan(budget(size), ANY)
    assert any("--allow different" in way for way in error.value.plan.suggestions)
    plan = planner.plan(budget(size), Constraints.of(allow="different"))
    assert plan.fits
    assert plan.chosen.result is Result.DIFFERENT


def test_pinned_strategies_are_in_every_option_and_avoided_ones_in_none(planner: Planner) -> None:
    plan = planner.plan(
        budget(1 << 40), Constraints.of(use=["micro-batch:size=4", "adafactor"], avoid=["tiled-attention"])
    )
    for option in (plan.chosen, *plan.alternatives):
        names = {strategy.name for strategy in option.recipe.strategies}
        assert {"micro-batch:size=4", "adafactor"} <= set(option.recipe.specs)
        assert "tiled-attention" not in names
        assert not names & {"adamw", "adamw-16bit", "optimizer-in-backward"}


def test_only_same_may_be_asked_for(planner: Planner) -> None:
    plan = planner.plan(budget(1 << 40), Constraints.of(allow="same"))
    assert {option.result for option in (plan.chosen, *plan.alternatives)} == {Result.SAME}
    closest = smallest(planner)
    with pytest.raises(DoesNotFit) as error:
        planner.plan(budget(closest), Constraints.of(allow="same"))
    assert error.value.plan.chosen.result is Result.SAME


def test_wishes_that_make_no_sense_are_refused() -> None:
    with pytest.raises(RecipeError, match="both to be used and to be avoided"):
        Constraints.of(use=["gradient-checkpointing"], avoid=["gradient-checkpointing"])
    with pytest.raises(RecipeError, match="did you mean 'checkpoint'"):
        Constraints.of(avoid=["chekpoint"])
    with pytest.raises(BadInput, match="did you mean 'different'"):
        Constraints.of(allow="diferent")


def test_a_plan_says_why_in_one_line_a_strategy(planner: Planner) -> None:
    plan = planner.plan(budget(smallest(planner)), ANY)
    assert [reason.partition(":")[0] for reason in plan.reasons] == [s.name for s in plan.recipe.strategies]
    assert "lora" in " ".join(plan.rejected)
    told = plan.to_json()
    assert {"fits", "budget_bytes", "peak_bytes", "seconds_per_epoch", "recipe", "result"} <= set(told)
    assert {"reasons", "alternatives", "rejected"} <= set(told)
    assert plan.chosen.title in str(plan)
    assert plan.chosen.title in plan._repr_html_()
    assert "<script" not in plan._repr_html_()


def test_a_model_that_attention_cannot_change_is_planned_without(tmp_path: Path) -> None:
    planner = planner_of(tmp_path, architecture="Mpnet" if "Mpnet" in _names() else "MPNet")
    plan = planner.plan(budget(1 << 40), ANY)
    assert "tiled-attention" not in plan.recipe.specs
    assert any("finds no attention" in reason for reason in plan.rejected)


def test_for_a_card_sixteen_bits_are_looked_at(tmp_path: Path) -> None:
    card = GPUS["T4 16GB"]
    planner = planner_of(tmp_path, card)
    plan = planner.plan(budget(1 << 40, card), Constraints.of(use=["adafactor"]))
    assert "tiled-attention" not in plan.recipe.specs
    seen = {s.name for o in looked_at(planner) for s in o.recipe.strategies}
    assert "mixed-precision" in seen


def test_a_second_look_plays_nothing(planner: Planner, monkeypatch: pytest.MonkeyPatch) -> None:
    planner.plan(budget(1 << 40), ANY)
    least = smallest(planner)  # looks at the last resorts too

    def refuse(*_: object) -> None:
        raise AssertionError("played again")

    monkeypatch.setattr(type(planner.simulation), "_play", refuse)
    assert planner.plan(budget(1 << 39), ANY).fits
    assert planner.plan(budget(least), ANY).fits


def test_a_plan_does_not_depend_on_plans_made_before(tmp_path: Path) -> None:
    """Neither the reasons for not taking something, nor what is known of a recipe without one of its strategies."""
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
        told = planner.plan(budget(size), ANY).to_json()
        assert told == planner.plan(budget(size), ANY).to_json()
        assert told == fresh.plan(budget(size), ANY).to_json()


def test_what_cannot_be_done_is_said_of_this_plan(planner: Planner, tmp_path: Path) -> None:
    """Not of the plan before, nor of what is only tried out to see what the model can do."""
    stiff = planner_of(tmp_path, architecture="MPNet")
    for known in (planner, stiff):
        for layers in (99, 98):
            with pytest.raises(RecipeError, match=rf"^No recipe can be made: 'freeze:layers={layers}' is more"):
                known.plan(budget(1 << 40), Constraints.of(use=[f"freeze:layers={layers}"]))


def test_the_same_question_gets_the_same_plan(tiny_model: Path, reviews: Path) -> None:
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


def test_what_failed_is_followed_by_something_clearly_smaller(planner: Planner) -> None:
    keeping = Selector(budget(1 << 40), ANY, planned=Recipe())
    first = keeping._choose(planner)
    assert first.recipe == Recipe()
    assert keeping._limit.size == 1 << 40
    again = keeping.below(first)
    assert again.planned is None
    assert again._limit.size < first.at_most * 0.91


def test_what_is_not_installed_is_not_taken_and_the_plan_says_how_to_have_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(STRATEGIES["adamw-8bit"], "needs", "no_such_package")
    planner = planner_of(tmp_path)
    plan = planner.plan(budget(smallest(planner)), ANY)
    seen = {s.name for o in looked_at(planner) for s in o.recipe.strategies}
    assert "adamw-8bit" not in seen
    assert any("pip install no_such_package" in reason for reason in plan.rejected)
    with pytest.raises(RecipeError, match=r"needs the package no_such_package: pip install no_such_package\.$"):
        planner.plan(budget(1 << 40), Constraints.of(use=["adamw-8bit"]))


def test_beside_a_card_there_is_a_second_memory() -> None:
    def recipes(device: Device) -> list[Recipe]:
        last = last_resorts(device, 16, ANY, attention=False)
        return [*candidates(device, 16, ANY, attention=False, longest=24), *chain(*last)]

    def offloading(device: Device) -> set[str]:
        return {s.name for recipe in recipes(device) for s in recipe.strategies if s.cards_only}

    assert offloading(CPU) == set()
    assert offloading(GPUS["T4 16GB"]) == {"offload-optimizer", "offload-activations"}
    exact = [recipe for recipe in recipes(GPUS["T4 16GB"]) if recipe.result is Result.SAME]
    assert any("offload-optimizer" in recipe.specs for recipe in exact)


def test_the_slowest_ways_are_looked_at_only_where_the_others_do_not_fit(tmp_path: Path) -> None:
    """One after the other: each takes longer to play, and to train."""
    planner = planner_of(tmp_path)
    first, second = last_resorts(CPU, planner.simulation.setup.job.batch_size, ANY, attention=True)
    options = [planner.option(recipe) for recipe in first]
    assert planner.plan(budget(min(option.at_most for option in options if option)), ANY).fits
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
def test_a_processor_steps_in_backward_with_the_leanest_optimizer(avoided: tuple[str, ...], expected: set[str]) -> None:
    """And with texts of like length, if that is wanted: a whole batch has no slices that would leave padding out.

    AdamW's have a long memory, which batches of like texts hurt.
    """
    offered = [
        {s.name for s in r.strategies}
        for r in candidates(CPU, 16, Constraints.of(avoid=avoided), attention=False, longest=24)
    ]
    in_backward = [names for names in offered if "optimizer-in-backward" in names]
    assert [names - expected - {"optimizer-in-backward"} for names in in_backward] == [
        {"gradient-checkpointing"},
        {"chunked-layers"},
    ]
    assert all(expected <= names for names in in_backward)
