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

from tightfit.data.batches import RowLimits, rows_met
from tightfit.data.row_file import KeptRows, as_it_is
from tightfit.data.split import save_split
from tightfit.data.tokens import Tokens
from tightfit.device import Budget, Device, find_device
from tightfit.engine.meter import Meter, meter_for
from tightfit.engine.oom import forget, free_memory, freed_after_failure
from tightfit.errors import BadInput, DoesNotFit, OutOfMemory, PreflightFailed, RecipeError, TightfitError, suggest
from tightfit.files import remove_leftovers, whole_folder
from tightfit.job import Job, write_job_file
from tightfit.optional_imports import let_in
from tightfit.runs.folder import (
    JOB_FILE,
    finished_run,
    recipe_to_go_on_with,
    refuse_fewer_steps,
    refuse_folder,
    refuse_other_rows,
    remove_beginning,
    step_of,
)
from tightfit.runs.header import load_beginning, note_end
from tightfit.runs.record import FILE, Run
from tightfit.strategies.parts import Parts
from tightfit.strategies.recipe import Recipe
from tightfit.tasks import find_task
from tightfit.training.checkpoints import newest_whole_checkpoint, what_fails_is_said
from tightfit.training.memory_limit import guarded
from tightfit.training.recovery import run_in_pieces
from tightfit.training.run_record import measured_by, record_of, write_beginning
from tightfit.training.setup import Prepared, buckets_of, prepare

if TYPE_CHECKING:
    from transformers import TrainerCallback

    from tightfit.data.batches import Batch
    from tightfit.ops.lora import Adapter
    from tightfit.planning.select import Keeping
    from tightfit.training.callbacks import SaveEvery, StepClock
    from tightfit.training.trainer import Trainer


# Features: every row goes through the frozen trunk once, before the training; then rows are what was kept of them.


Tell = Callable[[int, int], None]
"""Hears how many rows of how many are done."""


def keep_features(trainer: Trainer, prepared: Prepared, tell: Tell) -> None:
    """Let a trainer train on features. Rows that it will not meet are left out."""
    train, validation = prepared.train, prepared.validation
    met = rows_met(prepared.job, len(train), buckets_of(prepared.parts, train)).tolist()
    total = len(met) + len(validation)
    try:
        with trainer.meter.moment("features"):
            kept = [
                _kept(trainer, train, met, lambda done: tell(done, total)),
                _kept(trainer, validation, range(len(validation)), lambda done: tell(len(met) + done, total)),
            ]
    except OutOfMemory as error:
        raise PreflightFailed(str(error)) from None
    trainer.train_dataset, trainer.eval_dataset = kept
    trainer.data_collator, trainer.args.remove_unused_columns = as_it_is, False


def kept_bytes(parts: Parts, rows: int) -> int:
    """What the files of the features take."""
    if parts.trunk is None:
        return 0
    return sum(value.nbytes for value in parts.trunk.blank(1).values()) * rows


def _kept(trainer: Trainer, tokens: Tokens, rows: Sequence[int], tell: Callable[[int], None]) -> KeptRows:
    """Longest first: little is padded, and what is too large shows at once."""
    at_once, folder = trainer.parts.trunk_rows, Path(trainer.args.output_dir)
    kept, limits = KeptRows(len(tokens), folder), RowLimits(at_once)
    order = sorted(rows, key=lambda row: -tokens.lengths[row])
    for start in range(0, len(order), at_once):
        chosen = order[start : start + at_once]
        batch = trainer.prepared(tokens.dataset, chosen)
        pieces = run_in_pieces(lambda piece: _features(trainer, piece), batch, limits, trainer.say)
        with what_fails_is_said(folder / "features"):
            kept.write(chosen, {name: torch.cat([piece[name] for piece in pieces]) for name in pieces[0]})
        tell(start + len(chosen))
    return kept


def _features(trainer: Trainer, texts: Batch) -> Batch:
    trunk = trainer.parts.trunk
    assert trunk is not None
    with trainer.accelerator.autocast():
        features, answer = trunk.features(texts)
        trunk.refuse_other_answer(features, answer)
    return features


# Training: job + recipe -> Run.


class Listener(Protocol):
    """Where a run reports what happens: the console, as a rule."""

    def say(self, line: str) -> None: ...

    def status(self, what: str) -> AbstractContextManager[None]: ...

    def progress(self, meter: Meter) -> AbstractContextManager[Any]: ...


@freed_after_failure
def run_job(
    job: Job,
    words: list[str],
    *,
    out: Path,
    screen: Listener,
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
    only_measure: bool,
) -> Run:
    """Train a job; `tightfit.train` describes the arguments."""
    folder = out
    job, recipe = job.with_full_paths(), Recipe.parse(words if planned is None else planned)
    every = SaveEvery.parse(save_every)
    refuse_folder(folder, resume)
    refuse_unknown_trackers(report_to)
    if resume and budget is not None:
        recipe = _own_recipe(folder, recipe, screen, planned=planned is not None)
    if resume and (run := finished_run(folder, job, recipe)):
        screen.say(f"{folder} is finished; more --epochs would go on with it")
        return run
    checkpoint, passed_over = newest_whole_checkpoint(folder) if resume else (None, [])
    where = find_device(device)
    limit = Budget.of(budget, where) if budget is not None else None
    keeping = _keeping(limit, (words, avoid, allow), planned) if limit and not resume else None
    how = _How(
        folder=folder,
        screen=screen,
        write_card=write_card,
        device=where,
        budget=limit.size if limit else None,
        every=every,
        report_to=report_to,
        preflight=preflight,
        only_measure=only_measure,
        resume=resume,
        checkpoint=checkpoint,
        learned=passed_over,
    )
    for note in passed_over:
        screen.say(note)
    return _run_what_flies(how, job, recipe, keeping)


def _own_recipe(folder: Path, given: Recipe, screen: Listener, *, planned: bool) -> Recipe:
    own = recipe_to_go_on_with(folder, given, planned=planned)
    if given.strategies and given != own:
        screen.say(f"going on with the run's own recipe: {' '.join(own.words) or 'plain'}")
    return own


def _keeping(limit: Budget, wishes: tuple[Sequence[str], Sequence[str], str], planned: Sequence[str] | None) -> Keeping:
    from tightfit.planning.constraints import Wishes
    from tightfit.planning.select import Keeping

    return Keeping(limit, Wishes.of(*wishes), None if planned is None else Recipe.parse(planned))


@dataclass(frozen=True, kw_only=True)
class _How:
    """How a run is carried out, whatever its recipe."""

    folder: Path
    screen: Listener
    write_card: Callable[[Run], None]
    device: Device
    budget: int | None
    """Bytes that it is held to."""
    every: SaveEvery
    report_to: Sequence[str]
    preflight: bool
    only_measure: bool
    resume: bool
    checkpoint: Path | None
    """What it goes on from."""
    learned: list[str]
    """What happens on the way, for the record."""

    def say(self, line: str) -> None:
        """What happens in a run is said at once and written into its record."""
        self.screen.say(line)
        self.learned.append(line)


def _run_what_flies(how: _How, job: Job, recipe: Recipe, keeping: Keeping | None) -> Run:
    """Under a budget a recipe whose pre-flight fails is followed by the next smaller one."""
    failure: str | None = None
    while True:
        meter = _start_meter(how.device)
        try:
            prepared = _prepare(how, job, recipe, keeping, meter)
        except DoesNotFit:
            if failure is None:
                raise
            raise PreflightFailed(failure) from None
        try:
            return _run(how, prepared, meter)
        except (PreflightFailed, RecipeError) as error:
            if how.checkpoint is None:
                remove_beginning(how.folder)
            if isinstance(error, RecipeError) or keeping is None or prepared.kept is None:
                raise
            failure, keeping = str(error), keeping.below(prepared.kept)
            forget(error)
        how.say(f"{' '.join(prepared.recipe.words) or 'plain'} did not pass its pre-flight ({failure}): planned again")
        del prepared  # the next one needs its memory
        free_memory()


def _prepare(how: _How, job: Job, recipe: Recipe, keeping: Keeping | None, meter: Meter) -> Prepared:
    with how.screen.status("Reading the data and the model"):
        prepared = prepare(job, recipe, how.device, keeping, meter)
        _refuse_to_begin(prepared, how)
    for note in prepared.notes:
        how.screen.say(note)
    return prepared


def refuse_unknown_trackers(names: Sequence[str]) -> None:
    """A tracker that is not installed is found before the run, not in it."""
    if not names:
        return
    let_in()  # nobody knows what a tracker needs
    from transformers.integrations import get_available_reporting_integrations

    there = get_available_reporting_integrations()
    for name in names:
        if name not in there:
            raise BadInput(f"--report-to {name} cannot be used: {suggest(name, there)} Others can be installed.")


def _refuse_to_begin(prepared: Prepared, how: _How) -> None:
    """The last checks, which need the data and the model."""
    from tightfit.training.setup import SAVED_CHECKPOINTS, refuse_full_disk

    folder = how.folder
    if how.resume:
        refuse_other_rows(folder, prepared.split)
    if how.checkpoint is not None:
        refuse_fewer_steps(how.checkpoint, prepared.steps)
    rows = len(prepared.train) + len(prepared.validation)
    at_once = max(1, SAVED_CHECKPOINTS + 1 - len(list(folder.glob("checkpoint-*"))))
    refuse_full_disk(folder, prepared.parts, at_once, kept_bytes(prepared.parts, rows))


def _start_meter(device: Device) -> Meter:
    from tightfit.system import give_back_freed_memory

    give_back_freed_memory()
    return meter_for(device)


def _run(how: _How, prepared: Prepared, meter: Meter) -> Run:
    from tightfit.training.callbacks import Pauses, StepClock

    pauses = Pauses(how.every, how.screen.say)
    with (
        how.screen.progress(meter) as progress,
        pauses.listening(),
        guarded(how.device, how.screen.say, how.budget),
    ):
        trainer = _trainer(how, prepared, meter, [progress, pauses])
        _begin(prepared, how)
        clock = StepClock()
        trainer.add_callback(clock)

        def tell(done: int, total: int) -> None:
            progress.on_features(done, total)
            pauses.on_features()

        with _ends_are_noted(how.folder):
            seconds = _train(how, prepared, trainer, clock, tell)
            return _finish(how, prepared, trainer, clock, seconds)


@contextlib.contextmanager
def _ends_are_noted(folder: Path) -> Iterator[None]:
    """Why a run stopped is kept with it."""
    try:
        yield
    except (TightfitError, KeyboardInterrupt) as error:
        with contextlib.suppress(OSError):  # a full disk may be the very reason
            note_end(folder, str(error) or "stopped at once")
        raise


def _train(how: _How, prepared: Prepared, trainer: Trainer, clock: StepClock, tell: Tell) -> float:
    """The frozen part once, where it is to run only once, then every step. Returns the seconds."""

    start = time.perf_counter()
    clock.begin()
    if prepared.parts.trunk:
        keep_features(trainer, prepared, tell)
    trainer.train(resume_from_checkpoint=str(how.checkpoint) if how.checkpoint else None)
    clock.leave_out(trainer.preflight_seconds)
    return time.perf_counter() - start - trainer.preflight_seconds


def _finish(how: _How, prepared: Prepared, trainer: Trainer, clock: StepClock, seconds: float) -> Run:
    """The model and the record."""
    folder, parts = how.folder, prepared.parts
    sizes = {"parameters": parts.parameters, "trainable": parts.trainable_parameters}  # with an adapter still in
    with trainer.meter.moment("save"), what_fails_is_said(folder / "model.safetensors"):
        save_model(trainer, folder, parts.adapter)
    measured = measured_by(trainer.meter, seconds, clock)
    known = load_beginning(folder)
    attempts = max(1, len(known.attempts)) if known else 1
    run = record_of(folder, prepared, trainer.state, measured, learned=how.learned, attempts=attempts, **sizes)
    with what_fails_is_said(folder / FILE):
        how.write_card(run)
        run.save()
    return run


def _begin(prepared: Prepared, how: _How) -> None:
    """Write down what is trained on and what is known of it. The job comes last: it makes a folder a run."""
    folder = how.folder
    folder.mkdir(parents=True, exist_ok=True)
    remove_leftovers(folder)
    if not how.resume:
        save_split(folder, prepared.split)
    write_beginning(folder, prepared, step_of(how.checkpoint) if how.checkpoint else 0, how.budget)
    write_job_file(folder / JOB_FILE, prepared.job, prepared.recipe.words)


def save_model(trainer: Trainer, folder: Path, adapter: Adapter | None) -> None:
    """Write the model aside and put its files in their places one after the other: none is ever half there.

    It is an ordinary one; what learnt beside its weights is in them or in files of its own.
    """
    with whole_folder(folder / "model") as aside:
        if adapter:
            if not adapter.merge:
                adapter.save(aside)
            adapter.take_out()
        trainer.save_model(str(aside))
    for path in sorted((folder / "model").iterdir()):
        path.replace(folder / path.name)
    (folder / "model").rmdir()


def _trainer(how: _How, prepared: Prepared, meter: Meter, callbacks: list[TrainerCallback]) -> Trainer:
    from tightfit.training.preflight import find_worst
    from tightfit.training.setup import training_arguments
    from tightfit.training.trainer import Trainer

    task, job, parts = find_task(prepared.job.task), prepared.job, prepared.parts
    buckets, lengths = buckets_of(parts, prepared.train), (prepared.train.lengths, prepared.validation.lengths)
    worst = find_worst(job, parts, *lengths, buckets) if how.preflight else None
    held_out = prepared.validation.dataset  # the longest texts come first
    if how.only_measure:
        held_out = held_out.select(range(min(parts.evaluation_rows, len(held_out))))
    return Trainer(
        parts=parts,
        meter=meter,
        buckets=buckets,
        say=how.say,
        worst=worst,
        args=training_arguments(job, parts, how.folder, list(how.report_to)),
        train_dataset=prepared.train.dataset,
        eval_dataset=held_out,
        processing_class=prepared.tokenizer,
        compute_metrics=task.metrics,
        preprocess_logits_for_metrics=task.keep_logits,
        callbacks=callbacks,
    )
