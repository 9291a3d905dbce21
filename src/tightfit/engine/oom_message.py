"""Parsing of out-of-memory messages: of CUDA, Metal and CPU allocators, and of processes that were killed."""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Literal

from tightfit.gpus import CUDA_CONTEXT
from tightfit.messages import Message, msg
from tightfit.units import format_bytes, parse_bytes

_SIZE = r"([\d.]+ ?[KMGT]?i?B|\d+ bytes)"
_PATTERNS = {
    "requested": rf"[Tt]ried to allocate {_SIZE}|Unable to allocate {_SIZE}",
    # torch 2.1 spells it "capacty"
    "capacity": rf"total capaci?ty of {_SIZE}|{_SIZE} total capacity|max allowed: {_SIZE}",
    "free": rf"of which {_SIZE} is free|{_SIZE} free",
    "allocated": rf"{_SIZE} is allocated by PyTorch|{_SIZE} already allocated|MPS allocated: {_SIZE}",
    "unused": rf"{_SIZE} is reserved by PyTorch but unallocated|{_SIZE} cached",
    "reserved": rf"{_SIZE} reserved in total",
    "in_use": rf"this process has {_SIZE} memory in use",
}
_PROCESS = rf"Process (\d+) has {_SIZE} memory in use"
_KILLED = (
    r"\bKilled\b|\bSIGKILL\b|exit ?code:? -9|signal 9|oom[-_]kill|"
    r"(?:exit|return|status|code|process)\w*[^.\n]{0,30}\b137\b|exitcode: -9"
)
_GPU = r"CUDA|CUBLAS|CUDNN|HIP|\bGPU\b"
_TEXTS = (
    r"[Oo]ut of memory|OUT_OF_MEMORY|CU(?:BLAS|DNN)_STATUS_ALLOC_FAILED|MemoryError|[Cc]an(?:'t|not) allocate memory|"
    r"DefaultCPUAllocator: not enough memory|Unable to allocate"
)
_PHASES = {
    "evaluate": r"in (?:evaluate|evaluation_loop|prediction_loop|prediction_step|predict|nested_concat)\b",
    "step": r"optimizer\.step\(|in (?:_single_tensor|_multi_tensor|_fused|_init_group|adamw?\b|adafactor)",
    "backward": r"\.backward\(|run_backward",
    "load": r"in (?:from_pretrained|_load_state_dict|cuda)\b|in convert\b|\.to\((?:device|[\"']cuda)",
}
_FRAGMENTED = 0.15  # of the GPU's memory: more than this reserved and unused counts as fragmentation
_MIN_OTHERS = 256 << 20  # of memory that is not accounted for: less is a driver's and a display's

Memory = Literal["cuda", "mps", "cpu"]


@dataclass(frozen=True)
class OomMessage:
    """What a message tells; sizes in bytes, None for those it does not contain."""

    memory: Memory = "cuda"
    """Which memory ran out."""
    requested: int | None = None
    capacity: int | None = None
    free: int | None = None
    allocated: int | None = None
    unused: int | None = None
    reserved: int | None = None
    in_use: int | None = None
    """By this process, with the CUDA context."""
    others: tuple[tuple[int, int], ...] = ()
    """Ids of other processes, and their bytes."""
    killed: bool = False
    """Whether the operating system ended the process."""
    phase: str | None = None
    """Where it failed, by its traceback: load, backward, step or evaluate."""

    def findings(self) -> Iterator[Message]:
        """What happened, the main fact first."""
        yield self.summary
        for finding in (self._others_advice, self.advice, self._phase_advice):
            if finding is not None:
                yield finding

    @property
    def summary(self) -> Message:
        """What happened, in one sentence."""
        if self.killed:
            return msg(
                "The operating system ended the process because host memory (RAM) ran out: that raises no error and "
                "leaves no traceback."
            )
        facts = list(self._facts())
        if not facts:
            return msg("Out of memory; the message does not say how much was requested.")
        if self.memory == "cpu":
            return msg("Out of host memory (RAM): {facts}.", facts=facts)
        if not self.capacity:
            return msg("Out of memory: {facts}.", facts=facts)
        return msg(
            "Out of memory on a GPU with {capacity}: {facts}.", capacity=format_bytes(self.capacity), facts=facts
        )

    def _facts(self) -> Iterator[Message]:
        if self.requested is not None:
            yield msg("{size} more requested", size=format_bytes(self.requested))
        if self.allocated is not None:
            yield msg("{size} allocated by tensors", size=format_bytes(self.allocated))
        if self.fragmented:
            yield msg("{size} reserved by the allocator but unused", size=format_bytes(self.fragmented))
        for process, size in self.others:
            yield msg("{size} in use by process {process}", size=format_bytes(size), process=process)
        if self.free is not None:
            yield msg("{size} free", size=format_bytes(self.free))

    @property
    def fragmented(self) -> int:
        """Bytes reserved by torch and not in use."""
        if self.unused is not None:
            return self.unused
        return max(0, self.reserved - self.allocated) if self.reserved and self.allocated else 0

    @property
    def taken_by_others(self) -> int:
        """Bytes of the GPU that other processes hold; older messages tell it only by what is missing from the sum."""
        if self.others:
            return sum(size for _, size in self.others)
        reserved = self.reserved or (self.allocated or 0) + (self.unused or 0)
        if self.memory != "cuda" or self.capacity is None or self.free is None or not (self.in_use or reserved):
            return 0
        missing = self.capacity - self.free - (self.in_use or reserved + CUDA_CONTEXT)
        return missing if missing >= _MIN_OTHERS else 0

    @property
    def left(self) -> int | None:
        """Bytes of the GPU that this training can have."""
        return None if self.capacity is None else self.capacity - self.taken_by_others

    @property
    def _others_advice(self) -> Message | None:
        taken, left = format_bytes(self.taken_by_others), format_bytes(self.left or 0)
        if self.others:
            return msg(
                "Other processes hold {taken} of it: end them if they are not needed (kill {processes}; in Jupyter, "
                "shut down the other notebook's kernel). Until then {left} are left for this training.",
                taken=taken,
                processes=" ".join(str(process) for process, _ in self.others),
                left=left,
            )
        if self.taken_by_others:
            return msg(
                "Other processes hold about {taken} of it: nvidia-smi lists them. Until they end, {left} are left for "
                "this training.",
                taken=taken,
                left=left,
            )
        return None

    @property
    def advice(self) -> Message | None:
        """How to reduce fragmentation; None if it was not the cause."""
        if not self.requested or self.fragmented < max(self.requested, _FRAGMENTED * (self.capacity or 0)):
            return None
        return msg(
            "Memory was free but fragmented: set PYTORCH_CUDA_ALLOC_CONF=expandable_segments:True before starting, "
            "and group texts by length so that tensor sizes repeat."
        )

    @property
    def _phase_advice(self) -> Message | None:
        match self.phase:
            case "evaluate":
                return msg(
                    "Memory ran out during evaluation, which uses per_device_eval_batch_size; Trainer keeps all "
                    "outputs on the GPU until the end unless eval_accumulation_steps is set."
                )
            case "step":
                return msg(
                    "Memory ran out in the optimizer step, which does not depend on the batch size: reduce the "
                    "optimizer state."
                )
            case "load":
                return msg("Memory ran out while the model was being loaded, before any batch.")
        return None


def read_message(text: str) -> OomMessage | None:
    """What an out-of-memory message says; None if the text is not one."""
    line = " ".join(text.split())  # terminals and web pages break lines anywhere
    killed = re.search(_KILLED, line) is not None
    found = {name: _first(pattern, line) for name, pattern in _PATTERNS.items()}
    if found["requested"] is None and not killed and re.search(_TEXTS, line) is None:
        return None
    capacity = found["capacity"]
    others = tuple((int(pid), size) for pid, size in _processes(line) if capacity is None or size <= capacity)
    killed = killed and found["requested"] is None and re.search(_TEXTS.replace("[Oo]ut of memory|", ""), line) is None
    return OomMessage(_memory(line, capacity, killed), **found, others=others, killed=killed, phase=_phase(text))


def _memory(text: str, capacity: int | None, killed: bool) -> Memory:
    if re.search(r"\bMPS\b", text):
        return "mps"
    return "cuda" if capacity is not None or (re.search(_GPU, text) and not killed) else "cpu"


def _processes(text: str) -> Iterator[tuple[str, int]]:
    return ((match[1], _bytes(match[2])) for match in re.finditer(_PROCESS, text))


def _phase(text: str) -> str | None:
    """Evaluation calls forward functions too, so it is looked for first."""
    return next((phase for phase, pattern in _PHASES.items() if re.search(pattern, text)), None)


def _first(pattern: str, text: str) -> int | None:
    match = re.search(pattern, text)
    return None if match is None else _bytes(next(group for group in match.groups() if group))


def _bytes(size: str) -> int:
    return int(size.removesuffix(" bytes")) if size.endswith("bytes") else parse_bytes(size)
