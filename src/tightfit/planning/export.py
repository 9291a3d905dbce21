"""Export: a plan as a transformers script, for people who want to see or keep their own training loop.

The script trains the plan's recipe, whatever that is. If transformers has all its strategies itself, the script does
without tightfit. If it has not, if only tightfit can read the data, or if the libraries that a plain script imports
would not fit the budget, the script calls tightfit, and its docstring says why.
"""

from __future__ import annotations

import inspect
from dataclasses import dataclass, replace
from functools import lru_cache
from importlib.metadata import version
from pathlib import Path

from jinja2 import Environment, PackageLoader, StrictUndefined

from tightfit.data.columns import Columns
from tightfit.data.encoding import detect_encoding
from tightfit.data.json_files import is_one_object
from tightfit.data.labels import Labels
from tightfit.data.rows import columns_of, open_data
from tightfit.data.split import stratified_sample
from tightfit.device import AUTO
from tightfit.engine.arguments import given_arguments, warmup
from tightfit.engine.dataset import read_data
from tightfit.job import Job
from tightfit.messages import Message, msg, verbatim
from tightfit.planning.plan import Plan
from tightfit.planning.script_process import SIZE, measured_process, tiny_model
from tightfit.simulation.estimate import Estimate
from tightfit.strategies import STRATEGIES
from tightfit.strategies.base import Strategy
from tightfit.strategies.freeze import Freeze
from tightfit.strategies.gradient_checkpointing import GradientCheckpointing
from tightfit.strategies.max_length import MaxLength
from tightfit.strategies.micro_batch import MicroBatch
from tightfit.strategies.mixed_precision import MixedPrecision
from tightfit.strategies.recipe import Recipe
from tightfit.tasks import find_task
from tightfit.units import exact_size, format_bytes

EXPORTABLE = {
    "adamw",
    "micro-batch:size",
    "gradient-checkpointing",
    "mixed-precision",
    "adafactor",
    "freeze",
    "max-length",
}
NOT_EXPORTABLE = [
    variant for strategy in STRATEGIES.values() for variant in strategy.variants() if variant not in EXPORTABLE
]
"""What a plan has to avoid so that its script does without tightfit."""
_OWN_ON_CPU = [MixedPrecision.name]
"""What tightfit does on a CPU in a way of its own, which needs less memory than that of transformers."""
_READERS = {".csv": "csv", ".tsv": "csv", ".json": "json", ".jsonl": "json", ".parquet": "parquet"}
_UTF8 = ("utf-8", "utf-8-sig")
_LIBRARIES = ("torch", "transformers", "accelerate", "datasets", "scikit-learn")


def unexportable_reason(plan: Plan) -> Message | None:
    """Why the script has to call tightfit; None if transformers and datasets can run the whole plan."""
    own = _own_specs(plan)
    if len(own) > 1:
        return msg("{specs} need tightfit.", specs=", ".join(own))
    assert plan.job is not None  # the command line plans for jobs
    unusual = _unusual_freezing(plan.recipe) or _unusual_task(plan.job) or _unusual_data(plan.job)
    needed = verbatim(own[0]) if own else unusual
    return msg("{what} needs tightfit.", what=needed) if needed else None


def _own_specs(plan: Plan) -> list[str]:
    """The strategies that only tightfit can run."""
    return [strategy.spec for strategy in plan.recipe.strategies if strategy.variant in _own_variants(plan)]


def _own_variants(plan: Plan) -> list[str]:
    return [*NOT_EXPORTABLE, *(_OWN_ON_CPU if plan.budget.device.kind == "cpu" else ())]


def reader_of(job: Job) -> str:
    """The name of the datasets library's loader for the job's data file."""
    return _READERS[Path(job.data).suffix.lower()]


def read_columns(job: Job) -> Columns:
    """The columns that `tightfit train` would read."""
    task, given = find_task(job.task), Columns.of(job.text, job.label)
    source, _ = open_data(job.data, task, given)
    return columns_of(source, task.column_names, given)


def _unusual_freezing(recipe: Recipe) -> Message | None:
    """A `freeze` with settings that the exported script does not implement."""
    specs = [s.spec for s in recipe.strategies if isinstance(s, Freeze) and (s.pattern or s.embeddings is not None)]
    return verbatim(specs[0]) if specs else None


def _unusual_task(job: Job) -> Message | None:
    """A task that brings no lines for the exported script."""
    return None if find_task(job.task).script else msg("The task {task}", task=job.task)


def _unusual_data(job: Job) -> Message | None:
    """What the exported script cannot do: it reads one text and one label column of a file that datasets loads."""
    file = Path(job.data)
    if not file.is_file() or file.suffix.lower() not in _READERS or read_columns(job).numbered or is_one_object(file):
        return msg("Reading {what}", what=file.name)
    if file.suffix.lower() != ".parquet" and (encoding := detect_encoding(file)) not in _UTF8:
        return msg("Reading {what}", what=encoding)
    if job.validation is not None:
        return msg("Validating on a separate file")
    if job.class_weights is not None:
        return msg("Weighting classes exactly over micro-batches")
    if job.save_steps is not None:
        return msg("Saving between evaluations")
    return msg("Training on text pairs") if len(read_columns(job).text) > 1 else None


@dataclass(frozen=True)
class Script:
    """A plan as a Python script."""

    text: str
    is_plain: bool
    """Whether it does without tightfit."""
    estimate: Estimate
    """The memory of the process that runs it."""
    notes: tuple[Message, ...] = ()
    """Why it calls tightfit, if it does."""


def script_of(plan: Plan) -> Script:
    """The plan's recipe as a plain transformers script if that can express it and fits; else it calls tightfit."""
    why = unexportable_reason(plan)
    if why is not None:
        return _calling_tightfit(plan, why, _how_to_get_a_plain_one(plan, why))
    process = measured_process(_plain(plan, measuring=True)) if plan.budget.device.kind == "cpu" else None
    estimate = plan.chosen.estimate if process is None else replace(plan.chosen.estimate, overhead=process)
    if estimate.error_band[1] > plan.budget.size:
        more = format_bytes(estimate.peak - plan.chosen.peak)
        why = msg(
            "A plain script imports more libraries and needs {more} more, which does not fit the budget.", more=more
        )
        return _calling_tightfit(plan, why, (_does_not_fit(plan, estimate),))
    return Script(_plain(plan, peak=estimate.peak, process=process), True, estimate)


def _calling_tightfit(plan: Plan, why: Message, notes: tuple[Message, ...]) -> Script:
    return Script(_render("tightfit_script", plan, why=why), False, plan.chosen.estimate, notes)


def _plain(plan: Plan, *, peak: int | None = None, process: int | None = None, measuring: bool = False) -> str:
    assert plan.job is not None
    script = find_task(plan.job.task).script
    assert script is not None  # unexportable_reason
    return _render(
        "transformers_script",
        plan,
        peak=peak,
        reader=reader_of(plan.job),
        columns=read_columns(plan.job),
        labels=_labels(plan.job),
        stratified_sample=inspect.getsource(stratified_sample),
        versions=_versions(),
        process=format_bytes(process) if process is not None else None,
        measuring=measuring,
        measured_model=tiny_model(script.head),
        measured_size=SIZE,
    )


def _how_to_get_a_plain_one(plan: Plan, why: Message) -> tuple[Message, ...]:
    own = _own_specs(plan)
    if not own:
        return (msg("the script calls tightfit: {why}", why=why),)
    avoid = " ".join(f"--avoid {variant}" for variant in _own_variants(plan))
    note = msg(
        "the script calls tightfit, since transformers alone cannot do {own}; "
        "a plan that needs no tightfit: add {avoid}",
        own=own,
        avoid=avoid,
    )
    return (note,)


def _does_not_fit(plan: Plan, estimate: Estimate) -> Message:
    return msg(
        "the script calls tightfit: a plain one imports more libraries, which takes {more} more than the budget has; "
        "for a plain script plan with a --budget of {needed}MB",
        more=format_bytes(estimate.error_band[1] - plan.budget.size),
        needed=-(-estimate.error_band[1] >> 20),
    )


def _versions() -> str:
    """The libraries of a plain script, in the versions that are installed."""
    return ", ".join(f"{name} {version(name)}" for name in _LIBRARIES)


def write_script(path: Path, plan: Plan) -> Script:
    """Write the plan as a Python script."""
    script = script_of(plan)
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(script.text, "utf-8")
    return script


@lru_cache(maxsize=1)
def _labels(job: Job) -> Labels:
    """The labels in the data; it is read once for a script and for the one that is measured."""
    return read_data(job).labels


def _render(template: str, plan: Plan, *, peak: int | None = None, measuring: bool = False, **more: object) -> str:
    templates = Environment(loader=PackageLoader("tightfit.planning"), undefined=StrictUndefined, trim_blocks=True)
    values = _values(plan, plan.chosen.peak if peak is None else peak, measuring)
    return templates.get_template(f"{template}.py.jinja").render(**more, **values) + "\n"


def _values(plan: Plan, peak: int, measuring: bool) -> dict[str, object]:
    """The variables of the two templates, the transformers script and the script that calls tightfit."""
    assert plan.job is not None
    job, chosen = plan.job.resolve_paths(), plan.chosen
    found: dict[type[Strategy], Strategy] = {type(s): s for s in plan.recipe.strategies}
    micro_batch, max_length = found.get(MicroBatch), found.get(MaxLength)
    size = micro_batch.size if isinstance(micro_batch, MicroBatch) else None
    rows = min(size or job.batch_size, job.batch_size)
    rows = next(size for size in range(rows, 0, -1) if job.batch_size % size == 0)  # equal micro-batches
    checkpoint, freeze = found.get(GradientCheckpointing), found.get(Freeze)
    task = find_task(job.task)
    return {
        "job": job,
        "task": task,
        "best": task.find_metric(job.metric),
        "script": task.script,
        "recipe": plan.recipe.specs,
        "optimizer": plan.recipe.optimizer,
        "rows": rows,
        "accumulated": job.batch_size // rows,
        "max_length": max_length.tokens if isinstance(max_length, MaxLength) else job.max_length,
        "every": checkpoint.every if isinstance(checkpoint, GradientCheckpointing) else 0,
        "freeze": freeze,
        "half_precision": _half_precision(plan),
        "cpu": plan.budget.device.kind == "cpu",
        "measuring": measuring,
        "max_steps": 2 if measuring else job.max_steps,
        "warmup": warmup(job),
        "arguments": given_arguments(job.set),
        "predicted": f"peak {format_bytes(peak)}{chosen.and_time}",
        "budget": str(plan.budget),
        "size": AUTO if plan.budget.is_auto else exact_size(plan.budget.size),
    }


def _half_precision(plan: Plan) -> str:
    """The TrainingArguments flag, `fp16` or `bf16`; empty in full precision."""
    found = next((strategy for strategy in plan.recipe.strategies if isinstance(strategy, MixedPrecision)), None)
    return found.choose(plan.budget.device).value if found else ""
