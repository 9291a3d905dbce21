"""Recording: what was prepared, what happened and what was measured, as the run's record."""

from __future__ import annotations

import contextlib
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import AbstractContextManager
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, Protocol

import torch

from tightfit.data.batches import RowLimits, rows_seen
from tightfit.data.row_file import FeatureFile, identity_collate
from tightfit.data.split import save_split
from tightfit.data.tokens import Tokens
from tightfit.device import Budget, Device, find_device
from tightfit.engine.meter import Meter, meter_for
from tightfit.engine.oom import forget, free_memory, release_memory_on_error
from tightfit.errors import BadInput, DoesNotFit, OutOfMemory, PreflightFailed, RecipeError, TightfitError, suggest
from tightfit.files import atomic_dir, remove_stale
from tightfit.job import Job, write_job_file
from tightfit.optional_imports import allow_imports
from tightfit.runs.folder import (
    JOB_FILE,
    check_run_folder,
    check_same_rows,
    check_steps_left,
    discard_start,
    finished_run,
    recipe_for_resume,
    step_of,
)
from tightfit.runs.header import load_header, record_failure
from tightfit.runs.record import FILE, Run
from tightfit.strategies.parts import Parts
from tightfit.strategies.recipe import Recipe
from tightfit.tasks import find_task
from tightfit.training.callbacks import SaveAndStop, SaveInterval, StepTimer
from tightfit.training.checkpoints import as_save_failed, latest_valid_checkpoint
from tightfit.training.memory_limit import limit_memory
from tightfit.training.recovery import run_in_chunks
from tightfit.training.run_record import make_run, measured_values, write_header
from tightfit.training.setup import TrainingSetup, buckets_of, prepare

if TYPE_CHECKING:
    from transformers import TrainerCallback

    from tightfit.data.batches import Batch
    from tightfit.ops.lora import LoraAdapter
    from tightfit.planning.select import Selector
    from tightfit.training.trainer import Trainer


# Features: every row goes through the frozen trunk once, before the training; then rows are what was kept of them.


Tell = Callable[[int, int], None]
"""Hears how many rows of how many are done."""


def cache_features(trainer: Trainer, setup: TrainingSetup, tell: Tell) -> None:
    """Let a trainer train on features. Rows that it will not meet are left out."""
    train, validation = setup.train, setup.validation
    met = rows_seen(setup.job, len(train), buckets_of(setup.parts, train)).tolist()
    total = len(met) + len(validation)
    try:
        with trainer.meter.phase("features"):
            selection = [
                _kept(trainer, train, met, lambda done: tell(done, total)),
                _kept(trainer, validation, range(len(validation)), lambda done: tell(len(met) + done, total)),
            ]
    except OutOfMemory as error:
        raise PreflightFailed(str(error)) from None
    trainer.train_dataset, trainer.eval_dataset = selection
    trainer.data_collator, trainer.args.remove_unused_columns = identity_collate, False


def feature_cache_bytes(parts: Parts, rows: int) -> int:
    """What the files of the features take."""
    if parts.feature_cache is None:
        return 0
    return sum(value.nbytes for value in parts.feature_cache.blank(1).values()) * rows


def _kept(trainer: Trainer, tokens: Tokens, rows: Sequence[int], tell: Callable[[int], None]) -> FeatureFile:
    """Longest first: little is padded, and what is too large shows at once."""
    at_once, folder = trainer.parts.eval_rows, Path(trainer.args.output_dir)
    selection, limits = FeatureFile(len(tokens), folder), RowLimits(at_once)
    order = sorted(rows, key=lambda row: -tokens.lengths[row])
    for start in range(0, len(order), at_once):
        chosen = order[start : start + at_once]
        batch = trainer.prepare_rows(tokens.dataset, chosen)
        chunks = run_in_chunks(lambda chunk: _features(trainer, chunk), batch, limits, trainer.report)
        with as_save_failed(folder / "features"):
            selection.write(chosen, {name: torch.cat([chunk[name] for chunk in chunks]) for name in chunks[0]})
        tell(start + len(chosen))
    return selection


def _features(trainer: Trainer, texts: Batch) -> Batch:
    feature_cache = trainer.parts.feature_cache
    assert feature_cache is not None
    with trainer.accelerator.autocast():
        features, answer = feature_cache.features(texts)
        feature_cache.check_same_logits(features, answer)
    return features


# Training: job + recipe -> Run.


class Listener(Protocol):
    """Where a run reports what happens: the console, as a rule."""

    def log(self, line: str) -> None: ...

    def status(self, what: str) -> AbstractContextManager[None]: ...

    def progress(self, meter: Meter) -> AbstractContextManager[Any]: ...


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
    every = SaveInterval.parse(save_every)
    check_run_folder(folder, resume)
    check_trackers(report_to)
    if resume and budget is not None:
        recipe = _recipe_for_resume(folder, recipe, terminal, planned=planned is not None)
    if resume and (run := finished_run(folder, job, recipe)):
        terminal.log(f"{folder} is finished; more --epochs would go on with it")
        return run
    checkpoint, passed_over = latest_valid_checkpoint(folder) if resume else (None, [])
    where = find_device(device)
    limit = Budget.of(budget, where) if budget is not None else None
    selector = _keeping(limit, (specs, avoid, allow), planned) if limit and not resume else None
    how = _How(
        folder=folder,
        terminal=terminal,
        write_card=write_card,
        device=where,
        budget=limit.size if limit else None,
        every=every,
        report_to=report_to,
        preflight=preflight,
        measure_only=measure_only,
        resume=resume,
        checkpoint=checkpoint,
        learned=passed_over,
    )
    for note in passed_over:
        terminal.log(note)
    return _run_with_replanning(how, job, recipe, selector)


def _recipe_for_resume(folder: Path, given: Recipe, terminal: Listener, *, planned: bool) -> Recipe:
    own = recipe_for_resume(folder, given, planned=planned)
    if given.strategies and given != own:
        terminal.log(f"going on with the run's own recipe: {' '.join(own.specs) or 'plain'}")
    return own


def _keeping(
    limit: Budget, constraints: tuple[Sequence[str], Sequence[str], str], planned: Sequence[str] | None
) -> Selector:
    from tightfit.planning.constraints import Constraints
    from tightfit.planning.select import Selector

    return Selector(limit, Constraints.of(*constraints), None if planned is None else Recipe.parse(planned))


@dataclass(frozen=True, kw_only=True)
class _How:
    """How a run is carried out, whatever its recipe."""

    folder: Path
    terminal: Listener
    write_card: Callable[[Run], None]
    device: Device
    budget: int | None
    """Bytes that it is held to."""
    every: SaveInterval
    report_to: Sequence[str]
    preflight: bool
    measure_only: bool
    resume: bool
    checkpoint: Path | None
    """What it goes on from."""
    learned: list[str]
    """What happens on the way, for the record."""

    def log(self, line: str) -> None:
        """What happens in a run is said at once and written into its record."""
        self.terminal.log(line)
        self.learned.append(line)


def _run_with_replanning(how: _How, job: Job, recipe: Recipe, selector: Selector | None) -> Run:
    """Under a budget a recipe whose pre-flight fails is followed by the next smaller one."""
    failure: str | None = None
    while True:
        meter = _start_meter(how.device)
        try:
            setup = _prepare(how, job, recipe, selector, meter)
        except DoesNotFit:
            if failure is None:
                raise
            raise PreflightFailed(failure) from None
        try:
            return _run(how, setup, meter)
        except (PreflightFailed, RecipeError) as error:
            if how.checkpoint is None:
                discard_start(how.folder)
            if isinstance(error, RecipeError) or selector is None or setup.selection is None:
                raise
            failure, selector = str(error), selector.below(setup.selection)
            forget(error)
        how.log(f"{' '.join(setup.recipe.specs) or 'plain'} did not pass its pre-flight ({failure}): planned again")
        del setup  # the next one needs its memory
        free_memory()


def _prepare(how: _How, job: Job, recipe: Recipe, selector: Selector | None, meter: Meter) -> TrainingSetup:
    with how.terminal.status("Reading the data and the model"):
        setup = prepare(job, recipe, how.device, selector, meter)
        _final_checks(setup, how)
    for note in setup.notes:
        how.terminal.log(note)
    return setup


def check_trackers(names: Sequence[str]) -> None:
    """A tracker that is not installed is found before the run, not in it."""
    if not names:
        return
    allow_imports()  # nobody knows what a tracker needs
    from transformers.integrations import get_available_reporting_integrations

    there = get_available_reporting_integrations()
    for name in names:
        if name not in there:
            raise BadInput(f"--report-to {name} cannot be used: {suggest(name, there)} Others can be installed.")


def _final_checks(setup: TrainingSetup, how: _How) -> None:
    """The last checks, which need the data and the model."""
    from tightfit.training.setup import SAVE_TOTAL_LIMIT, check_disk_space

    folder = how.folder
    if how.resume:
        check_same_rows(folder, setup.split)
    if how.checkpoint is not None:
        check_steps_left(how.checkpoint, setup.steps)
    rows = len(setup.train) + len(setup.validation)
    at_once = max(1, SAVE_TOTAL_LIMIT + 1 - len(list(folder.glob("checkpoint-*"))))
    check_disk_space(folder, setup.parts, at_once, feature_cache_bytes(setup.parts, rows))


def _start_meter(device: Device) -> Meter:
    from tightfit.system import tune_malloc

    tune_malloc()
    return meter_for(device)


def _run(how: _How, setup: TrainingSetup, meter: Meter) -> Run:
    pauses = SaveAndStop(how.every, how.terminal.log)
    with (
        how.terminal.progress(meter) as progress,
        pauses.listening(),
        limit_memory(how.device, how.terminal.log, how.budget),
    ):
        trainer = _trainer(how, setup, meter, [progress, pauses])
        _begin(setup, how)
        clock = StepTimer()
        trainer.add_callback(clock)

        def tell(done: int, total: int) -> None:
            progress.on_features(done, total)
            pauses.on_features()

        with _recording_failure(how.folder):
            seconds = _train(how, setup, trainer, clock, tell)
            return _finish(how, setup, trainer, clock, seconds)


@contextlib.contextmanager
def _recording_failure(folder: Path) -> Iterator[None]:
    """Why a run stopped is kept with it."""
    try:
        yield
    except (TightfitError, KeyboardInterrupt) as error:
        with contextlib.suppress(OSError):  # a full disk may be the very reason
            record_failure(folder, str(error) or "stopped at once")
        raise


def _train(how: _How, setup: TrainingSetup, trainer: Trainer, clock: StepTimer, tell: Tell) -> float:
    """The frozen part once, where it is to run only once, then every step. Returns the seconds."""

    start = time.perf_counter()
    clock.begin()
    if setup.parts.feature_cache:
        cache_features(trainer, setup, tell)
    trainer.train(resume_from_checkpoint=str(how.checkpoint) if how.checkpoint else None)
    clock.exclude(trainer.preflight_seconds)
    return time.perf_counter() - start - trainer.preflight_seconds


def _finish(how: _How, setup: TrainingSetup, trainer: Trainer, clock: StepTimer, seconds: float) -> Run:
    """The model and the record."""
    folder, parts = how.folder, setup.parts
    sizes = {"parameters": parts.parameters, "trainable": parts.trainable_parameters}  # with an adapter still in
    with trainer.meter.phase("save"), as_save_failed(folder / "model.safetensors"):
        save_model(trainer, folder, parts.adapter)
    measured = measured_values(trainer.meter, seconds, clock)
    known = load_header(folder)
    attempts = max(1, len(known.attempts)) if known else 1
    run = make_run(folder, setup, trainer.state, measured, learned=how.learned, attempts=attempts, **sizes)
    with as_save_failed(folder / FILE):
        how.write_card(run)
        run.save()
    return run


def _begin(setup: TrainingSetup, how: _How) -> None:
    """Write down what is trained on and what is known of it. The job comes last: it makes a folder a run."""
    folder = how.folder
    folder.mkdir(parents=True, exist_ok=True)
    remove_stale(folder)
    if not how.resume:
        save_split(folder, setup.split)
    write_header(folder, setup, step_of(how.checkpoint) if how.checkpoint else 0, how.budget)
    write_job_file(folder / JOB_FILE, setup.job, setup.recipe.specs)


def save_model(trainer: Trainer, folder: Path, adapter: LoraAdapter | None) -> None:
    """Write the model aside and put its files in their places one after the other: none is ever half there.

    It is an ordinary one; what learnt beside its weights is in them or in files of its own.
    """
    with atomic_dir(folder / "model") as aside:
        if adapter:
            if not adapter.merge:
                adapter.save(aside)
            adapter.merge_or_unload()
        trainer.save_model(str(aside))
    for path in sorted((folder / "model").iterdir()):
        path.replace(folder / path.name)
    (folder / "model").rmdir()


def _trainer(how: _How, setup: TrainingSetup, meter: Meter, callbacks: list[TrainerCallback]) -> Trainer:
    from tightfit.training.preflight import find_worst_batch
    from tightfit.training.setup import training_arguments
    from tightfit.training.trainer import Trainer

    task, job, parts = find_task(setup.job.task), setup.job, setup.parts
    buckets, lengths = buckets_of(parts, setup.train), (setup.train.lengths, setup.validation.lengths)
    worst = find_worst_batch(job, parts, *lengths, buckets) if how.preflight else None
    held_out = setup.validation.dataset  # the longest texts come first
    if how.measure_only:
        held_out = held_out.select(range(min(parts.evaluation_rows, len(held_out))))
    return Trainer(
        parts=parts,
        meter=meter,
        buckets=buckets,
        report=how.log,
        worst=worst,
        args=training_arguments(job, parts, how.folder, list(how.report_to)),
        train_dataset=setup.train.dataset,
        eval_dataset=held_out,
        processing_class=setup.tokenizer,
        compute_metrics=task.metrics,
        preprocess_logits_for_metrics=task.keep_logits,
        callbacks=callbacks,
    )
