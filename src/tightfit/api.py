"""The public functions: they put the layers together. What each needs is imported when it is called."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

from tightfit.device import Budget, find_device_or_gpu
from tightfit.job import Job
from tightfit.strategies.recipe import Recipe

if TYPE_CHECKING:
    from tightfit.comparison.comparison import Comparison
    from tightfit.planning.plan import Plan
    from tightfit.runs.record import Run
    from tightfit.simulation.estimate import Estimate

SAVE_EVERY = "30 minutes"


def plan(
    job: Job,
    budget: Budget | str | int | None = None,
    *,
    device: str | None = None,
    use: Sequence[str] = (),
    avoid: Sequence[str] = (),
    allow: str = "close",
) -> Plan:
    """Pick the fastest recipe that keeps to the budget; raises DoesNotFit, with the closest plan, where none does.

    `use` pins strategies, `avoid` leaves some out, and `allow="different"` also takes those that change what is
    trained. The batch size, the epochs and the learning rate never change.
    """
    from tightfit.planning.constraints import Constraints

    wanted = budget if isinstance(budget, Budget) else Budget.of(budget, device)
    constraints = Constraints.of(use, avoid, allow)
    from tightfit.planning.planner import Planner

    made = Planner.of(job, wanted.device).plan(wanted, constraints)
    return replace(made, job=job)  # as given: a batch of more rows than there are today may have them tomorrow


def estimate(
    job: Job | Callable[[], Any], use: str | Sequence[str] = (), device: str | None = None, *, probe: bool = False
) -> Estimate:
    """Say what a training will take: bytes by moment and kind, from the model's shape and the data's lengths.

    Instead of a job it takes a function that builds a training of your own and returns its step.
    With `probe` a model that cannot be rehearsed is tried out on real tensors.
    """
    where = find_device_or_gpu(device)
    if not isinstance(job, Job):
        from tightfit.simulation.own_loop import estimate_loop

        return estimate_loop(job, where)
    recipe = use if isinstance(use, Recipe) else Recipe.parse([use] if isinstance(use, str) else use)

    from tightfit.simulation.simulation import Simulation, trace_in_parallel

    recipe.load()
    simulation = Simulation.of(job, where, probe=probe)
    if not probe:  # which may use real tensors, and with them threads that a fork has not
        trace_in_parallel(simulation, [recipe])
    return simulation.estimate(recipe)


def train(
    job: Job,
    use: str | Sequence[str] = (),
    *,
    out: str | Path,
    device: str | None = None,
    budget: str | int | None = None,
    avoid: Sequence[str] = (),
    allow: str = "close",
    planned: Sequence[str] | None = None,
    resume: bool = False,
    report_to: Sequence[str] = (),
    quiet: bool = False,
    save_every: str = SAVE_EVERY,
    preflight: bool = True,
    measure_only: bool = False,
) -> Run:
    """Train a job with the strategies in `use` and write the trained model and its record to `out`.

    With a budget the fastest recipe that keeps to it is found first, as by `plan`; `use` then pins strategies, and
    `planned` is a recipe that was found before and is taken as it is where it still fits. The run is held to the
    budget, and if its pre-flight fails a smaller recipe is taken. A run that is resumed keeps its own recipe.
    A checkpoint is written every so often (`save_every`, such as "100 steps" or "30 minutes") and at the end of each
    epoch. With `preflight` the largest batches, a save and a load are tried out before the first step.
    With `only_measure` the evaluation is its largest batch: enough for memory and time, and no measure of quality.
    """
    from tightfit.report.model_card import write_card
    from tightfit.report.progress import Terminal
    from tightfit.training.run import run_job

    return run_job(
        job,
        [use] if isinstance(use, str) else list(use),
        out=Path(out),
        terminal=Terminal(quiet=quiet),
        write_card=write_card,
        device=device,
        budget=budget,
        avoid=avoid,
        allow=allow,
        planned=planned,
        resume=resume,
        report_to=report_to,
        save_every=save_every,
        preflight=preflight,
        measure_only=measure_only,
    )


def compare(
    job: Job,
    recipes: str | Sequence[str] = "all",
    *,
    steps: int = 8,
    full: bool = False,
    seeds: int = 1,
    budget: str | None = None,
    device: str | None = None,
    out: str | Path = "comparison",
    quiet: bool = False,
) -> Comparison:
    """Measure recipes side by side and write what they took to `out`.

    `recipes` is a preset (tutorial, ours, all) or a list of recipes such as "micro-batch:size=8 checkpoint". Each is trained
    for some steps, or with `full` to the end of the job, once for each seed. Called again it goes on where it stopped.
    """
    from tightfit.comparison.comparison import find_recipes
    from tightfit.comparison.runner import run_comparison
    from tightfit.report.progress import Terminal

    return run_comparison(
        job.resolve_paths(),
        find_recipes(recipes, job, device),
        steps=None if full else steps,
        seeds=seeds,
        budget=budget,
        device=device,
        out=Path(out),
        terminal=Terminal(quiet=quiet),
    )
