"""Chunked loss: the cross-entropy of a language-model head, a chunk of tokens at a time.

The head returns a stand-in for its logits, which notes what the model does to them (a scale, a softcap, a bias) until
it asks for their cross-entropy. Only then logits are computed, for a chunk of tokens, and with them the gradients of
the loss, so that no chunk is computed twice. Tokens whose label is ignored get no logits at all.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from typing import Any, NoReturn

import torch
from torch import nn

from tightfit.errors import RecipeError
from tightfit.messages import msg
from tightfit.ops.fake import chunk_of, is_fake

Step = Callable[[torch.Tensor], torch.Tensor]
"""Something that a model does to each logit."""


def chunk_loss(model: nn.Module, head: nn.Linear, tokens: int) -> None:
    """Make the model compute its loss for at most `tokens` tokens at a time; without labels it works as before."""
    chunked = _ChunkedHead(head, head.forward, type(model).__name__, tokens)
    head.forward = chunked
    model.register_forward_pre_hook(chunked.start, with_kwargs=True)
    model.register_forward_hook(chunked.check)


class HeadNotRecognized(RecipeError, AttributeError):
    """The model does something to its logits that a chunk of tokens is not enough for."""


class _ChunkedHead:
    """The forward of a head whose logits are computed by the loss."""

    def __init__(self, head: nn.Linear, forward: Step, model: str, tokens: int) -> None:
        self.head, self.forward, self.model, self.tokens = head, forward, model, tokens
        self.has_labels = self.has_loss = False

    def start(self, model: nn.Module, args: Any, kwargs: dict[str, Any]) -> None:
        """Forward pre-hook of the model."""
        self.has_labels, self.has_loss = kwargs.get("labels") is not None, False

    def check(self, model: nn.Module, args: Any, output: Any) -> None:
        """Forward hook of the model."""
        if self.has_labels and not self.has_loss:
            self.refuse()

    def refuse(self) -> NoReturn:
        """Raise HeadNotRecognized."""
        raise HeadNotRecognized(
            msg(
                "'chunked-loss' cannot be used here: it does not recognize how {model} computes its loss. Leave it "
                "out.",
                model=self.model,
            )
        )

    def __call__(self, states: torch.Tensor) -> Any:
        return ChunkedLogits(states, self) if self.has_labels else self.forward(states)


@dataclass(frozen=True)
class ChunkedLogits:
    """Stands for the logits of these hidden states."""

    states: torch.Tensor
    head: _ChunkedHead
    steps: tuple[Step, ...] = ()
    """What the model does to them."""

    @property
    def shape(self) -> torch.Size:
        return torch.Size((*self.states.shape[:-1], self.head.head.out_features))

    @property
    def dtype(self) -> torch.dtype:
        return torch.float32

    @property
    def device(self) -> torch.device:
        return self.states.device

    def size(self, dim: int | None = None) -> Any:
        return self.shape if dim is None else self.shape[dim]

    def float(self) -> ChunkedLogits:
        return self  # the loss is computed in fp32 in any case

    def to(self, *args: Any, **kwargs: Any) -> ChunkedLogits:
        return self

    def contiguous(self) -> ChunkedLogits:
        return self

    def view(self, *shape: int) -> ChunkedLogits:
        if shape[-1] not in (-1, self.shape[-1]) or len(shape) < 2:
            self.head.refuse()
        return replace(self, states=self.states.reshape(*shape[:-1], self.states.shape[-1]))

    reshape = view

    def __getitem__(self, index: Any) -> ChunkedLogits:
        states = self.states[index]
        if states.shape[-1:] != self.states.shape[-1:] or self._selects_words(index):
            self.head.refuse()
        return replace(self, states=states)

    def _selects_words(self, index: Any) -> bool:
        """Whether it is not only tokens that are selected."""
        index = index if isinstance(index, tuple) else (index,)
        reaches_last = Ellipsis in index or len(index) == self.states.dim()
        return reaches_last and index[-1] not in (Ellipsis, slice(None))

    def _then(self, step: Step) -> ChunkedLogits:
        return replace(self, steps=(*self.steps, step))

    def __mul__(self, factor: Any) -> ChunkedLogits:
        return self._then(lambda logits: logits * self._same_for_all_tokens(factor))

    __rmul__ = __mul__

    def __truediv__(self, divisor: Any) -> ChunkedLogits:
        return self._then(lambda logits: logits / self._same_for_all_tokens(divisor))

    def __add__(self, term: Any) -> ChunkedLogits:
        return self._then(lambda logits: logits + self._same_for_all_tokens(term))

    __radd__ = __add__

    def tanh(self) -> ChunkedLogits:
        return self._then(torch.tanh)

    def _same_for_all_tokens(self, value: Any) -> Any:
        """A number, or one number for each word, that is not trained."""
        if isinstance(value, torch.Tensor):
            if value.requires_grad or value.numel() not in (1, self.shape[-1]):
                self.head.refuse()
            return value.reshape(-1)
        return value

    def __getattr__(self, name: str) -> Any:
        self.head.refuse()

    @classmethod
    def __torch_function__(cls, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        logits = next(arg for arg in args if isinstance(arg, ChunkedLogits))
        if func is torch.tanh:
            return logits.tanh()
        if func is nn.functional.cross_entropy and args[0] is logits:
            return logits.cross_entropy(*args[1:], **(kwargs or {}))
        return logits.head.refuse()

    def cross_entropy(
        self,
        labels: torch.Tensor,
        weight: torch.Tensor | None = None,
        size_average: None = None,
        ignore_index: int = -100,
        reduce: None = None,
        reduction: str = "mean",
        label_smoothing: Any = 0,
    ) -> torch.Tensor:
        """As torch.nn.functional.cross_entropy."""
        if weight is not None or label_smoothing or reduction not in ("mean", "sum") or self.states.dim() != 2:
            self.head.refuse()
        head = self.head.head
        settings = _Settings(self.head.tokens, ignore_index, self.steps, torch.is_grad_enabled())
        total: torch.Tensor = _LossSum.apply(self.states, head.weight, head.bias, labels, settings)
        self.head.has_loss = True
        return total if reduction == "sum" else total / (labels != ignore_index).sum()


@dataclass(frozen=True)
class _Settings:
    """What the loss depends on besides tensors."""

    tokens: int
    ignored: int
    steps: tuple[Step, ...]
    with_gradients: bool


class _LossSum(torch.autograd.Function):
    """The sum of the losses of all tokens; its gradients are computed in the forward pass, with the logits."""

    @staticmethod
    def forward(
        ctx: Any,
        states: torch.Tensor,
        weight: torch.Tensor,
        bias: torch.Tensor | None,
        labels: torch.Tensor,
        settings: _Settings,
    ) -> torch.Tensor:
        needed = [settings.with_gradients and each for each in ctx.needs_input_grad[:3]]
        inputs = (states, weight, bias)
        ctx.gradients = [
            torch.zeros_like(value) if is_needed else None for value, is_needed in zip(inputs, needed, strict=True)
        ]
        head = _Head(_lowered(weight), None if bias is None else _lowered(bias), settings.steps, *ctx.gradients)
        total = torch.zeros((), device=states.device)
        for places in _chunks(labels, settings):
            total += head.add_chunk(places, _lowered(states[places]), labels[places])
        return total

    @staticmethod
    def backward(ctx: Any, gradient: torch.Tensor) -> tuple[torch.Tensor | None, ...]:
        gradients, ctx.gradients = ctx.gradients, None
        return *(None if each is None else each.mul_(gradient) for each in gradients), None, None


def _lowered(value: torch.Tensor) -> torch.Tensor:
    """In the number format of autocast, where that is enabled."""
    kind = value.device.type
    return value.to(torch.get_autocast_dtype(kind)) if torch.is_autocast_enabled(kind) else value


def _chunks(labels: torch.Tensor, settings: _Settings) -> Iterator[torch.Tensor]:
    """The places of the tokens that have a label; on fake tensors one chunk of all tokens stands for all chunks."""
    if is_fake(labels):
        places = torch.arange(len(labels), device=labels.device)
        with chunk_of(len(labels), settings.tokens):
            yield places
        return
    yield from (labels != settings.ignored).nonzero().squeeze(1).split(settings.tokens)


@dataclass(frozen=True)
class _Head:
    """A head, and the gradients of its inputs so far; None for those that are not needed."""

    weight: torch.Tensor
    bias: torch.Tensor | None
    steps: tuple[Step, ...]
    of_states: torch.Tensor | None
    of_weight: torch.Tensor | None
    of_bias: torch.Tensor | None

    def add_chunk(self, places: torch.Tensor, states: torch.Tensor, labels: torch.Tensor) -> torch.Tensor:
        """The loss of these tokens; their gradients are added."""
        loss, gradient = _loss_of(nn.functional.linear(states, self.weight, self.bias), labels, self.steps)
        gradient = gradient.to(states.dtype)
        if self.of_states is not None:
            self.of_states.index_copy_(0, places, (gradient @ self.weight).to(self.of_states.dtype))
        if self.of_weight is not None:
            _add_product(self.of_weight, gradient.T, states)
        if self.of_bias is not None:
            self.of_bias.add_(gradient.sum(0))
        return loss


def _add_product(total: torch.Tensor, left: torch.Tensor, right: torch.Tensor) -> None:
    if total.dtype == left.dtype:
        total.addmm_(left, right)
    else:
        total += left @ right


def _loss_of(logits: torch.Tensor, labels: torch.Tensor, steps: tuple[Step, ...]) -> tuple[torch.Tensor, torch.Tensor]:
    """The loss, and its gradient, of the logits of a head."""
    if not steps:
        return _cross_entropy(logits.float(), labels)
    with torch.enable_grad():
        values = logits.requires_grad_()
        for step in steps:
            values = step(values)
    loss, gradient = _cross_entropy(values.detach().to(torch.float32, copy=True), labels)
    return loss, torch.autograd.grad(values, logits, gradient.to(values.dtype))[0]


def _cross_entropy(logits: torch.Tensor, labels: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
    """The sum of the losses, and its gradient, which overwrites the logits: no second tensor of their size exists."""
    labels = labels.unsqueeze(1)
    logits -= logits.amax(1, keepdim=True)
    chosen = logits.gather(1, labels)
    total = logits.exp_().sum(1, keepdim=True)
    loss = (total.log() - chosen).sum()
    logits /= total
    return loss, logits.scatter_add_(1, labels, torch.full_like(chosen, -1))
