"""Device: where the training runs, or would run, and what it can do."""

from __future__ import annotations

import re
from dataclasses import dataclass
from functools import cached_property

from tightfit.errors import BadInput, suggest
from tightfit.gpus import APPLE, CUDA_CONTEXT, GPU, NVIDIA
from tightfit.units import format_bytes, parse_bytes

KINDS = ("cpu", "cuda", "mps")
_GIB = 1 << 30


@dataclass(frozen=True)
class Device:
    """This machine's processor, one of its cards, or a card that is only planned for."""

    name: str
    """As torch writes it: cpu, cuda:0, mps."""
    title: str
    """As a person would say it."""
    bf16: bool
    fp16: bool
    memory: int | None = None
    """Bytes there are; None if unknown."""
    context: int = 0
    """Bytes a card's driver takes before any tensor."""
    compute: int = 0
    """A CUDA card's compute capability, as 86 for 8.6."""
    host_memory: int | None = None
    """Bytes of the machine around a card; None for a card that is only planned for."""

    @property
    def kind(self) -> str:
        """cpu, cuda or mps."""
        return self.name.partition(":")[0]


def find_device(word: str | None = None) -> Device:
    """The device of this machine that a user named, or the best one here."""
    import torch

    word = word or ("cuda" if torch.cuda.is_available() else "cpu")
    kind, _, index = word.partition(":")
    if kind not in KINDS or (index and not index.isdigit()):
        raise BadInput(_no_such_device(word))
    if kind == "cuda":
        return _cuda(int(index or 0))
    if kind == "mps":
        return _mps()
    return _cpu()


def find_device_or_gpu(word: str | None = None) -> Device:
    """A device of this machine, or a card by its name that need not be here: for rehearsing, not for training."""
    if word is not None and (card := find_gpu(word)):
        return card
    if word is None or word.partition(":")[0] in KINDS:
        return find_device(word)
    raise BadInput(f"There is no device '{word}': {suggest(word, [*KINDS, *GPUS])}")


def _no_such_device(word: str) -> str:
    if card := find_gpu(word):
        return f"'{card.title}' can be rehearsed for; training runs on this machine: use --device cuda or cpu."
    return f"There is no device '{word}': {suggest(word, KINDS)}"


def _cpu() -> Device:
    import psutil

    # torch computes bf16 on every CPU; fp16 needs a gradient scaler that exists for cards only.
    return Device("cpu", "this machine's CPU", bf16=True, fp16=False, memory=psutil.virtual_memory().total)


def _mps() -> Device:
    import torch

    if not torch.backends.mps.is_available():
        raise BadInput("torch sees no Apple GPU here: use --device cpu.")
    return Device("mps", "Apple GPU", bf16=True, fp16=True, memory=torch.mps.recommended_max_memory())


def _cuda(index: int) -> Device:
    import psutil
    import torch

    count = torch.cuda.device_count()
    if index >= count:
        seen = f"torch sees {count} card(s)" if count else "torch sees no CUDA card"
        raise BadInput(f"{seen} here, so 'cuda:{index}' cannot be used: use --device cpu, or install torch with CUDA.")
    if index:
        raise BadInput(
            f"Set CUDA_VISIBLE_DEVICES={index} and use --device cuda: transformers trains on the first card."
        )
    about = torch.cuda.get_device_properties(index)
    return Device(
        f"cuda:{index}",
        about.name,
        bf16=torch.cuda.is_bf16_supported(including_emulation=False),
        fp16=True,
        memory=about.total_memory,
        context=CUDA_CONTEXT,
        compute=10 * about.major + about.minor,
        host_memory=psutil.virtual_memory().total,
    )


# GPUs of the table, as devices.


def _nvidia(gpu: GPU) -> Device:
    memory = int(gpu.gib * _GIB)
    bf16 = gpu.capability >= 80
    return Device("cuda", gpu.title, bf16=bf16, fp16=True, memory=memory, context=CUDA_CONTEXT, compute=gpu.capability)


def _apple(gpu: GPU) -> Device:
    """Metal lets one process have two thirds of a small Mac's memory, three quarters of a large one's."""
    share = 2 / 3 if gpu.gib <= 36 else 3 / 4
    return Device("mps", gpu.title, bf16=True, fp16=True, memory=int(gpu.gib * share * _GIB))


GPUS = {card.title: card for card in [*map(_nvidia, NVIDIA), *map(_apple, APPLE)]}


def find_gpu(word: str) -> Device | None:
    """The card a person means by `RTX 3050 4GB`, `rtx3050` or `Tesla T4`; of several sizes the smallest."""
    wanted = _plain(word)
    for title, card in GPUS.items():
        names = (_plain(title), _plain(title.rpartition(" ")[0]))
        # People say `3050 4GB` and mean the RTX.
        if wanted in names or wanted in (re.sub(r"^(rtx|gtx)", "", name) for name in names):
            return card
    return None


def _plain(name: str) -> str:
    return re.sub(r"nvidia|geforce|tesla|gib$|gb$|[^a-z0-9]", "", name.lower())


# Budget: how much memory a training may take, and on what device.


@dataclass(frozen=True)
class Budget:
    """Bytes on a device. On a CPU they are the whole process's, on a card those of torch and its context."""

    size: int
    device: Device

    @classmethod
    def of(cls, size: str | int | None = None, device: Device | str | None = None) -> Budget:
        """Read "4GB"; without a size it is what the device has."""
        where = device if isinstance(device, Device) else find_device_or_gpu(device)
        if size is None:
            return cls(_all_of(where), where)
        return cls(parse_bytes(size) if isinstance(size, str) else size, where)

    @cached_property
    def note(self) -> str | None:
        """What is odd about it."""
        there = self.device.memory
        if there is None or self.size <= there:
            return None
        return (
            f"the budget of {format_bytes(self.size)} is more than {self.device.title} has "
            f"({format_bytes(there)}): such a plan may fit the budget and not the device"
        )

    def __str__(self) -> str:
        return f"{format_bytes(self.size)} on {self.device.title}"


def _all_of(device: Device) -> int:
    """On a card all of it; on this machine what nobody else uses."""
    if device.kind != "cpu":
        return device.memory or 0
    import psutil

    return int(psutil.virtual_memory().available)
