"""Quality notes: what a user should know before believing a score, and what usually helps."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

from tightfit.job import Job
from tightfit.messages import Message, in_sequence, msg
from tightfit.tasks.quality import Quality, Scoring

_UNCERTAIN = 0.05  # half of the interval: the next decimal of the score says nothing


def with_notes(
    quality: Quality | None, metrics: Mapping[str, float], scoring: Scoring, job: Job, *, all_trained: bool
) -> Quality | None:
    """The quality with notes about it; a model that only measures memory needs none."""
    if quality is None or job.random_weights:
        return quality
    notes = [_same_answer(quality, job, all_trained)] if quality.answer else list(_doubts(quality, metrics, scoring))
    return quality.model_copy(update={"notes": notes})


def _same_answer(quality: Quality, job: Job, all_trained: bool) -> Message:
    found = msg(
        "All {rows:,} examples get the same answer, '{answer}': the model has learned nothing that tells them apart.",
        rows=quality.rows,
        answer=quality.answer,
    )
    if all_trained:
        return in_sequence(
            found,
            msg(
                "More steps usually help (--epochs, or a smaller --batch-size), or another --learning-rate "
                "(it was {rate:g}).",
                rate=job.learning_rate,
            ),
        )
    return in_sequence(
        found,
        msg(
            "Only a part of the parameters is trained, which needs a higher --learning-rate (it was {rate:g}; "
            "usual are 1e-3 with a frozen encoder and 2e-4 with LoRA) and more steps (--epochs).",
            rate=job.learning_rate,
        ),
    )


def _doubts(quality: Quality, metrics: Mapping[str, float], scoring: Scoring) -> Iterator[Message]:
    """Whether the rows are too few to tell how good the model is, or that it is any good."""
    interval = quality.interval
    metric = next((each for each in scoring.metrics if interval and each.name == interval.metric), None)
    if interval is None or metric is None or metrics.get(metric.key) is None:
        return
    values: dict[str, Any] = {
        "metric": metric.title,
        "score": metrics[metric.key],
        "low": interval.low,
        "high": interval.high,
    }
    constant = metrics.get(metric.constant_key)
    if constant is not None and constant >= interval.low:
        yield msg(
            "{metric} {score:.4f} (95 % interval {low:.2f} to {high:.2f}) is not clearly better than "
            "the {constant:.4f} of always answering '{answer}'.",
            constant=constant,
            answer=quality.constant,
            **values,
        )
    if interval.high - interval.low > 2 * _UNCERTAIN:
        yield msg(
            "{rows:,} examples are few: {metric} {score:.4f} has a 95 % interval of {low:.2f} to {high:.2f}. "
            "A larger file for --validation tells more.",
            rows=quality.rows,
            **values,
        )
