"""Plainly: whether a plan can be written as a script without tightfit, and if not, why."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from pathlib import Path

from jinja2 import Environment, PackageLoader, StrictUndefined

from tightfit.data.readers import detect_encoding
from tightfit.data.rows import Columns, find_columns
from tightfit.data.sources import find_sources
from tightfit.device import Budget
from tightfit.errors import DoesNotFit
from tightfit.job import Job
from tightfit.planning.plan import Plan
from tightfit.strategies import STRATEGIES
from tightfit.strategies.base import Strategy
from tightfit.strategies.freeze import Freeze
from tightfit.strategies.gradient_checkpointing import Checkpoint
from tightfit.strategies.max_length import MaxLength
from tightfit.strategies.micro_batch import MicroBatch
from tightfit.strategies.mixed_precision import MixedPrecision
from tightfit.strategies.recipe import Recipe
from tightfit.units import format_bytes, format_seconds

EXPORTABLE = {
    "adamw",
    "micro-batch:size",
    "gradient-checkpointing",
    "mixed-precision",
    "adafactor",
    "freeze",
    "max-length",
}
_READERS = {".csv": "csv", ".tsv": "csv", ".json": "json", ".jsonl": "json", ".parquet": "parquet"}
_UTF8 = ("utf-8", "utf-8-sig")


def unexportable_reason(made: Plan) -> str | None:
    """In a sentence; None where transformers and datasets do all of it themselves."""
    own = [strategy.spec for strategy in made.recipe.strategies if strategy.variant not in EXPORTABLE]
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
    odd = [s.spec for s in recipe.strategies if isinstance(s, Freeze) and (s.pattern or s.embeddings is not None)]
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
    return any(spec.isdigit() for spec in given)


# Export: the plan as a plain transformers script, for people who want to see or keep their own loop.
#
# Recipes of strategies that transformers has itself become a script without tightfit in it. Where only tightfit's own
# strategies keep to the budget, or only it reads the data, the script calls tightfit and says why.


def plan_for_export(
    plan: Callable[..., Plan],
    job: Job,
    budget: Budget,
    *,
    use: Sequence[str] = (),
    avoid: Sequence[str] = (),
    allow: str = "close",
) -> Plan:
    """The best plan that a plain script can carry out; the best there is where none of those fits."""
    pinned = {spec.partition(":")[0] for spec in use}
    variants = [variant for strategy in STRATEGIES.values() for variant in strategy.variants()]
    own = [variant for variant in variants if variant not in EXPORTABLE and variant.partition(":")[0] not in pinned]
    try:
        return plan(job, budget, use=use, avoid=[*avoid, *own], allow=allow)
    except DoesNotFit:
        return plan(job, budget, use=use, avoid=avoid, allow=allow)


def write_script(path: Path, made: Plan) -> None:
    """Write the script."""
    why = unexportable_reason(made)
    pages = Environment(loader=PackageLoader("tightfit.planning"), undefined=StrictUndefined, trim_blocks=True)
    page = pages.get_template("tightfit_script.py.jinja" if why else "plain_script.py.jinja")
    read = {} if why else {"reader": reader_of(made.job), "columns": columns_of(made.job)}
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(page.render(why=why, **read, **_values(made)) + "\n", "utf-8")


def _values(made: Plan) -> dict[str, object]:
    job, chosen = made.job.resolve_paths(), made.chosen
    found: dict[type[Strategy], Strategy] = {type(s): s for s in made.recipe.strategies}
    micro_batch, cut = found.get(MicroBatch), found.get(MaxLength)
    size = micro_batch.size if isinstance(micro_batch, MicroBatch) else None
    rows = min(size or job.batch_size, job.batch_size)
    rows = next(size for size in range(rows, 0, -1) if job.batch_size % size == 0)  # accumulation needs equal slices
    checkpoint, freeze = found.get(Checkpoint), found.get(Freeze)
    return {
        "job": job,
        "recipe": made.recipe.specs,
        "optimizer": made.recipe.optimizer,
        "rows": rows,
        "accumulated": job.batch_size // rows,
        "max_length": cut.tokens if isinstance(cut, MaxLength) else job.max_length,
        "every": checkpoint.every if isinstance(checkpoint, Checkpoint) else 0,
        "freeze": freeze,
        "bits": _bits(made),
        "cpu": made.budget.device.kind == "cpu",
        "promise": f"a peak of {format_bytes(chosen.peak)}, about {format_seconds(chosen.seconds_per_epoch)} an epoch",
        "budget": str(made.budget),
        "size": f"{made.budget.size >> 20}MB",
    }


def _bits(made: Plan) -> str:
    found = next((strategy for strategy in made.recipe.strategies if isinstance(strategy, MixedPrecision)), None)
    return found.choose(made.budget.device).value if found else ""
