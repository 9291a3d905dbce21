"""What a machine has: its processor and memory, or its GPU, driver and build of torch; and why a GPU cannot be used."""

from __future__ import annotations

import os
import re
import warnings
from collections.abc import Iterator, Sequence
from typing import Any, NamedTuple

import psutil
import torch

from tightfit.device import Device, find_device
from tightfit.errors import BadInput, first_line
from tightfit.gpus import remember_gpu
from tightfit.messages import Message, clauses, listed, msg, verbatim
from tightfit.simulation.op_counts import ELEMENTWISE, MATMUL, MATMUL_16BIT
from tightfit.system.memory import cgroups, total_memory, ulimits, usable_memory
from tightfit.system.nvidia import driver_version, gpu_names, gpu_processes
from tightfit.system.processes import usable_cpus
from tightfit.timing.calibrate import cpu_rates, processor_name
from tightfit.timing.gpu_speed import measure_speed
from tightfit.units import format_bytes

_FLASH_CAPABILITY = 80
_DRIVERS = {12: "525", 13: "580"}
"""By CUDA's main version: the first driver that runs it."""


class Finding(NamedTuple):
    """One thing that was found."""

    key: str
    """Its name in doctor.json."""
    title: Message
    text: Message
    value: Any
    """For scripts."""


def examine(device: Device) -> Iterator[Finding]:
    """What is known of a device, its measured rates last."""
    if device.kind == "cuda":
        yield from _gpu(device)
    elif device.kind == "cpu":
        yield from _cpu(device)
    else:
        size = device.total_bytes or 0
        yield Finding("gpu", verbatim("GPU"), listed([device.label, format_bytes(size)]), size)


# The CPU


def _cpu(device: Device) -> Iterator[Finding]:
    name, cores, threads = processor_name(), usable_cpus(), torch.get_num_threads()
    yield Finding(
        "processor",
        msg("processor"),
        msg("{name}; {cores} cores, torch uses {threads}", name=name, cores=cores, threads=threads),
        {"name": name, "cores": cores, "all_cores": os.cpu_count(), "threads": threads},
    )
    yield _software(verbatim(torch.__version__), None)
    total, usable = total_memory(), usable_memory()
    size = msg("{usable} can be used of {total}", usable=format_bytes(usable), total=format_bytes(total))
    yield Finding("memory", msg("memory"), size, {"usable_bytes": usable, "total_bytes": total})
    yield _limits()
    yield _bf16_on_cpu(device)
    yield _cpu_speed()


def _limits() -> Finding:
    machine = psutil.virtual_memory().total
    groups = [group.limit for group in cgroups() if group.limit < machine]  # version 1 writes none as a huge number
    limits = [size for size, _ in ulimits()]
    sizes = [f"cgroup {format_bytes(min(groups))}"] if groups else []
    sizes += [f"ulimit {format_bytes(min(limits))}"] if limits else []
    value = {"cgroup_bytes": min(groups, default=None), "ulimit_bytes": min(limits, default=None)}
    return Finding("limits", msg("limits"), listed(sizes) if sizes else msg("none by cgroup or ulimit"), value)


def _bf16_on_cpu(device: Device) -> Finding:
    text = (
        msg("the processor multiplies bf16 matrices")
        if device.bf16_products
        else msg("no instructions for it: products are computed in fp32 and rounded, which is slow")
    )
    return Finding("bf16", verbatim("bf16"), text, device.bf16_products)


def _cpu_speed() -> Finding:
    rates = cpu_rates()
    speed = {
        "fp32_gflops": 1e-9 / rates.curves[MATMUL][-1][1],
        "bf16_gflops": 1e-9 / rates.curves[MATMUL_16BIT][-1][1],
        "bandwidth": 1e-9 / rates.curves[ELEMENTWISE][-1][1],
    }
    text = msg(
        "matmuls {fp32:.0f} GFLOP/s in fp32, {bf16:.0f} in bf16; memory {bandwidth:.1f} GB/s",
        fp32=speed["fp32_gflops"],
        bf16=speed["bf16_gflops"],
        bandwidth=speed["bandwidth"],
    )
    text = clauses(text, rates.warning) if rates.warning else text
    return Finding("speed", msg("speed"), text, {**_rounded(speed), "warning": rates.warning})


# A GPU


def _gpu(device: Device) -> Iterator[Finding]:
    driver = driver_version()
    yield Finding("driver", msg("driver"), verbatim(f"NVIDIA {driver}") if driver else _UNKNOWN, driver)
    yield _build()
    capability = f"{device.capability // 10}.{device.capability % 10}"
    supported = msg("{gpu}, compute capability {capability}: supported", gpu=device.label, capability=capability)
    about = {"name": device.label, "capability": capability, "multiprocessors": device.multiprocessors}
    yield Finding("gpu", verbatim("GPU"), supported, about)
    yield from _gpu_memory(device)
    has_bf16 = msg("yes") if device.bf16 else msg("no: use fp16, as mixed-precision does")
    yield Finding("bf16", verbatim("bf16"), has_bf16, device.bf16)
    flash = device.capability >= _FLASH_CAPABILITY and torch.backends.cuda.is_flash_attention_available()
    kernels = msg("flash attention") if flash else msg("memory-efficient attention; flash attention needs 8.0")
    yield Finding("flash_attention", msg("attention"), kernels, flash)
    yield _gpu_speed(device)


_UNKNOWN = msg("unknown: nvidia-smi does not answer")


def _build() -> Finding:
    cuda, hip = torch.version.cuda, torch.version.hip
    built_for = sorted({_dotted(name) for name in torch.cuda.get_arch_list()}, key=_number)
    kind = f"ROCm {hip}" if hip else f"CUDA {cuda}"
    text = msg(
        "{version} for {kind}, compute capability {built_for}",
        version=torch.__version__,
        kind=kind,
        built_for=built_for,
    )
    return _software(text, {"cuda": cuda, "rocm": hip, "built_for": built_for})


def _software(text: Message, build: dict[str, Any] | None) -> Finding:
    return Finding("torch", verbatim("torch"), text, {"version": torch.__version__, **(build or {})})


def _dotted(architecture: str) -> str:
    """`sm_90a` as 9.0; of other makers as it is."""
    found = re.fullmatch(r"(?:sm|compute)_(\d+)(\d)[a-z]?", architecture)
    return f"{found[1]}.{found[2]}" if found else architecture


def _number(capability: str) -> tuple[float, str]:
    return (float(capability), "") if re.fullmatch(r"[\d.]+", capability) else (0.0, capability)


def _gpu_memory(device: Device) -> Iterator[Finding]:
    free, total = torch.cuda.mem_get_info(device.name)
    yield Finding(
        "memory",
        msg("memory"),
        msg("{free} free of {total}", free=format_bytes(free), total=format_bytes(total)),
        {"free_bytes": free, "total_bytes": total},
    )
    used = total - free - torch.cuda.memory_reserved(device.name)
    processes = [process for process in gpu_processes(device.uuid) if process.pid != os.getpid()]
    held = [
        msg("{name} (process {pid}) {size}", name=each.name, pid=each.pid, size=format_bytes(each.size))
        for each in processes
        if each.size
    ]
    text = msg("{size} with the CUDA context of this process", size=format_bytes(used))
    value = {"used_bytes": used, "processes": [process.size for process in processes]}
    yield Finding("held_by", msg("held"), listed([text, *held]), value)


def _gpu_speed(device: Device) -> Finding:
    speed = measure_speed(device)
    remember_gpu(device.uuid, speed=speed)
    text = msg(
        "matmuls {fp32:.1f} TFLOP/s in fp32, {low:.1f} in 16 bits; memory {bandwidth:.0f} GB/s; "
        "from the host {transfer:.1f} GB/s; {launch:.1f} µs to launch a kernel",
        fp32=speed.fp32_tflops,
        low=speed.fp16_tflops,
        bandwidth=speed.bandwidth,
        transfer=speed.transfer,
        launch=1e6 * speed.launch_seconds,
    )
    return Finding("speed", msg("speed"), text, _rounded(speed._asdict()))


def _rounded(values: dict[str, float]) -> dict[str, float]:
    return {name: float(f"{value:.4g}") for name, value in values.items()}


# Why a GPU cannot be used


def gpu_problem() -> Message | None:
    """Why torch cannot use the NVIDIA GPU of this machine, with what to install; None if it can, or there is none."""
    if torch.version.hip or torch.backends.mps.is_available():
        return None
    if torch.version.cuda is None:
        names = gpu_names()
        return _cpu_build(names) if names else None
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # torch warns of what is said here
        try:
            torch.cuda.init()
            find_device("cuda")  # fails if torch has no kernels for it
        except BadInput as error:
            return error.message
        except (RuntimeError, AssertionError) as error:
            return _driver_problem(str(error), torch.version.cuda)
    return None


def _cpu_build(names: Sequence[str]) -> Message:
    return msg(
        "This torch ({version}) is built for CPUs only, and this machine has a {gpu}: install the build of torch for "
        "CUDA, as pytorch.org/get-started tells.",
        version=torch.__version__,
        gpu=names[0],
    )


def _driver_problem(reason: str, built_for: str) -> Message | None:
    found = re.search(r"found version (\d+)", reason)
    if found:
        return _old_driver(int(found[1]), built_for)
    if names := gpu_names():
        return msg("torch cannot use {gpu}: {reason}", gpu=names[0], reason=first_line(RuntimeError(reason)))
    return None  # no driver: the machine has no GPU, or none that is meant to be used


def _old_driver(found: int, built_for: str) -> Message:
    """CUDA's number of a version is 12040 for 12.4."""
    major = int(built_for.partition(".")[0])
    supported, needed = f"{found // 1000}.{found % 1000 // 10}", _DRIVERS.get(major, "")
    if found // 1000 < min(_DRIVERS):
        return msg(
            "The NVIDIA driver supports CUDA {supported}, and this torch is built for CUDA {built_for}: update the "
            "driver to {needed} or newer.",
            supported=supported,
            built_for=built_for,
            needed=needed,
        )
    return msg(
        "The NVIDIA driver supports CUDA {supported}, and this torch is built for CUDA {built_for}: update the driver "
        "to {needed} or newer, or install the build of torch for CUDA {older}.",
        supported=supported,
        built_for=built_for,
        needed=needed,
        older="12.6",
    )
