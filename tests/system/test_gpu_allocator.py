"""Expandable segments of torch's GPU allocator: the user's setting counts, else they are on where torch has them."""

from __future__ import annotations

import sys

import pytest
import torch

from tightfit.system import gpu_allocator
from tightfit.system.gpu_allocator import chosen_by_user, expandable_in_training, use_expandable_segments


@pytest.mark.parametrize("name", ["PYTORCH_ALLOC_CONF", "PYTORCH_CUDA_ALLOC_CONF"])
@pytest.mark.parametrize(
    ("settings", "chosen"),
    [
        ("expandable_segments:True", True),
        ("max_split_size_mb:64,expandable_segments:False", False),
        ("max_split_size_mb:64", None),
    ],
)
def test_the_environment_decides(
    monkeypatch: pytest.MonkeyPatch, name: str, settings: str, chosen: bool | None
) -> None:
    monkeypatch.setenv(name, settings)
    assert chosen_by_user() is chosen
    assert expandable_in_training() is (True if chosen is None else chosen)


@pytest.mark.parametrize(("platform", "hip"), [("win32", None), ("linux", "6.4")])
def test_they_are_off_where_torch_has_none(monkeypatch: pytest.MonkeyPatch, platform: str, hip: str | None) -> None:
    monkeypatch.setattr(sys, "platform", platform)
    monkeypatch.setattr(torch.version, "hip", hip)
    assert not expandable_in_training()


@pytest.fixture
def applied(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """The settings that torch was given."""
    found: list[str] = []
    monkeypatch.setattr(gpu_allocator, "_set", found.append)
    return found


def test_they_are_switched_on_and_said(monkeypatch: pytest.MonkeyPatch, applied: list[str]) -> None:
    monkeypatch.setenv("PYTORCH_ALLOC_CONF", "max_split_size_mb:64")
    monkeypatch.setattr(torch, "empty", lambda *size, device: None)
    said: list[str] = []
    use_expandable_segments(said.append)
    assert applied == ["max_split_size_mb:64,expandable_segments:True"]
    assert "expandable_segments is on" in said[0]


def test_a_gpu_that_cannot_map_memory_trains_without_them(monkeypatch: pytest.MonkeyPatch, applied: list[str]) -> None:
    """As some virtual GPUs: the driver answers that the operation is not supported."""

    def fail(*size: int, device: str) -> None:
        raise RuntimeError("CUDA driver error: operation not supported")

    monkeypatch.setattr(torch, "empty", fail)
    said: list[str] = []
    use_expandable_segments(said.append)
    assert applied == ["expandable_segments:True", "expandable_segments:False"]
    assert said == []


def test_the_users_setting_is_left_alone(monkeypatch: pytest.MonkeyPatch, applied: list[str]) -> None:
    monkeypatch.setenv("PYTORCH_ALLOC_CONF", "expandable_segments:False")
    use_expandable_segments(print)
    assert applied == []
