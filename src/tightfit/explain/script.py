"""A script's settings, from TrainingArguments as JSON or from a Python file that is read and never run."""

from __future__ import annotations

import ast
import json
from collections.abc import Iterator
from dataclasses import dataclass, fields, replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any

from tightfit.device import Device
from tightfit.errors import BadInput
from tightfit.simulation.estimate import Estimate
from tightfit.strategies.recipe import Recipe
from tightfit.units import format_bytes

_CALLS = ("TrainingArguments", "Seq2SeqTrainingArguments")


@dataclass(frozen=True)
class Settings:
    """What decides the memory, named as transformers names it, with its defaults."""

    per_device_train_batch_size: int = 8
    gradient_accumulation_steps: int = 1
    gradient_checkpointing: bool = False
    optim: str = "adamw_torch_fused"
    fp16: bool = False
    bf16: bool = False
    model: str | None = None
    max_length: int = 512
    unread: tuple[str, ...] = ()
    """What a script computes, so that nobody can read it there."""

    @classmethod
    def read(cls, path: Path) -> Settings:
        """From a .json or a .py file."""
        try:
            text = path.read_text("utf-8")
        except (OSError, UnicodeDecodeError):
            raise BadInput(f"'{path}' cannot be read: give a JSON of TrainingArguments or a Python script.") from None
        if path.suffix.lower() == ".py":
            return cls()._with(_from_script(path, text))
        try:
            content = json.loads(text)
        except ValueError as error:
            raise BadInput(f"{path} is not readable as JSON: {error}.") from None
        if not isinstance(content, dict):
            raise BadInput(f"{path} must hold one JSON object with TrainingArguments' names.")
        return cls()._with(content)

    def recipe(self) -> Recipe:
        """The same in our words."""
        words = []
        if self.gradient_accumulation_steps > 1:
            words.append(f"micro-batch:size={self.per_device_train_batch_size}")
        if self.gradient_checkpointing:
            words.append("gradient-checkpointing")
        if "adafactor" in self.optim:
            words.append("adafactor")
        if self.fp16 or self.bf16:
            words.append("mixed-precision")
        return Recipe.parse(words)

    @property
    def batch(self) -> int:
        """Rows per optimizer step."""
        return self.per_device_train_batch_size * self.gradient_accumulation_steps

    def _with(self, content: dict[str, Any]) -> Settings:
        kinds = {field.name: type(getattr(Settings(), field.name)) for field in fields(Settings)}
        known = {name: value for name, value in content.items() if name in kinds}
        for name, value in known.items():
            if not _is_right(value, str if name == "model" else kinds[name]):
                raise BadInput(f"{name} is {value!r}, which is not what TrainingArguments takes: correct it.")
        return replace(self, **known)

    def __str__(self) -> str:
        slices = f" x {self.gradient_accumulation_steps}" if self.gradient_accumulation_steps > 1 else ""
        words = " ".join(word for word in self.recipe().specs if not word.startswith("micro-batch"))
        return (
            f"{self.model} with {self.per_device_train_batch_size}{slices} rows of {self.max_length} {words}".rstrip()
        )


def _is_right(value: Any, kind: type) -> bool:
    if kind is int:
        return isinstance(value, int) and not isinstance(value, bool) and value >= 1
    return isinstance(value, kind)


def _from_script(path: Path, text: str) -> dict[str, Any]:
    """Every literal that a call names, whatever the script would do with it."""
    try:
        tree = ast.parse(text)
    except (SyntaxError, ValueError) as error:
        raise BadInput(f"{path} is not readable as Python: {error}.") from None
    found: dict[str, Any] = {}
    constants = _constants(tree)
    for call in (node for node in ast.walk(tree) if isinstance(node, ast.Call)):
        name = call.func.attr if isinstance(call.func, ast.Attribute) else getattr(call.func, "id", "")
        given = {k.arg: _value(k.value, constants) for k in call.keywords if k.arg}
        if name in _CALLS:
            found |= {key: value for key, value in given.items() if value is not None}
            found["unread"] = (*found.get("unread", ()), *_unread(call, given))
        if isinstance(given.get("max_length"), int):
            found["max_length"] = given["max_length"]
        if name == "from_pretrained" and call.args and isinstance(first := _value(call.args[0], constants), str):
            found.setdefault("model", first)
    if not any(isinstance(n, ast.Call) and ast.unparse(n.func).rpartition(".")[2] in _CALLS for n in ast.walk(tree)):
        raise BadInput(f"{path} has no call of TrainingArguments: give the script that has, or a JSON of them.")
    return found


def _unread(call: ast.Call, given: dict[str, Any]) -> Iterator[str]:
    """What decides the memory, and is more than a literal or a name for one."""
    known = {field.name for field in fields(Settings)}
    for word in call.keywords:
        if word.arg in known and given[word.arg] is None:
            yield f"{word.arg}={ast.unparse(word.value)}"


def _constants(tree: ast.AST) -> dict[str, Any]:
    """Names that are given a literal."""
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


# Edits: the three changes of a script that bring its memory down most, each rehearsed on top of the one before.


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


def edits_for(settings: Settings, device: Device) -> tuple[Estimate | None, list[Edit]]:
    """What the settings take now, and the best edits; without a model in the order that usually helps."""
    if settings.model is None:
        return None, [Edit(words) for words, _ in _changes(settings, device)][:_THREE]
    return _rehearsed(settings, device)


def _rehearsed(settings: Settings, device: Device) -> tuple[Estimate, list[Edit]]:
    first = estimate = _estimate(settings, device)
    edits: list[Edit] = []
    while len(edits) < _THREE and not (edits and edits[-1].fits):
        tried = [(words, changed, _estimate(changed, device)) for words, changed in _changes(settings, device)]
        tried = [choice for choice in tried if choice[2].peak < estimate.peak]
        if not tried:
            break
        words, settings, estimate = min(tried, key=lambda choice: choice[2].peak)
        edits.append(Edit(words, estimate.peak, estimate.fits))
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


def _estimate(settings: Settings, device: Device) -> Estimate:
    """With texts as long as allowed: a script does not say how long its data is."""
    from tightfit.data.rows import Labels
    from tightfit.job import Job
    from tightfit.models import load_config
    from tightfit.simulation.simulation import Simulation, SimulationSetup
    from tightfit.simulation.worst_case import Lengths

    assert settings.model is not None
    job = Job(model=settings.model, data="none", batch_size=settings.batch, max_length=settings.max_length)
    tokenizer: Any = SimpleNamespace(pad_token_id=load_config(settings.model).get_text_config().pad_token_id or 0)
    lengths = Lengths.uniform(settings.batch, settings.max_length)
    return Simulation(SimulationSetup(job, device, Labels(("0", "1")), tokenizer), lengths).estimate(settings.recipe())
