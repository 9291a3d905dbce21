"""A training script's settings: of transformers' Trainer, TRL, accelerate or a plain PyTorch loop.

Settings come from a Python script, a notebook, a shell script that starts one, or TrainingArguments as JSON. Scripts
are parsed and never run.
"""

from __future__ import annotations

import ast
import json
import re
import shlex
from collections.abc import Iterator
from dataclasses import dataclass, fields, replace
from pathlib import Path
from typing import Any

from tightfit.errors import BadInput, first_line
from tightfit.explain.source import Source, called_name
from tightfit.messages import Message, msg
from tightfit.strategies import STRATEGIES
from tightfit.strategies.recipe import Recipe

_TRAINER = re.compile(r"\w*TrainingArguments")
_TRL = re.compile(r"(SFT|DPO|KTO|ORPO|CPO|GRPO|PPO|Reward)Config")
_TRL_DEFAULTS = {"max_length": 1024, "gradient_checkpointing": True, "bf16": True}
_OPTIMIZERS = ("AdamW", "Adam", "SGD", "Adafactor", "AdamW8bit", "Adam8bit", "PagedAdamW8bit", "RMSprop", "Lion")
_MODEL_CLASS = re.compile(r"\w*(Model|For[A-Z]\w+|LMHead\w*)")
_VALIDATION = re.compile(r"val|dev|test|eval", re.IGNORECASE)


@dataclass(frozen=True)
class ScriptArgs:
    """The settings that determine memory, with transformers' names and defaults."""

    per_device_train_batch_size: int = 8
    per_device_eval_batch_size: int = 8
    gradient_accumulation_steps: int = 1
    gradient_checkpointing: bool = False
    optim: str = "adamw_torch_fused"
    fp16: bool = False
    bf16: bool = False
    model: str | None = None
    max_length: int = 512
    num_train_epochs: float = 3.0
    learning_rate: float = 5e-5
    data: str | None = None
    """The data file or data set, if the script names it."""
    head: str = ""
    """The class of the model, such as AutoModelForSequenceClassification; empty if it is not known."""
    lora: bool = False
    frozen: bool = False
    """Whether the encoder is frozen."""
    loop: bool = False
    """Whether it is a loop of its own, without Trainer."""
    known: frozenset[str] = frozenset()
    """The settings that were read; the others are defaults."""
    unresolved: tuple[str, ...] = ()
    """Settings that the script computes, so that they are unknown without running it."""

    @classmethod
    def read(cls, path: Path) -> ScriptArgs:
        """Read the settings from a .py, .ipynb, .sh or .json file."""
        try:
            text = path.read_text("utf-8")
        except (OSError, UnicodeDecodeError):
            unreadable = msg("'{path}' cannot be read: give a JSON of TrainingArguments or a Python script.", path=path)
            raise BadInput(unreadable) from None
        match path.suffix.lower():
            case ".py":
                return cls.of(_from_script(path, text))
            case ".sh":
                return cls.of(_from_command(text))
            case ".ipynb":
                return cls.of(_from_script(path, _notebook_code(path, text)))
        return cls.of(_checked(_json_object(path, text)))

    @classmethod
    def of(cls, found: dict[str, Any]) -> ScriptArgs:
        """The defaults, with the values that were found."""
        return replace(cls(), **found, known=frozenset(found))

    def recipe(self) -> Recipe:
        """The settings as a tightfit recipe."""
        specs = []
        if self.gradient_accumulation_steps > 1:
            specs.append(f"micro-batch:size={self.per_device_train_batch_size}")
        if self.gradient_checkpointing:
            specs.append("gradient-checkpointing")
        if "adafactor" in self.optim.lower():
            specs.append("adafactor")
        elif "8bit" in self.optim.lower() and STRATEGIES["adamw-8bit"].is_available():
            specs.append("adamw-8bit")
        if self.fp16 or self.bf16:
            specs.append("mixed-precision")
        if self.lora:
            specs.append("lora")
        elif self.frozen:
            specs.append("freeze:cache=false")
        return Recipe.parse(specs)

    @property
    def batch(self) -> int:
        """Rows per optimizer step."""
        return self.per_device_train_batch_size * self.gradient_accumulation_steps

    @property
    def classifies(self) -> bool:
        """Whether the model is one that tightfit estimates: with a small head, not the logits of a vocabulary."""
        return not re.search(r"LM|ForConditionalGeneration|Seq2Seq", self.head)

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


_KINDS = {field.name: type(getattr(ScriptArgs(), field.name)) for field in fields(ScriptArgs)} | {"model": str}
_SETTINGS = [name for name in _KINDS if name not in ("known", "unresolved", "loop", "frozen", "lora", "head", "data")]


# JSON, shell scripts and notebooks.


def _json_object(path: Path, text: str) -> dict[str, Any]:
    try:
        content = json.loads(text)
    except ValueError as error:
        raise BadInput(msg("{path} is not readable as JSON: {reason}.", path=path, reason=str(error))) from None
    if not isinstance(content, dict):
        raise BadInput(msg("{path} must hold one JSON object with the names of TrainingArguments.", path=path))
    return content


def _checked(content: dict[str, Any]) -> dict[str, Any]:
    known = {name: value for name, value in content.items() if name in _SETTINGS}
    for name, value in known.items():
        if not _is_valid(name, value):
            raise BadInput(
                msg(
                    "{name} is {value}, which TrainingArguments does not accept: correct it.",
                    name=name,
                    value=repr(value),
                )
            )
    return known


def _is_valid(name: str, value: Any) -> bool:
    kind = _KINDS[name]
    if kind is int:
        return isinstance(value, int) and not isinstance(value, bool) and value >= 1
    if kind is float:
        return isinstance(value, (int, float)) and not isinstance(value, bool) and value > 0
    return isinstance(value, kind)


_OPTION_NAMES = {
    "model_name_or_path": "model",
    "max_seq_length": "max_length",
    "train_file": "data",
    "dataset_name": "data",
}


def _from_command(text: str) -> dict[str, Any]:
    """The options of a command line, as --per_device_train_batch_size 8 or --fp16."""
    words = shlex.split(text.replace("\\\n", " "), comments=True)
    variables = dict(word.split("=", 1) for word in words if re.match(r"[A-Za-z_]\w*=", word))
    found: dict[str, Any] = {}
    for word, following in zip(words, [*words[1:], "--"], strict=True):
        option, _, value = word.removeprefix("--").partition("=")
        name = option.replace("-", "_")
        name = _OPTION_NAMES.get(name, name)
        if not word.startswith("--") or name not in (*_SETTINGS, "data"):
            continue
        value = value or ("True" if following.startswith("-") else following)
        value = variables.get(value.strip("${}"), value) if value.startswith("$") else value
        parsed = _parsed(value) if name not in ("model", "data", "optim") else value
        if name == "data" or _is_valid(name, parsed):
            found[name] = parsed
    return found


def _parsed(text: str) -> Any:
    try:
        return ast.literal_eval(text.capitalize() if text.lower() in ("true", "false") else text)
    except (ValueError, SyntaxError):
        return None


def _notebook_code(path: Path, text: str) -> str:
    """The code cells without shell commands and magics."""
    cells = _json_object(path, text).get("cells") or []
    sources = ("".join(cell.get("source") or []) for cell in cells if cell.get("cell_type") == "code")
    lines = (line for source in sources if not source.lstrip().startswith("%%") for line in source.splitlines())
    return "\n".join("pass" if line.lstrip().startswith(("!", "%")) else line for line in lines)


# Python.


def _from_script(path: Path, text: str) -> dict[str, Any]:
    try:
        source = Source(text)
        found = _settings(source)
    except (SyntaxError, ValueError, RecursionError, MemoryError) as error:  # the last two if it is nested too deeply
        reason = first_line(error)
        raise BadInput(msg("{path} is not readable as Python: {reason}.", path=path, reason=reason)) from None
    if found is None:
        raise BadInput(
            msg(
                "{path} calls neither TrainingArguments nor DataLoader: give the script that does, or its arguments "
                "as JSON.",
                path=path,
            )
        )
    return found


def _settings(source: Source) -> dict[str, Any] | None:
    """The settings of Trainer or a loop; None if the script trains with neither."""
    arguments = [call for call in source.calls if _is_arguments(called_name(call))]
    by_command = list(source.called("HfArgumentParser", "TrlParser"))
    if arguments:
        found = _of_arguments(source, arguments[-1])
    elif by_command:
        found = {"unresolved": ("TrainingArguments",)}
    elif (loop := _of_loop(source)) is not None:
        found = loop
    else:
        return None
    return _of_model(source) | found


def _is_arguments(name: str) -> bool:
    return bool(_TRAINER.fullmatch(name) or _TRL.fullmatch(name))


def _of_arguments(source: Source, call: ast.Call) -> dict[str, Any]:
    """The keyword arguments of TrainingArguments, or of TRL's classes with other defaults."""
    found: dict[str, Any] = dict(_TRL_DEFAULTS) if _TRL.fullmatch(called_name(call)) else {}
    given = source.keywords(call)
    if found and "fp16" in given:
        del found["bf16"]
    unresolved = []
    for keyword, node in given.items():
        name = _OPTION_NAMES.get(keyword, keyword)
        if name not in _SETTINGS:
            continue
        value = source.value(node)
        if value is not None and _is_valid(name, value):
            found[name] = value
        else:
            unresolved.append(f"{keyword}={ast.unparse(node)}")
    return found | {"unresolved": tuple(unresolved)}


def _of_model(source: Source) -> dict[str, Any]:
    """The model, the length of texts, and what else the calls of any script tell."""
    found: dict[str, Any] = {}
    loaded = [call for call in source.called("from_pretrained") if isinstance(call.func, ast.Attribute)]
    models = [call for call in loaded if _MODEL_CLASS.fullmatch(_owner(call))]
    tokenizers = [call for call in loaded if "Tokenizer" in _owner(call)]
    trainers = list(source.called("SFTTrainer", "DPOTrainer"))
    names = [source.argument(call, "pretrained_model_name_or_path", 0) for call in (*models, *tokenizers)]
    names += [source.argument(call, "model", 0) for call in trainers]
    if model := next((name for name in names if isinstance(name, str)), None):
        found["model"] = model
    if models or trainers:
        found["head"] = _owner(models[0]) if models else "CausalLM"
    if length := _text_length(source):
        found["max_length"] = length
    if data := next(_data(source), None):
        found["data"] = data
    if any(source.called("gradient_checkpointing_enable")):
        found["gradient_checkpointing"] = True
    return found | {"lora": any(source.called("get_peft_model", "LoraConfig")), "frozen": _freezes(source)}


def _owner(call: ast.Call) -> str:
    """The class whose method is called: BertModel of BertModel.from_pretrained."""
    return ast.unparse(call.func).split(".")[-2] if isinstance(call.func, ast.Attribute) else ""


def _text_length(source: Source) -> int | None:
    """The max_length of tokenization, which is called with truncation or padding."""
    tokenizing = (c for c in source.calls if {"truncation", "padding", "pad_to_max_length"} & set(source.keywords(c)))
    lengths = (source.argument(call, name) for call in tokenizing for name in ("max_length", "max_seq_length"))
    return next((length for length in lengths if isinstance(length, int) and length > 1), None)


def _data(source: Source) -> Iterator[str]:
    for call in source.called("load_dataset"):
        files = source.argument(call, "data_files")
        name = files if isinstance(files, str) else source.argument(call, "path", 0)
        if isinstance(name, str) and name not in ("csv", "json", "text", "parquet"):
            yield name
    for call in source.called("read_csv", "read_json", "read_parquet"):
        if isinstance(name := source.argument(call, "filepath_or_buffer", 0), str):
            yield name


def _freezes(source: Source) -> bool:
    """Whether a whole part, such as model.bert, gets requires_grad = False; its layers are not looked at."""
    loops = [node for node in source.nodes if isinstance(node, ast.For)]
    frozen = [node for node in loops if "requires_grad = False" in ast.unparse(node)]
    parts = [ast.unparse(node.iter) for node in frozen if not any(isinstance(each, ast.If) for each in ast.walk(node))]
    calls = [ast.unparse(call) for call in source.called("requires_grad_") if "False" in ast.unparse(call)]
    encoder = r"\.(bert|roberta|base_model|encoder|distilbert|electra|albert|deberta|transformer|backbone)\."
    return any(re.search(encoder, text) for text in (*parts, *calls))


# Loops of their own.


def _of_loop(source: Source) -> dict[str, Any] | None:
    """The settings of a plain PyTorch or accelerate loop; None if there is no DataLoader."""
    loaders = list(_loaders(source))
    if not loaders:
        return None
    training = [call for name, call in loaders if not _VALIDATION.search(name)] or [loaders[0][1]]
    training.sort(key=lambda call: source.argument(call, "shuffle") is not True)
    others = [call for name, call in loaders if _VALIDATION.search(name)]
    found: dict[str, Any] = {"loop": True, "unresolved": ()}
    for name, calls in (("per_device_train_batch_size", training), ("per_device_eval_batch_size", others)):
        if calls:
            found |= _batch_size(source, name, calls[0])
    return found | _of_optimizer(source) | _of_precision(source) | _of_accumulation(source) | _of_epochs(source)


def _loaders(source: Source) -> Iterator[tuple[str, ast.Call]]:
    """The calls of DataLoader, with the names that tell what they load."""
    assigned = {id(node.value): ast.unparse(node.targets[0]) for node in source.nodes if isinstance(node, ast.Assign)}
    for call in source.called("DataLoader"):
        data = ast.unparse(call.args[0]) if call.args else ""
        yield f"{assigned.get(id(call), '')} {data}", call


def _batch_size(source: Source, name: str, call: ast.Call) -> dict[str, Any]:
    value = source.argument(call, "batch_size", 1)
    if isinstance(value, int) and value >= 1:
        return {name: value}
    given = source.keywords(call).get("batch_size", call.args[1] if len(call.args) > 1 else None)
    if given is None:
        return {name: 1}  # torch's default
    return {"unresolved": (f"batch_size={ast.unparse(given)}",)} if name.endswith("train_batch_size") else {}


def _of_optimizer(source: Source) -> dict[str, Any]:
    found: dict[str, Any] = {}
    for call in source.called(*_OPTIMIZERS):
        found["optim"] = called_name(call).lower()
        rate = source.argument(call, "lr", 1)
        if isinstance(rate, float) and rate > 0:
            found["learning_rate"] = rate
    return found


def _of_precision(source: Source) -> dict[str, Any]:
    for call in source.called("Accelerator"):
        precision = source.argument(call, "mixed_precision")
        if precision in ("fp16", "bf16"):
            return {precision: True}
    for call in source.called("autocast"):
        return {"bf16" if "bfloat16" in ast.unparse(call) else "fp16": True}
    return {}


def _of_accumulation(source: Source) -> dict[str, Any]:
    """Accelerator(gradient_accumulation_steps=…), or: if step % 4 == 0: optimizer.step()."""
    steps = [source.argument(call, "gradient_accumulation_steps") for call in source.called("Accelerator")]
    for node in source.nodes:
        if isinstance(node, ast.If) and ".step(" in "\n".join(map(ast.unparse, node.body)):
            divided = (each for each in ast.walk(node.test) if isinstance(each, ast.BinOp))
            steps += [source.value(each.right) for each in divided if isinstance(each.op, ast.Mod)]
    found = next((count for count in steps if isinstance(count, int) and count > 1), None)
    return {"gradient_accumulation_steps": found} if found else {}


def _of_epochs(source: Source) -> dict[str, Any]:
    for node in source.nodes:
        if isinstance(node, ast.For) and "epoch" in ast.unparse(node.target):
            for call in (each for each in ast.walk(node.iter) if isinstance(each, ast.Call)):
                count = source.value(call.args[-1]) if called_name(call) == "range" and call.args else None
                if isinstance(count, int) and count > 0:
                    return {"num_train_epochs": float(count)}
    return {}
