"""Edits of a training script that reduce its memory, each simulated on top of the one before."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, replace
from types import SimpleNamespace
from typing import Any

from tightfit.data.labels import Labels
from tightfit.device import Device
from tightfit.explain.script import ScriptArgs
from tightfit.job import Job
from tightfit.messages import Message, msg, verbatim
from tightfit.models import load_config
from tightfit.simulation.estimate import Estimate
from tightfit.simulation.worst_case import Lengths
from tightfit.units import format_bytes

_MAX_EDITS = 3


@dataclass(frozen=True)
class Edit:
    """A change of the script, and the predicted peak after it."""

    change: Message
    peak: int | None = None
    fits: bool | None = None

    def to_json(self) -> dict[str, Any]:
        """The edit as JSON values."""
        return {"edit": self.change, "peak_bytes": self.peak, "fits": self.fits}

    @property
    def text(self) -> Message:
        """The change and what it leads to."""
        if self.peak is None:
            return self.change
        if self.fits:
            return msg("{change} → {peak}, fits", change=self.change, peak=format_bytes(self.peak))
        return msg("{change} → {peak}", change=self.change, peak=format_bytes(self.peak))


def usual_edits(settings: ScriptArgs, device: Device) -> list[Edit]:
    """The edits in their usual order, without peaks: for a model that is not known or cannot be simulated."""
    return [Edit(change) for change, _ in changes_of(settings, device)][:_MAX_EDITS]


def simulated_edits(settings: ScriptArgs, device: Device, *, failed: bool) -> tuple[Estimate, list[Edit]]:
    """The current memory estimate, and the edits that reduce it most until it fits; one at least if it has failed."""
    first = estimate = estimate_of(settings, device)
    edits: list[Edit] = []
    while len(edits) < _MAX_EDITS and not (estimate.fits and (edits or not failed)):
        tried = [(change, changed, estimate_of(changed, device)) for change, changed in changes_of(settings, device)]
        tried = [choice for choice in tried if choice[2].peak < estimate.peak]
        if not tried:
            break
        change, settings, estimate = min(tried, key=lambda choice: choice[2].peak)
        edits.append(Edit(change, estimate.peak, estimate.fits))
    return first, edits


def changes_of(now: ScriptArgs, device: Device) -> Iterator[tuple[Message, ScriptArgs]]:
    """Single changes that keep the effective batch size."""
    rows = now.per_device_train_batch_size
    if rows > 1:
        fewer = next(size for size in range(max(1, rows // 8), 0, -1) if rows % size == 0)
        steps = rows // fewer * now.gradient_accumulation_steps
        smaller = replace(now, per_device_train_batch_size=fewer, gradient_accumulation_steps=steps)
        yield _accumulation(now, fewer, steps), smaller
    if not now.gradient_checkpointing:
        call = "model.gradient_checkpointing_enable()" if now.loop else "gradient_checkpointing=True"
        yield verbatim(call), replace(now, gradient_checkpointing=True)
    if "adafactor" not in now.optim:
        call = "transformers.Adafactor(model.parameters(), lr=…, scale_parameter=False, relative_step=False)"
        yield verbatim(call if now.loop else 'optim="adafactor"'), replace(now, optim="adafactor")
    if not (now.fp16 or now.bf16) and device.kind != "cpu":
        dtype = "bf16" if device.bf16 else "fp16"
        yield _mixed_precision(now, dtype), replace(now, **{dtype: True})  # type: ignore[arg-type]


def _accumulation(now: ScriptArgs, rows: int, steps: int) -> Message:
    if now.loop:
        return msg(
            "DataLoader(batch_size={rows}), (loss / {steps}).backward(), and optimizer.step() after every {steps} "
            "batches",
            rows=rows,
            steps=steps,
        )
    return msg(
        "per_device_train_batch_size={rows}, gradient_accumulation_steps={steps} (also set "
        "trainer.model_accepts_loss_kwargs = False, or the gradients of BERT-like heads are {steps} times too large)",
        rows=rows,
        steps=steps,
    )


def _mixed_precision(now: ScriptArgs, dtype: str) -> Message:
    if not now.loop:
        return verbatim(f"{dtype}=True")
    if dtype == "bf16":
        return msg("the forward pass within {call}", call='torch.autocast("cuda", dtype=torch.bfloat16)')
    return msg(
        "the forward pass within {call}, with a {scaler}",
        call='torch.autocast("cuda", dtype=torch.float16)',
        scaler="torch.amp.GradScaler",
    )


def estimate_of(settings: ScriptArgs, device: Device) -> Estimate:
    """The estimate with every text at the maximum length, since the lengths of the data are unknown."""
    from tightfit.simulation.job_simulation import Simulation, SimulationSetup

    assert settings.model is not None
    job = Job(model=settings.model, data="none", batch_size=settings.batch, max_length=settings.max_length)
    tokenizer: Any = SimpleNamespace(pad_token_id=load_config(settings.model).get_text_config().pad_token_id or 0)
    lengths = Lengths.uniform(settings.batch, settings.max_length)
    return Simulation(SimulationSetup.of(job, device, Labels(), tokenizer), lengths).estimate(settings.recipe())
