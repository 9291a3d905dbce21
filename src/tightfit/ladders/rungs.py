"""Rungs: the recipes that a ladder is made of."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import accumulate

from tightfit.device import find_device
from tightfit.errors import BadInput, suggest
from tightfit.job import Job
from tightfit.recipe import Recipe

PRESETS = ("tutorial", "ours", "all")

_OURS = (
    "slice:size={eighth}",
    "slice:size={eighth} adafactor",
    "slice-layers:size={quarter} adamw-16bit step-in-backward",
    "slice-layers:size={quarter} adafactor step-in-backward",
)


def find_rungs(rungs: str | Sequence[str], job: Job, device: str | None) -> list[Recipe]:
    """A preset by its name, or recipes as they are written."""
    if isinstance(rungs, str):
        return _preset(rungs, job, find_device(device).kind)
    recipes = [Recipe.parse([] if rung.strip() == "plain" else rung.split()) for rung in rungs]
    if not recipes:
        raise BadInput('A ladder needs at least one rung: give --rung "slice:size=8 checkpoint", or a --preset.')
    return list(dict.fromkeys(recipes))


def _preset(name: str, job: Job, device: str) -> list[Recipe]:
    if name not in PRESETS:
        raise BadInput(f"There is no preset '{name}': {suggest(name, PRESETS)}")
    recipes = [] if name == "ours" else _tutorial(job)
    return recipes if name == "tutorial" else [*(recipes or [Recipe()]), *_ours(job, device)]


def _tutorial(job: Job) -> list[Recipe]:
    """What the tutorials teach: each rung adds one thing to the last."""
    added = ["slice:size=1", "checkpoint", "adafactor", "freeze:cache=false"]
    if job.max_length >= 4:
        added.append(f"max-length:tokens={job.max_length // 2}")
    return [Recipe.parse(words) for words in accumulate(([word] for word in added), initial=[])]


def _ours(job: Job, device: str) -> list[Recipe]:
    """Every layer trained, from the fastest to the smallest. Cards choose the kernel of attention by themselves."""
    sizes = {"eighth": max(1, job.batch_size // 8), "quarter": max(1, job.batch_size // 4)}
    kernel = ["attention"] if device == "cpu" else []
    return [Recipe.parse([*kernel, *words.format(**sizes).split()]) for words in _OURS]
