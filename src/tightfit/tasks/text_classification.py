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
        """The class of models that classify texts."""
        from transformers import AutoModelForSequenceClassification

        return AutoModelForSequenceClassification

    def config_changes(self, labels: Labels) -> dict[str, Any]:
        """What the labels mean for the model's config."""
        return {
            "num_labels": len(labels.names),
            "id2label": dict(enumerate(labels.names)),
            "label2id": labels.ids,
            "problem_type": "single_label_classification",
        }

    def keep_logits(self, outputs: Any, labels: Any) -> Any:
        """Of what a model gives out for a batch only the logits are kept for the metrics."""
        return outputs[0] if isinstance(outputs, tuple) else outputs

    def metrics(self, prediction: EvalPrediction) -> dict[str, float]:
        """Accuracy, and F1 of label 1 where there are two labels, the mean over labels where there are more."""
        from sklearn.metrics import accuracy_score, f1_score

        logits = prediction.predictions
        guesses, truth = logits.argmax(axis=-1), prediction.label_ids
        average = "binary" if logits.shape[-1] == 2 else "macro"
        return {
            "accuracy": float(accuracy_score(truth, guesses)),
            "f1": float(f1_score(truth, guesses, average=average, zero_division=0)),
        }
