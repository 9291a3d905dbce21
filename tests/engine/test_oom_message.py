"""What out-of-memory messages of several allocators and versions tell."""

from __future__ import annotations

import pytest

from tightfit.engine.oom_message import OomMessage, read_message
from tightfit.explain import explain

GIB, MIB = 1 << 30, 1 << 20
CURRENT = (
    "torch.OutOfMemoryError: CUDA out of memory. Tried to allocate 512.00 MiB. GPU 0 has a total capacity of 3.81 GiB "
    "of which 211.19 MiB is free. Including non-PyTorch memory, this process has 3.60 GiB memory in use. Of the "
    "allocated memory 3.10 GiB is allocated by PyTorch, and 97.29 MiB is reserved by PyTorch but unallocated."
)
OTHER_PROCESS = (
    "torch.OutOfMemoryError: CUDA out of memory. Tried to allocate 1.95 GiB. GPU 0 has a total capacity of 14.57 GiB "
    "of which 1.58 GiB is free. Process 20123 has 5.92 GiB memory in use. Process 411 has 512.00 MiB memory in use. "
    "Including non-PyTorch memory, this process has 6.50 GiB memory in use. Of the allocated memory 6.10 GiB is "
    "allocated by PyTorch, and 33.93 MiB is reserved by PyTorch but unallocated."
)
OLD = (
    "RuntimeError: CUDA out of memory. Tried to allocate 20.00 MiB (GPU 0; 3.95 GiB total capacity; 3.20 GiB already "
    "allocated; 16.50 MiB free; 3.40 GiB reserved in total by PyTorch)"
)
OLDEST = (
    "RuntimeError: CUDA out of memory. Tried to allocate 1024.00 KiB (GPU 0; 11.17 GiB total capacity; 10.90 GiB "
    "already allocated; 576.00 KiB free; 30.96 MiB cached)"
)
FRAGMENTED = (
    "RuntimeError: CUDA out of memory. Tried to allocate 20.00 MiB (GPU 0; 15.75 GiB total capacity; 9.10 GiB already "
    "allocated; 16.50 MiB free; 14.30 GiB reserved in total by PyTorch)"
)
OLD_OTHERS = (
    "RuntimeError: CUDA out of memory. Tried to allocate 50.00 MiB (GPU 0; 31.75 GiB total capacity; 5.22 GiB already "
    "allocated; 44.69 MiB free; 5.22 GiB reserved in total by PyTorch)"
)
MPS = (
    "RuntimeError: MPS backend out of memory (MPS allocated: 7.50 GB, other allocations: 1.30 GB, max allowed: 9.07 "
    "GB). Tried to allocate 500.00 MB on private pool. Use PYTORCH_MPS_HIGH_WATERMARK_RATIO=0.0 to disable."
)
CPU = (
    "RuntimeError: [enforce fail at alloc_cpu.cpp:117] err == 0. DefaultCPUAllocator: can't allocate memory: you tried "
    "to allocate 68719476736 bytes. Error code 12 (Cannot allocate memory)"
)


def read(text: str) -> OomMessage:
    found = read_message(text)
    assert found is not None
    return found


def test_reads_the_numbers_of_a_current_message() -> None:
    found = read(CURRENT)
    assert (found.requested, found.capacity) == (512 * MIB, int(3.81 * GIB))
    assert found.advice is None
    assert found.taken_by_others == 0
    assert "512 MiB more requested" in found.summary
    assert "3.10 GiB allocated by tensors" in found.summary


def test_other_processes_are_named_and_their_memory_is_not_counted_as_available() -> None:
    found = read(OTHER_PROCESS)
    assert found.others == ((20123, int(5.92 * GIB)), (411, 512 * MIB))
    assert found.left == int(14.57 * GIB) - int(5.92 * GIB) - 512 * MIB
    first, second, *_ = found.findings()
    assert "5.92 GiB in use by process 20123" in first
    assert second.startswith("Other processes hold 6.42 GiB of it: end them if they are not needed (kill 20123 411;")
    assert "Until then 8.15 GiB are left" in second


def test_an_old_message_tells_of_other_processes_by_what_is_missing() -> None:
    found = read(OLD_OTHERS)
    assert 25.5 * GIB < found.taken_by_others < 26 * GIB
    assert "Other processes hold about 26.0 GiB" in list(found.findings())[1]


@pytest.mark.parametrize(
    ("text", "requested", "capacity", "allocated"),
    [
        (OLD, 20 * MIB, 3.95, 3.20),
        (OLDEST, MIB, 11.17, 10.90),
        (
            "Tried to allocate 2.00 GiB. GPU 0 has a total capacty of 14.75 GiB of which 4.81 MiB is free.",
            2 * GIB,
            14.75,
            None,
        ),
        (MPS, 500 * MIB, 9.07, 7.50),
        (OLD.replace("; ", ";\n   "), 20 * MIB, 3.95, 3.20),  # as wrapped by a terminal
    ],
)
def test_reads_older_and_other_formats(text: str, requested: int, capacity: float, allocated: float | None) -> None:
    found = read(text)
    assert (found.requested, found.capacity) == (requested, int(capacity * GIB))
    assert found.allocated == (None if allocated is None else int(allocated * GIB))
    assert found.taken_by_others == 0


def test_fragmented_memory_gets_advice() -> None:
    assert "expandable_segments" in str(read(FRAGMENTED).advice)
    assert read(OLDEST).advice is None


@pytest.mark.parametrize(
    ("text", "memory", "killed"),
    [
        ("RuntimeError: CUDA error: out of memory", "cuda", False),
        ("RuntimeError: CUDA error: CUBLAS_STATUS_ALLOC_FAILED when calling cublasCreate(handle)", "cuda", False),
        ("RuntimeError: cuDNN error: CUDNN_STATUS_ALLOC_FAILED", "cuda", False),
        ("torch.OutOfMemoryError: HIP out of memory. Tried to allocate 1.88 GiB.", "cuda", False),
        (MPS, "mps", False),
        (CPU, "cpu", False),
        ("RuntimeError: DefaultCPUAllocator: not enough memory: you tried to allocate 4096 bytes.", "cpu", False),
        ("MemoryError", "cpu", False),
        ("numpy.core._exceptions._ArrayMemoryError: Unable to allocate 3.73 GiB for an array", "cpu", False),
        ("Killed", "cpu", True),
        ("Process finished with exit code 137 (interrupted by signal 9: SIGKILL)", "cpu", True),
        ("The container returned a non-zero code: 137", "cpu", True),
        ("slurmstepd: error: Detected 1 oom_kill event in StepId=1.batch.", "cpu", True),
        ("Out of memory: Killed process 4242 (python) total-vm:21GB", "cpu", True),
        ("torch.multiprocessing.spawn.ProcessExitedException: process 0 terminated with exitcode: -9", "cpu", True),
    ],
)
def test_recognises_what_ran_out(text: str, memory: str, killed: bool) -> None:
    found = read(text)
    assert (found.memory, found.killed) == (memory, killed)
    explanation = explain(text)
    assert ("The operating system ended the process" in explanation.findings[0]) is killed
    assert len(explanation.edits) == 3


@pytest.mark.parametrize("text", ["KeyError: 'label'", "epoch 137 of 200", "loss 0.137, 9 rows"])
def test_other_text_is_not_an_out_of_memory_message(text: str) -> None:
    assert read_message(text) is None


@pytest.mark.parametrize(
    ("frame", "phase", "advice"),
    [
        (
            "  File trainer.py, line 4, in evaluation_loop\n    logits = self.model(x)",
            "evaluate",
            "Memory ran out during evaluation, which uses per_device_eval_batch_size",
        ),
        ("  File adamw.py, line 9, in _single_tensor_adamw\n", "step", "does not depend on the batch size"),
        ("  File train.py, line 3\n    model = model.to(device)", "load", "before any batch"),
        ("  File train.py, line 3\n    loss.backward()", "backward", ""),
    ],
)
def test_the_traceback_tells_where_it_ran_out(frame: str, phase: str, advice: str) -> None:
    found = read(f"Traceback (most recent call last):\n{frame}\n{CURRENT}")
    assert found.phase == phase
    assert advice in " ".join(found.findings())
