"""Public functions: plan, estimate, train, compare. Heavy imports happen inside each function.

Each may be called from any thread, and beside a training: what cannot run in this process then runs in a worker
process, which is started when it is first needed. In the main thread, with nothing else under way, everything runs
here, which is faster.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Sequence
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeVar

from tightfit.comparison.comparison import Comparison, find_recipes
from tightfit.comparison.runner import run_comparison
from tightfit.device import Budget, Device, find_device_or_gpu
from tightfit.job import Job
from tightfit.planning.constraints import Constraints
from tightfit.processes import Worker, process_lock
from tightfit.report.model_card import write_card
from tightfit.strategies.recipe import Recipe

if TYPE_CHECKING:
    from tightfit.planning.plan import Plan
    from tightfit.runs.record import Run
    from tightfit.simulation.estimate import Estimate

SAVE_EVERY = "30 minutes"
T = TypeVar("T")
_worker = Worker()


def plan(
    job: Job,
    budget: Budget | str | int | None = None,
    *,
    device: str | None = None,
    use: Sequence[str] = (),
    avoid: Sequence[str] = (),
    allow: str = "close",
) -> Plan:
    """Choose a recipe that fits the budget: the fastest with result `same`, else the fastest with result `close`.

    Raises DoesNotFit with the closest plan if none fits.

    `use` pins strategies, `avoid` excludes some, and `allow="different"` also allows those that change what is trained.
    The batch size, the epochs and the learning rate never change.
    """
    limit = budget if isinstance(budget, Budget) else Budget.of(budget, device)
    made = _run_alone(_plan, job.resolve_paths(), limit, Constraints.of(use, avoid, allow))
    return replace(made, job=job)  # with the given batch size: the data may have more rows when it is trained


def _plan(job: Job, budget: Budget, constraints: Constraints) -> Plan:
    import tightfit.training.trainer  # noqa: F401, a training run loads it too: part of the process size
    from tightfit.planning.planner import Planner

    return Planner.of(job, budget.device).plan(budget, constraints)


def estimate(
    job: Job | Callable[[], Any], use: str | Sequence[str] = (), device: str | None = None, *, probe: bool = False
) -> Estimate:
    """Estimate the memory of training: bytes by phase and kind, from the model's shape and the data's lengths.

    Instead of a job it accepts a function that builds your own training loop and returns its step function. In another
    thread, or beside a training, that function must be importable from a module.
    With `probe`, a model that cannot be simulated is measured with a small step on real tensors.
    """
    where = find_device_or_gpu(device)
    if not isinstance(job, Job):
        return _run_alone(_estimate_loop, job, where)
    recipe = use if isinstance(use, Recipe) else Recipe.parse([use] if isinstance(use, str) else use)
    return _run_alone(_estimate, job.resolve_paths(), recipe, where, probe)


def _estimate(job: Job, recipe: Recipe, device: Device, probe: bool) -> Estimate:
    import tightfit.training.trainer  # noqa: F401, a training run loads it too: part of the process size
    from tightfit.simulation.job_simulation import Simulation, trace_in_parallel

    recipe.import_requirements()
    simulation = Simulation.of(job, device, probe=probe)
    if not probe:  # a probe may use real tensors, and with them threads that do not survive a fork
        trace_in_parallel(simulation, [recipe])
    return simulation.estimate(recipe)


def _estimate_loop(build: Callable[[], Any], device: Device) -> Estimate:
    from tightfit.simulation.own_loop import estimate_loop

    return estimate_loop(build, device)


def _run_alone(function: Callable[..., T], *args: Any) -> T:
    """Call a function that simulates: here, or in the worker if another thread may need this process as it is.

    A simulation replaces functions of torch and measures the size of its process, with small real trainings.
    """
    if threading.current_thread() is threading.main_thread():
        with process_lock.held_if_free() as free:
            if free:
                return function(*args)
    return _worker.call(function, *args)


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
    """Train a job with the strategies in `use` and write the trained model and run.json to `out`.

    With a budget, the recipe is chosen as by `plan`: `use` pins strategies, and `planned` is the recipe of an earlier
    plan, used unchanged if it still fits. The run is limited to the budget, and if its pre-flight fails, a smaller
    recipe is chosen. A resumed run keeps its recipe.
    Checkpoints are saved at the end of each epoch and every `save_every` ("100 steps" or "30 minutes").
    With `preflight`, the largest batches, a save and a load are tried before the first step.
    With `measure_only`, evaluation runs its largest batch only: enough to measure memory and time, not quality.
    """
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
    """Measure recipes side by side and write the results to `out`.

    `recipes` is a preset (tutorial, tightfit, all) or a list such as ["baseline", "micro-batch:size=8 adafactor"]. Each
    is trained for `steps` steps, or with `full` for all epochs, once per seed. Calling it again continues an
    interrupted comparison.
    """
    from tightfit.report.progress import Terminal

    return run_comparison(
        job.resolve_paths(),
        find_recipes(recipes, job, device),
        train=train,
        steps=None if full else steps,
        seeds=seeds,
        budget=budget,
        device=device,
        out=Path(out),
        terminal=Terminal(quiet=quiet),
    )
