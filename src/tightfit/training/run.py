"""A training run from start to finish: a job and a recipe become a run folder with a model and a record.

The order is: checks, setup, run header, pre-flight, cached features if the encoder is frozen, steps, model, record.
"""

from __future__ import annotations

import contextlib
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import AbstractContextManager
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any, Protocol

import torch

from tightfit.data.batches import RowLimits, rows_seen
from tightfit.data.row_file import FeatureFile, identity_collate
from tightfit.data.split import save_split
from tightfit.data.tokens import Tokens
from tightfit.device import Budget, Device, find_device
from tightfit.engine.meter import Meter, meter_for
from tightfit.engine.oom import drop_frames, free_memory, release_memory_on_error
from tightfit.engine.step import encode_batch, finish_model
from tightfit.errors import BadInput, DoesNotFit, OutOfMemory, PreflightFailed, RecipeError, TightfitError, suggest
from tightfit.files import atomic_dir, remove_stale
from tightfit.job import Job, write_job_file
from tightfit.messages import Message, msg
from tightfit.models import quiet_transformers
from tightfit.optional_imports import allow_imports
from tightfit.planning.constraints import Constraints
from tightfit.planning.select import Selector
from tightfit.processes import process_lock
from tightfit.runs.folder import JOB_FILE, check_run_folder, discard_start, step_of
from tightfit.runs.header import load_header, record_failure
from tightfit.runs.record import FILE, Run
from tightfit.runs.resume import check_same_rows, check_steps_left, finished_run, recipe_for_resume
from tightfit.strategies.recipe import Recipe
from tightfit.system import trim_malloc, tuned_malloc
from tightfit.tasks import find_task
from tightfit.tasks.base import Task
from tightfit.training.checkpoints import as_save_failed, latest_valid_checkpoint
from tightfit.training.memory_limit import limit_memory
from tightfit.training.preflight import find_worst_batch
from tightfit.training.recovery import run_in_chunks
from tightfit.training.rng_state import preserved_rng
from tightfit.training.run_record import make_run, measured_values, write_header
from tightfit.training.setup import (
    SAVE_TOTAL_LIMIT,
    TrainingSetup,
    buckets_of,
    check_disk_space,
    prepare,
    training_arguments,
)
from tightfit.training.signals import SaveAndStop, SaveInterval
from tightfit.training.step_timer import StepTimer

if TYPE_CHECKING:
    from transformers import TrainerCallback

    from tightfit.data.batches import Batch
    from tightfit.training.trainer import Trainer

ProgressFn = Callable[[int, int], None]
"""Called with the rows done and the rows in total."""


class Listener(Protocol):
    """Where a run reports its progress, usually the console."""

    def log(self, line: Message) -> None: ...

    def status(self, what: Message) -> AbstractContextManager[None]: ...

    def progress(self, meter: Meter, task: Task) -> AbstractContextManager[Any]: ...


@contextlib.contextmanager
def _alone_in_this_process() -> Iterator[None]:
    """One training at a time. What it changes for the whole process is undone afterwards."""
    with process_lock.held(), quiet_transformers(), tuned_malloc(), preserved_rng():
        yield


@release_memory_on_error
@_alone_in_this_process()
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
    planned: Sequence[str] | None,
    resume: bool,
    report_to: Sequence[str],
    save_every: str,
    preflight: bool,
    measure_only: bool,
) -> Run:
    """Train a job; `tightfit.train` describes the arguments."""
    folder = out
    job, recipe = job.resolve_paths(), Recipe.parse(specs if planned is None else planned)
    interval = SaveInterval.parse(save_every)
    check_run_folder(folder, resume)
    check_trackers(report_to)
    if resume and budget is not None:
        recipe = _recipe_for_resume(folder, recipe, terminal, planned=planned is not None)
    if resume and (run := finished_run(folder, job, recipe)):
        terminal.log(msg("{folder} is finished; give more --epochs to continue it", folder=folder))
        return run
    checkpoint, skipped = latest_valid_checkpoint(folder) if resume else (None, [])
    found_device = find_device(device)
    limit = Budget.of(budget, found_device) if budget is not None else None
    selector = _selector(limit, (specs, avoid, allow), planned) if limit and not resume else None
    options = RunOptions(
        folder=folder,
        terminal=terminal,
        write_card=write_card,
        device=found_device,
        budget=limit.size if limit else None,
        save_every=interval,
        report_to=report_to,
        preflight=preflight,
        measure_only=measure_only,
        resume=resume,
        checkpoint=checkpoint,
        events=skipped,
    )
    for note in skipped:
        terminal.log(note)
    return _run_with_replanning(options, job, recipe, selector)


def _recipe_for_resume(folder: Path, given: Recipe, terminal: Listener, *, planned: bool) -> Recipe:
    own = recipe_for_resume(folder, given, planned=planned)
    if given.strategies and given != own:
        terminal.log(msg("continuing with the run's own recipe: {recipe}", recipe=own.title))
    return own


def _selector(
    limit: Budget, constraints: tuple[Sequence[str], Sequence[str], str], planned: Sequence[str] | None
) -> Selector:
    return Selector(limit, Constraints.of(*constraints), None if planned is None else Recipe.parse(planned))


@dataclass(frozen=True, kw_only=True)
class RunOptions:
    """How a run is carried out, independent of its recipe."""

    folder: Path
    terminal: Listener
    write_card: Callable[[Run], None]
    device: Device
    budget: int | None
    """Bytes that the run is limited to."""
    save_every: SaveInterval
    report_to: Sequence[str]
    preflight: bool
    measure_only: bool
    resume: bool
    checkpoint: Path | None
    """The checkpoint to resume from."""
    events: list[Message]
    """What happened during the run, for the record."""

    def log(self, line: Message) -> None:
        """Log a line and keep it for the record."""
        self.terminal.log(line)
        self.events.append(line)


def _run_with_replanning(options: RunOptions, job: Job, recipe: Recipe, selector: Selector | None) -> Run:
    """Under a budget a recipe that fails its pre-flight is replaced by the next smaller one."""
    failure: Message | None = None
    while True:
        meter = _start_meter(options.device)
        try:
            setup = _prepare(options, job, recipe, selector, meter)
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
            failure, selector = error.message, selector.excluding(setup.selection)
            drop_frames(error)
        recipe_title = setup.recipe.title
        options.log(
            msg("{recipe} did not pass its pre-flight ({reason}): planned again", recipe=recipe_title, reason=failure)
        )
        del setup  # the next attempt needs its memory
        free_memory()


def _prepare(options: RunOptions, job: Job, recipe: Recipe, selector: Selector | None, meter: Meter) -> TrainingSetup:
    import tightfit.training.trainer  # noqa: F401, now: the code is part of the process size that is predicted

    with options.terminal.status(msg("Reading the data and the model")):
        setup = prepare(job, recipe, options.device, selector, meter)
        _final_checks(options, setup)
    for note in setup.notes:
        options.terminal.log(note)
    return setup


def check_trackers(names: Sequence[str]) -> None:
    """Reject a tracker that is not installed before the run starts."""
    if not names:
        return
    allow_imports()  # a tracker may need any library
    from transformers.integrations import get_available_reporting_integrations

    available = get_available_reporting_integrations()
    for name in names:
        if name not in available:
            hint = suggest(name, available)
            raise BadInput(
                msg(
                    "--report-to {name} cannot be used: {suggestion} Others can be installed.",
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
    new_checkpoints = max(1, SAVE_TOTAL_LIMIT + 1 - len(list(folder.glob("checkpoint-*"))))
    check_disk_space(folder, setup.parts, new_checkpoints, setup.parts.source.row_bytes * rows)


def _start_meter(device: Device) -> Meter:
    trim_malloc()
    return meter_for(device)


def _run(options: RunOptions, setup: TrainingSetup, meter: Meter) -> Run:
    save_and_stop = SaveAndStop(options.save_every, options.terminal.log)
    with (
        options.terminal.progress(meter, find_task(setup.job.task)) as progress,
        save_and_stop.handle_signals(),
        limit_memory(options.device, options.terminal.log, options.budget),
    ):
        trainer = _trainer(options, setup, meter, [progress, save_and_stop])
        _write_start(options, setup)
        timer = StepTimer()
        trainer.add_callback(timer)

        def on_features(done: int, total: int) -> None:
            progress.on_features(done, total)
            save_and_stop.raise_if_stopped()

        with _recording_failure(options.folder):
            seconds = _train(options, setup, trainer, timer, on_features)
            return _finish(options, setup, trainer, timer, seconds)


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


def _train(
    options: RunOptions, setup: TrainingSetup, trainer: Trainer, timer: StepTimer, on_features: ProgressFn
) -> float:
    """Cache the features of a frozen encoder, if the recipe does so, then train; returns the seconds."""
    start = time.perf_counter()
    timer.start()
    if not setup.parts.source.runs_encoder:
        cache_features(trainer, setup, on_features)
    trainer.train(resume_from_checkpoint=str(options.checkpoint) if options.checkpoint else None)
    timer.exclude(trainer.preflight_seconds)
    return time.perf_counter() - start - trainer.preflight_seconds


def _finish(options: RunOptions, setup: TrainingSetup, trainer: Trainer, timer: StepTimer, seconds: float) -> Run:
    """Write the model and the record."""
    folder, parts = options.folder, setup.parts
    sizes = {"parameters": parts.parameters, "trainable": parts.trainable_parameters}  # before a LoRA adapter is merged
    with trainer.meter.phase("save"), as_save_failed(folder / "model.safetensors"):
        save_model(trainer, folder)
    measured = measured_values(trainer.meter, seconds, timer)
    header = load_header(folder)
    attempts = max(1, len(header.attempts)) if header else 1
    run = make_run(folder, setup, trainer.state, measured, events=options.events, attempts=attempts, **sizes)
    with as_save_failed(folder / FILE):
        options.write_card(run)
        run.save()
    return run


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
        trainer.save_model(str(tmp))
    for path in sorted((folder / "model").iterdir()):
        path.replace(folder / path.name)
    (folder / "model").rmdir()


def _trainer(options: RunOptions, setup: TrainingSetup, meter: Meter, callbacks: list[TrainerCallback]) -> Trainer:
    from tightfit.training.trainer import Trainer

    task, job, parts = find_task(setup.job.task), setup.job, setup.parts
    buckets, lengths = buckets_of(parts, setup.train), (setup.train.lengths, setup.validation.lengths)
    worst = find_worst_batch(job, parts, *lengths, buckets) if options.preflight else None
    validation = setup.validation.dataset  # longest texts first
    if options.measure_only:
        validation = validation.select(range(min(parts.step_batching.no_grad_rows, len(validation))))
    return Trainer(
        parts=parts,
        meter=meter,
        buckets=buckets,
        report=options.log,
        worst=worst,
        args=training_arguments(job, parts, options.folder, list(options.report_to)),
        train_dataset=setup.train.dataset,
        eval_dataset=validation,
        processing_class=setup.tokenizer,
        data_collator=task.collator(setup.tokenizer),
        compute_metrics=partial(task.compute_metrics, labels=setup.labels) if task.metrics else None,
        preprocess_logits_for_metrics=task.keep_logits,
        callbacks=callbacks,
    )


def cache_features(trainer: Trainer, setup: TrainingSetup, on_progress: ProgressFn) -> None:
    """Run the frozen encoder once over every row that the run uses, and train on the cached features."""
    train, validation = setup.train, setup.validation
    used = rows_seen(setup.job, len(train), buckets_of(setup.parts, train)).tolist()
    total = len(used) + len(validation)
    try:
        with trainer.meter.phase("features"):
            train_features = _cached(trainer, train, used, lambda done: on_progress(done, total))
            validation_features = _cached(
                trainer, validation, range(len(validation)), lambda done: on_progress(len(used) + done, total)
            )
    except OutOfMemory as error:
        raise PreflightFailed(error.message) from None
    trainer.train_dataset, trainer.eval_dataset = train_features, validation_features
    trainer.data_collator, trainer.args.remove_unused_columns = identity_collate, False


def _cached(trainer: Trainer, tokens: Tokens, rows: Sequence[int], on_progress: Callable[[int], None]) -> FeatureFile:
    """The features of these rows, longest first: little padding, and out of memory shows in the first batch."""
    batch_rows, folder = trainer.parts.batching.no_grad_rows, Path(trainer.args.output_dir)
    file, limits = FeatureFile(len(tokens), folder), RowLimits(batch_rows)
    order = sorted(rows, key=lambda row: -tokens.lengths[row])
    for start in range(0, len(order), batch_rows):
        batch = order[start : start + batch_rows]
        inputs = trainer.prepare_rows(tokens.dataset, batch)
        chunks = run_in_chunks(lambda chunk: _features(trainer, chunk), inputs, limits, trainer.report)
        with as_save_failed(folder / "features"):
            file.write(batch, {name: torch.cat([chunk[name] for chunk in chunks]) for name in chunks[0]})
        on_progress(start + len(batch))
    return file


def _features(trainer: Trainer, batch: Batch) -> Batch:
    with trainer.accelerator.autocast():
        return encode_batch(trainer.parts, batch, trainer.meter.phase, check=True)
