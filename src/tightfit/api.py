"""The public functions: they put the layers together. What each needs is imported when it is called."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

from tightfit.device import Budget, find_device_or_card
from tightfit.job import Job
from tightfit.strategies.recipe import Recipe

if TYPE_CHECKING:
    from tightfit.comparison.comparison import Ladder
    from tightfit.planning.plan import Plan
    from tightfit.runs.record import Run
    from tightfit.simulation.estimate import Bill

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
    from tightfit.planning.constraints import Wishes

    wanted = budget if isinstance(budget, Budget) else Budget.of(budget, device)
    wishes = Wishes.of(use, avoid, allow)
    from tightfit.planning.planner import Planner

    made = Planner.of(job, wanted.device).plan(wanted, wishes)
    return replace(made, job=job)  # as given: a batch of more rows than there are today may have them tomorrow


def rehearse(
    job: Job | Callable[[], Any], use: str | Sequence[str] = (), device: str | None = None, *, probe: bool = False
) -> Bill:
    """Say what a training will take: bytes by moment and kind, from the model's shape and the data's lengths.

    Instead of a job it takes a function that builds a training of your own and returns its step.
    With `probe` a model that cannot be rehearsed is tried out on real tensors.
    """
    where = find_device_or_card(device)
    if not isinstance(job, Job):
        from tightfit.simulation.own_loop import rehearse_loop

        return rehearse_loop(job, where)
    recipe = use if isinstance(use, Recipe) else Recipe.parse([use] if isinstance(use, str) else use)

    from tightfit.simulation.simulation import Rehearsal, play_ahead

    recipe.load()
    rehearsal = Rehearsal.of(job, where, probe=probe)
    if not probe:  # which may use real tensors, and with them threads that a fork has not
        play_ahead(rehearsal, [recipe])
    return rehearsal.bill(recipe)


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
    only_measure: bool = False,
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
    from tightfit.report.progress import Screen
    from tightfit.training.run import run_job

    return run_job(
        job,
        [use] if isinstance(use, str) else list(use),
        out=Path(out),
        screen=Screen(quiet=quiet),
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
        only_measure=only_measure,
    )


def ladder(
    job: Job,
    rungs: str | Sequence[str] = "all",
    *,
    steps: int = 8,
    full: bool = False,
    seeds: int = 1,
    budget: str | None = None,
    device: str | None = None,
    out: str | Path = "ladder",
    quiet: bool = False,
) -> Ladder:
    """Measure recipes side by side and write what they took to `out`.

    `rungs` is a preset (tutorial, ours, all) or a list of recipes such as "slice:size=8 checkpoint". Each is trained
    for some steps, or with `full` to the end of the job, once for each seed. Called again it goes on where it stopped.
    """
    from tightfit.comparison.comparison import find_rungs
    from tightfit.comparison.runner import climb
    from tightfit.report.progress import Screen

    return climb(
        job.with_full_paths(),
        find_rungs(rungs, job, device),
        steps=None if full else steps,
        seeds=seeds,
        budget=budget,
        device=device,
        out=Path(out),
        screen=Screen(quiet=quiet),
    )
