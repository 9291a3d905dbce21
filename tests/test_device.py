"""Devices, and GPUs by their common names."""

from __future__ import annotations

import pytest

from tightfit.device import GPUS, find_device, find_device_or_gpu, find_gpu
from tightfit.errors import BadInput


@pytest.mark.parametrize(
    ("name", "label"),
    [
        ("RTX 3050 4GB", "RTX 3050 4GB"),
        ("rtx3050-8gb", "RTX 3050 8GB"),
        ("RTX 3050", "RTX 3050 4GB"),
        ("3060", "RTX 3060 12GB"),
        ("NVIDIA GeForce RTX 4090", "RTX 4090 24GB"),
        ("Tesla T4", "T4 16GB"),
        ("a100", "A100 40GB"),
        ("GTX 1050 Ti", "GTX 1050 Ti 4GB"),
        ("apple 16gb", "Apple 16GB"),
    ],
)
def test_a_gpu_is_found_by_name(name: str, label: str) -> None:
    assert find_device_or_gpu(name) is GPUS[label]


def test_every_gpu_is_found_by_its_label() -> None:
    assert all(find_gpu(label) is gpu for label, gpu in GPUS.items())


def test_bf16_needs_ampere() -> None:
    assert not GPUS["T4 16GB"].bf16
    assert GPUS["RTX 3050 4GB"].bf16


def test_an_unknown_gpu_gets_a_suggestion() -> None:
    with pytest.raises(BadInput, match=r"did you mean 'RTX 3060 12GB'.*Choose from cpu, cuda, mps, GTX 1050 Ti"):
        find_device_or_gpu("rtx 3060 13gb")


def test_training_on_a_gpu_that_is_not_here_is_rejected() -> None:
    with pytest.raises(BadInput, match="'T4 16GB' is for estimates only"):
        find_device("T4")
