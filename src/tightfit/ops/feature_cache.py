"""Trunk: a frozen one runs once over each text, and of what it says only that is kept which the head reads.

A head reads a text at one token (the first, the last, the end token), as a mean over its tokens, or in the trunk's own
summary. How much each token weighs is told by the head's gradient, so no architecture has to be known. In place
of the text stands then one of a single token whose state is the weighed sum; the head itself runs as ever, dropout
included, and gives what it would have given.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import torch
from torch.func import functional_call

from tightfit.errors import RecipeError
from tightfit.ops.fake import real_tensors

if TYPE_CHECKING:
    from transformers import PreTrainedModel
    from transformers.utils import ModelOutput

    from tightfit.data.batches import Batch


_KEPT = "kept_"
_ROUNDING = 1e-2  # two ways to one number, relative to the largest


def find_cacheable_encoder(model: PreTrainedModel) -> FeatureCache | None:
    """The trunk of a model that trains nothing but its head; None if the head reads it in some other way."""
    feature_cache, training = FeatureCache(model), model.training
    gradients = _gradients_of_a_random_head(feature_cache)
    model.train(training)
    if not gradients or not all(_is_weighed_sum(gradient) for gradient in gradients.values()):
        feature_cache.step_aside()
        return None
    feature_cache.shapes = {name: (*(1,) * (g.dim() - 2), g.shape[-1]) for name, g in gradients.items()}
    return feature_cache


class FeatureCache:
    """Stands in the place of a trunk's forward: lets it run, or says again what was kept of it."""

    def __init__(self, model: PreTrainedModel) -> None:
        self.model = model
        self.shapes: dict[str, tuple[int, ...]] = {}
        """What is kept of each text: of which output, in which shape."""
        self.instead: ModelOutput | None = None
        """What is said in place of running."""
        self._run, model.base_model.forward = model.base_model.forward, self
        self._hook = model.register_forward_pre_hook(self._take_kept, with_kwargs=True)
        self._kept: Batch = {}
        self._heard: ModelOutput | None = None
        self._kind: type[ModelOutput]
        self._listening = False

    def features(self, batch: Batch) -> tuple[Batch, torch.Tensor]:
        """What to train on in place of these texts, and the head's answer. The model runs as in an evaluation."""
        logits, heard = self.run_worker(batch)
        place = torch.zeros((len(logits), 1), dtype=torch.long, device=logits.device)
        kept = {}
        for name, gradient in _gradients(logits, heard).items():
            states = heard[name].detach()
            if states.dim() == 3:
                weights = _weights(gradient)
                states, place = weights[:, None].to(states.dtype) @ states, weights.argmax(dim=1, keepdim=True)
            kept[_KEPT + name] = states
        ids = batch["input_ids"].gather(1, place)
        labels = {"labels": batch["labels"]} if "labels" in batch else {}
        return {"input_ids": ids, "attention_mask": torch.ones_like(ids), **labels, **kept}, logits.detach()

    def blank(self, rows: int) -> Batch:
        """Features that say nothing."""
        ids = torch.ones((rows, 1), dtype=torch.long)
        kept = {_KEPT + name: torch.ones((rows, *shape)) for name, shape in self.shapes.items()}
        return {"input_ids": ids, "attention_mask": torch.ones_like(ids), **kept}

    def run_worker(self, batch: Batch, head: Batch | None = None) -> tuple[Any, ModelOutput]:
        """The answer of the head, or of another with its weights, and what the trunk said to it, to be derived by."""
        self.model.eval()
        self._listening = True
        try:
            with torch.enable_grad():
                answer = functional_call(self.model, head or {}, (), _without_labels(batch))
            return getattr(answer, "logits", None), self._heard
        finally:  # nothing of it stays, also when memory ran out
            self._listening, self._heard = False, None

    def check_same_logits(self, features: Batch, expected: torch.Tensor) -> None:
        """The features must make the head say what it says of the texts themselves."""
        with torch.no_grad():
            answer = self.model.eval()(**_without_labels(features)).logits
        if not torch.allclose(answer, expected, rtol=_ROUNDING, atol=_ROUNDING * float(expected.abs().max())):
            head = type(self.model).__name__
            raise RecipeError(f"{head} reads more of a text than can be kept of it: use freeze:cache=false.")

    def step_aside(self) -> None:
        """Leave the model as it was."""
        self.model.base_model.forward = self._run
        self._hook.remove()

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        if self._kept:
            return self._say_again()
        output = self._run(*args, **kwargs) if self.instead is None else self.instead
        if self._listening:
            self._kind = type(output)
            output = self._heard = self._kind(**{name: _leaf(value) for name, value in output.items()})
        return output

    def _take_kept(self, model: Any, args: Any, kwargs: dict[str, Any]) -> tuple[Any, dict[str, Any]]:
        self._kept = {name: kwargs.pop(_KEPT + name) for name in self.shapes if _KEPT + name in kwargs}
        return args, kwargs

    def _say_again(self) -> ModelOutput:
        """Heads find an output by its name or its place, so the first is there even if it is not read."""
        kept, self._kept = self._kept, {}
        some = next(iter(kept.values()))
        unread = some.new_zeros(()).expand(len(some), 1, 1)
        return self._kind(**{"last_hidden_state": unread, **kept})


def _without_labels(batch: Batch) -> Batch:
    return {name: value for name, value in batch.items() if name != "labels"}


def _leaf(value: Any) -> Any:
    return value.detach().requires_grad_() if _are_states(value) else value


def _are_states(value: Any) -> bool:
    return isinstance(value, torch.Tensor) and value.is_floating_point()


def _gradients(logits: torch.Tensor, heard: ModelOutput) -> Batch:
    """How the answer follows from each output of the trunk; only of those that are read."""
    states = {name: value for name, value in heard.items() if _are_states(value)}
    mixed = (logits * torch.arange(1, logits.shape[-1] + 1, device=logits.device)).sum()
    found = torch.autograd.grad(mixed, list(states.values()), allow_unused=True)
    return {name: gradient for name, gradient in zip(states, found, strict=True) if gradient is not None}


def _weights(gradient: torch.Tensor) -> torch.Tensor:
    """How much each token weighs in what is read, in all 1; exactly 1 where a single token is read."""
    gradient = gradient.float()
    shares = (gradient * gradient.sum(dim=1, keepdim=True)).sum(dim=2)
    return shares / shares.sum(dim=1, keepdim=True)


def _is_weighed_sum(gradient: torch.Tensor) -> bool:
    """Whether all that is read of a text is a sum of its tokens, whatever they say."""
    if gradient.dim() != 3:
        return gradient.dim() == 2
    expected = _weights(gradient)[:, :, None] * gradient.sum(dim=1, keepdim=True)
    return bool((gradient - expected).abs().max() <= _ROUNDING * gradient.abs().max())


def _gradients_of_a_random_head(feature_cache: FeatureCache) -> Batch:
    """With numbers drawn by chance for the head and the trunk's outputs, also where the model has only a shape."""
    model = feature_cache.model
    _, heard = feature_cache.run_worker(_probe_batch(model))
    inside = f"{model.base_model_prefix}."
    with real_tensors(), torch.random.fork_rng([]):
        torch.manual_seed(0)
        head = {name: torch.randn(p.shape) for name, p in model.named_parameters() if not name.startswith(inside)}
        feature_cache.instead = type(heard)(**{name: _drawn(value) for name, value in heard.items()})
        logits, said = feature_cache.run_worker(_probe_batch(model), head)
        gradients = _gradients(logits, said) if logits is not None and logits.dim() == 2 else {}
    feature_cache.instead = None
    return gradients


def _drawn(value: Any) -> Any:
    return torch.randn(value.shape) if _are_states(value) else None


def _probe_batch(model: PreTrainedModel) -> Batch:
    """Of four tokens and of two, with an end token where that is another than the padding."""
    config = model.config.get_text_config()
    padding, end = config.pad_token_id or 0, config.eos_token_id
    words = [number for number in range(8) if number not in (padding, end)]
    last = end if isinstance(end, int) and end != padding else words[0]
    ids = torch.tensor([[*words[:3], last], [words[0], last, padding, padding]])
    return {"input_ids": ids, "attention_mask": torch.tensor([[1, 1, 1, 1], [1, 1, 0, 0]])}
