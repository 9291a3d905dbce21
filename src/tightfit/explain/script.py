"""A training script's settings, and edits that reduce its memory.

Settings come from TrainingArguments as JSON or from a Python file, which is parsed and never run. Each edit is
simulated on top of the one before.
"""

from __future__ import annotations

import ast
import json
from collections.abc import Iterator
from dataclasses import dataclass, fields, replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any

from tightfit.data.labels import Labels
from tightfit.device import Device
from tightfit.errors import BadInput
from tightfit.job import Job
from tightfit.messages import Message, msg, verbatim
from tightfit.models import load_config
from tightfit.simulation.estimate import Estimate
from tightfit.simulation.worst_case import Lengths
from tightfit.strategies.recipe import Recipe
from tightfit.units import format_bytes

_CALLS = ("TrainingArguments", "Seq2SeqTrainingArguments")


@dataclass(frozen=True)
class ScriptArgs:
    """The settings that determine memory, with transformers' names and defaults."""

    per_device_train_batch_size: int = 8
    gradient_accumulation_steps: int = 1
    gradient_checkpointing: bool = False
    optim: str = "adamw_torch_fused"
    fp16: bool = False
    bf16: bool = False
    model: str | None = None
    max_length: int = 512
    unresolved: tuple[str, ...] = ()
    """Settings that the script computes, so that they are unknown without running it."""

    @classmethod
    def read(cls, path: Path) -> ScriptArgs:
        """Read the settings from a .json or .py file."""
        try:
            text = path.read_text("utf-8")
        except (OSError, UnicodeDecodeError):
            unreadable = msg("'{path}' cannot be read: give a JSON of TrainingArguments or a Python script.", path=path)
            raise BadInput(unreadable) from None
        if path.suffix.lower() == ".py":
            return cls()._with(_from_script(path, text))
        try:
            content = json.loads(text)
        except ValueError as error:
            raise BadInput(msg("{path} is not readable as JSON: {reason}.", path=path, reason=str(error))) from None
        if not isinstance(content, dict):
            raise BadInput(msg("{path} must hold one JSON object with the names of TrainingArguments.", path=path))
        return cls()._with(content)

    def recipe(self) -> Recipe:
        """The settings as a tightfit recipe."""
        specs = []
        if self.gradient_accumulation_steps > 1:
            specs.append(f"micro-batch:size={self.per_device_train_batch_size}")
        if self.gradient_checkpointing:
            specs.append("gradient-checkpointing")
        if "adafactor" in self.optim:
            specs.append("adafactor")
        if self.fp16 or self.bf16:
            specs.append("mixed-precision")
        return Recipe.parse(specs)

    @property
    def batch(self) -> int:
        """Rows per optimizer step."""
        return self.per_device_train_batch_size * self.gradient_accumulation_steps

    def _with(self, content: dict[str, Any]) -> ScriptArgs:
        kinds = {field.name: type(getattr(ScriptArgs(), field.name)) for field in fields(ScriptArgs)}
        known = {name: value for name, value in content.items() if name in kinds}
        for name, value in known.items():
            if not _is_valid(value, str if name == "model" else kinds[name]):
                raise BadInput(
                    msg(
                        "{name} is {value}, which TrainingArguments does not accept: correct it.",
                        name=name,
                        value=repr(value),
                    )
                )
        return replace(self, **known)

    @property
    def title(self) -> Message:
        """The model, the batch and the strategies, for messages."""
        accumulated = f" x {self.gradient_accumulation_steps}" if self.gradient_accumulation_steps > 1 else ""
        specs = [spec for spec in self.recipe().specs if not spec.startswith("micro-batch")]
        return msg(
            "{model} with {rows} rows of {tokens} tokens{recipe}",
            model=self.model,
            rows=f"{self.per_device_train_batch_size}{accumulated}",
            tokens=self.max_length,
            recipe=f" {' '.join(specs)}" if specs else "",
        )


def _is_valid(value: Any, kind: type) -> bool:
    if kind is int:
        return isinstance(value, int) and not isinstance(value, bool) and value >= 1
    return isinstance(value, kind)


def _from_script(path: Path, text: str) -> dict[str, Any]:
    """The literal keyword arguments of the script's calls."""
    try:
        tree = ast.parse(text)
    except (SyntaxError, ValueError) as error:
        raise BadInput(msg("{path} is not readable as Python: {reason}.", path=path, reason=str(error))) from None
    found: dict[str, Any] = {}
    constants = _constants(tree)
    for call in (node for node in ast.walk(tree) if isinstance(node, ast.Call)):
        name = call.func.attr if isinstance(call.func, ast.Attribute) else getattr(call.func, "id", "")
        given = {k.arg: _value(k.value, constants) for k in call.keywords if k.arg}
        if name in _CALLS:
            found |= {key: value for key, value in given.items() if value is not None}
            found["unresolved"] = (*found.get("unresolved", ()), *_unresolved(call, given))
        if isinstance(given.get("max_length"), int):
            found["max_length"] = given["max_length"]
        if name == "from_pretrained" and call.args and isinstance(first := _value(call.args[0], constants), str):
            found.setdefault("model", first)
    if not any(isinstance(n, ast.Call) and ast.unparse(n.func).rpartition(".")[2] in _CALLS for n in ast.walk(tree)):
        raise BadInput(
            msg(
                "{path} does not call TrainingArguments: give the script that does, or its arguments as JSON.",
                path=path,
            )
        )
    return found


def _unresolved(call: ast.Call, given: dict[str, Any]) -> Iterator[str]:
    """Settings whose value is neither a literal nor the name of one."""
    known = {field.name for field in fields(ScriptArgs)}
    for keyword in call.keywords:
        if keyword.arg in known and given[keyword.arg] is None:
            yield f"{keyword.arg}={ast.unparse(keyword.value)}"


def _constants(tree: ast.AST) -> dict[str, Any]:
    """Names that are assigned a literal."""
    return {
        target.id: node.value.value
        for node in ast.walk(tree)
        if isinstance(node, (ast.Assign, ast.AnnAssign)) and isinstance(node.value, ast.Constant)
        for target in (node.targets if isinstance(node, ast.Assign) else [node.target])
        if isinstance(target, ast.Name)
    }


def _value(node: ast.expr, constants: dict[str, Any]) -> Any:
    if isinstance(node, ast.Constant):
        return node.value
    return constants.get(node.id) if isinstance(node, ast.Name) else None


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


def edits_for(settings: ScriptArgs, device: Device) -> tuple[Estimate | None, list[Edit]]:
    """The current memory estimate and the best edits; without a model, the edits in their usual order."""
    if settings.model is None:
        return None, [Edit(change) for change, _ in _edits(settings, device)][:_MAX_EDITS]
    return _simulated_edits(settings, device)


def _simulated_edits(settings: ScriptArgs, device: Device) -> tuple[Estimate, list[Edit]]:
    first = estimate = _estimate(settings, device)
    edits: list[Edit] = []
    while len(edits) < _MAX_EDITS and not (edits and edits[-1].fits):
        tried = [(change, changed, _estimate(changed, device)) for change, changed in _edits(settings, device)]
        tried = [choice for choice in tried if choice[2].peak < estimate.peak]
        if not tried:
            break
        change, settings, estimate = min(tried, key=lambda choice: choice[2].peak)
        edits.append(Edit(change, estimate.peak, estimate.fits))
    return first, edits


def _edits(now: ScriptArgs, device: Device) -> Iterator[tuple[Message, ScriptArgs]]:
    """Single changes that keep the effective batch size."""
    rows = now.per_device_train_batch_size
    if rows > 1:
        fewer = next(size for size in range(max(1, rows // 8), 0, -1) if rows % size == 0)
        steps = rows // fewer * now.gradient_accumulation_steps
        smaller = replace(now, per_device_train_batch_size=fewer, gradient_accumulation_steps=steps)
        yield _accumulation(fewer, steps), smaller
    if not now.gradient_checkpointing:
        yield verbatim("gradient_checkpointing=True"), replace(now, gradient_checkpointing=True)
    if "adafactor" not in now.optim:
        yield verbatim('optim="adafactor"'), replace(now, optim="adafactor")
    if not (now.fp16 or now.bf16) and device.kind != "cpu":
        dtype = "bf16" if device.bf16 else "fp16"
        yield verbatim(f"{dtype}=True"), replace(now, **{dtype: True})  # type: ignore[arg-type]


def _accumulation(rows: int, steps: int) -> Message:
    return msg(
        "per_device_train_batch_size={rows}, gradient_accumulation_steps={steps} (also set "
        "trainer.model_accepts_loss_kwargs = False, or the gradients of BERT-like heads are that many times too large)",
        rows=rows,
        steps=steps,
    )


def _estimate(settings: ScriptArgs, device: Device) -> Estimate:
    """The estimate with every text at the maximum length, since the lengths of the data are unknown."""
    from tightfit.simulation.job_simulation import Simulation, SimulationSetup

    assert settings.model is not None
    job = Job(model=settings.model, data="none", batch_size=settings.batch, max_length=settings.max_length)
    tokenizer: Any = SimpleNamespace(pad_token_id=load_config(settings.model).get_text_config().pad_token_id or 0)
    lengths = Lengths.uniform(settings.batch, settings.max_length)
    return Simulation(SimulationSetup.of(job, device, Labels(), tokenizer), lengths).estimate(settings.recipe())
