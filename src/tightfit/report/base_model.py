"""The model that a run started from, as the hub knows it: its name, language and license, as far as they are known."""

from __future__ import annotations

import json
import re
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from tightfit.compat import NAME_IN_CONFIG

_HUB_ID = re.compile(r"[\w-][\w.-]*(/[\w-][\w.-]*)?")
_CACHED = re.compile(r"models--(.+)")


@dataclass(frozen=True)
class BaseModel:
    """What the model card of a fine-tuned model says of its base."""

    name: str | None
    """Its id on the hub; None for a folder that does not tell."""
    license: str | None = None
    language: str | list[str] | None = None


def base_model(model: str) -> BaseModel:
    """Of a hub id or a folder, without the network."""
    folder = Path(model).expanduser()
    known = _metadata(folder / "README.md" if folder.is_dir() else _cached_readme(model))
    name = _name_of(folder, known) if folder.is_dir() else model
    return BaseModel(name, known.get("license"), known.get("language"))


def _name_of(folder: Path, known: dict[str, Any]) -> str | None:
    """From a folder of the hub's cache, the config, or the model card of a fine-tuned model."""
    cached = next((match[1].replace("--", "/") for part in folder.parts if (match := _CACHED.fullmatch(part))), None)
    base = known.get("base_model")
    for name in (cached, _config_name(folder), base[0] if isinstance(base, list) and base else base):
        if isinstance(name, str) and _HUB_ID.fullmatch(name) and not Path(name).exists():
            return name
    return None


def _config_name(folder: Path) -> str | None:
    """What older versions of transformers wrote: the id that the model was loaded by."""
    try:
        config = json.loads((folder / "config.json").read_text("utf-8"))
    except (OSError, ValueError):
        return None
    return config.get(NAME_IN_CONFIG) if isinstance(config, dict) else None


def _cached_readme(model: str) -> Path | None:
    from huggingface_hub import try_to_load_from_cache

    try:
        found = try_to_load_from_cache(model, "README.md")
    except ValueError:  # a folder that is gone
        return None
    return Path(found) if isinstance(found, str) else None


def _metadata(readme: Path | None) -> dict[str, Any]:
    """The metadata of a model card; empty if there is none."""
    from huggingface_hub import ModelCard

    if readme is None or not readme.is_file():
        return {}
    try:
        return dict(vars(ModelCard(readme.read_text("utf-8"), ignore_metadata_errors=True).data))
    except (OSError, ValueError):
        return {}
