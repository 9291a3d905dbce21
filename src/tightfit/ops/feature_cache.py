"""Feature cache: a frozen encoder runs once over each example, and only the outputs that the head uses are stored.

A head reads an example at one token (the first, the last, the end token), as a mean over its tokens, or as the
encoder's pooled output. The head's gradient shows the weight of each token, so no architecture needs special code. The
stored example has a single token whose hidden state is the weighted sum; the head itself runs unchanged, dropout
included, and computes the same logits.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import torch
from torch.func import functional_call

from tightfit.errors import RecipeError
from tightfit.messages import msg
from tightfit.ops.fake import real_tensors

if TYPE_CHECKING:
    from transformers import PreTrainedModel
    from transformers.utils import ModelOutput

    from tightfit.data.batches import Batch


FEATURE_PREFIX = "feature_"  # marks stored outputs among the model's keyword arguments
_RTOL = 1e-2  # how far two ways to compute a value may differ, relative to the largest


def find_cacheable_encoder(model: PreTrainedModel) -> FeatureCache | None:
    """A feature cache for a model that trains nothing but its head; None if the head reads more than can be stored."""
    feature_cache, training = FeatureCache(model), model.training
    gradients = _gradients_of_a_random_head(feature_cache)
    model.train(training)
    if not gradients or not all(_is_weighted_sum(gradient) for gradient in gradients.values()):
        feature_cache.remove()
        return None
    feature_cache.shapes = {name: (*(1,) * (g.dim() - 2), g.shape[-1]) for name, g in gradients.items()}
    return feature_cache


class FeatureCache:
    """Replaces an encoder's forward: runs the encoder, or returns the stored outputs that the batch contains."""

    def __init__(self, model: PreTrainedModel) -> None:
        self.model = model
        self.shapes: dict[str, tuple[int, ...]] = {}
        """What is stored of each example: the names of the encoder's outputs and their shapes."""
        self.override: ModelOutput | None = None
        """An output to return instead of running the encoder."""
        self._run, model.base_model.forward = model.base_model.forward, self
        self._hook = model.register_forward_pre_hook(self._pop_features, with_kwargs=True)
        self._features: Batch = {}
        self._captured: ModelOutput | None = None
        self._output_type: type[ModelOutput]
        self._capturing = False

    def features(self, batch: Batch) -> tuple[Batch, torch.Tensor]:
        """The batch to train on in place of this one, and the head's logits, computed in evaluation mode."""
        logits, captured = self.probe(batch)
        position = torch.zeros((len(logits), 1), dtype=torch.long, device=logits.device)
        features = {}
        for name, gradient in _gradients(logits, captured).items():
            states = captured[name].detach()
            if states.dim() == 3:
                weights = _token_weights(gradient)
                states, position = weights[:, None].to(states.dtype) @ states, weights.argmax(dim=1, keepdim=True)
            features[FEATURE_PREFIX + name] = states
        ids = batch["input_ids"].gather(1, position)
        labels = {"labels": batch["labels"]} if "labels" in batch else {}
        return {"input_ids": ids, "attention_mask": torch.ones_like(ids), **labels, **features}, logits.detach()

    def dummy_features(self, rows: int) -> Batch:
        """Features of the right shapes, all ones, at an end token: some heads read the features there."""
        end = getattr(self.model.config.get_text_config(), "eos_token_id", None)
        ids = torch.full((rows, 1), end if isinstance(end, int) else 1)
        features = {FEATURE_PREFIX + name: torch.ones((rows, *shape)) for name, shape in self.shapes.items()}
        return {"input_ids": ids, "attention_mask": torch.ones_like(ids), **features}

    def probe(self, batch: Batch, head: Batch | None = None) -> tuple[Any, ModelOutput]:
        """The logits of the head, or of one with other weights, and the encoder's output as leaves of the graph."""
        self.model.eval()
        self._capturing = True
        try:
            with torch.enable_grad():
                output = functional_call(self.model, head or {}, (), _without_labels(batch))
            return getattr(output, "logits", None), self._captured
        finally:  # holds no tensors, also after an out-of-memory error
            self._capturing, self._captured = False, None

    def check_same_logits(self, features: Batch, expected: torch.Tensor) -> None:
        """Raise RecipeError if the head computes other logits from the features than from the examples."""
        with torch.no_grad():
            logits = self.model.eval()(**_without_labels(features)).logits
        if not torch.allclose(logits, expected, rtol=_RTOL, atol=_RTOL * float(expected.abs().max())):
            head = type(self.model).__name__
            raise RecipeError(
                msg(
                    "The encoder's outputs cannot be cached for {head}, whose head reads more than a weighted sum of "
                    "them: use freeze:cache=false.",
                    head=head,
                )
            )

    def remove(self) -> None:
        """Restore the model's own forward."""
        self.model.base_model.forward = self._run
        self._hook.remove()

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        if self._features:
            return self._replay()
        output = self._run(*args, **kwargs) if self.override is None else self.override
        if self._capturing:
            self._output_type = type(output)
            output = self._captured = self._output_type(**{name: _leaf(value) for name, value in output.items()})
        return output

    def _pop_features(self, model: Any, args: Any, kwargs: dict[str, Any]) -> tuple[Any, dict[str, Any]]:
        given = {name: FEATURE_PREFIX + name for name in self.shapes}
        self._features = {name: kwargs.pop(key) for name, key in given.items() if key in kwargs}
        return args, kwargs

    def _replay(self) -> ModelOutput:
        """The stored outputs. Heads index outputs by name or position, so the first is present even if unread."""
        features, self._features = self._features, {}
        some = next(iter(features.values()))
        unread = some.new_zeros(()).expand(len(some), 1, 1)
        return self._output_type(**{"last_hidden_state": unread, **features})


def _without_labels(batch: Batch) -> Batch:
    return {name: value for name, value in batch.items() if name != "labels"}


def _leaf(value: Any) -> Any:
    return value.detach().requires_grad_() if _is_hidden_state(value) else value


def _is_hidden_state(value: Any) -> bool:
    return isinstance(value, torch.Tensor) and value.is_floating_point()


def _gradients(logits: torch.Tensor, captured: ModelOutput) -> Batch:
    """The gradient of the logits with respect to each output of the encoder that the head reads."""
    states = {name: value for name, value in captured.items() if _is_hidden_state(value)}
    mixed = (logits * torch.arange(1, logits.shape[-1] + 1, device=logits.device)).sum()
    found = torch.autograd.grad(mixed, list(states.values()), allow_unused=True)
    return {name: gradient for name, gradient in zip(states, found, strict=True) if gradient is not None}


def _token_weights(gradient: torch.Tensor) -> torch.Tensor:
    """The weight of each token in what the head reads, with sum 1; exactly 1 where a single token is read."""
    gradient = gradient.float()
    weights = (gradient * gradient.sum(dim=1, keepdim=True)).sum(dim=2)
    return weights / weights.sum(dim=1, keepdim=True)


def _is_weighted_sum(gradient: torch.Tensor) -> bool:
    """Whether the head reads only a weighted sum of the tokens' hidden states, with weights independent of them."""
    if gradient.dim() != 3:
        return gradient.dim() == 2
    expected = _token_weights(gradient)[:, :, None] * gradient.sum(dim=1, keepdim=True)
    return bool((gradient - expected).abs().max() <= _RTOL * gradient.abs().max())


def _gradients_of_a_random_head(feature_cache: FeatureCache) -> Batch:
    """The gradients with random values for head and encoder outputs, so that fake models can be probed too."""
    model = feature_cache.model
    _, captured = feature_cache.probe(_probe_batch(model))
    inside = f"{model.base_model_prefix}."
    with real_tensors(), torch.random.fork_rng([]):
        torch.manual_seed(0)
        head = {name: torch.randn(p.shape) for name, p in model.named_parameters() if not name.startswith(inside)}
        feature_cache.override = type(captured)(**{name: _random_like(value) for name, value in captured.items()})
        logits, replayed = feature_cache.probe(_probe_batch(model), head)
        gradients = _gradients(logits, replayed) if logits is not None and logits.dim() == 2 else {}
    feature_cache.override = None
    return gradients


def _random_like(value: Any) -> Any:
    return torch.randn(value.shape) if _is_hidden_state(value) else None


def _probe_batch(model: PreTrainedModel) -> Batch:
    """Two rows, of four tokens and of two, with an end token where it differs from the padding token."""
    config = model.config.get_text_config()
    padding, end = config.pad_token_id or 0, getattr(config, "eos_token_id", None)
    tokens = [number for number in range(8) if number not in (padding, end)]
    last = end if isinstance(end, int) and end != padding else tokens[0]
    ids = torch.tensor([[*tokens[:3], last], [tokens[0], last, padding, padding]])
    return {"input_ids": ids, "attention_mask": torch.tensor([[1, 1, 1, 1], [1, 1, 0, 0]])}
