"""Training: job + recipe -> Run."""

from __future__ import annotations

import time
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from tightfit.data.split import save_split
from tightfit.device import Device, find_device
from tightfit.errors import OutputError
from tightfit.job import Job, write_job_file
from tightfit.meter import CudaGauge, Meter, meter_for
from tightfit.preparation import Prepared, prepare
from tightfit.recipe import Recipe
from tightfit.record import Data, Measured, Predicted, Run, versions
from tightfit.tasks import find_task

if TYPE_CHECKING:
    from transformers import TrainerCallback

    from tightfit.trainer import StepClock, Trainer

JOB_FILE = "job.yaml"


def train(
    job: Job,
    use: Sequence[str] = (),
    *,
    out: str | Path,
    device: str | None = None,
    resume: bool = False,
    report_to: Sequence[str] = (),
    quiet: bool = False,
) -> Run:
    """Train a job with the strategies in `use` and write the trained model and its record to `out`."""
    from tightfit.report.screen import Screen

    screen, folder, recipe = Screen(quiet=quiet), Path(out), Recipe.parse(use)
    _refuse_used_folder(folder, resume)
    where = find_device(device)
    meter = _start_meter(where)
    with screen.status("Reading the data and the model"):
        prepared = prepare(job, recipe, where)
        _refuse_full_disk(folder, prepared)
    for note in prepared.notes:
        screen.say(note)
    with screen.progress(meter) as progress:
        return _run(prepared, folder, meter, resume, list(report_to), progress)


def _refuse_used_folder(folder: Path, resume: bool) -> None:
    if folder.is_file():
        raise OutputError(f"'{folder}' is a file: give --out the name of a folder.")
    if folder.is_dir() and any(folder.iterdir()) and not resume:
        raise OutputError(f"The folder '{folder}' is not empty: add --resume to go on with it, or give another --out.")


def _refuse_full_disk(folder: Path, prepared: Prepared) -> None:
    from tightfit.disk import refuse_full_disk
    from tightfit.trainer import SAVED_CHECKPOINTS

    refuse_full_disk(folder, prepared.parts, SAVED_CHECKPOINTS)


def _start_meter(device: Device) -> Meter:
    from tightfit.allocator import give_back_freed_memory

    give_back_freed_memory()
    return meter_for(device)


def _run(
    prepared: Prepared, folder: Path, meter: Meter, resume: bool, report_to: list[str], progress: TrainerCallback
) -> Run:
    from transformers.trainer_utils import get_last_checkpoint

    from tightfit.report.card import write_card
    from tightfit.trainer import StepClock

    clock = StepClock()
    folder.mkdir(parents=True, exist_ok=True)
    trainer = _trainer(prepared, folder, meter, report_to, [progress, clock])
    save_split(folder, prepared.split)
    write_job_file(folder / JOB_FILE, prepared.job, prepared.recipe.words)
    start = time.perf_counter()
    trainer.train(resume_from_checkpoint=get_last_checkpoint(str(folder)) if resume else None)
    seconds = time.perf_counter() - start
    with meter.moment("save"):
        trainer.save_model()
    run = _record(prepared, folder, trainer, _measured(meter, seconds, clock))
    write_card(run)
    run.save()
    return run


def _trainer(
    prepared: Prepared, folder: Path, meter: Meter, report_to: list[str], callbacks: list[TrainerCallback]
) -> Trainer:
    from tightfit.trainer import Trainer, training_arguments

    return Trainer(
        parts=prepared.parts,
        meter=meter,
        args=training_arguments(prepared.job, prepared.parts, folder, report_to),
        train_dataset=prepared.train.dataset,
        eval_dataset=prepared.validation.dataset,
        processing_class=prepared.tokenizer,
        compute_metrics=find_task(prepared.job.task).metrics,
        callbacks=callbacks,
    )


def _measured(meter: Meter, seconds: float, clock: StepClock) -> Measured:
    gauge = meter.gauge
    return Measured(
        peak_bytes=meter.peak,
        moments=dict(meter.moments),
        seconds=round(seconds, 3),
        seconds_per_step=clock.median,
        allocated_bytes=gauge.allocated_peak if isinstance(gauge, CudaGauge) else None,
    )


def _record(prepared: Prepared, folder: Path, trainer: Trainer, measured: Measured) -> Run:
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
            cut_rows=prepared.train.cut,
        ),
        parameters=parts.parameters,
        trainable_parameters=parts.trainable_parameters,
        steps=trainer.state.global_step,
        measured=measured,
        predicted=Predicted(),
        metrics=_best_metrics(trainer.state.log_history),
        history=trainer.state.log_history,
        notes=list(prepared.notes),
        versions=versions(),
    )


def _best_metrics(history: list[dict[str, float]]) -> dict[str, float]:
    """The metrics of the epoch whose weights were kept, and the mean training loss."""
    evaluations = [entry for entry in history if "eval_loss" in entry]
    best = max(evaluations, key=lambda entry: entry["eval_f1"], default={"epoch": 0.0})
    scores = {key: value for key, value in best.items() if key.startswith("eval_") or key == "epoch"}
    return {**scores, **{key: entry[key] for entry in history for key in ("train_loss",) if key in entry}}
