"""Public functions: plan, estimate, train, compare. Heavy imports happen inside each function.

Each may be called from any thread, and beside a training: what cannot run in this process then runs in a worker
process, which is started when it is first needed. In the main thread, with nothing else under way, everything runs
here, which is faster.
"""

from __future__ import annotations

import contextlib
import threading
import time
from collections.abc import Callable, Sequence
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeVar

from tightfit.activity import PLANNING, Activities, activity
from tightfit.comparison.comparison import Comparison, find_recipes
from tightfit.comparison.runner import run_comparison
from tightfit.device import AUTO, Budget, Device, find_device_or_gpu
from tightfit.engine.arguments import check_job
from tightfit.errors import FolderInUse
from tightfit.job import Job
from tightfit.models import quiet_transformers
from tightfit.planning.constraints import Constraints
from tightfit.planning.selection import Selection, is_chosen
from tightfit.report.model_card import write_card
from tightfit.report.progress import Terminal
from tightfit.runs.default_folder import new_run_folders, unfinished_run
from tightfit.runs.folder import check_run_folder
from tightfit.runs.lock import locked_folder
from tightfit.simulation.process_size import keep_process_sizes
from tightfit.strategies.recipe import Recipe
from tightfit.system.processes import Worker, process_lock
from tightfit.tasks import with_task
from tightfit.training.select_apart import Request, select_apart

if TYPE_CHECKING:
    from tightfit.planning.plan import Plan
    from tightfit.runs.record import Run
    from tightfit.simulation.estimate import Estimate

SAVE_EVERY = "30 minutes"
T = TypeVar("T")


def plan(
    job: Job,
    budget: Budget | str | int | None = None,
    *,
    device: str | None = None,
    use: Sequence[str] = (),
    avoid: Sequence[str] = (),
    allow: str = "close",
    prefer: str = "exact",
    take: int | None = None,
) -> Plan:
    """Choose a recipe that fits the budget: the fastest with result `same`, else the fastest with result `close`.

    Without a budget, or with "auto", the budget is what the device has free now, and the baseline is chosen if it fits.
    Raises DoesNotFit with the closest plan if no recipe fits. With `take=2`, the second alternative is chosen instead.

    `use` pins strategies, `avoid` excludes some, and `allow="different"` also allows those that change what is trained.
    With `prefer="speed"` the fastest recipe is chosen, whether its result is `same` or `close`.
    The batch size, the epochs and the learning rate never change.
    """
    constraints = Constraints.of(use, avoid, allow, prefer)
    limit = budget if isinstance(budget, Budget) else Budget.of(budget, device)
    job = with_task(job)
    made = _run_alone(_plan, _checked(job), limit, constraints, take)
    return replace(made, job=job)  # with the given batch size: the data may have more rows when it is trained


def _plan(job: Job, budget: Budget, constraints: Constraints, take: int | None) -> Plan:
    _load_training_code()
    from tightfit.planning.planner import Planner

    return Planner.of(job, budget.device).plan(budget, constraints, take)


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
    return _run_alone(_estimate, _checked(job), recipe, where, probe)


def _estimate(job: Job, recipe: Recipe, device: Device, probe: bool) -> Estimate:
    _load_training_code()
    from tightfit.simulation.job_simulation import Simulation, trace_in_parallel

    recipe.import_requirements()
    simulation = Simulation.of(job, device, probe=probe)
    if not probe:  # a probe may use real tensors, and with them threads that do not survive a fork
        trace_in_parallel(simulation, [recipe])
    return simulation.estimate(recipe)


def _estimate_loop(build: Callable[[], Any], device: Device) -> Estimate:
    from tightfit.simulation.own_loop import estimate_loop

    return estimate_loop(build, device)


def _checked(job: Job) -> Job:
    """The job with its task and absolute paths; BadInput if its task does not have what it names."""
    job = with_task(job)
    check_job(job)
    return job.resolve_paths()


def _run_alone(function: Callable[..., T], *args: Any) -> T:
    """Call a function that simulates: here, or in the worker if another thread may need this process as it is.

    A simulation replaces functions of torch and measures the size of its process, with small real trainings.
    """
    if threading.current_thread() is threading.main_thread():
        with process_lock.held_if_free() as free:
            if free:
                return function(*args)
    return _worker.call(function, *args)


def _set_up_worker() -> None:
    """Every answer of the worker is for a new process, whatever it was asked before."""
    _load_training_code()
    keep_process_sizes()


def _load_training_code() -> None:
    """A training run loads it too: it is part of the process size."""
    with quiet_transformers():  # which imports libraries that warn of what they lack
        import tightfit.training.trainer  # noqa: F401


_worker = Worker(_set_up_worker)


def train(
    job: Job,
    use: str | Sequence[str] = (),
    *,
    out: str | Path | None = None,
    device: str | None = None,
    budget: str | int | None = None,
    avoid: Sequence[str] = (),
    allow: str = "close",
    prefer: str = "exact",
    planned: Sequence[str] | None = None,
    resume: bool = False,
    report_to: Sequence[str] = (),
    quiet: bool = False,
    save_every: str = SAVE_EVERY,
    keep_checkpoints: int = 2,
    preflight: bool = True,
    measure_only: bool = False,
) -> Run:
    """Train a job and write the trained model and run.json to `out`.

    | budget | the recipe |
    | --- | --- |
    | None (default), without `use` | as with "auto" |
    | None (default), with `use` | exactly the strategies in `use` |
    | "auto" | the baseline if it fits what the device has free now, else as `plan` chooses for that |
    | a size: "4GB", or bytes as int | as `plan` chooses for it; the run is limited to it |
    | "none" | exactly the strategies in `use`, the baseline if there are none |

    Where a recipe is chosen, `use` pins strategies, `planned` is the recipe of an earlier plan, used unchanged if it
    still fits, and if the pre-flight fails, a smaller recipe is chosen. A resumed run keeps its recipe.
    Without `out`, the folder is `runs/MODEL-DATA-NUMBER`; with `resume`, the newest unfinished run of this job there.
    Checkpoints are saved at the end of each epoch and every `save_every` ("100 steps" or "30 minutes"); of a finished
    run the last `keep_checkpoints` stay.
    With `preflight`, the largest batches, a save and a load are tried before the first step.
    With `measure_only`, evaluation runs its largest batch only: enough to measure memory and time, not quality.
    """
    started, job = time.perf_counter(), with_task(job)
    arguments = {
        "device": device,
        "budget": budget,
        "avoid": avoid,
        "allow": allow,
        "prefer": prefer,
        "planned": planned,
        "resume": resume,
        "report_to": report_to,
        "save_every": save_every,
        "keep_checkpoints": keep_checkpoints,
        "preflight": preflight,
        "measure_only": measure_only,
    }
    run_in = partial(
        _train,
        job,
        [use] if isinstance(use, str) else list(use),
        Terminal(quiet=quiet),
        started,
        arguments,
    )
    if out is None and resume:
        out = unfinished_run(job.model_dump())
    if out is not None:
        return run_in(Path(out))
    for folder in new_run_folders(job):
        with contextlib.suppress(FolderInUse):  # started at the same moment: take the next number
            return run_in(folder)
    raise AssertionError("folders are numbered without end")


def _train(
    job: Job, specs: list[str], terminal: Terminal, started: float, arguments: dict[str, Any], folder: Path
) -> Run:
    """Select a recipe in a process of its own, if memory is short; then train."""
    with Activities(terminal, started).followed() as activities, locked_folder(folder):
        selected = _select_apart(job, specs, folder, **arguments)
        from tightfit.training.run import run_job  # now: a selection needs the memory of the libraries it imports

        return run_job(
            job,
            specs,
            out=folder,
            terminal=terminal,
            activities=activities,
            selected=selected,
            write_card=write_card,
            **arguments,
        )


def _select_apart(
    job: Job,
    specs: list[str],
    folder: Path,
    *,
    device: str | None,
    budget: str | int | None,
    avoid: Sequence[str],
    allow: str,
    prefer: str,
    planned: Sequence[str] | None,
    resume: bool,
    **others: Any,
) -> Selection | None:
    constraints = Constraints.of(specs, avoid, allow, prefer)
    given = None if planned is None else Recipe.parse(planned)
    if resume or not is_chosen(budget, given or Recipe.parse(specs)):
        return None
    check_run_folder(folder, resume=False)
    with activity(PLANNING):
        return select_apart(Request(_checked(job), budget or AUTO, device, constraints, given))


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
    return run_comparison(
        _checked(job),
        find_recipes(recipes, job, device),
        train=train,
        steps=None if full else steps,
        seeds=seeds,
        budget=budget,
        device=device,
        out=Path(out),
        terminal=Terminal(quiet=quiet),
    )
