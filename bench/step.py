"""Time of our step beside a hand-written PyTorch loop over the same micro-batches, and the error of its gradient.

Both take their steps in turns in one process.
Needs ../shared (data and weights). Writes records/step.json.
"""

from __future__ import annotations

import json
import statistics
import tempfile
import time
from pathlib import Path
from typing import Any

import torch
from transformers import AutoModelForSequenceClassification, TrainerCallback

from quality import split, weights
from tightfit import Job
from tightfit.device import find_device
from tightfit.engine.meter import meter_for
from tightfit.engine.micro_batch_loss import model_loss, weighted_micro_batches
from tightfit.engine.step import train_batch
from tightfit.strategies.recipe import Recipe
from tightfit.system.memory import tuned_malloc
from tightfit.training.setup import prepare, training_arguments
from tightfit.training.step_timer import StepTimer
from tightfit.training.trainer import Trainer

RECORD = Path(__file__).resolve().parent.parent / "records" / "step.json"
STEPS, WARM_UP = 24, 4
MICRO_BATCH = 8


def main() -> None:
    with tuned_malloc(), tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        train, validation = split(folder, 1500)
        job = Job(model=str(weights(folder)), data=str(train), validation=str(validation), max_steps=STEPS)
        record = {
            "model": "m3e-small",
            "batch": job.batch_size,
            "micro_batch": MICRO_BATCH,
            "steps": STEPS - WARM_UP,
            **times(job, folder),
            "gradient_error": gradient_error(job),
        }
    RECORD.write_text(json.dumps(record, indent=1) + "\n", "utf-8")
    print(json.dumps(record, indent=1))


def times(job: Job, folder: Path) -> dict[str, Any]:
    prepared = prepare(job, Recipe.parse([f"micro-batch:size={MICRO_BATCH}"]), find_device("cpu"))
    timer, baseline = StepTimer(), BaselineLoop(job, prepared.parts)
    trainer = BatchKeepingTrainer(
        parts=prepared.parts,
        meter=meter_for(prepared.parts.device),
        args=training_arguments(job, prepared.parts, folder / "run", []),
        train_dataset=prepared.train.dataset,
        eval_dataset=prepared.validation.dataset.select(range(8)),
        processing_class=prepared.tokenizer,
        compute_metrics=lambda prediction: {"f1": 0.0},
        callbacks=[timer, baseline],
    )
    baseline.trainer = trainer
    trainer.train()
    ratios = [a / b for a, b in zip(timer.seconds[WARM_UP:], baseline.seconds[WARM_UP:], strict=True)]
    quarters = statistics.quantiles(ratios, n=4)
    return {
        "seconds_ours": statistics.median(timer.seconds[WARM_UP:]),
        "seconds_baseline": statistics.median(baseline.seconds[WARM_UP:]),
        "ratio_median": statistics.median(ratios),
        "ratio_quartiles": [quarters[0], quarters[2]],
    }


class BatchKeepingTrainer(Trainer):
    """Keeps the last batch for the baseline loop."""

    def training_step(self, model: Any, inputs: Any, num_items_in_batch: Any = None) -> torch.Tensor:
        self.batch = dict(inputs)
        return super().training_step(model, inputs, num_items_in_batch)


class BaselineLoop(TrainerCallback):
    """After each of our steps, a hand-written step on a second model with the same batch."""

    def __init__(self, job: Job, parts: Any) -> None:
        self.model = AutoModelForSequenceClassification.from_pretrained(job.model).train()
        self.optimizer = torch.optim.AdamW(self.model.parameters(), lr=job.learning_rate, fused=True)
        self.rows = parts.batching.micro_batch_rows
        self.seconds: list[float] = []

    def on_step_end(self, *args: Any, **kwargs: Any) -> None:
        micro_batches = list(weighted_micro_batches(self.model, self.trainer.batch, self.rows))
        start = time.perf_counter()
        for share, micro_batch in micro_batches:
            loss = self.model(**micro_batch).loss * share
            loss.backward()
        torch.nn.utils.clip_grad_norm_(self.model.parameters(), 1.0)
        self.optimizer.step()
        self.optimizer.zero_grad()
        self.seconds.append(time.perf_counter() - start)


def gradient_error(job: Job) -> dict[str, float]:
    """|ours - whole batch| / |whole batch| without dropout, for several micro-batch sizes and an uneven last one."""
    from transformers import DataCollatorWithPadding

    prepared = prepare(job, Recipe(), find_device("cpu"))
    model, tokens = without_dropout(prepared.parts.model), prepared.train.dataset
    errors, meter = {}, meter_for(find_device("cpu"))
    for rows, size in ((32, 1), (32, 8), (32, 5), (13, 4)):
        batch = dict(DataCollatorWithPadding(prepared.tokenizer)([tokens[i] for i in range(rows)]))
        model(**batch).loss.backward()
        whole = take_gradients(model)
        weighted = weighted_micro_batches(model, batch, size)
        train_batch(model, weighted, model_loss, torch.Tensor.backward, meter.phase)
        errors[f"{rows} rows in micro-batches of {size}"] = float((take_gradients(model) - whole).norm() / whole.norm())
    return errors


def without_dropout(model: Any) -> Any:
    for module in model.modules():
        if isinstance(module, torch.nn.Dropout):
            module.p = 0.0
    return model


def take_gradients(model: Any) -> torch.Tensor:
    gradients = torch.cat([p.grad.flatten().double() for p in model.parameters()])
    model.zero_grad()
    return gradients


if __name__ == "__main__":
    main()
