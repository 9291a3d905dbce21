"""GPUs: memory and speed of common models, to plan for one that is not in this machine.

Memory is what torch reports as the GPU's total, a little less than advertised. Speeds are from the vendors' data
sheets; none of them was measured here.
"""

from __future__ import annotations

import re
from typing import NamedTuple

CUDA_CONTEXT = 512 << 20
"""Bytes of the CUDA context and the loaded kernels: 0.3 to 0.6 GiB since CUDA 11.7 loads kernels lazily."""


class GPU(NamedTuple):
    """One row of the table: a GPU model."""

    name: str
    gib: float
    """Memory that torch reports."""
    capability: int
    """CUDA compute capability, as 86 for 8.6."""
    fp32_tflops: float
    fp16_tflops: float
    """With fp32 accumulation."""
    bandwidth: float
    """Memory bandwidth in 10^9 bytes per second."""

    @property
    def family(self) -> str:
        """The name without the memory size."""
        return self.name.rpartition(" ")[0]


NVIDIA = (
    GPU("GTX 1050 Ti 4GB", 3.94, 61, 2.1, 2.1, 112),
    GPU("GTX 1650 4GB", 3.81, 75, 3.0, 6.0, 128),
    GPU("GTX 1660 6GB", 5.79, 75, 5.0, 10.0, 192),
    GPU("RTX 2060 6GB", 5.79, 75, 6.5, 26, 336),
    GPU("RTX 2080 Ti 11GB", 10.75, 75, 13.4, 54, 616),
    GPU("RTX 3050 4GB", 3.81, 86, 9.1, 18, 224),
    GPU("RTX 3050 6GB", 5.79, 86, 9.1, 18, 224),
    GPU("RTX 3050 8GB", 7.79, 86, 9.1, 18, 224),
    GPU("RTX 3060 12GB", 11.76, 86, 12.7, 25, 360),
    GPU("RTX 3070 8GB", 7.79, 86, 20.3, 41, 448),
    GPU("RTX 3080 10GB", 9.77, 86, 29.8, 60, 760),
    GPU("RTX 3090 24GB", 23.69, 86, 35.6, 71, 936),
    GPU("RTX 4050 6GB", 5.64, 89, 9.0, 36, 192),
    GPU("RTX 4060 8GB", 7.63, 89, 15.1, 60, 272),
    GPU("RTX 4070 12GB", 11.72, 89, 29.1, 117, 504),
    GPU("RTX 4080 16GB", 15.70, 89, 48.7, 195, 717),
    GPU("RTX 4090 24GB", 23.64, 89, 82.6, 165, 1008),
    GPU("T4 16GB", 14.75, 75, 8.1, 65, 320),
    GPU("P100 16GB", 15.90, 60, 9.5, 19, 732),
    GPU("V100 16GB", 15.77, 70, 15.7, 125, 900),
    GPU("V100 32GB", 31.74, 70, 15.7, 125, 900),
    GPU("A10 24GB", 22.19, 86, 31.2, 125, 600),
    GPU("L4 24GB", 22.03, 89, 30.3, 121, 300),
    GPU("A100 40GB", 39.39, 80, 19.5, 312, 1555),
    GPU("A100 80GB", 79.15, 80, 19.5, 312, 1555),
    GPU("H100 80GB", 79.10, 90, 67, 990, 3350),
)
APPLE = tuple(GPU(f"Apple {size}GB", size, 0, 3.6, 3.6, 100) for size in (8, 16, 24, 32, 64))


def find_gpu_family(name: str) -> GPU | None:
    """The first GPU in the table whose family is a whole word of the name: an A100 is not an A10."""
    return next((gpu for gpu in (*NVIDIA, *APPLE) if re.search(rf"(?i)\b{re.escape(gpu.family)}\b", name)), None)
