"""Training: job + recipe -> Run."""

from __future__ import annotations

import time
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from tightfit.checkpoints import newest_whole_checkpoint, what_fails_is_said
from tightfit.data.split import save_split
from tightfit.device import Device, find_device
from tightfit.errors import BadInput, PreflightFailed, suggest
from tightfit.guard import guarded
from tightfit.job import Job, write_job_file
from tightfit.meter import Meter, meter_for
from tightfit.oom import freed_after_failure
from tightfit.preparation import Prepared, prepare
from tightfit.recipe import Recipe
from tightfit.record import FILE, Data, Measured, Predicted, Run, versions
from tightfit.resuming import JOB_FILE, finished_run, refuse_folder, refuse_other_rows, remove_beginning
from tightfit.tasks import find_task
from tightfit.whole import remove_leftovers, whole_folder

if TYPE_CHECKING:
    from transformers import TrainerCallback

    from tightfit.recovery import Say
    from tightfit.rehearsal.bill import Bill
    from tightfit.trainer import StepClock, Trainer


SAVE_EVERY = "30 minutes"


@freed_after_failure
def train(
    job: Job,
    use: str | Sequence[str] = (),
    *,
    out: str | Path,
    device: str | None = None,
    resume: bool = False,
    report_to: Sequence[str] = (),
    quiet: bool = False,
    save_every: str = SAVE_EVERY,
    preflight: bool = True,
) -> Run:
    """Train a job with the strategies in `use` and write the trained model and its record to `out`.

    A checkpoint is written every so often (`save_every`, such as "100 steps" or "30 minutes") and at the end of each
    epoch. With `preflight` the largest batches, a save and a load are tried out before the first step.
    """
    from tightfit.pauses import Pauses, SaveEvery
    from tightfit.report.screen import Screen

    screen, folder = Screen(quiet=quiet), Path(out)
    every = SaveEvery.parse(save_every)
    job, recipe = job.with_full_paths(), Recipe.parse([use] if isinstance(use, str) else use)
    refuse_folder(folder, resume)
    refuse_unknown_trackers(report_to)
    if resume and (run := finished_run(folder, job, recipe)):
        screen.say(f"{folder} is finished; more --epochs would go on with it")
        return run
    checkpoint, passed_over = newest_whole_checkpoint(folder) if resume else (None, [])
    where = find_device(device)
    meter = _start_meter(where)
    with screen.status("Reading the data and the model"):
        prepared = prepare(job, recipe, where)
        _refuse_to_begin(prepared, folder, resume)
    for note in (*prepared.notes, *passed_over):
        screen.say(note)
    learned = passed_over
    say = _said_and_kept(screen.say, learned)
    pauses = Pauses(every, screen.say)
    with screen.progress(meter) as progress, pauses.listening(), guarded(where, screen.say):
        trainer = _trainer(prepared, folder, meter, report_to, [progress, pauses], say, preflight=preflight)
        _begin(prepared, folder, resume)
        try:
            return _run(prepared, folder, trainer, checkpoint, learned)
        except PreflightFailed:
            remove_beginning(folder)
            raise


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
    from tightfit.trainer import SAVED_CHECKPOINTS

    if resume:
        refuse_other_rows(folder, prepared.split)
    refuse_full_disk(folder, prepared.parts, SAVED_CHECKPOINTS + 1 - len(list(folder.glob("checkpoint-*"))))


def _start_meter(device: Device) -> Meter:
    from tightfit.allocator import give_back_freed_memory

    give_back_freed_memory()
    return meter_for(device)


def _said_and_kept(say: Say, kept: list[str]) -> Say:
    """What happens in a run is said at once and written into its record."""

    def both(line: str) -> None:
        say(line)
        kept.append(line)

    return both


def _run(prepared: Prepared, folder: Path, trainer: Trainer, checkpoint: Path | None, learned: list[str]) -> Run:
    from tightfit.report.card import write_card
    from tightfit.trainer import StepClock

    clock, meter = StepClock(), trainer.meter
    trainer.add_callback(clock)
    start = time.perf_counter()
    trainer.train(resume_from_checkpoint=str(checkpoint) if checkpoint else None)
    seconds = time.perf_counter() - start - trainer.preflight_seconds
    with meter.moment("save"), what_fails_is_said(folder / "model.safetensors"):
        save_model(trainer, folder)
    run = _record(prepared, folder, trainer, _measured(meter, seconds, clock), learned)
    with what_fails_is_said(folder / FILE):
        write_card(run)
        run.save()
    return run


def _begin(prepared: Prepared, folder: Path, resume: bool) -> None:
    """Write down what is trained on. The job comes last: it makes a folder a run."""
    folder.mkdir(parents=True, exist_ok=True)
    remove_leftovers(folder)
    if not resume:
        save_split(folder, prepared.split)
    write_job_file(folder / JOB_FILE, prepared.job, prepared.recipe.words)


def save_model(trainer: Trainer, folder: Path) -> None:
    """Write the model aside and put its files in their places one after the other: none is ever half there."""
    with whole_folder(folder / "model") as aside:
        trainer.save_model(str(aside))
    for path in sorted((folder / "model").iterdir()):
        path.replace(folder / path.name)
    (folder / "model").rmdir()


def _trainer(
    prepared: Prepared,
    folder: Path,
    meter: Meter,
    report_to: Sequence[str],
    callbacks: list[TrainerCallback],
    say: Say,
    *,
    preflight: bool,
) -> Trainer:
    from tightfit.preflight import find_worst
    from tightfit.trainer import Trainer, training_arguments

    task, job, parts = find_task(prepared.job.task), prepared.job, prepared.parts
    worst = find_worst(job, parts, prepared.train.lengths, prepared.validation.lengths) if preflight else None
    return Trainer(
        parts=parts,
        meter=meter,
        say=say,
        worst=worst,
        args=training_arguments(job, parts, folder, list(report_to)),
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
        allocated_moments=dict(meter.allocated) or None,
    )


def _record(prepared: Prepared, folder: Path, trainer: Trainer, measured: Measured, learned: list[str]) -> Run:
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
        parameters=parts.parameters,
        trainable_parameters=parts.trainable_parameters,
        steps=trainer.state.global_step,
        measured=measured,
        predicted=_predicted(prepared.bill),
        metrics=_best_metrics(trainer.state.log_history, trainer.state.best_global_step),
        history=trainer.state.log_history,
        notes=[*prepared.notes, *learned],
        versions=versions(),
    )


def _predicted(bill: Bill | None) -> Predicted:
    if bill is None:
        return Predicted()
    totals = {name: bill.overhead + sum(kinds.values()) for name, kinds in bill.moments.items()}
    return Predicted(peak_bytes=bill.peak, moments=totals)


def _best_metrics(history: list[dict[str, float]], kept: int | None) -> dict[str, float]:
    """The metrics of the epoch whose weights were kept, and the mean training loss."""
    evaluations = [entry for entry in history if "eval_loss" in entry]
    best = next((entry for entry in evaluations if entry["step"] == kept), {"epoch": 0.0})
    scores = {key: value for key, value in best.items() if key.startswith("eval_") or key == "epoch"}
    return {**scores, **{key: entry[key] for entry in history for key in ("train_loss",) if key in entry}}
