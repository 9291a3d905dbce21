"""Model inputs of tests: what the metrics of a task get besides predictions and labels."""

from __future__ import annotations

from tightfit.data.labels import Labels
from tightfit.data.row_file import store_rows
from tightfit.tasks.base import ModelInputs


def inputs_with(labels: Labels | None = None) -> ModelInputs:
    """Inputs for metrics that read only the labels."""
    rows = store_rows([{"text": "a"}], {"text": str})
    return ModelInputs(rows, rows, object(), labels or Labels())  # type: ignore[arg-type]
