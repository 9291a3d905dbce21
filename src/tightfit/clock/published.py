"""Rates of cards, from their makers' tables. None of them was measured here.

A card reaches its published figures only in large products and long passes; the shares below are what trainings of
transformers usually come to.
"""

from __future__ import annotations

import re

from tightfit.cards import CARDS
from tightfit.clock.rates import Curve, Rates
from tightfit.device import Device
from tightfit.host import HOST_WORK, TRANSFER
from tightfit.rehearsal.work import HEADS, NARROW, OPERANDS, PRODUCT, THROUGH_MEMORY

_REACHED_PRODUCTS, _REACHED_MEMORY = 0.55, 0.75
_PCIE = 12e9  # bytes a second between a card and pinned memory, with 16 lanes of the third generation
_HOST = 10e9  # bytes a second that a host's processor goes through
_UNKNOWN = "there are no published rates of {} here, so times are those of {}, which has about as much memory"
_LAUNCH = 8e-6  # seconds: Python, autograd and the driver, for one kernel

# name: 10^12 operations a second in fp32, in fp16 with fp32 sums, 10^9 bytes a second of memory
_CARDS = {
    "GTX 1050 Ti": (2.1, 2.1, 112),
    "GTX 1650": (3.0, 6.0, 128),
    "GTX 1660": (5.0, 10.0, 192),
    "RTX 2060": (6.5, 26, 336),
    "RTX 2080 Ti": (13.4, 54, 616),
    "RTX 3050": (9.1, 18, 224),
    "RTX 3060": (12.7, 25, 360),
    "RTX 3070": (20.3, 41, 448),
    "RTX 3080": (29.8, 60, 760),
    "RTX 3090": (35.6, 71, 936),
    "RTX 4050": (9.0, 36, 192),
    "RTX 4060": (15.1, 60, 272),
    "RTX 4070": (29.1, 117, 504),
    "RTX 4080": (48.7, 195, 717),
    "RTX 4090": (82.6, 165, 1008),
    "T4": (8.1, 65, 320),
    "P100": (9.5, 19, 732),
    "V100": (15.7, 125, 900),
    "A10": (31.2, 125, 600),
    "L4": (30.3, 121, 300),
    "A100": (19.5, 312, 1555),
    "H100": (67, 990, 3350),
    "Apple": (3.6, 3.6, 100),
}


def rates_of_card(device: Device) -> Rates:
    """Of the card by its name; a card that is not listed is taken for one of about its memory's size."""
    listed = _name_in(device.title)
    name = listed or _nearest(device)
    fp32, fp16, memory = _CARDS[name]
    byte = 1 / (memory * 1e9 * _REACHED_MEMORY)
    curves: dict[str, Curve] = {sort: [(1.0, byte), (2.0, byte)] for sort in THROUGH_MEMORY}
    curves[OPERANDS] = [(1.0, 0.0)]  # read while the card multiplies
    for sort, speed in ((PRODUCT, fp32), (HEADS, fp32), (NARROW, fp16)):
        each = 1 / (speed * 1e12 * _REACHED_PRODUCTS)
        curves[sort] = [(1.0, each), (2.0, each)]
    # A copy counts its bytes three times: where they come from, where they go, and what it returns.
    for sort, speed in ((TRANSFER, 3 * _PCIE * _REACHED_MEMORY), (HOST_WORK, _HOST)):
        curves[sort] = [(1.0, 1 / speed), (2.0, 1 / speed)]
    note = None if listed else _UNKNOWN.format(device.title, name)
    return Rates(curves, _LAUNCH, {}, overlaps=True, note=note)


def _name_in(title: str) -> str | None:
    """The listed card that a title means, as a whole word: an A100 is no A10."""
    return next((name for name in _CARDS if re.search(rf"(?i)\b{re.escape(name)}\b", title)), None)


def _nearest(device: Device) -> str:
    """The slowest of the listed ones that come closest in memory."""
    named = [(card, name) for card in CARDS.values() if card.kind == device.kind and (name := _name_in(card.title))]
    return min(named, key=lambda pair: (abs((pair[0].memory or 0) - (device.memory or 0)), _CARDS[pair[1]]))[1]
