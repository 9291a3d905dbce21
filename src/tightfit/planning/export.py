"""Export: a plan as a transformers script, for people who want to see or keep their own training loop.

A recipe of strategies that transformers has itself becomes a script without tightfit. If only tightfit's own strategies
fit the budget, or only tightfit can read the data, the script calls tightfit and its docstring says why.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from pathlib import Path

from jinja2 import Environment, PackageLoader, StrictUndefined

from tightfit.data.columns import Columns, find_columns
from tightfit.data.readers import detect_encoding
from tightfit.data.sources import find_sources
from tightfit.device import Budget
from tightfit.errors import DoesNotFit
from tightfit.job import Job
from tightfit.planning.plan import Plan
from tightfit.strategies import STRATEGIES
from tightfit.strategies.base import Strategy
from tightfit.strategies.freeze import Freeze
from tightfit.strategies.gradient_checkpointing import GradientCheckpointing
from tightfit.strategies.max_length import MaxLength
from tightfit.strategies.micro_batch import MicroBatch
from tightfit.strategies.mixed_precision import MixedPrecision
from tightfit.strategies.recipe import Recipe
from tightfit.tasks import find_task
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
    """Why the script has to call tightfit; None if transformers and datasets can run the whole plan."""
    own = [strategy.spec for strategy in made.recipe.strategies if strategy.variant not in EXPORTABLE]
    if own:
        verb = "need" if len(own) > 1 else "needs"
        return f"No recipe of transformers' own options fits the budget: {', '.join(own)} {verb} tightfit."
    unusual = _unusual_freezing(made.recipe) or _unusual_task(made.job) or _unusual_data(made.job)
    return f"{unusual} needs tightfit." if unusual else None


def reader_of(job: Job) -> str:
    """The name of the datasets library's loader for the job's data file."""
    return _READERS[Path(job.data).suffix.lower()]


def columns_of(job: Job) -> Columns:
    """The columns that `tightfit train` would read."""
    source, _ = find_sources(job.data)
    names, given = find_task(job.task).column_names, Columns.of(job.text, job.label)
    return find_columns(source.name, source.columns(), names, given)


def _unusual_freezing(recipe: Recipe) -> str | None:
    """A `freeze` with settings that the exported script does not implement."""
    specs = [s.spec for s in recipe.strategies if isinstance(s, Freeze) and (s.pattern or s.embeddings is not None)]
    return specs[0] if specs else None


def _unusual_task(job: Job) -> str | None:
    """A task that brings no lines for the exported script."""
    return None if find_task(job.task).script else f"The task {job.task}"


def _unusual_data(job: Job) -> str | None:
    """What the exported script cannot do: it reads one text and one label column of a file that datasets loads."""
    file = Path(job.data)
    if not file.is_file() or file.suffix.lower() not in _READERS or _has_numbered_columns(job):
        return f"Reading {file.name}"
    if file.suffix.lower() != ".parquet" and (encoding := detect_encoding(file)) not in _UTF8:
        return f"Reading {encoding}"
    if job.validation is not None:
        return "Validating on a separate file"
    return "Training on text pairs" if len(columns_of(job).text) > 1 else None


def _has_numbered_columns(job: Job) -> bool:
    """Whether columns are given by number, as for a file without a header."""
    return any(column.isdigit() for column in Columns.of(job.text, job.label).all)


def plan_for_export(
    plan: Callable[..., Plan],
    job: Job,
    budget: Budget,
    *,
    use: Sequence[str] = (),
    avoid: Sequence[str] = (),
    allow: str = "close",
) -> Plan:
    """The best plan that needs no tightfit at run time; the best plan of all if none of those fits."""
    pinned = {spec.partition(":")[0] for spec in use}
    variants = [variant for strategy in STRATEGIES.values() for variant in strategy.variants()]
    own = [variant for variant in variants if variant not in EXPORTABLE and variant.partition(":")[0] not in pinned]
    try:
        return plan(job, budget, use=use, avoid=[*avoid, *own], allow=allow)
    except DoesNotFit:
        return plan(job, budget, use=use, avoid=avoid, allow=allow)


def write_script(path: Path, made: Plan) -> None:
    """Write the plan as a Python script."""
    why = unexportable_reason(made)
    templates = Environment(loader=PackageLoader("tightfit.planning"), undefined=StrictUndefined, trim_blocks=True)
    template = templates.get_template("tightfit_script.py.jinja" if why else "transformers_script.py.jinja")
    data = {} if why else {"reader": reader_of(made.job), "columns": columns_of(made.job)}
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(template.render(why=why, **data, **_values(made)) + "\n", "utf-8")


def _values(made: Plan) -> dict[str, object]:
    """The variables of both templates."""
    job, chosen = made.job.resolve_paths(), made.chosen
    found: dict[type[Strategy], Strategy] = {type(s): s for s in made.recipe.strategies}
    micro_batch, max_length = found.get(MicroBatch), found.get(MaxLength)
    size = micro_batch.size if isinstance(micro_batch, MicroBatch) else None
    rows = min(size or job.batch_size, job.batch_size)
    rows = next(size for size in range(rows, 0, -1) if job.batch_size % size == 0)  # equal micro-batches
    checkpoint, freeze = found.get(GradientCheckpointing), found.get(Freeze)
    task = find_task(job.task)
    return {
        "job": job,
        "task": task,
        "best": task.best,
        "script": task.script,
        "recipe": made.recipe.specs,
        "optimizer": made.recipe.optimizer,
        "rows": rows,
        "accumulated": job.batch_size // rows,
        "max_length": max_length.tokens if isinstance(max_length, MaxLength) else job.max_length,
        "every": checkpoint.every if isinstance(checkpoint, GradientCheckpointing) else 0,
        "freeze": freeze,
        "precision": _precision(made),
        "cpu": made.budget.device.kind == "cpu",
        "predicted": f"peak {format_bytes(chosen.peak)}, about {format_seconds(chosen.seconds_per_epoch)} per epoch",
        "budget": str(made.budget),
        "size": f"{made.budget.size >> 20}MB",
    }


def _precision(made: Plan) -> str:
    """The TrainingArguments flag, `fp16` or `bf16`; empty in full precision."""
    found = next((strategy for strategy in made.recipe.strategies if isinstance(strategy, MixedPrecision)), None)
    return found.choose(made.budget.device).value if found else ""
