"""Text classification: one label for a text or a pair of texts."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, ClassVar

from tightfit.data.rows import Labels

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
        guesses, truth = prediction.predictions.argmax(axis=-1), prediction.label_ids
        scores = _f1_of_each(truth, guesses)
        f1 = scores.get(1, 0.0) if prediction.predictions.shape[-1] == 2 else sum(scores.values()) / len(scores)
        return {"accuracy": float((guesses == truth).mean()), "f1": f1}


def _f1_of_each(truth: Any, guesses: Any) -> dict[int, float]:
    """F1 of every label that is there or was guessed."""
    labels = {*truth.tolist(), *guesses.tolist()}
    return {label: _f1(truth == label, guesses == label) for label in labels}


def _f1(there: Any, guessed: Any) -> float:
    return float(2 * (there & guessed).sum() / (there.sum() + guessed.sum()))
