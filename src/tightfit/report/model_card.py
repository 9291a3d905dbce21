"""The model card: README.md in the run folder, with the metadata that the Hugging Face Hub reads."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from tightfit.runs.record import Run
from tightfit.strategies import STRATEGIES
from tightfit.tasks import find_task
from tightfit.tasks.base import LOSS, Metric
from tightfit.units import format_bytes, format_count, format_seconds

_TEMPLATE = """---
{{ card_data }}
---

# {{ name }}

{{ base }} fine-tuned with tightfit. {{ learned }}.

| | |
|---|---|
| quality | {{ quality }} on {{ validation_rows }} validation examples |
| training data | {{ train_rows }} examples of `{{ data }}`, truncated at {{ max_length }} tokens |
| training | {{ trained }} parameters, {{ steps }} steps of {{ batch }} examples, lr {{ rate }}, seed {{ seed }} |
| recipe | `{{ recipe }}` (result: {{ result }}) |
| time | {{ time }} on {{ device }} |
| memory | {{ memory }} |

```python
from transformers import pipeline

pipe = pipeline("{{ pipeline }}", "{{ name }}")
```

## Memory

{{ about_memory }}

| phase | predicted | measured |
|---|---|---|
{% for phase, predicted, measured in phases %}| {{ phase }} | {{ predicted }} | {{ measured }} |
{% endfor %}
{% if strategies %}
Strategies of the recipe:

{% for spec, summary in strategies %}- `{{ spec }}`: {{ summary }}
{% endfor %}
{% endif %}
## Versions

{{ versions }}
"""


def write_card(run: Run) -> None:
    """Write README.md into the run folder."""
    from huggingface_hub import EvalResult, ModelCard, ModelCardData

    name, data, task = Path(run.folder).resolve().name, Path(run.job.data).name, find_task(run.job.task)
    results = [
        EvalResult(
            task_type=task.pipeline,
            dataset_type="text",
            dataset_name=data,
            metric_type=metric.name,
            metric_value=round(value, 4),
        )
        for metric, value in _scores(run)
    ]
    header = ModelCardData(
        library_name="transformers",
        pipeline_tag=task.pipeline,
        tags=["tightfit"],
        metrics=[metric.name for metric in task.metrics or (task.best,)],
        base_model=None if Path(run.job.model).exists() else run.job.model,
        model_name=name,
        eval_results=results or None,
    )
    model_card = ModelCard.from_template(header, template_str=_TEMPLATE, name=name, data=data, **_values(run))
    (Path(run.folder) / "README.md").write_text(str(model_card), "utf-8")


def _values(run: Run) -> dict[str, Any]:
    """The values of the template."""
    job, task = run.job, find_task(run.job.task)
    learned = task.learned.format(labels=", ".join(f"`{label}`" for label in run.data.labels))
    return {
        "base": f"`{Path(job.model).name if Path(job.model).exists() else job.model}`",
        "learned": learned[:1].upper() + learned[1:],
        "pipeline": task.pipeline,
        "quality": ", ".join(f"{metric.title} {value:.4f}" for metric, value in _scores(run)) or "–",
        "validation_rows": f"{run.data.validation_rows:,}",
        "train_rows": f"{run.data.train_rows:,}",
        "max_length": run.max_length,
        "trained": f"{format_count(run.trainable_parameters)} of {format_count(run.parameters)}",
        "steps": run.steps,
        "batch": job.batch_size,
        "rate": f"{job.learning_rate:g}",
        "seed": job.seed,
        "recipe": " ".join(run.recipe) or "baseline",
        "result": run.result,
        "time": format_seconds(run.measured.seconds),
        "device": run.device,
        "memory": _peak(run),
        "about_memory": _about_memory(run),
        "phases": _phases(run),
        "strategies": [(spec, STRATEGIES[spec.partition(":")[0]].summary) for spec in run.recipe],
        "versions": ", ".join(f"{package} {number}" for package, number in run.versions.items()),
    }


def _scores(run: Run) -> list[tuple[Metric, float]]:
    """The metrics of the task; the loss only if it has no other."""
    measured = find_task(run.job.task).measured(run.metrics)
    return [(metric, value) for metric, value in measured if metric is not LOSS] or measured


def _peak(run: Run) -> str:
    """The measured peak, and the predicted one with its error."""
    measured, predicted = run.measured.peak_bytes, run.predicted.peak_bytes
    error = f" (predicted {format_bytes(predicted)}, {predicted / measured - 1:+.1%})" if predicted else ""
    return f"peak {format_bytes(measured)}{error}"


def _about_memory(run: Run) -> str:
    phase = max(run.measured.phases, key=lambda name: run.measured.phases[name])
    what = "the whole process" if "CPU" in run.device else "the memory that torch reserved on the GPU"
    effect = {
        "same": "that of the baseline, equal up to rounding",
        "close": "close to that of the baseline: not the same numbers, same quality",
        "different": "different from that of the baseline: fewer trained parameters or shorter text",
    }
    return f"The peak is in {phase}; measured is {what}. The result is {effect[run.result]}."


def _phases(run: Run) -> list[tuple[str, str, str]]:
    predicted = run.predicted.phases or {}
    return [
        (phase, format_bytes(predicted[phase]) if phase in predicted else "–", format_bytes(size))
        for phase, size in run.measured.phases.items()
    ]
