"""Options of transformers scripts (`--output_dir`, `--fp16`) and the equivalent tightfit command.

Such a command is rejected, because a wrong guess could train something else; the error message shows the corrected
command, ready to paste.
"""

from __future__ import annotations

import shlex
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

from tightfit.engine.arguments import FREE
from tightfit.strategies.recipe import corrected_spec

_OPTIONS = {
    "model_name_or_path": "--model",
    "model_name": "--model",
    "model_id": "--model",
    "pretrained_model_name_or_path": "--model",
    "base_model": "--model",
    "train_file": "--data",
    "train_data": "--data",
    "train_path": "--data",
    "dataset": "--data",
    "dataset_name": "--data",
    "data_path": "--data",
    "validation_file": "--validation",
    "valid_file": "--validation",
    "eval_file": "--validation",
    "text_column_name": "--text",
    "text_column_names": "--text",
    "text_column": "--text",
    "label_column_name": "--label",
    "label_column": "--label",
    "max_seq_length": "--max-length",
    "max_seq_len": "--max-length",
    "max_len": "--max-length",
    "model_max_length": "--max-length",
    "max_source_length": "--max-length",
    "num_train_epochs": "--epochs",
    "num_epochs": "--epochs",
    "epoch": "--epochs",
    "lr": "--learning-rate",
    "wd": "--weight-decay",
    "output_dir": "--out",
    "output": "--out",
    "save_dir": "--out",
    "logging_dir": "",
    "save_total_limit": "--keep-checkpoints",
    "metric_for_best_model": "--metric",
    "memory": "--budget",
    "max_memory": "--budget",
}
"""Options with a value, and ours; those that a command does not have are left out."""
_SPECS = {
    "fp16": "mixed-precision:dtype=fp16",
    "bf16": "mixed-precision:dtype=bf16",
    "gradient_checkpointing": "gradient-checkpointing",
    "group_by_length": "length-bucketing",
    "use_lora": "lora",
    "lora": "lora",
    "use_peft": "lora",
    "adafactor": "adafactor",
}
"""Switches, and the strategy that each is here."""
_DEVICES = {"no_cuda": "cpu", "use_cpu": "cpu", "use_mps_device": "mps"}
_SWITCHES = {
    *("do_train", "do_eval", "do_predict", "overwrite_output_dir", "load_best_model_at_end", "push_to_hub"),
    *("pad_to_max_length", "predict_with_generate", "trust_remote_code", "save_only_model", "fp16_full_eval"),
    *("tf32", "torch_compile", "auto_find_batch_size", "greater_is_better", "dataloader_pin_memory"),
}
"""Switches that need nothing in their place, or have none."""
_WITH_VALUES = {
    *("per_device_eval_batch_size", "eval_strategy", "evaluation_strategy", "save_strategy", "optim_args"),
    *("dataloader_num_workers", "task_name"),
    *("test_file", "num_labels", "cache_dir", "tokenizer_name", "config_name", "fp16_opt_level", "lora_alpha"),
    *("lora_dropout", "ddp_find_unused_parameters", "deepspeed", "fsdp"),
    *("preprocessing_num_workers", "max_train_samples", "max_eval_samples", "neftune_noise_alpha"),
}
"""Options with a value that have none here."""
_TRUE, _FALSE = ("true", "1", "yes", "on"), ("false", "0", "no", "off", "none")


@dataclass
class Correction:
    """A command as it would have to be written."""

    words: list[str]
    """The command's name, its arguments and those of its options that exist."""
    unknown: list[str] = field(default_factory=list)
    """The options that do not exist."""
    left_out: list[str] = field(default_factory=list)
    """Those of them that have nothing in their place."""
    specs: list[str] = field(default_factory=list)
    rows: str | None = None
    accumulated: str | None = None

    @property
    def command(self) -> str:
        """The command, quoted for a shell."""
        uses = [word for spec in dict.fromkeys(self.specs) for word in ("--use", spec)]
        return shlex.join(["tightfit", *self.words, *uses])


def corrected_command(verb: str, arguments: Sequence[str], options: Mapping[str, bool]) -> Correction | None:
    """The command that was meant; None if an option is neither one of `options` nor known from elsewhere.

    `options` are those of the command, and whether each takes a value.
    """
    correction, rest = Correction([verb]), list(arguments)
    while rest:
        word = rest.pop(0)
        option, equals, value = word.partition("=")
        if word == "--":
            correction.words += [word, *rest]
            break
        if not word.startswith("--"):
            correction.words.append(word)
        elif option in options:
            takes_next = options[option] and not equals and rest
            correction.words += [word, *([rest.pop(0)] if takes_next else [])]
        elif not _correct(correction, option, value if equals else None, rest, options):
            return None
    _set_batch_size(correction, options)
    return correction if correction.unknown else None


def _correct(
    correction: Correction, option: str, value: str | None, rest: list[str], options: Mapping[str, bool]
) -> bool:
    """Take an unknown option and its value from the command; False if it is not known from elsewhere either."""
    key = option.removeprefix("--").lower().replace("-", "_")
    same = f"--{key.replace('_', '-')}"
    correction.unknown.append(option)
    if key in _SPECS or key in _DEVICES or key in _SWITCHES or options.get(same) is False:
        if value is None and rest and rest[0].lower() in (*_TRUE, *_FALSE):
            value = rest.pop(0)
        if value is None or value.lower() not in _FALSE:
            _switch_on(correction, option, key, same, options)
        return True
    if value is None and rest and not rest[0].startswith("--"):
        value = rest.pop(0)
    if value is None:
        return False
    return _set(correction, option, key, same, value, options)


def _switch_on(correction: Correction, option: str, key: str, same: str, options: Mapping[str, bool]) -> None:
    if key in _SPECS and "--use" in options:
        correction.specs.append(_SPECS[key])
    elif key in _DEVICES and "--device" in options:
        correction.words += ["--device", _DEVICES[key]]
    elif same in options:
        correction.words.append(same)
    else:
        correction.left_out.append(option)


def _set(correction: Correction, option: str, key: str, same: str, value: str, options: Mapping[str, bool]) -> bool:
    ours = _OPTIONS.get(key, same)
    if key == "per_device_train_batch_size":
        correction.rows = value
    elif key in ("gradient_accumulation_steps", "gradient_accumulation"):
        correction.accumulated = value
    elif key in ("optim", "optimizer") and "--use" in options:
        _set_optimizer(correction, option, value)
    elif key in ("lora_r", "lora_rank", "r") and "--use" in options:
        correction.specs = [*(spec for spec in correction.specs if spec != "lora"), f"lora:r={value}"]
    elif key == "resume_from_checkpoint" and "--resume" in options:
        correction.words.append("--resume")
    elif ours in options and not (ours == "--out" and correction.words[0] == "plan"):  # plan writes a file
        correction.words += [ours, value]
    elif key in FREE and "--set" in options:
        correction.words += ["--set", f"{key}={value}"]
    elif key in _OPTIONS or key in _WITH_VALUES or key in FREE or key in ("optim", "resume_from_checkpoint"):
        correction.left_out.append(option)
    else:
        return False
    return True


def _set_optimizer(correction: Correction, option: str, value: str) -> None:
    spec = corrected_spec(f"optim={value}") or corrected_spec(value)
    if spec is not None and spec != "adamw":
        correction.specs.append(spec)
    elif not value.startswith("adamw"):
        correction.left_out.append(option)


def _set_batch_size(correction: Correction, options: Mapping[str, bool]) -> None:
    """The effective batch size, and the rows of a micro-batch."""
    if correction.rows is None and correction.accumulated is None:
        return
    rows, accumulated = (
        int(text) if text and text.isdigit() else 0 for text in (correction.rows, correction.accumulated)
    )
    words = correction.words
    given = int(words[words.index("--batch-size") + 1]) if "--batch-size" in words else 32
    if rows and "--batch-size" in options:
        words += ["--batch-size", str(rows * (accumulated or 1))]
    elif accumulated:
        rows = max(1, given // accumulated)
    if accumulated > 1 and "--use" in options:
        correction.specs.append(f"micro-batch:size={rows}")
