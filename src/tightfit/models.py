"""Models: load config, tokenizer and weights from the hub or a folder, and find a model's layers."""

from __future__ import annotations

import contextlib
import json
from collections.abc import Callable, Iterator, Mapping
from contextlib import AbstractContextManager
from dataclasses import dataclass, field
from logging import ERROR, getLogger
from pathlib import Path
from pickle import UnpicklingError
from typing import TYPE_CHECKING, Any

from tightfit.errors import ModelError, first_line, is_out_of_memory, short_repr
from tightfit.hub import HubUnreachable, hub_access
from tightfit.messages import Message, msg
from tightfit.optional_imports import allow_imports
from tightfit.system.processes import SharedSetting

if TYPE_CHECKING:
    from torch import nn
    from transformers import PretrainedConfig, PreTrainedModel, PreTrainedTokenizerBase


_CONFIG = ("config.json",)
_TOKENIZER = ("tokenizer.json", "tokenizer_config.json", "vocab.txt")
_WEIGHTS = ("model.safetensors", "model.safetensors.index.json", "pytorch_model.bin", "pytorch_model.bin.index.json")
_DEPTH_NAMES = ("num_hidden_layers", "num_decoder_layers", "encoder_layers", "decoder_layers")


def check_available(name: str) -> None:
    """Raise ModelError if the model is on a hub that cannot be reached: before libraries are imported for seconds."""
    _check_folder(name)
    with _as_model_error(name, "config"), hub_access(name, _CONFIG):
        pass


def load_config(name: str, **changes: Any) -> PretrainedConfig:
    """The model's config, with `changes` such as the labels of the task."""
    from transformers import AutoConfig

    _check_folder(name)
    with _as_model_error(name, "config"), hub_access(name, _CONFIG):
        return AutoConfig.from_pretrained(name, trust_remote_code=False, **changes)


def load_tokenizer(name: str) -> PreTrainedTokenizerBase:
    """The model's tokenizer, with padding on the right."""
    from transformers import AutoTokenizer

    _check_folder(name)
    with _as_model_error(name, "tokenizer"), hub_access(name, _TOKENIZER):
        tokenizer = AutoTokenizer.from_pretrained(name, trust_remote_code=False)
    if len(tokenizer) <= len(tokenizer.all_special_tokens):
        raise ModelError(_no_tokenizer(name))
    # Right padding keeps every token's position when a micro-batch's padding is trimmed.
    tokenizer.padding_side = "right"
    if tokenizer.pad_token is None:
        tokenizer.pad_token = tokenizer.eos_token
    if tokenizer.pad_token is None:
        raise ModelError(
            msg(
                "The tokenizer of '{name}' has neither a padding nor an end-of-sequence token: use another model.",
                name=name,
            )
        )
    return tokenizer


def _no_tokenizer(name: str) -> Message:
    return msg("'{name}' has no tokenizer: put tokenizer.json or vocab.txt beside its config.json.", name=name)


@dataclass(frozen=True)
class Loading:
    """How a model's weights are loaded. Strategies change it before there is a model."""

    dtype: str = "float32"
    """The number format of the weights, as torch names it."""
    arguments: Mapping[str, Any] = field(default_factory=dict)
    """Further arguments of `from_pretrained`, such as a quantization config; random weights do not use them."""


def load_model(
    head: Any, name: str, config: PretrainedConfig, *, random_weights: bool, loading: Loading | None = None
) -> PreTrainedModel:
    """Build the model. Weights come from safetensors, or from a pickle with `weights_only`."""
    import torch

    loading = loading or Loading()
    dtype = getattr(torch, loading.dtype)
    _check_weight_paths(name)
    if not random_weights:
        _allow_peft(name)
    with (
        _as_model_error(name, "model" if random_weights else "weights"),
        quiet_transformers(),
    ):  # the new head's weights are missing on purpose
        if random_weights:
            model = head.from_config(config, trust_remote_code=False, dtype=dtype)
            model.tie_weights()  # transformers skips it under no_init_weights, as in a simulation
            return model
        with hub_access(name, _WEIGHTS):
            model, report = head.from_pretrained(
                name,
                config=config,
                trust_remote_code=False,
                weights_only=True,
                dtype=dtype,
                ignore_mismatched_sizes=True,  # a head for another number of labels is replaced
                output_loading_info=True,
                **loading.arguments,
            )
    _check_loaded_weights(name, model, report)
    return model


def _check_loaded_weights(name: str, model: PreTrainedModel, report: dict[str, Any]) -> None:
    """Only the head may be new: missing or mismatched encoder weights are an error."""
    encoder = f"{model.base_model_prefix}."
    mismatched = sorted(str(key[0] if isinstance(key, tuple) else key) for key in report["mismatched_keys"])
    missing = [key for key in report["missing_keys"] if key.startswith(encoder) and ".pooler." not in key]
    wrong = [key for key in mismatched if key.startswith(encoder)] or missing
    if wrong:
        raise ModelError(
            msg(
                "The weights in '{name}' do not match its config ({count} parameters such as '{parameter}' "
                "have another shape or are missing): download the model's files again.",
                name=name,
                count=len(wrong),
                parameter=wrong[0],
            )
        )


def max_positions(model: PreTrainedModel) -> int | None:
    """The longest input in tokens that the model has positions for; None if unlimited."""
    config = getattr(model, "config", None)
    positions = getattr(config.get_text_config(), "max_position_embeddings", None) if config else None
    if positions is None or positions < 0:
        return None
    # RoBERTa-like models count positions from the padding token's id: 514 rows for 512 tokens.
    table = getattr(getattr(model.base_model, "embeddings", None), "position_embeddings", None)
    padding = getattr(table, "padding_idx", None)
    return positions if padding is None else positions - padding - 1


def _check_folder(name: str) -> None:
    folder = Path(name)
    if folder.is_dir() and not (folder / "config.json").is_file():
        raise ModelError(
            msg("The folder '{name}' has no config.json: give the folder with the model's files.", name=name)
        )
    if not folder.exists() and (name.startswith((".", "/", "~")) or name.count("/") > 1):
        raise ModelError(msg("There is no model folder '{name}': check the path, or give a hub id.", name=name))


def _allow_peft(name: str) -> None:
    """transformers loads adapters with peft, if it can import it."""
    folder = Path(name)
    if not folder.is_dir() or (folder / "adapter_config.json").is_file():
        allow_imports("peft")


def _check_weight_paths(name: str) -> None:
    """The index of sharded weights may only name files in its own folder."""
    for index in Path(name).glob("*.index.json"):
        try:
            files = json.loads(index.read_text("utf-8"))["weight_map"].values()
        except (OSError, ValueError, RecursionError, KeyError, TypeError, AttributeError):
            not_index = msg("'{file}' is not an index of weight files: download the model's files again.", file=index)
            raise ModelError(not_index) from None
        for file in files:
            if not isinstance(file, str) or Path(file).name != file:
                raise ModelError(
                    msg(
                        "'{file}' names weights outside its folder ({path}): use another model.",
                        file=index,
                        path=short_repr(file),
                    )
                )


@contextlib.contextmanager
def _as_model_error(name: str, what: str) -> Iterator[None]:
    """Replace long library errors with one sentence and a fix."""
    try:
        yield
    except Exception as error:  # every format and the hub client have their own errors
        if is_out_of_memory(error):  # not caused by the model's files
            raise
        raise ModelError(_load_message(name, what, error)) from error


def _load_message(name: str, what: str, error: Exception) -> Message:
    if isinstance(error, HubUnreachable):
        return msg(
            "'{name}' is no local folder, and {host} cannot be reached: set HF_ENDPOINT to a mirror "
            "(HF_ENDPOINT=https://hf-mirror.com), or download the model from ModelScope or on another machine and give "
            "its folder.",
            name=name,
            host=error.host,
        )
    reason = first_line(error).rstrip(".")
    if isinstance(error, ImportError):
        missing = reason.partition(". ")[0]  # what follows is where to read about installing it
        return msg("'{name}' cannot be built: {missing}. Install it, or use another model.", name=name, missing=missing)
    if "trust_remote_code" in str(error):
        return msg(
            "'{name}' needs trust_remote_code, which tightfit does not allow: use a model that transformers includes.",
            name=name,
        )
    if isinstance(error, UnpicklingError):
        return msg(
            "The weights in '{name}' are a pickle that cannot be loaded safely: convert them to safetensors.", name=name
        )
    if what == "tokenizer" and "backend tokenizer" in reason:
        return _no_tokenizer(name)
    if not Path(name).is_dir():
        return msg(
            "The {what} of '{name}' cannot be downloaded from the hub: {reason}. "
            "Check the name and the connection, or give a local folder.",
            what=_PARTS[what],
            name=name,
            reason=reason,
        )
    if what == "model":
        return msg(
            "'{name}' cannot be built from its config: {reason}. Correct the config, or use another model.",
            name=name,
            reason=reason,
        )
    hint = msg(" Add --random-weights to use only the config.") if what == "weights" else ""
    return msg(
        "The {what} of the model in '{name}' cannot be loaded: {reason}.{hint}",
        what=_PARTS[what],
        name=name,
        reason=reason,
        hint=hint,
    )


_PARTS = {"config": msg("config"), "tokenizer": msg("tokenizer"), "weights": msg("weights")}


def quiet_transformers() -> AbstractContextManager[None]:
    """Inside, no warnings and progress bars of transformers, the hub client and what transformers imports."""
    return _messages.changed()


def _silence() -> Callable[[], None]:
    import huggingface_hub.utils
    from transformers.utils import logging

    hub: Any = huggingface_hub.utils  # its functions are imported when they are used, which mypy does not see
    verbosity, bars, no_downloads = (
        logging.get_verbosity(),
        logging.is_progress_bar_enabled(),
        hub.are_progress_bars_disabled(),
    )
    kernels = _BITSANDBYTES.level
    silence_transformers()

    def restore() -> None:
        logging.set_verbosity(verbosity)
        _BITSANDBYTES.setLevel(kernels)
        if bars:
            logging.enable_progress_bar()
        if hub.are_progress_bars_disabled() != no_downloads:
            (hub.disable_progress_bars if no_downloads else hub.enable_progress_bars)()

    return restore


_messages = SharedSetting(_silence)
_BITSANDBYTES = getLogger("bitsandbytes.backends.cpu.ops")
"""On some CPUs it warns when it is imported that `gemm_4bit_forward` is missing, which nothing here uses."""


def silence_transformers() -> None:
    """From now on, no warnings and progress bars of transformers, the hub client and what transformers imports."""
    from transformers.utils import logging

    _BITSANDBYTES.setLevel(ERROR)
    logging.set_verbosity_error()
    logging.disable_progress_bar()  # the hub client's too


# Layers and embeddings, whatever the architecture calls them


def layer_stacks(model: nn.Module) -> list[nn.ModuleList]:
    """The outermost lists of identical layers: one in an encoder or decoder, two in an encoder-decoder."""
    from torch import nn

    stacks: list[nn.ModuleList] = []
    inside: set[str] = set()
    for name, module in model.named_modules():
        if any(name.startswith(f"{outer}.") for outer in inside):
            continue
        if isinstance(module, nn.ModuleList) and len({type(layer) for layer in module}) == 1:
            stacks.append(module)
            inside.add(name)
    return stacks


def embedding_modules(model: PreTrainedModel) -> list[nn.Module]:
    """The modules before the first layer: those named embeddings, and nn.Embedding outside the layers."""
    from torch import nn

    inside = {module for stack in layer_stacks(model) for module in stack.modules()}
    return [
        module
        for name, module in model.base_model.named_modules()
        if module not in inside
        and (name.partition(".")[0].startswith("embeddings") or isinstance(module, nn.Embedding))
    ]


def num_layers(config: PretrainedConfig) -> int | None:
    """The number of layers; None if the config does not have it, or its stacks differ in depth."""
    config = config.get_text_config()
    depths = {getattr(config, name) for name in _DEPTH_NAMES if hasattr(config, name)}
    return depths.pop() if len(depths) == 1 else None


def layer_period(config: PretrainedConfig) -> int:
    """The number of layers after which the layer types repeat (ModernBERT: 3, as every third is global)."""
    lists = _per_layer_lists(config.get_text_config()).values()
    depth = num_layers(config) or 1
    return next(n for n in range(1, depth + 1) if all(values[n:] == values[:-n] for values in lists))


def truncate_layers(config: PretrainedConfig, layers: int) -> None:
    """Keep only the first layers."""
    config = config.get_text_config()
    lists = _per_layer_lists(config)
    for name in _DEPTH_NAMES:
        if hasattr(config, name):
            setattr(config, name, layers)
    for name, values in lists.items():
        setattr(config, name, values[:layers])


def _per_layer_lists(config: PretrainedConfig) -> dict[str, list[Any]]:
    """The lists in a config that have one entry per layer."""
    depth = num_layers(config)
    return {name: value for name, value in vars(config).items() if isinstance(value, list) and len(value) == depth}
