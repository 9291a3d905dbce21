"""The fake GPU under the real CUDA build of torch. Every test starts a process that sees it."""

from __future__ import annotations

import os
import subprocess
import sys
import textwrap
from pathlib import Path

import pytest

import fake_gpu
from fake_gpu import FakeGPU

ROOT = Path(fake_gpu.__file__).parent.parent
GB, MB = 1 << 30, 1 << 20


def run(code: str, gpu: FakeGPU | None = None, **environment: str) -> list[str]:
    """Run Python code that sees the GPU; what it printed, line by line."""
    process = _start(code, gpu or FakeGPU(), environment)
    assert process.returncode == 0, process.stderr
    return process.stdout.splitlines()


def error_of(code: str, gpu: FakeGPU, **environment: str) -> str:
    """What code that fails writes to stderr."""
    process = _start(code, gpu, environment)
    assert process.returncode != 0, process.stdout
    return process.stderr.strip()


def _start(code: str, gpu: FakeGPU, environment: dict[str, str]) -> subprocess.CompletedProcess[str]:
    clean = {name: value for name, value in os.environ.items() if not name.startswith(("CUDA", "PYTORCH"))}
    return subprocess.run(
        [sys.executable, "-c", "import torch, fake_gpu\n" + textwrap.dedent(code)],
        env=clean | {"PYTHONPATH": str(ROOT)} | gpu.environment() | environment,
        capture_output=True,
        text=True,
        timeout=300,
        check=False,
    )


# What torch is told


def test_torch_sees_the_gpu_that_was_asked_for() -> None:
    gpu = FakeGPU(memory=6 * GB, capability="8.6", name="RTX 3050", count=2)
    code = """
        p = torch.cuda.get_device_properties(1)
        print(torch.cuda.device_count(), p.name, p.total_memory, p.major, p.minor, torch.cuda.is_bf16_supported())
    """
    assert run(code, gpu) == [f"2 RTX 3050 {6 * GB} 8 6 True"]


@pytest.mark.parametrize(("visible", "count"), [("", 0), ("0", 1), ("1", 1), ("-1", 0), ("0,1", 2), ("0,7", 1)])
def test_visible_devices(visible: str, count: int) -> None:
    code = "print(torch.cuda.device_count())"
    assert run(code, FakeGPU(count=2), CUDA_VISIBLE_DEVICES=visible) == [str(count)]


def test_memory_of_other_processes_and_the_context_is_not_free() -> None:
    gpu = FakeGPU(memory=4 * GB, others=GB, context=300 * MB)
    assert run("print(*torch.cuda.mem_get_info())", gpu) == [f"{3 * GB - 300 * MB} {4 * GB}"]


def test_a_driver_that_is_too_old() -> None:
    code = "print(torch.cuda.is_available()); torch.cuda.init()"
    assert "driver on your system is too old (found version 12040)" in error_of(code, FakeGPU(driver="12.4"))


def test_a_machine_with_a_real_driver_is_refused(tmp_path: Path) -> None:
    sign = tmp_path / "driver"
    sign.touch()
    text = error_of("print(1)", FakeGPU(), FAKE_GPU_ALSO_REFUSE=str(sign))
    assert text == f"fake GPU: this machine has a real GPU driver ({sign}), so the fake one does not start."


# Memory


def test_allocations_count_against_the_total() -> None:
    code = """
        blocks = []
        try:
            while True:
                blocks.append(torch.empty(256 << 20, dtype=torch.uint8, device="cuda"))
        except torch.OutOfMemoryError as error:
            print(len(blocks), fake_gpu.counters()["used"], "out of memory" in str(error))
        del blocks[:]
        torch.cuda.empty_cache()
        print(fake_gpu.counters()["used"])
    """
    assert run(code, FakeGPU(memory=2 * GB, context=MB)) == [f"7 {7 * 256 * MB} True", "0"]


def test_the_message_of_torch_names_other_processes() -> None:
    text = error_of("torch.empty(4 << 30, dtype=torch.uint8, device='cuda')", FakeGPU(others=GB))
    assert "GPU 0 has a total capacity of 4.00 GiB of which 2.61 GiB is free" in text
    assert "Process 1 has 1024.00 MiB memory in use" in text


def test_reserved_memory_is_what_the_driver_gave() -> None:
    code = """
        kept = [torch.empty(size, device="cuda") for size in (10, 300_000, 3_000_000, 30_000_000)]
        print(torch.cuda.memory_reserved() == fake_gpu.counters()["used"], torch.cuda.memory_reserved())
    """
    assert run(code) == [f"True {(2 + 20 + 116) * MB}"]


@pytest.mark.parametrize("name", ["PYTORCH_CUDA_ALLOC_CONF", "PYTORCH_ALLOC_CONF"])
def test_expandable_segments_map_memory_piece_by_piece(name: str) -> None:
    code = """
        a = torch.ones(5 << 20, dtype=torch.uint8).cuda()
        b = torch.ones(25 << 20, dtype=torch.uint8).cuda()
        print(torch.cuda.memory_reserved() >> 20, fake_gpu.counters()["used"] >> 20, b.cpu().sum().item() >> 20)
        del a, b
        torch.cuda.empty_cache()
        print(fake_gpu.counters()["used"])
    """
    assert run(code, **{name: "expandable_segments:True"}) == ["40 40 25", "0"]


def test_memory_that_nothing_was_copied_to_takes_no_host_memory() -> None:
    code = """
        import psutil
        before = psutil.Process().memory_info().rss
        a = torch.empty(2 << 30, dtype=torch.uint8, device="cuda")
        b = a.clone()
        a.zero_()
        print(psutil.Process().memory_info().rss - before < 64 << 20)
    """
    assert run(code, FakeGPU(memory=6 * GB)) == ["True"]


def test_the_nth_allocation_fails() -> None:
    """torch frees its cache and tries three times before it reports that memory ran out."""
    code = """
        def allocate(): return torch.empty(30 << 20, dtype=torch.uint8, device="cuda")
        first = allocate()
        for _ in range(2):
            try:
                second = allocate()
                print("allocated")
            except torch.OutOfMemoryError:
                print("failed")
        print(fake_gpu.counters()["failed"])
    """
    assert run(code, FakeGPU(fail_at="2-4")) == ["failed", "allocated", "3"]
    assert run(code, FakeGPU(fail_at="2")) == ["allocated", "allocated", "1"]


def test_allocations_fail_from_now_on() -> None:
    code = """
        kept = [torch.empty(30 << 20, dtype=torch.uint8, device="cuda") for _ in range(3)]
        fake_gpu.fail_next("2")
        for _ in range(3):
            try:
                kept.append(torch.empty(30 << 20, dtype=torch.uint8, device="cuda"))
            except RuntimeError as error:
                print(str(error).partition("\\n")[0])
        print(len(kept), fake_gpu.counters()["failed"])
    """
    assert run(code, PYTORCH_NO_CUDA_MEMORY_CACHING="1") == ["CUDA error: out of memory", "5 1"]


def test_pinned_memory_is_counted() -> None:
    code = """
        host = torch.empty(1 << 20, dtype=torch.uint8, pin_memory=True)
        print(host.is_pinned(), torch.empty(1 << 20).is_pinned(), fake_gpu.counters()["pinned"])
    """
    assert run(code) == [f"True False {MB}"]


# Copies and kernels


def test_copies_are_made_and_fresh_memory_reads_as_zeros() -> None:
    code = """
        x = torch.arange(5000)
        y = x.cuda()
        z = torch.empty(5000, dtype=torch.int64, device="cuda")
        print(torch.equal(y.cpu(), x), int(z.cpu().abs().sum()), torch.equal(y[100:200].cpu(), x[100:200]))
        z.copy_(y)
        print(torch.equal(z.cpu(), x), torch.equal(y.to("cpu", non_blocking=True), x))
    """
    assert run(code) == ["True 0 True", "True True"]


def test_kernels_do_not_run() -> None:
    """The result of a kernel reads as what its memory held before: zeros, if nothing was copied there."""
    code = """
        x = torch.ones(1000).cuda()
        print((x + x).cpu().sum().item(), x.sum().item(), (x > 0).nonzero().shape[0])
        print(fake_gpu.counters()["launches"] > 3)
    """
    assert run(code) == ["0.0 0.0 0", "True"]


def test_two_runs_read_the_same() -> None:
    code = """
        torch.manual_seed(0)
        layer = torch.nn.Linear(64, 64).cuda()
        for _ in range(3):
            layer(torch.randn(8, 64).cuda()).sum().backward()
        print(layer.weight.data_ptr(), layer.weight.grad.double().cpu().sum().item())
    """
    assert run(code) == run(code)


def test_matmul_and_attention_take_torchs_ways() -> None:
    """Which kernel torch chooses depends on the GPU: its saved tensors tell."""
    code = """
        import torch.nn.functional as F
        q, k, v = (torch.empty(2, 4, 128, 64, device="cuda", dtype=torch.float16, requires_grad=True) for _ in range(3))
        print(F.scaled_dot_product_attention(q, k, v).grad_fn.name())
        print((q @ k.mT).shape)
    """
    flash, efficient = (f"ScaledDotProduct{kind}AttentionBackward0" for kind in ("Flash", "Efficient"))
    assert run(code, FakeGPU(capability="8.6")) == [flash, "torch.Size([2, 4, 128, 128])"]
    assert run(code, FakeGPU(capability="7.5")) == [efficient, "torch.Size([2, 4, 128, 128])"]


def test_no_kernel_image() -> None:
    text = error_of("torch.ones(3, device='cuda')", FakeGPU(capability="6.1", no_kernel_image=True))
    assert "no kernel image is available for execution on the device" in text
    assert "GPU0 Fake GPU which is of" in text  # torch's own warning


def test_slow_copies_occupy_their_stream() -> None:
    """A copy from pinned memory returns at once; the stream is busy until it would be done."""
    code = """
        import time
        host = torch.ones(50 << 20, dtype=torch.uint8, pin_memory=True)
        device = torch.empty(50 << 20, dtype=torch.uint8, device="cuda")
        stream = torch.cuda.Stream()
        start = time.perf_counter()
        with torch.cuda.stream(stream):
            device.copy_(host, non_blocking=True)
        event = stream.record_event()
        issued, passed = time.perf_counter() - start, event.query()
        stream.synchronize()
        print(issued < 0.3, passed, 0.45 < time.perf_counter() - start < 1, event.query())
    """
    assert run(code, FakeGPU(copy_speed=100 * MB)) == ["True False True True"]


def test_cuda_does_not_work_in_a_fork_after_its_parent_used_it() -> None:
    code = """
        import os, sys
        torch.empty(1, device="cuda")
        if not os.fork():
            try:
                torch.empty(1, device="cuda")
            except RuntimeError as error:
                print("fork" in str(error))
            sys.stdout.flush()
            os._exit(0)
        os.wait()
    """
    assert run(code) == ["True"]


# The command


def test_the_command_is_run_with_its_options() -> None:
    code = "import torch; print(torch.cuda.get_device_name(), torch.cuda.mem_get_info()[1])"
    options = ["--memory", "1.5GB", "--capability", "9.0", "--name", "H100"]
    command = [sys.executable, "-m", "fake_gpu", *options, "--", sys.executable, "-c", code]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=True)
    assert done.stdout == f"H100 {3 * GB // 2}\n"


@pytest.mark.parametrize(("text", "size"), [("4GB", 4 * GB), ("512m", 512 * MB), ("1.5 GiB", 3 * GB // 2), ("7", 7)])
def test_sizes(text: str, size: int) -> None:
    assert fake_gpu.parse_bytes(text) == size


def test_bad_options_are_one_line() -> None:
    command = [sys.executable, "-m", "fake_gpu", "--fail-at", "x", "--", "true"]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=False)
    assert (done.returncode, len(done.stderr.splitlines())) == (2, 1)
