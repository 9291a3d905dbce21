"""Class loss: cross-entropy with label smoothing and class weights, for jobs that ask for them.

A head computes plain cross-entropy by itself. Here the head gets no labels and the loss is computed from its logits, as
transformers.Trainer does for label smoothing. Class weights are those of torch's cross-entropy: the loss of a batch is
the sum of its weighted losses divided by the sum of the weights of its labels.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from tightfit.data.micro_batches import IGNORED
from tightfit.engine.micro_batch_loss import predicts_next_token
from tightfit.job import Job

if TYPE_CHECKING:
    import torch
    from transformers import PreTrainedModel

    from tightfit.data.batches import Batch


@dataclass(frozen=True)
class ClassLoss:
    """Cross-entropy of the logits; a mean over the labels, by their weights."""

    smoothing: float = 0.0
    """The share of each label that is spread over all classes."""
    weights: tuple[float, ...] | None = None
    """The weight of each class."""

    @classmethod
    def of(cls, job: Job, weights: Sequence[float] | None) -> ClassLoss | None:
        """The loss of a job; None if its head computes it."""
        if not job.label_smoothing_factor and weights is None:
            return None
        return cls(job.label_smoothing_factor, None if weights is None else tuple(weights))

    def __call__(self, model: torch.nn.Module, batch: Batch) -> torch.Tensor:
        return self.with_outputs(model, batch)[0]

    def with_outputs(self, model: Any, batch: Batch) -> tuple[torch.Tensor, Any]:
        """The loss and the outputs of the model."""
        inputs = dict(batch)  # the batch itself is used again after an out-of-memory error
        labels = inputs.pop("labels")
        if model.config.is_encoder_decoder and labels.dim() == 2 and "decoder_input_ids" not in inputs:
            inputs["decoder_input_ids"] = model.prepare_decoder_input_ids_from_labels(labels=labels)
        outputs = model(**inputs)
        return self.of_logits(model, outputs.logits, labels), outputs

    def of_logits(self, model: PreTrainedModel, logits: torch.Tensor, labels: torch.Tensor) -> torch.Tensor:
        """The loss of the logits of a head."""
        import torch
        from torch.nn import functional as F

        if labels.dim() > 1 and predicts_next_token(model):
            labels = F.pad(labels, (0, 1), value=IGNORED)[:, 1:]  # shifted, so that the logits need no copy
        return F.cross_entropy(
            logits.flatten(0, -2).float(),
            labels.flatten(),
            weight=None if self.weights is None else logits.new_tensor(self.weights, dtype=torch.float32),
            label_smoothing=self.smoothing,
            ignore_index=IGNORED,
        )
