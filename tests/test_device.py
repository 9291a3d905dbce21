"""Devices, and GPUs by their common names."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace

import pytest
import torch

from tightfit import device, gpus
from tightfit.device import GPUS, Budget, find_device, find_device_or_gpu, find_gpu, has_kernels_for
from tightfit.doctor.machine import examine
from tightfit.errors import BadInput
from tightfit.gpus import gpu_table
from tightfit.simulation.error_margin import expected_range
from tightfit.simulation.libraries import library_memory

GIB = 1 << 30


@pytest.mark.parametrize(
    ("name", "label"),
    [
        ("rtx3050-8gb", "RTX 3050 8GB"),
        ("GTX1650", "GTX 1650 4GB"),
        ("3060 laptop", "RTX 3060 Laptop 6GB"),
        ("RTX 3060 6GB", "RTX 3060 Laptop 6GB"),  # the desktop GPU has 8 or 12 GB
        ("RTX 3050 4GB", "RTX 3050 Laptop 4GB"),
        ("3060笔记本", "RTX 3060 Laptop 6GB"),
        ("4090", "RTX 4090 24GB"),
        ("RTX 4060Ti 16G", "RTX 4060 Ti 16GB"),
        ("Tesla T4", "T4 16GB"),
        ("T4 15GB", "T4 16GB"),
        ("A100 80GB", "A100 80GB"),
        ("GTX 1050 Ti", "GTX 1050 Ti 4GB"),
        ("RTX 6000 Ada", "RTX 6000 Ada 48GB"),
        ("A6000", "RTX A6000 48GB"),
        ("RTX 5090", "RTX 5090 32GB"),
    ],
)
def test_a_gpu_is_found_as_people_type_its_name(name: str, label: str) -> None:
    assert find_device_or_gpu(name) is GPUS[label]


@pytest.mark.parametrize(
    ("name", "label"),
    [
        ("NVIDIA GeForce RTX 4090", "RTX 4090 24GB"),
        ("NVIDIA GeForce RTX 3060 Laptop GPU", "RTX 3060 Laptop 6GB"),
        ("GeForce RTX 2060 with Max-Q Design", "RTX 2060 Laptop 6GB"),
        ("NVIDIA A100-SXM4-40GB", "A100 40GB"),
        ("NVIDIA H100 80GB HBM3", "H100 80GB"),
        ("NVIDIA H100 PCIe", "H100 PCIe 80GB"),
        ("NVIDIA RTX PRO 6000 Blackwell Workstation Edition", "RTX PRO 6000 96GB"),
        ("NVIDIA RTX 6000 Ada Generation", "RTX 6000 Ada 48GB"),
        ("NVIDIA A10G", "A10G 24GB"),
        ("NVIDIA TITAN X (Pascal)", "TITAN X Pascal 12GB"),
    ],
)
def test_a_gpu_is_found_as_torch_reports_its_name(name: str, label: str) -> None:
    assert find_device_or_gpu(name) is GPUS[label]


def test_every_gpu_is_found_by_its_label() -> None:
    assert len(GPUS) == len(gpu_table()) > 200
    assert all(find_gpu(label) is gpu for label, gpu in GPUS.items())


@pytest.mark.parametrize(
    ("name", "gpus"),
    [
        ("RTX 3060", "'RTX 3060 8GB', 'RTX 3060 12GB'"),
        ("a100", "'A100 40GB', 'A100 80GB'"),
        ("RTX 4000", "'Quadro RTX 4000 8GB', 'RTX A4000 16GB', 'RTX 4000 Ada 20GB', 'RTX PRO 4000 24GB'"),
    ],
)
def test_an_ambiguous_name_lists_the_choices(name: str, gpus: str) -> None:
    with pytest.raises(BadInput, match=f"'{name}' may be one of several GPUs: choose from {gpus}"):
        find_device_or_gpu(name)


def test_the_table_has_plausible_numbers() -> None:
    """Published figures that the columns of cores, clocks and factors must reproduce."""
    published = {"T4 16GB": (8.1, 65), "RTX 4090 24GB": (82.6, 165), "A100 80GB": (19.5, 312), "V100 16GB": (15.7, 125)}
    speeds = {gpu.label: gpu.speed for gpu in gpu_table()}
    for label, (fp32, fp16) in published.items():
        speed = speeds[label]
        assert speed is not None
        assert (speed.fp32_tflops, speed.fp16_tflops) == (pytest.approx(fp32, rel=0.02), pytest.approx(fp16, rel=0.02))
    for gpu in gpu_table():
        assert 0.89 * gpu.gb * GIB < gpu.memory < gpu.gb * GIB, gpu.label
        assert gpu.speed is None or (gpu.speed.fp16_tflops >= gpu.speed.fp32_tflops > 0.5 and gpu.speed.bandwidth > 20)


@pytest.mark.parametrize("name", ["6GB", "6 gb", "6GiB", "GPU 6GB", "6GB GPU"])
def test_a_size_is_any_gpu_with_that_memory(name: str) -> None:
    gpu = find_device_or_gpu(name)
    assert (gpu.kind, gpu.label) == ("cuda", "GPU 6GB")
    assert 5.7 * GIB < (gpu.total_bytes or 0) < 5.9 * GIB  # what torch reports is less than advertised
    assert gpu.fp16
    assert not gpu.bf16


def test_an_apple_gpu_has_part_of_the_memory_of_its_mac() -> None:
    gpu = find_device_or_gpu("apple 16gb")
    assert (gpu.kind, gpu.label, gpu.total_bytes) == ("mps", "Apple 16GB", 16 * GIB * 2 // 3)


def test_bf16_needs_ampere() -> None:
    assert not GPUS["T4 16GB"].bf16
    assert GPUS["RTX 3050 Laptop 4GB"].bf16


def test_an_unknown_gpu_gets_a_suggestion() -> None:
    with pytest.raises(BadInput, match=r"did you mean 'RTX 3060 12GB'\?.*give its memory: --device 6GB"):
        find_device_or_gpu("rtx 3060 13gb")
    with pytest.raises(BadInput, match=r"use cpu, cuda, a GPU such as 'RTX 3060 12GB'"):
        find_device_or_gpu("quantum")


@pytest.mark.parametrize(
    ("name", "meant"), [("gpu", "cuda"), ("GPU:0", "cuda"), ("nvidia", "cuda"), ("Metal", "mps"), ("cuad", "cuda")]
)
def test_the_usual_words_for_a_gpu_get_its_name_in_torch(name: str, meant: str) -> None:
    for find in (find_device, find_device_or_gpu):
        with pytest.raises(BadInput, match=f"There is no device '{name}': did you mean '{meant}'"):
            find(name)


def test_training_on_a_gpu_that_is_not_here_is_rejected() -> None:
    with pytest.raises(BadInput, match="'T4 16GB' is for estimates only"):
        find_device("T4")
    with pytest.raises(BadInput, match=r"'--device 6GB' is for estimates only.*--budget 6GB to limit it"):
        find_device("6GB")


def test_without_a_size_the_budget_is_what_can_be_used(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(device, "usable_memory", lambda: 3 << 30)
    for size in (None, "auto"):
        assert Budget.of(size, "cpu") == Budget(3 << 30, find_device("cpu"), is_auto=True)
    assert Budget.of(None, "cpu").title == "3.00 GiB free on this machine's CPU"
    assert not Budget.of("3GB", "cpu").is_auto


def test_all_of_a_gpu_that_is_not_here_can_be_used() -> None:
    budget = Budget.of(None, "T4")
    assert (budget.size, budget.is_auto) == (GPUS["T4 16GB"].total_bytes, True)
    assert "free" not in budget.title


def test_of_a_gpu_that_is_here_what_others_leave_can_be_used(monkeypatch: pytest.MonkeyPatch) -> None:
    """Its context and what torch has reserved belong to this process."""
    gpu = replace(GPUS["T4 16GB"], host_bytes=8 << 30)
    monkeypatch.setattr(torch.cuda, "mem_get_info", lambda name: (4 << 30, 16 << 30))
    monkeypatch.setattr(torch.cuda, "memory_reserved", lambda name: 1 << 30)
    assert Budget.of(None, gpu).size == (5 << 30) + gpu.context_bytes
    assert "free on T4 16GB" in Budget.of(None, gpu).title


@pytest.mark.parametrize(
    ("capability", "built_for", "has_kernels"),
    [
        (86, ["sm_75", "sm_80", "sm_86"], True),
        (89, ["sm_75", "sm_80", "sm_86"], True),
        (61, ["sm_75", "sm_80"], False),
        (120, ["sm_75", "sm_90a"], False),
        (120, ["sm_75", "compute_90"], True),
        (110, [], True),
    ],
)
def test_a_build_of_torch_has_kernels_for_some_gpus(capability: int, built_for: list[str], has_kernels: bool) -> None:
    assert has_kernels_for(capability, built_for) is has_kernels


def test_a_gpu_that_torch_was_not_built_for_is_rejected(monkeypatch: pytest.MonkeyPatch) -> None:
    """The first kernel would fail with 'no kernel image is available'."""
    gpu = SimpleNamespace(name="GTX 1050 Ti", major=6, minor=1, total_memory=4 << 30)
    monkeypatch.setattr(torch.cuda, "device_count", lambda: 1)
    monkeypatch.setattr(torch.cuda, "get_device_properties", lambda index: gpu)
    monkeypatch.setattr(torch.cuda, "get_arch_list", lambda: ["sm_75", "sm_80"])
    with pytest.raises(BadInput) as rejected:
        find_device("cuda")
    assert str(rejected.value) == (
        "This build of torch has no kernels for GTX 1050 Ti (compute capability 6.1; it was built for 7.5, 8.0): "
        "install a build for CUDA 12.6, which still supports it, or use --device cpu."
    )


# Other makers


def test_an_amd_gpu_is_used_as_cuda_and_its_estimates_say_what_they_rest_on(monkeypatch: pytest.MonkeyPatch) -> None:
    """ROCm calls it cuda; its architectures have other names, and it has no uuid."""
    gpu = SimpleNamespace(name="AMD Radeon", major=11, minor=0, total_memory=16 << 30, multi_processor_count=30)
    monkeypatch.setattr(torch.version, "hip", "6.4")
    monkeypatch.setattr(torch.cuda, "device_count", lambda: 1)
    monkeypatch.setattr(torch.cuda, "get_device_properties", lambda index: gpu)
    monkeypatch.setattr(torch.cuda, "get_arch_list", lambda: ["gfx90a", "gfx1100"])
    monkeypatch.setattr(torch.cuda, "is_bf16_supported", lambda including_emulation: True)
    found = find_device("cuda")
    assert (found.name, found.label, found.maker, found.total_bytes) == ("cuda:0", "AMD Radeon", "AMD", 16 << 30)
    assert str(expected_range(found, 1, 2)).startswith("No run on a GPU by AMD was compared with its prediction")
    assert next(each.source for each in library_memory(found)) == "assumed, as for NVIDIA GPUs"


@pytest.mark.parametrize("newer_than_13", [True, False])
def test_an_apple_gpu_has_bf16_from_macos_14_on(monkeypatch: pytest.MonkeyPatch, newer_than_13: bool) -> None:
    monkeypatch.setattr(torch.backends.mps, "is_available", lambda: True)
    monkeypatch.setattr(torch.backends.mps, "is_macos_or_newer", lambda major, minor: newer_than_13 or major < 14)
    monkeypatch.setattr(torch.mps, "recommended_max_memory", lambda: 8 << 30)
    found = find_device("mps")
    assert (found.kind, found.bf16, found.fp16, found.total_bytes) == ("mps", newer_than_13, True, 8 << 30)
    assert "by Apple was compared" in expected_range(found, 1, 2)
    assert Budget.of(None, found).size == 8 << 30
    assert [finding.key for finding in examine(found)] == ["gpu"]


def test_without_an_apple_gpu_one_sentence_says_so() -> None:
    with pytest.raises(BadInput, match=r"^torch finds no Apple GPU: use --device cpu\.$"):
        find_device("mps")


@pytest.mark.parametrize("name", ["xpu", "xpu:0", "npu", "Intel", "tpu"])
def test_other_accelerators_are_refused_in_one_sentence(name: str) -> None:
    for find in (find_device, find_device_or_gpu):
        with pytest.raises(BadInput, match=f"^Training on '{name}' is not supported: use --device cpu, cuda"):
            find(name)


def test_a_visible_intel_gpu_does_not_change_what_is_used(monkeypatch: pytest.MonkeyPatch) -> None:
    """Libraries would take it by themselves."""
    monkeypatch.setattr(torch.xpu, "is_available", lambda: True)
    assert find_device().kind == "cpu"


def test_what_was_measured_on_a_gpu_is_kept_for_it_and_this_torch(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    speed = gpus.MeasuredSpeed(1.0, 2.0, 3.0, 4.0, 5.0)
    assert gpus.measured_gpu("a") == gpus.MeasuredGPU()
    gpus.remember_gpu("a", speed=speed)
    gpus.remember_gpu("b", context=300)
    gpus.remember_gpu("a", context=400)
    assert gpus.measured_gpu("a") == (400, speed)
    assert gpus.measured_gpu("b") == (300, None)
    monkeypatch.setattr(gpus, "version", lambda package: "9.9")
    assert gpus.measured_gpu("a") == gpus.MeasuredGPU()
    (tmp_path / "tightfit" / "gpus.json").write_text("[")
    assert gpus.measured_gpu("b") == gpus.MeasuredGPU()
