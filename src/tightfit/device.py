"""Devices and budgets: where training runs, and how much memory it may use."""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property

from tightfit.compat import has_avx512_bf16
from tightfit.errors import BadInput, closest_name, suggest
from tightfit.gpus import CUDA_CONTEXT, GPU, TYPICAL_MULTIPROCESSORS, find_gpus, gpu_table, measured_gpu, usable
from tightfit.messages import Message, msg
from tightfit.system.memory import total_memory, usable_memory
from tightfit.system.processes import run_in_fork
from tightfit.units import format_bytes, parse_bytes

KINDS = ("cpu", "cuda", "mps")
_HABITS = {"gpu": "cuda", "nvidia": "cuda", "rocm": "cuda", "amd": "cuda", "metal": "mps", "apple": "mps"}
"""What people call a device, and its name in torch."""
_OTHERS = ("xpu", "intel", "npu", "hpu", "mlu", "xla", "tpu", "directml")


@dataclass(frozen=True)
class Device:
    """The CPU, a GPU of this machine, or one that is only planned for: from the table, or any of a given size."""

    name: str
    """As torch writes it: cpu, cuda:0, mps."""
    label: str
    """As messages and reports print it: RTX 3050 4GB."""
    bf16: bool
    fp16: bool
    bf16_products: bool = True
    """Whether it multiplies bf16 matrices as they are; a CPU without such instructions does so in fp32, and rounds."""
    total_bytes: int | None = None
    """The device's memory; None if unknown."""
    context_bytes: int = 0
    """What the CUDA context takes, outside of torch's allocator, with the kernels that a training loads."""
    capability: int = 0
    """CUDA compute capability, as 86 for 8.6."""
    multiprocessors: int = 0
    """Of a CUDA GPU: some kernels take buffers for each."""
    uuid: str = ""
    """Of a GPU in this machine: what was measured on it is known by that."""
    maker: str = "NVIDIA"
    """Of a GPU: torch calls those by AMD cuda, too."""
    host_bytes: int | None = None
    """Host memory beside a GPU; None for a GPU that is not in this machine."""

    @property
    def is_here(self) -> bool:
        """Whether it is in this machine, as far as its free memory is known."""
        return self.kind == "cpu" or self.host_bytes is not None

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
    """A device of this machine, or a GPU that need not be here: for estimates, not for training."""
    if name is not None and (gpu := find_gpu(name)):
        return gpu
    if name is None or name.partition(":")[0] in KINDS:
        return find_device(name)
    raise BadInput(_no_gpu(name))


def _unknown_device(name: str) -> Message:
    gpu = find_gpu(name)
    if gpu is None and name.partition(":")[0].lower() in _OTHERS:
        return _unsupported(name)
    if gpu is None:
        return msg("There is no device '{name}': {suggestion}", name=name, suggestion=suggest(_meant(name), KINDS))
    if _ANY_GPU.fullmatch(name):
        return msg(
            "'--device {size}' is for estimates only; training runs on this machine: use --device cuda or cpu, "
            "and --budget {size} to limit it.",
            size=gpu.label.rpartition(" ")[2],
        )
    return msg("'{gpu}' is for estimates only; training runs on this machine: use --device cuda or cpu.", gpu=gpu.label)


def _unsupported(name: str) -> Message:
    return msg(
        "Training on '{name}' is not supported: use --device cpu, cuda for a GPU by NVIDIA or AMD, or mps for Apple's.",
        name=name,
    )


def _no_gpu(name: str) -> Message:
    if name.partition(":")[0].lower() in _OTHERS:
        return _unsupported(name)
    near = closest_name(_meant(name), [*KINDS, *GPUS])
    if near is None:
        return msg(
            "There is no device '{name}': use cpu, cuda, a GPU such as 'RTX 3060 12GB', or its memory: --device 6GB.",
            name=name,
        )
    return msg(
        "There is no device '{name}': did you mean '{near}'? For a GPU that is not listed, give its memory: "
        "--device 6GB.",
        name=name,
        near=near,
    )


def _meant(name: str) -> str:
    """The name in torch of what people call a device: `gpu`, `GPU:0`, `nvidia`."""
    return _HABITS.get(re.sub(r"[^a-z]+[0-9]*$", "", name.lower()), name)


def _cpu() -> Device:
    import torch

    return Device(
        "cpu",
        msg("this machine's CPU"),
        bf16=True,  # torch computes bf16 on every CPU
        fp16=False,  # needs gradient scaling, which is for GPUs only
        bf16_products="SVE" in torch.backends.cpu.get_cpu_capability() or has_avx512_bf16(),
        total_bytes=total_memory(),
    )


def _mps() -> Device:
    import torch

    if not torch.backends.mps.is_available():
        raise BadInput(msg("torch finds no Apple GPU: use --device cpu."))
    has_bf16 = torch.backends.mps.is_macos_or_newer(14, 0)
    size = torch.mps.recommended_max_memory()
    return Device("mps", "Apple GPU", bf16=has_bf16, fp16=True, total_bytes=size, maker="Apple")


def _cuda(index: int) -> Device:
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
    capability = 10 * properties.major + properties.minor
    if not has_kernels_for(capability, torch.cuda.get_arch_list()):
        raise BadInput(_no_kernels(properties.name, capability, torch.cuda.get_arch_list()))
    uuid = str(getattr(properties, "uuid", ""))  # AMD's GPUs have none
    return Device(
        f"cuda:{index}",
        properties.name,
        bf16=torch.cuda.is_bf16_supported(including_emulation=False),
        fp16=True,
        total_bytes=properties.total_memory,
        context_bytes=measured_gpu(uuid).context or CUDA_CONTEXT,
        capability=capability,
        multiprocessors=properties.multi_processor_count,
        uuid=uuid,
        maker="AMD" if torch.version.hip else "NVIDIA",
        host_bytes=total_memory(),
    )


def has_kernels_for(capability: int, built_for: Sequence[str]) -> bool:
    """Whether a build of torch has kernels for a GPU: machine code of its generation, or code to compile for it."""
    versions = [(kind, int(number)) for kind, number in map(_architecture, built_for) if number]
    if not versions:  # nothing is known, or the GPU is not by NVIDIA
        return True
    return any(
        version <= capability and (kind == "compute" or version // 10 == capability // 10) for kind, version in versions
    )


def _architecture(name: str) -> tuple[str, str]:
    """`sm_90a` as ("sm", "90")."""
    kind, _, number = name.partition("_")
    return kind, re.sub(r"\D", "", number)


def _no_kernels(gpu: str, capability: int, built_for: Sequence[str]) -> Message:
    oldest = min(int(number) for _, number in map(_architecture, built_for))
    advice = msg("a build for CUDA 12.6, which still supports it") if capability < oldest else msg("a newer version")
    return msg(
        "This build of torch has no kernels for {gpu} (compute capability {capability}; it was built for {built_for}): "
        "install {advice}, or use --device cpu.",
        gpu=gpu,
        capability=_dotted(capability),
        built_for=", ".join(_dotted(int(number)) for _, number in map(_architecture, built_for)),
        advice=advice,
    )


def _dotted(capability: int) -> str:
    return f"{capability // 10}.{capability % 10}"


# GPUs that need not be here: those of the table, and any of a given size.


def _from_table(gpu: GPU) -> Device:
    return Device(
        "cuda",
        gpu.label,
        bf16=gpu.capability >= 80,
        fp16=True,
        total_bytes=gpu.memory,
        context_bytes=CUDA_CONTEXT,
        capability=gpu.capability,
        multiprocessors=gpu.multiprocessors,
    )


GPUS = {gpu.label: _from_table(gpu) for gpu in gpu_table()}
_ANY_GPU = re.compile(r"\s*(?:(apple|mac)|gpu)?\s*(\d+(?:\.\d+)?)\s*gi?b\s*(?:gpu)?\s*", re.IGNORECASE)
_TURING = 75


def any_gpu(total_bytes: int | None, label: str) -> Device:
    """An NVIDIA GPU of which only the memory is known; what Turing and later have is assumed."""
    return Device(
        "cuda",
        label,
        bf16=False,
        fp16=True,
        total_bytes=total_bytes,
        context_bytes=CUDA_CONTEXT,
        capability=_TURING,
        multiprocessors=TYPICAL_MULTIPROCESSORS,
    )


def _apple(gb: float) -> Device:
    """Metal allows one process two thirds of a small Mac's memory and three quarters of a large one's."""
    share = 2 / 3 if gb <= 36 else 3 / 4
    return Device(
        "mps", f"Apple {gb:g}GB", bf16=True, fp16=True, total_bytes=int(gb * share * (1 << 30)), maker="Apple"
    )


def find_gpu(name: str) -> Device | None:
    """The GPU called `RTX 3050 4GB`, `rtx3060 laptop` or `Tesla T4`, or any of `6GB`; BadInput if it may be several."""
    if match := _ANY_GPU.fullmatch(name):
        gb = float(match[2])
        return _apple(gb) if match[1] else any_gpu(usable(gb), f"GPU {gb:g}GB")
    gpus = find_gpus(name)
    if len(gpus) > 1:
        raise BadInput(_ambiguous(name, gpus))
    return GPUS[gpus[0].label] if gpus else None


def _ambiguous(name: str, gpus: Sequence[GPU]) -> Message:
    return msg(
        "'{name}' may be one of several GPUs: choose from {gpus}.", name=name, gpus=[f"'{gpu.label}'" for gpu in gpus]
    )


# Budgets


AUTO, NONE = "auto", "none"
"""Words for a budget: what the device has free now, and no limit."""


@dataclass(frozen=True)
class Budget:
    """Bytes on a device: of the whole process on a CPU, of torch and the CUDA context on a GPU."""

    size: int
    device: Device
    is_auto: bool = False
    """Whether it is what the device has free, and not a size that was given."""

    @classmethod
    def of(cls, size: str | int | None = None, device: Device | str | None = None) -> Budget:
        """Parse a size such as "4GB"; without one, or with "auto", it is what the device has free now."""
        where = device if isinstance(device, Device) else find_device_or_gpu(device)
        if size is None or size == AUTO:
            return cls(_usable(where), where, is_auto=True)
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
        if self.is_auto and self.device.is_here:
            return msg("{size} free on {device}", size=format_bytes(self.size), device=self.device.label)
        return msg("{size} on {device}", size=format_bytes(self.size), device=self.device.label)

    def __str__(self) -> str:
        return self.title


def _usable(device: Device) -> int:
    """What this process may take of the device's memory; all of it where that is unknown, as for a GPU elsewhere."""
    if device.kind == "cpu":
        return usable_memory()
    if device.is_here:
        return run_in_fork(_usable_cuda, device)  # in a fork, as asking creates a CUDA context
    return device.total_bytes or 0


def _usable_cuda(device: Device) -> int:
    """The context that this call has created is not free, but it is part of the budget."""
    import torch

    free, total = torch.cuda.mem_get_info(device.name)
    return int(min(total, free + device.context_bytes + torch.cuda.memory_reserved(device.name)))
