"""The model card: the run folder's README, with the header that the hub reads."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from tightfit.record import Run
from tightfit.units import format_bytes, format_count, format_seconds

_TEMPLATE = """---
{{ card_data }}
---

# {{ name }}

{{ base }} fine-tuned with tightfit to tell {{ labels }} apart.

| | |
|---|---|
| quality | {{ quality }} on {{ held_out }} held-out rows |
| trained on | {{ rows }} rows of `{{ data }}`, texts cut at {{ max_length }} tokens |
| trained | {{ trained }} parameters, {{ steps }} steps of {{ batch }} rows, learning rate {{ rate }}, seed {{ seed }} |
| recipe | `{{ recipe }}` (result: {{ result }}) |
| time | {{ time }} on {{ device }} |
| memory | {{ memory }} at the peak |

```python
from transformers import pipeline

classify = pipeline("text-classification", "{{ name }}")
```

## Memory by moment

| moment | peak |
|---|---|
{% for moment, size in moments %}| {{ moment }} | {{ size }} |
{% endfor %}
## Versions

{{ versions }}
"""


def write_card(run: Run) -> None:
    """Write README.md into the run folder."""
    from huggingface_hub import EvalResult, ModelCard, ModelCardData

    name, data = Path(run.folder).resolve().name, Path(run.job.data).name
    results = [
        EvalResult(
            task_type=run.job.task,
            dataset_type="text",
            dataset_name=data,
            metric_type=metric,
            metric_value=round(run.metrics[f"eval_{metric}"], 4),
        )
        for metric in ("f1", "accuracy")
    ]
    header = ModelCardData(
        library_name="transformers",
        pipeline_tag=run.job.task,
        tags=["tightfit"],
        metrics=["f1", "accuracy"],
        base_model=None if Path(run.job.model).exists() else run.job.model,
        model_name=name,
        eval_results=results,
    )
    card = ModelCard.from_template(header, template_str=_TEMPLATE, name=name, data=data, **_words(run))
    (Path(run.folder) / "README.md").write_text(str(card), "utf-8")


def _words(run: Run) -> dict[str, Any]:
    job = run.job
    return {
        "base": f"`{Path(job.model).name if Path(job.model).exists() else job.model}`",
        "labels": ", ".join(f"`{label}`" for label in run.data.labels),
        "quality": f"F1 {run.metrics['eval_f1']:.4f}, accuracy {run.metrics['eval_accuracy']:.4f}",
        "held_out": f"{run.data.validation_rows:,}",
        "rows": f"{run.data.train_rows:,}",
        "max_length": run.max_length,
        "trained": f"{format_count(run.trainable_parameters)} of {format_count(run.parameters)}",
        "steps": run.steps,
        "batch": job.batch_size,
        "rate": f"{job.learning_rate:g}",
        "seed": job.seed,
        "recipe": " ".join(run.recipe) or "plain",
        "result": run.result,
        "time": format_seconds(run.measured.seconds),
        "device": run.device,
        "memory": format_bytes(run.measured.peak_bytes),
        "moments": [(moment, format_bytes(size)) for moment, size in run.measured.moments.items()],
        "versions": ", ".join(f"{package} {number}" for package, number in run.versions.items()),
    }
