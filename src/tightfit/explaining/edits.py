"""Edits: the three changes of a script that bring its memory down most, each rehearsed on top of the one before."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, replace
from types import SimpleNamespace
from typing import Any

from tightfit.device import Device
from tightfit.explaining.settings import Settings
from tightfit.rehearsal.bill import Bill
from tightfit.units import format_bytes

_THREE = 3
_ACCUMULATION = (
    "set trainer.model_accepts_loss_kwargs = False too, or the gradients of BERT-like heads come out that many times "
    "too large"
)


@dataclass(frozen=True)
class Edit:
    """What to write, and what the peak is then."""

    words: str
    peak: int | None = None
    fits: bool | None = None

    def to_json(self) -> dict[str, Any]:
        """For scripts."""
        return {"edit": self.words, "peak_bytes": self.peak, "fits": self.fits}

    def __str__(self) -> str:
        if self.peak is None:
            return self.words
        return f"{self.words} → {format_bytes(self.peak)}{', fits' if self.fits else ''}"


def edits_for(settings: Settings, device: Device) -> tuple[Bill | None, list[Edit]]:
    """What the settings take now, and the best edits; without a model in the order that usually helps."""
    if settings.model is None:
        return None, [Edit(words) for words, _ in _changes(settings, device)][:_THREE]
    return _rehearsed(settings, device)


def _rehearsed(settings: Settings, device: Device) -> tuple[Bill, list[Edit]]:
    first = bill = _bill(settings, device)
    edits: list[Edit] = []
    while len(edits) < _THREE and not (edits and edits[-1].fits):
        tried = [(words, changed, _bill(changed, device)) for words, changed in _changes(settings, device)]
        tried = [choice for choice in tried if choice[2].peak < bill.peak]
        if not tried:
            break
        words, settings, bill = min(tried, key=lambda choice: choice[2].peak)
        edits.append(Edit(words, bill.peak, bill.fits))
    return first, edits


def _changes(now: Settings, device: Device) -> Iterator[tuple[str, Settings]]:
    """What could be changed without changing the effective batch."""
    rows = now.per_device_train_batch_size
    if rows > 1:
        fewer = next(size for size in range(max(1, rows // 8), 0, -1) if rows % size == 0)
        times = rows // fewer * now.gradient_accumulation_steps
        smaller = replace(now, per_device_train_batch_size=fewer, gradient_accumulation_steps=times)
        yield f"per_device_train_batch_size={fewer}, gradient_accumulation_steps={times} ({_ACCUMULATION})", smaller
    if not now.gradient_checkpointing:
        yield "gradient_checkpointing=True", replace(now, gradient_checkpointing=True)
    if "adafactor" not in now.optim:
        yield 'optim="adafactor"', replace(now, optim="adafactor")
    if not (now.fp16 or now.bf16) and device.kind != "cpu":
        yield ("bf16=True", replace(now, bf16=True)) if device.bf16 else ("fp16=True", replace(now, fp16=True))


def _bill(settings: Settings, device: Device) -> Bill:
    """With texts as long as allowed: a script does not say how long its data is."""
    from tightfit.data.labels import Labels
    from tightfit.job import Job
    from tightfit.rehearsal.lengths import Lengths
    from tightfit.rehearsal.performing import Company
    from tightfit.rehearsal.rehearsal import Rehearsal
    from tightfit.weights import load_config

    assert settings.model is not None
    job = Job(model=settings.model, data="none", batch_size=settings.batch, max_length=settings.max_length)
    tokenizer: Any = SimpleNamespace(pad_token_id=load_config(settings.model).get_text_config().pad_token_id or 0)
    lengths = Lengths.uniform(settings.batch, settings.max_length)
    return Rehearsal(Company(job, device, Labels(("0", "1")), tokenizer), lengths).bill(settings.recipe())
