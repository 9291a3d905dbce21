"""Products of matrices: measured with weights that no cache holds, and told by what they compute and what they read."""

from __future__ import annotations

import itertools
import statistics
from collections.abc import Sequence
from dataclasses import replace

import numpy as np
import torch

from tightfit.clock.quiet import net, quickest
from tightfit.clock.rates import Curve, Rates
from tightfit.rehearsal.work import OPERANDS, PRODUCT

# Tokens, and a matrix of weights; as many operations of few tokens as of many: these read more.
_SHAPES = ((32, 384, 384), (128, 768, 768), (512, 768, 768), (128, 768, 3072), (256, 1024, 4096), (1024, 768, 3072))
_COLD = 48 << 20  # bytes of weights that no cache holds, as those of the next layer
NUMBER = 0.5  # in every tensor: drawing them would take longer than the work


def measure_products(call: float) -> Curve:
    return _products(_SHAPES, torch.float32, call)


def narrow_products(call: float) -> Curve:
    """Of numbers of 16 bits: slow, and seldom asked for."""
    return _products(_SHAPES[:1], torch.bfloat16, call)


def with_operands(rates: Rates) -> Rates:
    """Products told by two prices that foretell all of them best: of an operation, and of a byte read or written."""
    flops, prices = np.array(rates.curves[PRODUCT]).T
    touched = [4.0 * (tokens * inner + inner * outer + tokens * outer) for tokens, inner, outer in _SHAPES]
    shares = np.array([flops, touched]).T / (flops * prices)[:, None]
    operation, byte = np.linalg.lstsq(shares, np.ones(len(flops)))[0]
    if operation <= 0 or byte < 0:  # the machine's mood has changed between them
        operation, byte = float(np.median(prices)), 0.0
    told: dict[str, Curve] = {PRODUCT: [(1.0, float(operation))], OPERANDS: [(1.0, float(byte))]}
    return replace(rates, curves={**rates.curves, **told})


def _products(shapes: Sequence[tuple[int, int, int]], dtype: torch.dtype, call: float) -> Curve:
    """Seconds for an operation, with other weights each time: a layer's own are in no cache when its turn comes."""
    weights = torch.full((_COLD // dtype.itemsize,), NUMBER, dtype=dtype)
    return [_product(shape, weights, call) for shape in shapes]


def _product(shape: tuple[int, int, int], weights: torch.Tensor, call: float) -> tuple[float, float]:
    """Forward and back."""
    tokens, inner, outer = shape
    left, right = (torch.full((tokens, width), NUMBER, dtype=weights.dtype) for width in (inner, outer))
    whole = weights.numel() // (inner * outer)
    turn = itertools.cycle(weights[: whole * inner * outer].view(whole, outer, inner))
    seconds = [
        quickest(lambda: torch.mm(left, next(turn).T, out=right)),
        quickest(lambda: torch.mm(right, next(turn), out=left)),
    ]
    flops = 2.0 * tokens * inner * outer
    return flops, net(statistics.mean(seconds), call) / flops
