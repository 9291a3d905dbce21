"""A card by the names people give it."""

from __future__ import annotations

import pytest

from tightfit.device import GPUS, find_device, find_device_or_gpu, find_gpu
from tightfit.errors import BadInput


@pytest.mark.parametrize(
    ("word", "title"),
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
def test_a_card_is_found(word: str, title: str) -> None:
    assert find_device_or_gpu(word) is GPUS[title]


def test_every_card_is_found_by_its_own_title() -> None:
    assert all(find_gpu(title) is card for title, card in GPUS.items())


def test_bf16_came_with_ampere() -> None:
    assert not GPUS["T4 16GB"].bf16
    assert GPUS["RTX 3050 4GB"].bf16


def test_an_unknown_card_gets_the_nearest_name() -> None:
    with pytest.raises(BadInput, match=r"did you mean 'RTX 3060 12GB'.*There are: cpu, cuda, mps, GTX 1050 Ti"):
        find_device_or_gpu("rtx 3060 13gb")


def test_training_on_a_card_that_is_only_named_is_refused() -> None:
    with pytest.raises(BadInput, match="'T4 16GB' can be rehearsed for"):
        find_device("T4")
