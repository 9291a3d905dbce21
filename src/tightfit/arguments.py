"""Arguments: a job and its parts in the words of transformers."""

from __future__ import annotations

from pathlib import Path

from transformers import TrainingArguments

from tightfit.compat import use_one_gpu
from tightfit.job import Job
from tightfit.strategies.parts import Parts, Precision

LOG_EVERY = 10
SAVED_CHECKPOINTS = 2  # the best and the last


def training_arguments(job: Job, parts: Parts, folder: Path, report_to: list[str]) -> TrainingArguments:
    """The job in the words of transformers. The batch is the effective one; slices are the step's business."""
    arguments = TrainingArguments(
        output_dir=str(folder),
        per_device_train_batch_size=parts.batch_size,
        per_device_eval_batch_size=parts.evaluation_rows,
        num_train_epochs=job.epochs,
        max_steps=job.max_steps or -1,
        learning_rate=parts.learning_rate,
        weight_decay=parts.weight_decay,
        max_grad_norm=parts.max_grad_norm,
        bf16=parts.precision is Precision.BF16,
        fp16=parts.precision is Precision.FP16,
        use_cpu=parts.device.kind == "cpu",
        eval_strategy="epoch",
        save_strategy="epoch",
        save_total_limit=SAVED_CHECKPOINTS,
        metric_for_best_model="f1",
        greater_is_better=True,
        load_best_model_at_end=True,
        logging_steps=LOG_EVERY,
        logging_first_step=True,
        logging_nan_inf_filter=False,
        seed=job.seed,
        label_names=["labels"],
        dataloader_pin_memory=parts.device.kind == "cuda",
        disable_tqdm=True,
        report_to=report_to or "none",
    )
    assert arguments.device.type == parts.device.kind
    use_one_gpu(arguments)  # with more cards transformers would multiply the batch and split the model's output
    return arguments
