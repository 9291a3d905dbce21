"""Text classification: one label for a text or a pair of texts."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, ClassVar

from tightfit.data.labels import Labels

if TYPE_CHECKING:
    from transformers import EvalPrediction


class TextClassification:
    """Head, labels and metrics of text classification."""

    name: ClassVar[str] = "text-classification"

    def head(self) -> Any:
        """The auto class of models with a sequence classification head."""
        from transformers import AutoModelForSequenceClassification

        return AutoModelForSequenceClassification

    def config_changes(self, labels: Labels) -> dict[str, Any]:
        """The label settings of the model's config."""
        return {
            "num_labels": len(labels.names),
            "id2label": dict(enumerate(labels.names)),
            "label2id": labels.ids,
            "problem_type": "single_label_classification",
        }

    def keep_logits(self, outputs: Any, labels: Any) -> Any:
        """Only the logits of the model's outputs are kept for the metrics."""
        return outputs[0] if isinstance(outputs, tuple) else outputs

    def metrics(self, prediction: EvalPrediction) -> dict[str, float]:
        """Accuracy and F1: of label 1 if there are two labels, otherwise the mean over the labels (macro F1)."""
        predicted, truth = prediction.predictions.argmax(axis=-1), prediction.label_ids
        scores = _f1_by_label(truth, predicted)
        f1 = scores.get(1, 0.0) if prediction.predictions.shape[-1] == 2 else sum(scores.values()) / len(scores)
        return {"accuracy": float((predicted == truth).mean()), "f1": f1}


def _f1_by_label(truth: Any, predicted: Any) -> dict[int, float]:
    """F1 of every label that occurs in the data or in the predictions."""
    labels = {*truth.tolist(), *predicted.tolist()}
    return {label: _f1(truth == label, predicted == label) for label in labels}


def _f1(truth: Any, predicted: Any) -> float:
    return float(2 * (truth & predicted).sum() / (truth.sum() + predicted.sum()))
