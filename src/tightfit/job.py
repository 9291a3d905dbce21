"""Job: what to train, and its YAML file."""

from __future__ import annotations

import json
from pathlib import Path
from typing import TYPE_CHECKING, Any

import yaml
from pydantic import BaseModel, ConfigDict, Field, ValidationError, field_validator

from tightfit.errors import BadInput, short_repr, suggest, why_invalid
from tightfit.messages import Message, clauses, msg
from tightfit.system.files import atomic_write

if TYPE_CHECKING:
    from pydantic_core import ErrorDetails


class Job(BaseModel):
    """What to train: a model, a data file and the hyperparameters. Memory settings are not part of it."""

    model_config = ConfigDict(frozen=True, extra="forbid", use_attribute_docstrings=True, allow_inf_nan=False)

    model: str
    """A hub id, or a folder with config, tokenizer and weights."""
    data: str
    """A CSV, TSV, JSON, JSONL, Parquet, text or CoNLL file, a folder of them, or a hub dataset."""
    validation: str | None = None
    """A validation file; without it 10 % of the data is held out, stratified by class if there are classes."""
    task: str = "text-classification"
    """The task to train for (tightfit tasks lists them). Detected if the data leaves no doubt, else the default."""
    text: str | None = None
    """The text column, or two for text pairs: premise,hypothesis. Detected from the column names if omitted."""
    label: str | None = None
    """The label column, or several of 0 and 1: toxic,obscene. Detected from the column names if omitted."""
    source_prefix: str | None = None
    """What is written before each text, such as "translate English to German: " for T5 (text-to-text)."""
    positive: str | None = None
    """The positive label, for F1. If omitted, it is detected (1, yes, positive, spam, …); if none is, macro F1."""
    metric: str | None = None
    """The metric that chooses the best checkpoint: f1, accuracy, macro-f1, mcc, loss, … (tightfit tasks lists them)."""
    batch_size: int = Field(default=32, ge=1, le=10**9)
    """Examples per optimizer step: the effective batch size, whatever the memory budget."""
    max_length: int = Field(default=128, ge=2)
    """Most tokens of a text. Longer ones are truncated or, for some tasks, cut into blocks or windows of it."""
    epochs: float = Field(default=1.0, gt=0, le=10**6)
    """Passes over the training data."""
    max_steps: int | None = Field(default=None, ge=1, le=10**9)
    """Stop after this many optimizer steps."""
    learning_rate: float = Field(default=2e-5, gt=0)
    """The peak learning rate, reached after the warm-up; --lr-scheduler-type says how it changes from there."""
    lr_scheduler_type: str = "linear"
    """How the learning rate changes after the warm-up, as in transformers: linear, cosine, constant_with_warmup, …"""
    warmup_ratio: float = Field(default=0.0, ge=0, lt=1)
    """The share of all steps in which the learning rate rises from 0."""
    warmup_steps: int | None = Field(default=None, ge=0, le=10**9)
    """The number of steps in which the learning rate rises from 0, instead of --warmup-ratio."""
    weight_decay: float = Field(default=0.01, ge=0)
    """Weight decay; not applied to biases and norm weights."""
    max_grad_norm: float = Field(default=1.0, ge=0)
    """Gradients are clipped to this norm; 0 disables clipping."""
    label_smoothing_factor: float = Field(default=0.0, ge=0, lt=1)
    """The share of each label that the loss spreads over all classes."""
    class_weights: str | None = None
    """Weights of the classes in the loss: balanced (by how rare each is), or numbers: spam=5,ham=1."""
    eval_steps: int | None = Field(default=None, ge=1, le=10**9)
    """Evaluate and save a checkpoint every so many steps instead of at the end of each epoch."""
    save_steps: int | None = Field(default=None, ge=1, le=10**9)
    """Save a checkpoint every so many steps, in addition to those of evaluations."""
    early_stopping_patience: int | None = Field(default=None, ge=1, le=10**9)
    """Stop after so many evaluations in a row that are not better than the best."""
    set: tuple[str, ...] = ()
    """Another field of transformers.TrainingArguments: adam_beta2=0.98. Repeatable."""
    seed: int = Field(default=42, ge=0, lt=2**32)
    """Random seed for the split, the initialization of the head, the data order and dropout."""
    random_weights: bool = False
    """Use only the model's config, with random weights: for measuring memory and time, not for results."""

    if not TYPE_CHECKING:  # type checkers see the fields

        def __init__(self, **values: Any) -> None:
            """Report invalid values in one sentence."""
            try:
                super().__init__(**values)
            except ValidationError as error:
                raise BadInput(_validation_message(error)) from None

    @field_validator("text", "label", "positive", mode="before")
    @classmethod
    def _coerce_columns(cls, value: Any) -> Any:
        """In YAML, a column or a label may be a number, and a pair of columns a list."""
        if isinstance(value, (list, tuple)) and all(isinstance(name, (str, int)) for name in value):
            return ",".join(str(name) for name in value)
        return str(value) if isinstance(value, int) else value

    @field_validator("class_weights", mode="before")
    @classmethod
    def _coerce_weights(cls, value: Any) -> Any:
        """In YAML and Python, the weights may be a mapping."""
        return ",".join(_pairs(value)) if isinstance(value, dict) else value

    @field_validator("set", mode="before")
    @classmethod
    def _coerce_set(cls, value: Any) -> Any:
        """In YAML and Python, the fields may be a mapping."""
        return tuple(_pairs(value)) if isinstance(value, dict) else value

    def resolve_paths(self) -> Job:
        """The same job with absolute paths, so that it works from any folder."""
        named = {name: getattr(self, name) for name in ("model", "data", "validation")}
        paths = {name: Path(value).expanduser() for name, value in named.items() if value is not None}
        return self.model_copy(update={name: str(p.resolve()) for name, p in paths.items() if p.exists()})

    def clip_batch_size(self, rows: int) -> Job:
        """The same job with a batch size of at most `rows`, the number of training rows."""
        return self.model_copy(update={"batch_size": min(self.batch_size, rows)})


def _pairs(values: dict[Any, Any]) -> list[str]:
    """As written on the command line: `key=value`, a mapping as JSON."""
    written = {key: json.dumps(value) if isinstance(value, (dict, bool)) else value for key, value in values.items()}
    return [f"{key}={value}" for key, value in written.items()]


def setting_names() -> list[str]:
    """The names of the settings as written on the command line and in YAML."""
    return [name.replace("_", "-") for name in Job.model_fields]


def read_job_file(path: Path) -> tuple[dict[str, Any], list[str]]:
    """Read a YAML job file: the settings, and the strategies under `use`."""
    if path.suffix.lower() not in (".yaml", ".yml"):
        raise BadInput(msg("'{path}' is not a job file (.yaml): give a data file with --data {path}.", path=path))
    content = load_yaml(path)
    use = content.pop("use", None) or []
    content.pop("plan", None)
    if not isinstance(use, list) or not all(isinstance(spec, str) for spec in use):
        problem = msg("'use' must be a list of strategies such as '- micro-batch:size=8'.")
        raise BadInput(at_key(path, "use", problem))
    values = {}
    for key, value in content.items():
        written = key if isinstance(key, str) else short_repr(key)
        name = written.replace("-", "_")
        if name not in Job.model_fields:
            raise BadInput(at_key(path, written, _no_setting(written, [*setting_names(), "use", "plan"])))
        _validate_setting(path, written, name, value)
        values[name] = value
    return values, use


def _validate_setting(path: Path, written: str, name: str, value: Any) -> None:
    """Raise an error with the line number if the value is invalid."""
    try:
        Job(**{"model": "any", "data": "any", name: value})
    except BadInput as error:
        raise BadInput(at_key(path, written, error.message)) from None


def at_key(path: Path, key: str, problem: Message, below: str | None = None) -> Message:
    """A problem with the value of a key in a YAML file, with its line; `below` restricts the search to a section."""
    line = _line_of(path, key, below)
    return msg("{path}, line {line}: {problem}", path=path, line=line, problem=problem)


def _line_of(path: Path, key: str, below: str | None) -> int:
    lines = path.read_text("utf-8").splitlines()
    start = next((number for number, line in enumerate(lines, 1) if line.startswith(f"{below}:")), 0) if below else 0
    found = [n for n, line in enumerate(lines, 1) if n > start and line.strip().startswith(f"{key}:")]
    return found[0] if found else max(1, start)


def write_job_file(path: Path, job: Job, use: list[str]) -> None:
    """Write a YAML job file for `tightfit train FILE`."""
    content = {**job_values(job), "use": use}
    atomic_write(path, yaml.safe_dump(content, sort_keys=False, allow_unicode=True))


def job_values(job: Job) -> dict[str, Any]:
    """The settings as written in YAML."""
    settings = {name: value for name, value in job.model_dump().items() if value not in (None, ())}
    return {name.replace("_", "-"): list(v) if isinstance(v, tuple) else v for name, v in settings.items()}


def load_yaml(path: Path) -> dict[str, Any]:
    """Read a YAML file of 'name: value' lines."""
    try:
        content = yaml.safe_load(path.read_text("utf-8"))
    except FileNotFoundError:
        raise BadInput(msg("There is no job file '{path}': check the name.", path=path)) from None
    except (yaml.YAMLError, ValueError, RecursionError, OSError) as error:
        raise BadInput(msg("{path} is not valid YAML: {reason}.", path=path, reason=_one_line(error))) from None
    if not isinstance(content, dict):
        raise BadInput(msg("{path} must contain 'name: value' lines, such as 'model: bert-base-chinese'.", path=path))
    return content


def _validation_message(error: ValidationError) -> Message:
    problems = clauses(*(_problem(item) for item in error.errors()))
    return problems if problems.endswith(".") else msg("{problem}.", problem=problems)


def _problem(item: ErrorDetails) -> Message:
    name = str(item["loc"][0]).replace("_", "-") if item["loc"] else "job"
    if item["type"] == "extra_forbidden":
        return _no_setting(name, setting_names())
    if item["type"] == "missing":
        return msg("{name} is missing", name=name)
    return msg("{name} is {value}: {reason}", name=name, value=short_repr(item["input"]), reason=why_invalid(item))


def _no_setting(name: str, known: list[str]) -> Message:
    return msg("there is no setting '{name}': {suggestion}", name=name, suggestion=suggest(name, known))


def _one_line(error: Exception) -> str:
    return " ".join(str(error).split())
