"""A training run from start to finish: a job and a recipe become a run folder with a model and a record.

The order is: checks, setup, run header, pre-flight, cached features if the encoder is frozen, steps, model, record.
"""

from __future__ import annotations

import contextlib
import signal
import time
import traceback
from collections.abc import Callable, Iterator, Sequence
from contextlib import AbstractContextManager
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any, Protocol

from tightfit.activity import ENCODING, SAVING, TRAINING, Activities, Screen, activity
from tightfit.data.split import save_split
from tightfit.device import Budget, Device, find_device
from tightfit.engine.arguments import check_job
from tightfit.engine.meter import Meter, meter_for
from tightfit.engine.oom import drop_frames, free_memory, release_memory_on_error
from tightfit.engine.step import finish_model
from tightfit.errors import (
    STOPPED,
    BadInput,
    DoesNotFit,
    Interrupted,
    ModelError,
    PreflightFailed,
    RecipeError,
    TightfitError,
    first_line,
    is_out_of_memory,
    suggest,
)
from tightfit.job import Job, write_job_file
from tightfit.messages import Message, msg
from tightfit.models import quiet_transformers
from tightfit.optional_imports import allow_imports
from tightfit.planning.constraints import Constraints
from tightfit.planning.selection import Selection, is_chosen
from tightfit.planning.training_recipe import Selector
from tightfit.runs.folder import JOB_FILE, check_run_folder, discard_start, resume_command, step_of
from tightfit.runs.header import load_header, record_failure
from tightfit.runs.record import FILE, Run
from tightfit.runs.resume_checks import (
    check_not_finished,
    check_same_rows,
    check_steps_left,
    finished_run,
    recipe_for_resume,
    resume_notes,
)
from tightfit.strategies.recipe import Recipe
from tightfit.system.files import atomic_dir, remove_stale
from tightfit.system.gpu_allocator import use_expandable_segments
from tightfit.system.memory import trim_malloc, tuned_malloc
from tightfit.system.processes import process_lock
from tightfit.tasks import find_task
from tightfit.tasks.quality import Scoring
from tightfit.training.checkpoints import as_save_failed, latest_valid_checkpoint
from tightfit.training.checkpoints import keep_checkpoints as remove_others
from tightfit.training.early_stopping import EarlyStopping
from tightfit.training.features import ProgressFn, cache_features
from tightfit.training.memory_limit import limit_cuda, limit_memory
from tightfit.training.prediction_check import PredictionCheck
from tightfit.training.preflight import find_worst_batch
from tightfit.training.quality_recorder import QualityRecorder
from tightfit.training.rng_state import preserved_rng
from tightfit.training.run_record import make_run, measured_values, write_header
from tightfit.training.setup import (
    KEEP_CHECKPOINTS,
    TrainingSetup,
    buckets_of,
    check_disk_space,
    prepare,
    training_arguments,
)
from tightfit.training.signals import SaveAndStop, SaveInterval
from tightfit.training.step_timer import StepTimer

if TYPE_CHECKING:
    from tightfit.training.trainer import Trainer


class Listener(Screen, Protocol):
    """Where a run reports its progress, usually the console."""

    def log(self, line: Message) -> None: ...

    def progress(self, meter: Meter, scoring: Scoring) -> AbstractContextManager[Any]: ...


@contextlib.contextmanager
def _alone_in_this_process(folder: Path) -> Iterator[None]:
    """One training at a time. What it changes for the whole process is undone afterwards."""
    try:
        with process_lock.held(), quiet_transformers(), tuned_malloc(), preserved_rng():
            yield
    except KeyboardInterrupt:  # before the first step, or the second Ctrl-C
        started = (folder / JOB_FILE).is_file()
        stopped = msg("stopped. Continue with: {command}", command=resume_command(folder)) if started else STOPPED
        raise Interrupted(stopped, signal.SIGINT) from None


@release_memory_on_error
def run_job(
    job: Job,
    specs: list[str],
    *,
    out: Path,
    terminal: Listener,
    write_card: Callable[[Run], None],
    device: str | None,
    budget: str | int | None,
    avoid: Sequence[str],
    allow: str,
    prefer: str,
    planned: Sequence[str] | None,
    selected: Selection | None,
    resume: bool,
    report_to: Sequence[str],
    save_every: str,
    keep_checkpoints: int,
    preflight: bool,
    measure_only: bool,
    activities: Activities,
) -> Run:
    """Train a job; `tightfit.train` describes the arguments."""
    with _alone_in_this_process(out):
        folder = out
        job, recipe = job.resolve_paths(), Recipe.parse(specs if planned is None else planned)
        check_job(job)
        constraints, chosen = Constraints.of(specs, avoid, allow, prefer), is_chosen(budget, recipe)
        interval = SaveInterval(job.save_steps, "steps") if job.save_steps else SaveInterval.parse(save_every)
        check_run_folder(folder, resume)
        check_trackers(report_to)
        if keep_checkpoints < 0:
            raise BadInput(msg("--keep-checkpoints is {number}: give 0 or more.", number=keep_checkpoints))
        if resume and chosen:
            recipe = _recipe_for_resume(folder, recipe, terminal, planned=planned is not None)
        if resume and (run := finished_run(folder, job, recipe)):
            terminal.log(msg("{folder} is finished; give more --epochs to continue it", folder=folder))
            return run
        checkpoint, skipped = latest_valid_checkpoint(folder) if resume else (None, [])
        if resume and checkpoint is None:
            check_not_finished(folder)
        found_device = find_device(device)
        limit = Budget.of(budget, found_device) if chosen else None
        earlier = recipe if planned is not None else None
        selector = Selector(limit, constraints, earlier) if limit and not resume else None
        options = RunOptions(
            folder=folder,
            terminal=terminal,
            write_card=write_card,
            device=found_device,
            budget=limit.size if limit and not limit.is_auto else None,
            save_every=interval,
            keep_checkpoints=keep_checkpoints,
            report_to=report_to,
            preflight=preflight,
            measure_only=measure_only,
            resume=resume,
            checkpoint=checkpoint,
            events=skipped,
            activities=activities,
        )
        for note in skipped:
            terminal.log(note)
        return _run_with_replanning(options, job, recipe, selector, selected)


def _recipe_for_resume(folder: Path, given: Recipe, terminal: Listener, *, planned: bool) -> Recipe:
    own = recipe_for_resume(folder, given, planned=planned)
    if given.strategies and given != own:
        terminal.log(msg("continuing with the run's own recipe: {recipe}", recipe=own.title))
    return own


@dataclass(frozen=True, kw_only=True)
class RunOptions:
    """How a run is carried out, independent of its recipe."""

    folder: Path
    terminal: Listener
    write_card: Callable[[Run], None]
    device: Device
    budget: int | None
    """Bytes that the run is limited to; None for what the machine has at any time."""
    save_every: SaveInterval
    keep_checkpoints: int
    """How many stay beside the model."""
    report_to: Sequence[str]
    preflight: bool
    measure_only: bool
    resume: bool
    checkpoint: Path | None
    """The checkpoint to resume from."""
    events: list[Message]
    """What happened during the run, for the record."""
    activities: Activities

    def log(self, line: Message) -> None:
        """Log a line and keep it for the record."""
        self.terminal.log(line)
        self.events.append(line)


def _run_with_replanning(
    options: RunOptions, job: Job, recipe: Recipe, selector: Selector | None, selected: Selection | None
) -> Run:
    """Under a budget a recipe that fails its pre-flight is replaced by the next smaller one."""
    failure: Message | None = None
    while True:
        meter = _start_meter(options.device)
        try:
            setup = _prepare(options, job, recipe, selector, meter, selected)
        except DoesNotFit:
            if failure is None:
                raise
            raise PreflightFailed(failure) from None
        try:
            return _run(options, setup, meter)
        except (PreflightFailed, RecipeError) as error:
            if options.checkpoint is None:
                discard_start(options.folder)
            if isinstance(error, RecipeError) or selector is None or setup.selection is None:
                raise
            failure, selector, selected = error.message, selector.excluding(setup.selection), None
            drop_frames(error)
        recipe_title = setup.recipe.title
        options.log(
            msg("{recipe} did not pass its pre-flight ({reason}): planned again", recipe=recipe_title, reason=failure)
        )
        del setup  # the next attempt needs its memory
        free_memory()


def _prepare(
    options: RunOptions,
    job: Job,
    recipe: Recipe,
    selector: Selector | None,
    meter: Meter,
    selected: Selection | None,
) -> TrainingSetup:
    import tightfit.training.trainer  # noqa: F401, now: the code is part of the process size that is predicted

    setup = prepare(job, recipe, options.device, selector, meter, selected)
    _final_checks(options, setup)
    if options.resume:
        resumed = resume_notes(options.checkpoint, setup.steps, setup.job)
        setup = replace(setup, notes=(*setup.notes, *resumed))
    for note in setup.notes:
        options.terminal.log(note)
    return setup


TRACKERS = ("tensorboard", "wandb", "trackio", "mlflow", "comet_ml", "clearml", "swanlab")
"""Those of transformers that are installed by their own names."""


def check_trackers(names: Sequence[str]) -> None:
    """Reject a tracker that is not installed before the run starts."""
    if not names:
        return
    allow_imports()  # a tracker may need any library
    from transformers.integrations import get_available_reporting_integrations

    available = get_available_reporting_integrations()
    for name in names:
        if name in TRACKERS and name not in available:
            raise BadInput(msg("--report-to {name} needs the package {name}: pip install {name}.", name=name))
        if name not in available:
            hint = suggest(name, [*available, *(each for each in TRACKERS if each not in available)])
            raise BadInput(
                msg(
                    "--report-to {name} cannot be used: {suggestion}",
                    name=name,
                    suggestion=hint,
                )
            )


def _final_checks(options: RunOptions, setup: TrainingSetup) -> None:
    """The checks that need the data and the model."""
    folder = options.folder
    if options.resume:
        check_same_rows(folder, setup.split)
    if options.checkpoint is not None:
        check_steps_left(options.checkpoint, setup.steps)
    rows = len(setup.train) + len(setup.validation)
    at_a_time = 1 + max(KEEP_CHECKPOINTS, options.keep_checkpoints)  # while one more is written
    new_checkpoints = max(1, at_a_time - len(list(folder.glob("checkpoint-*"))))
    space = check_disk_space(folder, setup.parts, new_checkpoints, setup.parts.source.row_bytes * rows)
    options.terminal.log(space)


def _start_meter(device: Device) -> Meter:
    trim_malloc()
    return meter_for(device)


def _run(options: RunOptions, setup: TrainingSetup, meter: Meter) -> Run:
    if options.device.kind == "cuda":
        use_expandable_segments(options.terminal.log)
    save_and_stop = SaveAndStop(options.folder, options.save_every, options.terminal.log)
    needed = setup.estimate.error_band[1] if setup.estimate is not None else None
    with (
        options.terminal.progress(meter, setup.scoring) as progress,
        save_and_stop.handle_signals(),
        limit_memory(options.device, options.terminal.log, options.budget, needed),
    ):
        recorder = QualityRecorder(find_task(setup.job.task), setup.model_inputs, options.folder)
        trainer = _trainer(options, setup, meter, progress, save_and_stop, recorder)
        _write_start(options, setup)
        timer = StepTimer()
        trainer.add_callback(timer)
        if setup.estimate is not None:
            tried = partial(_largest_batch_tried, options)
            on_context = partial(limit_cuda, options.device, options.budget)
            trainer.add_callback(PredictionCheck(setup.estimate, meter, options.log, tried, on_context))

        def on_features(done: int, total: int) -> None:
            progress.features(done, total)
            save_and_stop.raise_if_stopped()

        with _recording_failure(options.folder), _model_errors(setup.job.model):
            seconds = _train(options, setup, trainer, timer, on_features)
            return _finish(options, setup, trainer, timer, recorder, seconds)


def _largest_batch_tried(options: RunOptions) -> bool:
    """Whether the largest batch has run, and without an event such as a recovery: then no later peak is higher."""
    return options.preflight and not options.events


@contextlib.contextmanager
def _recording_failure(folder: Path) -> Iterator[None]:
    """Store the reason for a failure in the run header."""
    try:
        yield
    except (TightfitError, KeyboardInterrupt) as error:
        with contextlib.suppress(OSError):  # a full disk may be the reason itself
            stopped = msg("stopped by a second Ctrl-C")
            record_failure(folder, error.message if isinstance(error, TightfitError) else stopped)
        raise


@contextlib.contextmanager
def _model_errors(name: str) -> Iterator[None]:
    """An error in the model's own code becomes one sentence."""
    try:
        yield
    except Exception as error:
        frames = traceback.walk_tb(error.__traceback__)
        in_model = any(frame.f_globals.get("__name__", "").startswith("transformers.models.") for frame, _ in frames)
        if isinstance(error, TightfitError) or is_out_of_memory(error) or not in_model:
            raise
        raise ModelError(
            msg(
                "The code of '{name}' fails on a batch of texts: {reason}. Use another model.",
                name=name,
                reason=first_line(error).rstrip("."),
            )
        ) from error


def _train(
    options: RunOptions, setup: TrainingSetup, trainer: Trainer, timer: StepTimer, on_features: ProgressFn
) -> float:
    """Cache the features of a frozen encoder, if the recipe does so, then train; returns the seconds."""
    start = time.perf_counter()
    timer.start()
    if not setup.parts.source.runs_encoder:
        with options.activities.timed(ENCODING):
            cache_features(trainer, setup, on_features)
    with options.activities.timed(TRAINING):
        trainer.train(resume_from_checkpoint=str(options.checkpoint) if options.checkpoint else None)
    timer.exclude(trainer.preflight_seconds)
    return time.perf_counter() - start - trainer.preflight_seconds


def _finish(
    options: RunOptions,
    setup: TrainingSetup,
    trainer: Trainer,
    timer: StepTimer,
    recorder: QualityRecorder,
    seconds: float,
) -> Run:
    """Write the model and the record."""
    folder, parts = options.folder, setup.parts
    sizes = {"parameters": parts.parameters, "trainable": parts.trainable_parameters}  # before a LoRA adapter is merged
    with activity(SAVING), trainer.meter.phase("save"), as_save_failed(folder / "model.safetensors"):
        save_model(trainer, folder)
    measured = measured_values(trainer.meter, seconds, timer, options.activities)
    header = load_header(folder)
    attempts = max(1, len(header.attempts)) if header else 1
    quality = recorder.take(trainer.state.best_global_step)
    run = make_run(
        folder,
        setup,
        trainer.state,
        measured,
        quality,
        skipped=_skipped_steps(options, trainer),
        events=options.events,
        attempts=attempts,
        **sizes,
    )
    with as_save_failed(folder / FILE):
        options.write_card(run)
        run.save()
    remove_others(folder, options.keep_checkpoints)  # only now: a run that is killed needs them
    return run


def _early_stopping(options: RunOptions, job: Job) -> list[Any]:
    return [EarlyStopping(job.early_stopping_patience, options.log)] if job.early_stopping_patience else []


def _skipped_steps(options: RunOptions, trainer: Trainer) -> int | None:
    """The steps that the gradient scaler skipped, which are logged; None without one."""
    if trainer.accelerator.scaler is None:
        return None
    if trainer.skipped.count:
        options.log(trainer.skipped.note(trainer.state.global_step))
    return trainer.skipped.count


def _write_start(options: RunOptions, setup: TrainingSetup) -> None:
    """Write the split, the header and, last, the job file, which makes the folder a run."""
    folder = options.folder
    folder.mkdir(parents=True, exist_ok=True)
    remove_stale(folder)
    if not options.resume:
        save_split(folder, setup.split)
    write_header(folder, setup, step_of(options.checkpoint) if options.checkpoint else 0, options.budget)
    write_job_file(folder / JOB_FILE, setup.job, setup.recipe.specs)


def save_model(trainer: Trainer, folder: Path) -> None:
    """Write the model to a temporary folder and move its files into place, so that none is ever incomplete.

    The saved model is an ordinary one: a LoRA adapter is merged into its weights or saved in files of its own.
    """
    with atomic_dir(folder / "model") as tmp:
        finish_model(trainer.parts, tmp, trainer.meter.phase)
        if trainer.parts.export.saves_model:
            trainer.save_model(str(tmp))
        else:  # the adapter is in files of its own, and the base model is where it was
            trainer.model.config.save_pretrained(str(tmp))
            trainer.processing_class.save_pretrained(str(tmp))
    for path in sorted((folder / "model").iterdir()):
        path.replace(folder / path.name)
    (folder / "model").rmdir()


def _trainer(
    options: RunOptions,
    setup: TrainingSetup,
    meter: Meter,
    progress: Any,
    stop: SaveAndStop,
    recorder: QualityRecorder,
) -> Trainer:
    from tightfit.training.trainer import Trainer

    task, job, parts = find_task(setup.job.task), setup.job, setup.parts
    buckets, lengths = buckets_of(parts, setup.train), (setup.train.lengths, setup.validation.lengths)
    worst = find_worst_batch(job, parts, *lengths, buckets) if options.preflight else None
    validation = task.model_inputs(setup.validation.dataset)  # longest texts first
    if options.measure_only:
        validation = validation.select(range(min(parts.step_batching.no_grad_rows, len(validation))))
    return Trainer(
        parts=parts,
        meter=meter,
        buckets=buckets,
        report=options.log,
        on_loss=progress.on_loss,
        worst=worst,
        loss=setup.loss,
        args=training_arguments(job, parts, options.folder, list(options.report_to), options.keep_checkpoints),
        train_dataset=task.model_inputs(setup.train.dataset),
        eval_dataset=validation,
        processing_class=setup.tokenizer,
        data_collator=task.collator(setup.tokenizer),
        compute_metrics=recorder if task.metrics and task.reads_logits else None,
        metrics_of_loss=task.metrics_of_loss,
        preprocess_logits_for_metrics=task.keep_logits,
        callbacks=[progress, stop, recorder, *_early_stopping(options, job)],
    )
