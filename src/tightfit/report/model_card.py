"""The model card: README.md in the run folder, with the metadata that the Hugging Face Hub reads."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from tightfit.i18n import render
from tightfit.messages import Message, in_sequence, listed, msg, name
from tightfit.report.base_model import base_model
from tightfit.report.names import memory_name, phase_name, scores_beside_constant
from tightfit.report.sections import example_texts
from tightfit.runs.record import Run
from tightfit.strategies import STRATEGIES
from tightfit.tasks import find_task
from tightfit.tasks.quality import Scores
from tightfit.units import format_bytes, format_count, format_seconds, format_steps

_TEMPLATE = """---
{{ card_data }}
---

# {{ name }}

{{ lead }}

| | |
|---|---|
{% for heading, value in facts %}| {{ heading }} | {{ value }} |
{% endfor %}
{% for note in notes %}
{{ note }}
{% endfor %}

```python
{{ code }}
```

## {{ memory }}

{{ about_memory }}

| {{ headings | join(" | ") }} |
|---|---|---|
{% for phase, predicted, measured in phases %}| {{ phase }} | {{ predicted }} | {{ measured }} |
{% endfor %}
{% if strategies %}
{{ about_strategies }}

{% for strategy in strategies %}- {{ strategy }}
{% endfor %}
{% endif %}
## {{ about_versions }}

{{ versions }}
"""


def write_card(run: Run) -> None:
    """Write README.md into the run folder."""
    from huggingface_hub import EvalResult, ModelCard, ModelCardData

    title, data, task = Path(run.folder).resolve().name, Path(run.job.data).name, find_task(run.job.task)
    base = base_model(run.job.model)
    results = [
        EvalResult(
            task_type=task.pipeline,
            dataset_type="text",
            dataset_name=data,
            metric_type=metric.name,
            metric_name=str(metric.title),
            metric_value=round(value, 4),
        )
        for metric, value in _scores(run)
    ]
    header = ModelCardData(
        library_name="transformers",
        pipeline_tag=task.pipeline,
        tags=["tightfit"],
        metrics=[metric.name for metric in run.scoring.own],
        base_model=base.name,
        language=run.data.language or base.language,
        license=base.license,
        model_name=title,
        eval_results=results or None,
    )
    texts = {key: _shown(value) for key, value in _values(run).items()}
    model_card = ModelCard.from_template(header, template_str=_TEMPLATE, name=title, **texts)
    (Path(run.folder) / "README.md").write_text(str(model_card), "utf-8")


def _shown(value: Any) -> Any:
    """Everything in the language of the command line."""
    if isinstance(value, list | tuple):
        return [_shown(item) for item in value]
    return render(value)


def _values(run: Run) -> dict[str, Any]:
    """The values of the template."""
    job, task = run.job, find_task(run.job.task)
    base = base_model(job.model).name or Path(job.model).name
    learned = task.learned([f"`{label}`" for label in run.data.labels])
    return {
        "lead": _lead(base, learned, random_weights=job.random_weights),
        "notes": run.quality.notes if run.quality else [],
        "code": task.usage(run.folder, example_texts(job.task, run.data, render), run.max_length),
        "facts": _facts(run),
        "memory": msg("Memory"),
        "about_memory": _about_memory(run),
        "headings": [msg("phase"), msg("predicted"), msg("measured")],
        "phases": _phases(run),
        "about_strategies": msg("Strategies of the recipe:"),
        "strategies": [
            msg("`{spec}`: {summary}", spec=spec, summary=STRATEGIES[spec.partition(":")[0]].summary)
            for spec in run.recipe
        ],
        "about_versions": msg("Versions"),
        "versions": listed(f"{package} {number}" for package, number in run.versions.items()),
    }


def _lead(model: str, learned: Message, *, random_weights: bool) -> Message:
    if random_weights:
        return msg(
            "`{model}` with random weights, trained with tightfit to measure memory and time, "
            "not for its predictions; {learned}.",
            model=model,
            learned=learned,
        )
    return msg("`{model}` fine-tuned with tightfit; {learned}.", model=model, learned=learned)


def _facts(run: Run) -> list[tuple[Message, Message]]:
    """The table at the top."""
    recipe = " ".join(run.recipe) or msg("baseline")
    return [
        (msg("quality"), _quality(run)),
        (msg("training data"), _data(run)),
        (msg("training"), _training(run)),
        (msg("recipe"), msg("`{recipe}` (result: {result})", recipe=recipe, result=name(run.result))),
        (
            msg("time"),
            msg("{time} on {device}", time=format_seconds(run.measured.seconds), device=name(run.device)),
        ),
        (memory_name(run.device), _peak(run)),
    ]


def _quality(run: Run) -> Message:
    scores = scores_beside_constant(run.scoring, run.metrics, _scores(run))
    return msg("{scores} on {rows:,} validation examples", scores=scores or "–", rows=run.data.validation_rows)


def _scores(run: Run) -> Scores:
    """The metrics of the task; the loss only if it has no other."""
    return [(metric, value) for metric, value in run.scoring.measured(run.metrics) if metric in run.scoring.own]


def _data(run: Run) -> Message:
    return msg(
        "{rows:,} examples of `{data}`, truncated at {tokens} tokens",
        rows=run.data.train_rows,
        data=Path(run.job.data).name,
        tokens=run.max_length,
    )


def _training(run: Run) -> Message:
    return msg(
        "{trained} of {all} parameters, {steps} of {batch} examples, lr {rate:g}, seed {seed}",
        trained=format_count(run.trainable_parameters),
        all=format_count(run.parameters),
        steps=format_steps(run.steps),
        batch=run.job.batch_size,
        rate=run.job.learning_rate,
        seed=run.job.seed,
    )


def _peak(run: Run) -> Message:
    """The measured peak, and the predicted one with its error."""
    measured, predicted = run.measured.peak_bytes, run.predicted.peak_bytes
    if not predicted or not measured:  # torch measures nothing where it does not cache
        return msg("peak {peak}", peak=format_bytes(measured))
    return msg(
        "peak {peak} (predicted {predicted}, {error:+.1%})",
        peak=format_bytes(measured),
        predicted=format_bytes(predicted),
        error=predicted / measured - 1,
    )


_EFFECTS = {
    "same": msg("The result is that of the baseline, equal up to rounding."),
    "close": msg("The result is close to that of the baseline: different numbers, same quality."),
    "different": msg("The result is different from that of the baseline: fewer trained parameters or shorter text."),
}


def _about_memory(run: Run) -> Message:
    phase = phase_name(max(run.measured.phases, key=lambda phase: run.measured.phases[phase]))
    if "CPU" in run.device:
        peak = msg("The peak is in {phase}; measured is the whole process.", phase=phase)
    else:
        peak = msg("The peak is in {phase}; measured is the memory that torch reserved on the GPU.", phase=phase)
    return in_sequence(peak, _EFFECTS[run.result])


def _phases(run: Run) -> list[tuple[str, str, str]]:
    predicted = run.predicted.phases or {}
    return [
        (phase_name(phase), format_bytes(predicted[phase]) if phase in predicted else "–", format_bytes(size))
        for phase, size in run.measured.phases.items()
    ]
