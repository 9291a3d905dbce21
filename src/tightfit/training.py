"""Training: job + recipe -> Run."""

from __future__ import annotations

import math
import time
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from tightfit.budget import Budget
from tightfit.data.split import save_split
from tightfit.device import Device, find_device
from tightfit.errors import BadInput, suggest
from tightfit.job import Job, write_job_file
from tightfit.meter import Meter, meter_for
from tightfit.preparation import Prepared, buckets_of, prepare
from tightfit.recipe import Recipe
from tightfit.record import Data, Measured, Predicted, Run, versions
from tightfit.resuming import JOB_FILE, finished_run, refuse_folder, refuse_other_rows
from tightfit.tasks import find_task

if TYPE_CHECKING:
    from transformers import TrainerCallback

    from tightfit.adapter import Adapter
    from tightfit.rehearsal.bill import Bill
    from tightfit.report.progress import Progress
    from tightfit.trainer import StepClock, Trainer


def train(
    job: Job,
    use: str | Sequence[str] = (),
    *,
    out: str | Path,
    device: str | None = None,
    budget: str | int | None = None,
    avoid: Sequence[str] = (),
    allow: str = "close",
    planned: bool = False,
    resume: bool = False,
    report_to: Sequence[str] = (),
    quiet: bool = False,
) -> Run:
    """Train a job with the strategies in `use` and write the trained model and its record to `out`.

    With a budget the fastest recipe that keeps to it is found first, as by `plan`; `use` then pins strategies, or
    names a whole recipe that was planned before and is taken as it is where it still fits.
    """
    from tightfit.report.screen import Screen

    screen, folder = Screen(quiet=quiet), Path(out)
    words = [use] if isinstance(use, str) else list(use)
    job, recipe = job.with_full_paths(), Recipe.parse(words)
    refuse_folder(folder, resume)
    refuse_unknown_trackers(report_to)
    if resume and (run := finished_run(folder, job, recipe)):
        screen.say(f"{folder} is finished; more --epochs would go on with it")
        return run
    where = find_device(device)
    keeping = None
    if budget is not None and not resume:
        from tightfit.planning.keeping import Keeping
        from tightfit.planning.wishes import Wishes

        wishes = Wishes.of(() if planned else words, avoid, allow)
        keeping = Keeping(Budget.of(budget, where), wishes, recipe if planned else None)
    meter = _start_meter(where)
    with screen.status("Reading the data and the model"):
        prepared = prepare(job, recipe, where, keeping)
        _refuse_to_begin(prepared, folder, resume)
    for note in prepared.notes:
        screen.say(note)
    with screen.progress(meter) as progress:
        return _run(prepared, folder, meter, resume, list(report_to), progress)


def refuse_unknown_trackers(names: Sequence[str]) -> None:
    """A tracker that is not installed is found before the run, not in it."""
    if not names:
        return
    from transformers.integrations import get_available_reporting_integrations

    there = get_available_reporting_integrations()
    for name in names:
        if name not in there:
            raise BadInput(f"--report-to {name} cannot be used: {suggest(name, there)} Others can be installed.")


def _refuse_to_begin(prepared: Prepared, folder: Path, resume: bool) -> None:
    """The last checks, which need the data and the model."""
    from tightfit.disk import refuse_full_disk
    from tightfit.features import kept_bytes
    from tightfit.trainer import SAVED_CHECKPOINTS

    if resume:
        refuse_other_rows(folder, prepared.split)
    at_once = min(SAVED_CHECKPOINTS + 1, math.ceil(prepared.job.epochs))
    rows = len(prepared.train) + len(prepared.validation)
    there = len(list(folder.glob("checkpoint-*")))
    refuse_full_disk(folder, prepared.parts, at_once - there, kept_bytes(prepared.parts, rows))


def _start_meter(device: Device) -> Meter:
    from tightfit.allocator import give_back_freed_memory

    give_back_freed_memory()
    return meter_for(device)


def _run(prepared: Prepared, folder: Path, meter: Meter, resume: bool, report_to: list[str], progress: Progress) -> Run:
    from tightfit.features import keep_features
    from tightfit.report.card import write_card
    from tightfit.trainer import StepClock, newest_checkpoint

    clock = StepClock()
    folder.mkdir(parents=True, exist_ok=True)
    trainer = _trainer(prepared, folder, meter, report_to, [progress, clock])
    save_split(folder, prepared.split)
    write_job_file(folder / JOB_FILE, prepared.job, prepared.recipe.words)
    checkpoint = newest_checkpoint(folder) if resume else None
    start = time.perf_counter()
    clock.begin()
    if prepared.parts.trunk:
        keep_features(trainer, prepared, progress.on_features)
    trainer.train(resume_from_checkpoint=str(checkpoint) if checkpoint else None)
    seconds = time.perf_counter() - start
    sizes = prepared.parts.parameters, prepared.parts.trainable_parameters
    with meter.moment("save"):
        _save_model(trainer, folder, prepared.parts.adapter)
    run = _record(prepared, folder, trainer, _measured(meter, seconds, clock), *sizes)
    write_card(run)
    run.save()
    return run


def _save_model(trainer: Trainer, folder: Path, adapter: Adapter | None) -> None:
    """The trained model as an ordinary one; what learnt beside its weights is in them or in files of its own."""
    if adapter:
        if not adapter.merge:
            adapter.save(folder)
        adapter.take_out()
    trainer.save_model()


def _trainer(
    prepared: Prepared, folder: Path, meter: Meter, report_to: list[str], callbacks: list[TrainerCallback]
) -> Trainer:
    from tightfit.trainer import Trainer, training_arguments

    task = find_task(prepared.job.task)
    return Trainer(
        parts=prepared.parts,
        meter=meter,
        buckets=buckets_of(prepared.parts, prepared.train),
        args=training_arguments(prepared.job, prepared.parts, folder, report_to),
        train_dataset=prepared.train.dataset,
        eval_dataset=prepared.validation.dataset,
        processing_class=prepared.tokenizer,
        compute_metrics=task.metrics,
        preprocess_logits_for_metrics=task.keep_logits,
        callbacks=callbacks,
    )


def _measured(meter: Meter, seconds: float, clock: StepClock) -> Measured:
    return Measured(
        peak_bytes=meter.peak,
        moments=dict(meter.moments),
        seconds=round(seconds, 3),
        seconds_per_step=clock.median,
        epochs=[round(seconds, 3) for seconds in clock.epochs],
        allocated_moments=dict(meter.allocated) or None,
    )


def _record(
    prepared: Prepared, folder: Path, trainer: Trainer, measured: Measured, parameters: int, trainable: int
) -> Run:
    parts = prepared.parts
    return Run(
        folder=str(folder),
        job=prepared.job,
        recipe=prepared.recipe.words,
        result=prepared.recipe.result.value,
        max_length=parts.max_length,
        device=parts.device.title,
        data=Data(
            train_rows=len(prepared.train),
            validation_rows=len(prepared.validation),
            labels=prepared.labels.names,
            text_columns=prepared.columns.text,
            label_column=prepared.columns.label or "",
            cut_rows=prepared.train.cut,
        ),
        parameters=parameters,
        trainable_parameters=trainable,
        steps=trainer.state.global_step,
        measured=measured,
        predicted=_predicted(prepared.bill, prepared.seconds_per_step),
        metrics=_best_metrics(trainer.state.log_history),
        history=trainer.state.log_history,
        notes=list(prepared.notes),
        versions=versions(),
    )


def _predicted(bill: Bill | None, seconds_per_step: float | None) -> Predicted:
    if bill is None:
        return Predicted(seconds_per_step=seconds_per_step)
    totals = {name: bill.overhead + sum(kinds.values()) for name, kinds in bill.moments.items()}
    return Predicted(peak_bytes=bill.peak, moments=totals, seconds_per_step=seconds_per_step)


def _best_metrics(history: list[dict[str, float]]) -> dict[str, float]:
    """The metrics of the epoch whose weights were kept, and the mean training loss."""
    evaluations = [entry for entry in history if "eval_loss" in entry]
    best = max(evaluations, key=lambda entry: (entry["eval_f1"], -entry["eval_loss"]), default={"epoch": 0.0})
    scores = {key: value for key, value in best.items() if key.startswith("eval_") or key == "epoch"}
    return {**scores, **{key: entry[key] for entry in history for key in ("train_loss",) if key in entry}}
