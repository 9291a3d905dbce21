"""Cards: what is known of common graphics cards, so that a training can be planned for one that is not here.

Memory is what torch reports as the card's total, which is a little less than the box says. The context is what
the driver and the loaded kernels take before any tensor: 0.3 to 0.6 GiB since CUDA 11.7 loads kernels lazily.
"""

from __future__ import annotations

import re

from tightfit.device import Device

_GIB, _MIB = 1 << 30, 1 << 20
CUDA_CONTEXT = 512 * _MIB

# name, GiB that torch sees, compute capability
_NVIDIA = [
    ("GTX 1050 Ti 4GB", 3.94, 61),
    ("GTX 1650 4GB", 3.81, 75),
    ("GTX 1660 6GB", 5.79, 75),
    ("RTX 2060 6GB", 5.79, 75),
    ("RTX 2080 Ti 11GB", 10.75, 75),
    ("RTX 3050 4GB", 3.81, 86),
    ("RTX 3050 6GB", 5.79, 86),
    ("RTX 3050 8GB", 7.79, 86),
    ("RTX 3060 12GB", 11.76, 86),
    ("RTX 3070 8GB", 7.79, 86),
    ("RTX 3080 10GB", 9.77, 86),
    ("RTX 3090 24GB", 23.69, 86),
    ("RTX 4050 6GB", 5.64, 89),
    ("RTX 4060 8GB", 7.63, 89),
    ("RTX 4070 12GB", 11.72, 89),
    ("RTX 4080 16GB", 15.70, 89),
    ("RTX 4090 24GB", 23.64, 89),
    ("T4 16GB", 14.75, 75),
    ("P100 16GB", 15.90, 60),
    ("V100 16GB", 15.77, 70),
    ("V100 32GB", 31.74, 70),
    ("A10 24GB", 22.19, 86),
    ("L4 24GB", 22.03, 89),
    ("A100 40GB", 39.39, 80),
    ("A100 80GB", 79.15, 80),
    ("H100 80GB", 79.10, 90),
]
_APPLE_GB = (8, 16, 24, 32, 64)


def _nvidia(name: str, gib: float, compute: int) -> Device:
    memory = int(gib * _GIB)
    return Device("cuda", name, bf16=compute >= 80, fp16=True, memory=memory, context=CUDA_CONTEXT, compute=compute)


def _apple(gigabytes: int) -> Device:
    """Metal lets one process have two thirds of a small Mac's memory, three quarters of a large one's."""
    share = 2 / 3 if gigabytes <= 36 else 3 / 4
    return Device("mps", f"Apple {gigabytes}GB", bf16=True, fp16=True, memory=int(gigabytes * share * _GIB))


CARDS = {card.title: card for card in [*(_nvidia(*row) for row in _NVIDIA), *(_apple(size) for size in _APPLE_GB)]}


def find_card(word: str) -> Device | None:
    """The card a person means by `RTX 3050 4GB`, `rtx3050` or `Tesla T4`; of several sizes the smallest."""
    wanted = _plain(word)
    for title, card in CARDS.items():
        names = (_plain(title), _plain(title.rpartition(" ")[0]))
        # People say `3050 4GB` and mean the RTX.
        if wanted in names or wanted in (re.sub(r"^(rtx|gtx)", "", name) for name in names):
            return card
    return None


def _plain(name: str) -> str:
    return re.sub(r"nvidia|geforce|tesla|gib$|gb$|[^a-z0-9]", "", name.lower())
