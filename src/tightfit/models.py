"""Models and tokenizers: from the hub, from a folder, or only their shape with random weights."""

from __future__ import annotations

import contextlib
import json
from collections.abc import Iterator
from pathlib import Path
from pickle import UnpicklingError
from typing import TYPE_CHECKING, Any

from tightfit.errors import ModelError, first_line, is_out_of_memory, shown
from tightfit.optional_imports import allow_imports

if TYPE_CHECKING:
    from torch import nn
    from transformers import PretrainedConfig, PreTrainedModel, PreTrainedTokenizerBase


_NO_TOKENIZER = "'{name}' has no tokenizer: put tokenizer.json or vocab.txt beside its config.json."


def load_config(name: str, **changes: Any) -> PretrainedConfig:
    """The model's shape, with the labels of the task put in."""
    from transformers import AutoConfig

    _refuse_missing_folder(name)
    with _clear_errors(name, "config"):
        return AutoConfig.from_pretrained(name, trust_remote_code=False, **changes)


def load_tokenizer(name: str) -> PreTrainedTokenizerBase:
    """The tokenizer that belongs to the model; texts are padded on the right."""
    from transformers import AutoTokenizer

    _refuse_missing_folder(name)
    with _clear_errors(name, "tokenizer"):
        tokenizer = AutoTokenizer.from_pretrained(name, trust_remote_code=False)
    if len(tokenizer) <= len(tokenizer.all_special_tokens):
        raise ModelError(_NO_TOKENIZER.format(name=name))
    # Right padding keeps every token's position when a slice's padding is trimmed.
    tokenizer.padding_side = "right"
    if tokenizer.pad_token is None:
        tokenizer.pad_token = tokenizer.eos_token
    if tokenizer.pad_token is None:
        raise ModelError(f"The tokenizer of '{name}' has neither a padding nor an end token: use another model.")
    return tokenizer


def load_model(head: Any, name: str, config: PretrainedConfig, *, random_weights: bool) -> PreTrainedModel:
    """Build the model in fp32. Weights come from safetensors, or from a pickle read as plain tensors only."""
    import torch

    _refuse_paths_outside(name)
    if not random_weights:
        _let_adapters_in(name)
    with _clear_errors(name, "weights"), _quiet_transformers():
        if random_weights:
            model = head.from_config(config, trust_remote_code=False, dtype=torch.float32)
            model.tie_weights()  # transformers leaves it out when it draws no first values, as in a rehearsal
            return model
        model, report = head.from_pretrained(
            name,
            config=config,
            trust_remote_code=False,
            weights_only=True,
            dtype=torch.float32,
            ignore_mismatched_sizes=True,  # a head for another number of labels is replaced by a new one
            output_loading_info=True,
        )
    _refuse_foreign_weights(name, model, report)
    return model


def _refuse_foreign_weights(name: str, model: PreTrainedModel, report: dict[str, Any]) -> None:
    """Only the head may be new; an encoder that does not fit its config, or is not there, is no model."""
    inside = f"{model.base_model_prefix}."
    wrong = sorted(str(key[0] if isinstance(key, tuple) else key) for key in report["mismatched_keys"])
    missing = [key for key in report["missing_keys"] if key.startswith(inside) and ".pooler." not in key]
    foreign = [key for key in wrong if key.startswith(inside)] or missing
    if foreign:
        raise ModelError(
            f"The weights in '{name}' are not those of its config ({len(foreign)} parameters such as '{foreign[0]}' "
            "do not fit or are missing): get the model's files again."
        )


def longest_text(model: PreTrainedModel) -> int | None:
    """The most tokens the model has positions for; None if there is no such limit."""
    positions = getattr(model.config.get_text_config(), "max_position_embeddings", None)
    if positions is None or positions < 0:
        return None
    # RoBERTa and its kin count positions from behind the padding token's id: 514 rows for 512 tokens.
    table = getattr(getattr(model.base_model, "embeddings", None), "position_embeddings", None)
    padding = getattr(table, "padding_idx", None)
    return positions if padding is None else positions - padding - 1


def _refuse_missing_folder(name: str) -> None:
    folder = Path(name)
    if folder.is_dir() and not (folder / "config.json").is_file():
        raise ModelError(f"The folder '{name}' has no config.json: give the folder that holds the model's files.")
    if not folder.exists() and (name.startswith((".", "/", "~")) or name.count("/") > 1):
        raise ModelError(f"There is no model folder '{name}': check the path, or give a hub id.")


def _let_adapters_in(name: str) -> None:
    """transformers puts a model and its adapter together with peft, where it finds that."""
    folder = Path(name)
    if not folder.is_dir() or (folder / "adapter_config.json").is_file():
        allow_imports("peft")


def _refuse_paths_outside(name: str) -> None:
    """Weights in several files come with a list of them; what it names has to lie beside it."""
    for index in Path(name).glob("*.index.json"):
        try:
            files = json.loads(index.read_text("utf-8"))["weight_map"].values()
        except (OSError, ValueError, RecursionError, KeyError, TypeError, AttributeError):
            raise ModelError(f"'{index}' is no list of weights: get the model's files again.") from None
        for file in files:
            if not isinstance(file, str) or Path(file).name != file:
                raise ModelError(f"'{index}' names weights outside of its folder ({shown(file)}): do not trust it.")


@contextlib.contextmanager
def _clear_errors(name: str, what: str) -> Iterator[None]:
    """Turn the library's pages of explanation into one sentence with a way out."""
    try:
        yield
    except Exception as error:  # every format and the hub's client have errors of their own
        if is_out_of_memory(error):  # no fault of the model's files
            raise
        raise ModelError(_sentence(name, what, error)) from error


def _sentence(name: str, what: str, error: Exception) -> str:
    reason = first_line(error).rstrip(".")
    if "trust_remote_code" in str(error):
        return (
            f"'{name}' wants to run its own code, which tightfit does not allow: use a model that transformers knows."
        )
    if isinstance(error, UnpicklingError):
        return f"The weights in '{name}' are a pickle that cannot be loaded safely: convert them to safetensors."
    if what == "tokenizer" and "backend tokenizer" in reason:
        return _NO_TOKENIZER.format(name=name)
    if Path(name).is_dir():
        hint = " Add --random-weights to use only the model's shape." if what == "weights" else ""
        return f"The {what} of the model in '{name}' cannot be loaded: {reason}.{hint}"
    return (
        f"The {what} of '{name}' cannot be had from the hub: {reason}. "
        "Check the name and the connection, or give a local folder."
    )


@contextlib.contextmanager
def _quiet_transformers() -> Iterator[None]:
    """A fresh head is what we want; no report that its weights are missing."""
    from transformers.utils import logging

    before = logging.get_verbosity()
    logging.set_verbosity_error()
    logging.disable_progress_bar()
    try:
        yield
    finally:
        logging.set_verbosity(before)


# Where a transformer keeps its layers and its embeddings, and how many there are, whatever it calls them.


_DEPTHS = ("num_hidden_layers", "num_decoder_layers", "encoder_layers", "decoder_layers")


def layer_stacks(model: nn.Module) -> list[nn.ModuleList]:
    """The outermost lists of alike layers: one in an encoder or decoder, two in an encoder-decoder."""
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
    """What turns token ids into the first layer's input: modules named so, and lookup tables outside the layers."""
    from torch import nn

    inside = {module for stack in layer_stacks(model) for module in stack.modules()}
    return [
        module
        for name, module in model.base_model.named_modules()
        if module not in inside
        and (name.partition(".")[0].startswith("embeddings") or isinstance(module, nn.Embedding))
    ]


def num_layers(config: PretrainedConfig) -> int | None:
    """How many layers the model has; None if it does not say, or its stacks are not equally deep."""
    config = config.get_text_config()
    depths = {getattr(config, name) for name in _DEPTHS if hasattr(config, name)}
    return depths.pop() if len(depths) == 1 else None


def layer_period(config: PretrainedConfig) -> int:
    """After how many layers the config describes the same layer again (ModernBERT: two local ones, one global)."""
    lists = _per_layer_lists(config.get_text_config()).values()
    depth = num_layers(config) or 1
    return next(n for n in range(1, depth + 1) if all(values[n:] == values[:-n] for values in lists))


def truncate_layers(config: PretrainedConfig, layers: int) -> None:
    """Leave only the first layers."""
    config = config.get_text_config()
    lists = _per_layer_lists(config)
    for name in _DEPTHS:
        if hasattr(config, name):
            setattr(config, name, layers)
    for name, values in lists.items():
        setattr(config, name, values[:layers])


def _per_layer_lists(config: PretrainedConfig) -> dict[str, list[Any]]:
    """What a config says of every layer by itself."""
    depth = num_layers(config)
    return {name: value for name, value in vars(config).items() if isinstance(value, list) and len(value) == depth}
