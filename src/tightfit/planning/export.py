"""Export: the plan as a plain transformers script, for people who want to see or keep their own loop.

Recipes of strategies that transformers has itself become a script without tightfit in it. Where only tightfit's own
strategies keep to the budget, or only it reads the data, the script calls tightfit and says why.
"""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from jinja2 import Environment, PackageLoader, StrictUndefined

from tightfit.budget import Budget
from tightfit.errors import DoesNotFit
from tightfit.job import Job
from tightfit.planning import plan
from tightfit.planning.plainly import PLAIN, columns_of, reader_of, why_not_plain
from tightfit.planning.plans import Plan
from tightfit.strategies import STRATEGIES
from tightfit.strategies.checkpoint import Checkpoint
from tightfit.strategies.freeze import Freeze
from tightfit.strategies.max_length import MaxLength
from tightfit.strategies.mixed_precision import MixedPrecision
from tightfit.strategies.slice import Slice
from tightfit.strategy import Strategy
from tightfit.units import format_bytes, format_seconds


def plan_for_export(
    job: Job, budget: Budget, *, use: Sequence[str] = (), avoid: Sequence[str] = (), allow: str = "close"
) -> Plan:
    """The best plan that a plain script can carry out; the best there is where none of those fits."""
    pinned = {word.partition(":")[0] for word in use}
    own = [name for name in STRATEGIES if name not in PLAIN and name not in pinned]
    try:
        return plan(job, budget, use=use, avoid=[*avoid, *own], allow=allow)
    except DoesNotFit:
        return plan(job, budget, use=use, avoid=avoid, allow=allow)


def write_script(path: Path, made: Plan) -> None:
    """Write the script."""
    why = why_not_plain(made)
    pages = Environment(loader=PackageLoader("tightfit.planning"), undefined=StrictUndefined, trim_blocks=True)
    page = pages.get_template("tightfit_script.py.jinja" if why else "plain_script.py.jinja")
    read = {} if why else {"reader": reader_of(made.job), "columns": columns_of(made.job)}
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(page.render(why=why, **read, **_values(made)) + "\n", "utf-8")


def _values(made: Plan) -> dict[str, object]:
    job, chosen = made.job.with_full_paths(), made.chosen
    found: dict[type[Strategy], Strategy] = {type(s): s for s in made.recipe.strategies}
    slices, cut = found.get(Slice), found.get(MaxLength)
    rows = min(slices.size, job.batch_size) if isinstance(slices, Slice) else job.batch_size
    rows = next(size for size in range(rows, 0, -1) if job.batch_size % size == 0)  # accumulation needs equal slices
    checkpoint, freeze = found.get(Checkpoint), found.get(Freeze)
    return {
        "job": job,
        "recipe": made.recipe.words,
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
