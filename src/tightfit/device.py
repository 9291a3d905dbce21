"""Devices and budgets: where training runs, and how much memory it may use."""

from __future__ import annotations

import re
from collections.abc import Iterable
from dataclasses import dataclass
from functools import cached_property

from tightfit.errors import BadInput, suggest
from tightfit.gpus import APPLE, CUDA_CONTEXT, GPU, NVIDIA
from tightfit.messages import Message, msg
from tightfit.units import format_bytes, parse_bytes

KINDS = ("cpu", "cuda", "mps")
_GIB = 1 << 30


@dataclass(frozen=True)
class Device:
    """The CPU, a GPU of this machine, or a GPU from the table that is only planned for."""

    name: str
    """As torch writes it: cpu, cuda:0, mps."""
    label: str
    """As messages and reports print it: RTX 3050 4GB."""
    bf16: bool
    fp16: bool
    total_bytes: int | None = None
    """The device's memory; None if unknown."""
    context_bytes: int = 0
    """What the CUDA context takes before any tensor is allocated."""
    capability: int = 0
    """CUDA compute capability, as 86 for 8.6."""
    host_bytes: int | None = None
    """Host memory beside a GPU; None for a GPU that is not in this machine."""

    @property
    def kind(self) -> str:
        """cpu, cuda or mps."""
        return self.name.partition(":")[0]


def find_device(name: str | None = None) -> Device:
    """A device of this machine by name; without one, the GPU if there is one, else the CPU."""
    import torch

    name = name or ("cuda" if torch.cuda.is_available() else "cpu")
    kind, _, index = name.partition(":")
    if kind not in KINDS or (index and not index.isdigit()):
        raise BadInput(_unknown_device(name))
    if kind == "cuda":
        return _cuda(int(index or 0))
    if kind == "mps":
        return _mps()
    return _cpu()


def find_device_or_gpu(name: str | None = None) -> Device:
    """A device of this machine, or a GPU from the table that need not be here: for estimates, not for training."""
    if name is not None and (gpu := find_gpu(name)):
        return gpu
    if name is None or name.partition(":")[0] in KINDS:
        return find_device(name)
    raise BadInput(_no_device(name, [*KINDS, *GPUS]))


def _unknown_device(name: str) -> Message:
    if gpu := find_gpu(name):
        return msg(
            "'{gpu}' is for estimates only; training runs on this machine: use --device cuda or cpu.", gpu=gpu.label
        )
    return _no_device(name, KINDS)


def _no_device(name: str, known: Iterable[str]) -> Message:
    return msg("There is no device '{name}': {suggestion}", name=name, suggestion=suggest(name, known))


def _cpu() -> Device:
    import psutil

    # torch computes bf16 on every CPU; fp16 needs gradient scaling, which is for GPUs only.
    return Device("cpu", msg("this machine's CPU"), bf16=True, fp16=False, total_bytes=psutil.virtual_memory().total)


def _mps() -> Device:
    import torch

    if not torch.backends.mps.is_available():
        raise BadInput(msg("torch finds no Apple GPU: use --device cpu."))
    return Device("mps", "Apple GPU", bf16=True, fp16=True, total_bytes=torch.mps.recommended_max_memory())


def _cuda(index: int) -> Device:
    import psutil
    import torch

    count = torch.cuda.device_count()
    if index >= count:
        found = msg("{count} CUDA GPU(s)", count=count) if count else msg("no CUDA GPU")
        raise BadInput(
            msg(
                "torch finds {found}, so 'cuda:{index}' cannot be used: use --device cpu, or install torch with CUDA.",
                found=found,
                index=index,
            )
        )
    if index:
        raise BadInput(
            msg(
                "'cuda:{index}' cannot be used, as transformers trains on the first visible GPU: "
                "set CUDA_VISIBLE_DEVICES={index} and use --device cuda.",
                index=index,
            )
        )
    properties = torch.cuda.get_device_properties(index)
    return Device(
        f"cuda:{index}",
        properties.name,
        bf16=torch.cuda.is_bf16_supported(including_emulation=False),
        fp16=True,
        total_bytes=properties.total_memory,
        context_bytes=CUDA_CONTEXT,
        capability=10 * properties.major + properties.minor,
        host_bytes=psutil.virtual_memory().total,
    )


# GPUs from the table


def _nvidia(gpu: GPU) -> Device:
    return Device(
        "cuda",
        gpu.name,
        bf16=gpu.capability >= 80,
        fp16=True,
        total_bytes=int(gpu.gib * _GIB),
        context_bytes=CUDA_CONTEXT,
        capability=gpu.capability,
    )


def _apple(gpu: GPU) -> Device:
    """Metal allows one process two thirds of a small Mac's memory and three quarters of a large one's."""
    share = 2 / 3 if gpu.gib <= 36 else 3 / 4
    return Device("mps", gpu.name, bf16=True, fp16=True, total_bytes=int(gpu.gib * share * _GIB))


GPUS = {gpu.label: gpu for gpu in [*map(_nvidia, NVIDIA), *map(_apple, APPLE)]}


def find_gpu(name: str) -> Device | None:
    """The GPU called `RTX 3050 4GB`, `rtx3050`, `3050` or `Tesla T4`; without a size, the smallest of that name."""
    wanted = _normalize(name)
    for label, gpu in GPUS.items():
        names = (_normalize(label), _normalize(label.rpartition(" ")[0]))
        if wanted in names or wanted in (re.sub(r"^(rtx|gtx)", "", known) for known in names):
            return gpu
    return None


def _normalize(name: str) -> str:
    return re.sub(r"nvidia|geforce|tesla|gib$|gb$|[^a-z0-9]", "", name.lower())


# Budgets


@dataclass(frozen=True)
class Budget:
    """Bytes on a device: of the whole process on a CPU, of torch and the CUDA context on a GPU."""

    size: int
    device: Device

    @classmethod
    def of(cls, size: str | int | None = None, device: Device | str | None = None) -> Budget:
        """Parse a size such as "4GB"; without one, the budget is the device's available memory."""
        where = device if isinstance(device, Device) else find_device_or_gpu(device)
        if size is None:
            return cls(_available(where), where)
        return cls(parse_bytes(size) if isinstance(size, str) else size, where)

    @cached_property
    def warning(self) -> Message | None:
        """A warning if the budget is larger than the device's memory."""
        total = self.device.total_bytes
        if total is None or self.size <= total:
            return None
        return msg(
            "the budget of {budget} is more than {device} has ({total}): a plan may fit the budget but not the device",
            budget=format_bytes(self.size),
            device=self.device.label,
            total=format_bytes(total),
        )

    @property
    def title(self) -> Message:
        """Its size and device, for messages."""
        return msg("{size} on {device}", size=format_bytes(self.size), device=self.device.label)

    def __str__(self) -> str:
        return self.title


def _available(device: Device) -> int:
    """All of a GPU's memory; on the CPU, what other processes leave free."""
    if device.kind != "cpu":
        return device.total_bytes or 0
    import psutil

    return int(psutil.virtual_memory().available)
