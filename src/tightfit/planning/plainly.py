"""Plainly: whether a plan can be written as a script without tightfit, and if not, why."""

from __future__ import annotations

from pathlib import Path

from tightfit.data.columns import Columns, find_columns
from tightfit.data.encoding import detect_encoding
from tightfit.data.sources import find_sources
from tightfit.job import Job
from tightfit.planning.plans import Plan
from tightfit.recipe import Recipe
from tightfit.strategies.freeze import Freeze

PLAIN = {"adamw", "slice", "checkpoint", "mixed-precision", "adafactor", "freeze", "max-length"}
_READERS = {".csv": "csv", ".tsv": "csv", ".json": "json", ".jsonl": "json", ".parquet": "parquet"}
_UTF8 = ("utf-8", "utf-8-sig")


def why_not_plain(made: Plan) -> str | None:
    """In a sentence; None where transformers and datasets do all of it themselves."""
    own = [strategy.word for strategy in made.recipe.strategies if strategy.name not in PLAIN]
    if own:
        are = "are" if len(own) > 1 else "is"
        return f"No recipe of transformers' own options keeps to that budget: {', '.join(own)} {are} tightfit's."
    if odd := _odd_freezing(made.recipe) or _odd_data(made.job):
        return f"{odd} tightfit's to do."
    return None


def reader_of(job: Job) -> str:
    """What the datasets library calls a file of this kind."""
    return _READERS[Path(job.data).suffix.lower()]


def columns_of(job: Job) -> Columns:
    """The columns that a training of ours would read."""
    source, _ = find_sources(job.data)
    return find_columns(source.name, source.columns(), job.text_columns, job.label)


def _odd_freezing(recipe: Recipe) -> str | None:
    odd = [s.word for s in recipe.strategies if isinstance(s, Freeze) and (s.pattern or s.embeddings is not None)]
    return f"{odd[0]} is" if odd else None


def _odd_data(job: Job) -> str | None:
    """What is more than rows with a text and a label, in a file that the datasets library reads."""
    file = Path(job.data)
    if not file.is_file() or file.suffix.lower() not in _READERS or _numbered(job):
        return f"Reading {file.name} is"
    if file.suffix.lower() != ".parquet" and (encoding := detect_encoding(file)) not in _UTF8:
        return f"Reading {encoding} is"
    if job.validation is not None:
        return "Validating on another file is"
    return "Training on pairs is" if len(columns_of(job).text) > 1 else None


def _numbered(job: Job) -> bool:
    """Columns by number, of a file without names."""
    given = [*(job.text_columns or ()), *([job.label] if job.label else [])]
    return any(word.isdigit() for word in given)
