"""The speed of a GPU, measured: matmuls, memory, transfers from the host, and the launch of a kernel."""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import Any

import torch

from tightfit.activity import MEASURING, activity
from tightfit.device import Device
from tightfit.gpus import MeasuredSpeed

_TOKENS, _INNER, _OUTER = 2048, 1024, 4096  # of a matmul in a large layer
_BYTES = 128 << 20  # of a tensor that no cache holds
_LAUNCHES = 1000
_SECONDS = 0.5  # of each measurement
_MAX_RUNS = 200


def measure_speed(device: Device) -> MeasuredSpeed:
    """Rates of operations of the size that training has, in some seconds."""
    with activity(MEASURING):
        return _measure(device)


def _measure(device: Device) -> MeasuredSpeed:
    at, low = device.name, torch.bfloat16 if device.bf16 else torch.float16
    tensor = torch.zeros(_BYTES // 4, device=at)
    host = torch.zeros(_BYTES, dtype=torch.uint8, pin_memory=device.kind == "cuda")
    on_gpu, one = torch.empty_like(host, device=at), torch.zeros(1, device=at)
    return MeasuredSpeed(
        fp32_tflops=_tflops(at, torch.float32),
        fp16_tflops=_tflops(at, low),
        bandwidth=2e-9 * _BYTES / _seconds(at, lambda: tensor.add_(1)),
        transfer=1e-9 * _BYTES / _seconds(at, lambda: on_gpu.copy_(host, non_blocking=True)),
        launch_seconds=_seconds(at, lambda: [one.add_(1) for _ in range(_LAUNCHES)]) / _LAUNCHES,
    )


def _tflops(device: str, dtype: torch.dtype) -> float:
    left = torch.zeros(_TOKENS, _INNER, dtype=dtype, device=device)
    right = torch.zeros(_INNER, _OUTER, dtype=dtype, device=device)
    out = torch.empty(_TOKENS, _OUTER, dtype=dtype, device=device)
    return 2e-12 * _TOKENS * _INNER * _OUTER / _seconds(device, lambda: torch.mm(left, right, out=out))


def _seconds(device: str, run: Callable[[], Any]) -> float:
    """Mean seconds of a run, among as many as take half a second together."""
    one = _time(device, run, 1)  # loads the kernel
    one = _time(device, run, 3)
    runs = max(3, min(_MAX_RUNS, int(_SECONDS / max(one, 1e-6))))
    return _time(device, run, runs)


def _time(device: str, run: Callable[[], Any], runs: int) -> float:
    accelerator = torch.device(device).type != "cpu"
    start = time.perf_counter()
    for _ in range(runs):
        run()
    if accelerator:
        torch.accelerator.synchronize(device)
    return (time.perf_counter() - start) / runs
