"""Explanations of out-of-memory errors: what ran out, and which edits of the training script fix it."""

from __future__ import annotations

import shlex
from collections.abc import Iterator
from dataclasses import dataclass, replace
from typing import Any

from tightfit.device import Device, any_gpu, find_device, find_device_or_gpu
from tightfit.engine.oom_message import OomMessage, read_message
from tightfit.errors import BadInput, TightfitError
from tightfit.explain.edits import Edit, estimate_of, simulated_edits, usual_edits
from tightfit.explain.script import ScriptArgs
from tightfit.messages import Message, in_sequence, msg
from tightfit.simulation.estimate import Estimate
from tightfit.strategies.base import MemoryKind
from tightfit.units import format_bytes

_EVALUATION_ROWS = 8  # the default of TrainingArguments


@dataclass(frozen=True)
class Explanation:
    """What happened, the edits that fix it, and a command that trains within the memory that is left."""

    findings: tuple[Message, ...]
    edits: tuple[Edit, ...]
    """The best first; each includes the ones before it."""
    command: str | None = None
    """tightfit train with the settings of the script; None for what tightfit does not train."""

    @property
    def order(self) -> Message | None:
        """That the edits go together, said above them; None if there is only one, or none was simulated."""
        if len(self.edits) < 2 or self.edits[0].peak is None:
            return None
        return msg("Make these edits in order; each predicted peak includes the edits before it:")

    def to_json(self) -> dict[str, Any]:
        """The explanation as JSON values."""
        edits = [edit.to_json() for edit in self.edits]
        return {"findings": list(self.findings), "edits": edits, "command": self.command}


def explain(
    message: str = "", settings: ScriptArgs | None = None, device: str | None = None, unread: Message | None = None
) -> Explanation:
    """Explain an out-of-memory message, a script's settings, or both.

    `unread` says why the script could not be read: what the message tells is told all the same.
    """
    error = read_message(message) if message.strip() else None
    if error is None and settings is None:
        raise BadInput(
            unread or msg("This is not an out-of-memory message: paste the complete message, or give --args FILE.")
        )
    findings = [*(error.findings() if error else []), *([unread] if unread else [])]
    findings += _assumptions(settings)
    settings, where = settings or ScriptArgs(), _device(device, error)
    estimate, edits, reason = _edits(settings, where, error)
    findings += [reason] if reason else []
    if estimate is not None:
        findings += _needs(settings, estimate, where, error)
    return Explanation(tuple(findings), tuple(edits), _command(settings, where))


def _assumptions(settings: ScriptArgs | None) -> Iterator[Message]:
    """What the script does not tell, and what is assumed instead."""
    now = settings or ScriptArgs()
    if settings is not None and settings.unresolved:
        yield msg(
            "{settings} cannot be read without running the script: defaults are assumed", settings=settings.unresolved
        )
    if {"per_device_train_batch_size", "max_length"} <= now.known:
        return
    rows, tokens = now.per_device_train_batch_size, now.max_length
    if settings is None or not settings.known - {"model"}:
        yield msg(
            "Without a script (--args FILE), the defaults of TrainingArguments are assumed: {rows} rows of {tokens} "
            "tokens.",
            rows=rows,
            tokens=tokens,
        )
    elif "max_length" in now.known:
        yield msg("The script does not tell its batch size: {rows} rows are assumed.", rows=rows)
    else:
        yield msg("The script does not tell the length of its texts: {tokens} tokens are assumed.", tokens=tokens)


def _edits(
    settings: ScriptArgs, device: Device, error: OomMessage | None
) -> tuple[Estimate | None, list[Edit], Message | None]:
    """The memory estimate, if the model is known and can be simulated; the edits; and why there is no estimate."""
    usual = usual_edits(settings, device)
    if settings.model is None:
        return None, usual, None
    if not settings.classifies:
        return None, usual, _not_estimated(settings)
    try:
        estimate, edits = simulated_edits(settings, device, failed=error is not None)
    except TightfitError as problem:
        if error is None:
            raise
        return None, usual, msg("The edits have no sizes: {reason}", reason=problem.message)
    return estimate, edits, None


def _not_estimated(settings: ScriptArgs) -> Message:
    return msg(
        "tightfit estimates and trains text classifiers and regression; {head} also needs the logits of its whole "
        "vocabulary for {rows} x {tokens} tokens, so the edits have no sizes.",
        head=settings.head,
        rows=settings.per_device_train_batch_size,
        tokens=settings.max_length,
    )


def _needs(settings: ScriptArgs, estimate: Estimate, device: Device, error: OomMessage | None) -> Iterator[Message]:
    """What the training needs, with the three largest kinds of memory, and what its evaluation needs."""
    largest = sorted(estimate.phases[estimate.phase].items(), key=lambda item: -item[1])[:3]
    yield msg(
        "{settings} needs {peak} on {device}: {kinds}",
        settings=settings.title,
        peak=format_bytes(estimate.peak),
        device=device.label,
        kinds=[msg("{kind} {size}", kind=kind.label, size=format_bytes(size)) for kind, size in largest],
    )
    rows = settings.per_device_eval_batch_size
    if rows > settings.per_device_train_batch_size or (error and error.phase == "evaluate"):
        yield _evaluation_needs(settings, device)
    elif estimate.fits and error:
        yield msg(
            "By this estimate the training fits: if it did not, look at what else uses the memory, such as other "
            "processes, models kept from earlier cells of a notebook, or outputs collected in a list."
        )


def _evaluation_needs(settings: ScriptArgs, device: Device) -> Message:
    rows, peak = settings.per_device_eval_batch_size, _evaluation_peak(settings, device)
    needs = msg(
        "Evaluation with {rows} rows (per_device_eval_batch_size) needs {peak}.", rows=rows, peak=format_bytes(peak)
    )
    if device.total_bytes is None or peak <= device.total_bytes or rows <= _EVALUATION_ROWS:
        return needs
    return in_sequence(
        needs, msg("That is more than there is: set per_device_eval_batch_size={rows}.", rows=_EVALUATION_ROWS)
    )


def _evaluation_peak(settings: ScriptArgs, device: Device) -> int:
    """Live bytes while evaluating as many rows as the script does."""
    rows = settings.per_device_eval_batch_size
    whole = replace(settings, per_device_train_batch_size=rows, gradient_accumulation_steps=1)
    estimate = estimate_of(whole, device)
    kinds = estimate.phases["evaluate"]
    return estimate.overhead + sum(size for kind, size in kinds.items() if kind is not MemoryKind.ALLOCATOR)


def _device(named: str | None, error: OomMessage | None) -> Device:
    """The named device, else what the message tells, less what other processes hold."""
    if named is not None or error is None:
        found = find_device_or_gpu(named)
        taken = error.taken_by_others if error else 0
        return replace(found, total_bytes=found.total_bytes - taken) if found.total_bytes and taken else found
    if error.memory == "cpu":
        return find_device("cpu")
    if error.left is not None:
        label = (
            msg("a GPU with {size} left", size=format_bytes(error.left))
            if error.taken_by_others
            else msg("a GPU with {size}", size=format_bytes(error.left))
        )
        gpu = any_gpu(error.left, label)
        return replace(gpu, name="mps", context_bytes=0, maker="Apple") if error.memory == "mps" else gpu
    found = find_device_or_gpu()
    return found if found.kind == error.memory else any_gpu(None, msg("a GPU"))


def _command(settings: ScriptArgs, device: Device) -> str | None:
    """The command that trains what the script trains, within the device's memory."""
    if not settings.classifies:
        return None
    words = ["tightfit", "train", "--model", settings.model or "MODEL", "--data", settings.data or "reviews.csv"]
    words += ["--batch-size", str(settings.batch), "--max-length", str(settings.max_length)]
    words += ["--epochs", f"{settings.num_train_epochs:g}", "--learning-rate", f"{settings.learning_rate:g}"]
    if device.total_bytes and device.kind != "cpu":  # on a CPU, what is free counts, which is the default
        words += ["--budget", f"{device.total_bytes * 10 // (1 << 30) / 10:g}GB"]
    return shlex.join(words)


__all__ = ["Explanation", "ScriptArgs", "explain"]
