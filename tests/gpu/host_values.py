"""Values that Python reads from the GPU, computed on the host: on a fake GPU no kernel has computed them."""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterator
from typing import Any
from unittest import mock

import torch
from transformers import masking_utils

from tightfit.engine import micro_batch_loss
from tightfit.ops import chunked_layer


@contextlib.contextmanager
def host_values() -> Iterator[None]:
    """Inside, models know the padding of a micro-batch, and gradient scalers find that gradients are finite."""
    with _padding_known(), mock.patch.object(torch.amp.GradScaler, "_maybe_opt_step", _step):
        yield


def _step(scaler: Any, optimizer: torch.optim.Optimizer, state: Any, *args: Any, **kwargs: Any) -> Any:
    return optimizer.step(*args, **kwargs)


@contextlib.contextmanager
def _padding_known() -> Iterator[None]:
    """Layers are cut by the lengths of rows, and transformers leaves out the mask of a batch without padding.

    A batch whose mask is not known here has padding.
    """
    cut, lengths, known = micro_batch_loss.micro_batches, chunked_layer._lengths, {}

    def noted(batch: Any, *args: Any, **kwargs: Any) -> Iterator[tuple[list[int], Any]]:
        host = batch["attention_mask"].cpu()
        for chosen, part in cut(batch, *args, **kwargs):
            known["mask"] = host[chosen][:, : part["attention_mask"].shape[1]]
            yield chosen, part
        known.clear()

    def reading_host(check: Callable[..., Any]) -> Callable[..., Any]:
        def ignores(padding_mask: torch.Tensor | None, *args: Any, **kwargs: Any) -> bool:
            if padding_mask is not None:
                mask = known.get("mask", torch.zeros(()))
                padding_mask = mask.bool() if mask.shape == padding_mask.shape else torch.zeros(padding_mask.shape)
            return bool(check(padding_mask, *args, **kwargs))

        return ignores

    def host_lengths(mask: torch.Tensor | None) -> list[int] | None:
        return lengths(known.get("mask", mask) if isinstance(mask, torch.Tensor) and mask.is_cuda else mask)

    with contextlib.ExitStack() as patches:
        patches.enter_context(mock.patch.object(micro_batch_loss, "micro_batches", noted))
        patches.enter_context(mock.patch.object(chunked_layer, "_lengths", host_lengths))
        for name in ("_ignore_causal_mask_sdpa", "_ignore_bidirectional_mask_sdpa"):
            patch = mock.patch.object(masking_utils, name, reading_host(getattr(masking_utils, name)))
            patches.enter_context(patch)
        yield
