"""Ways out: what would make a training fit, the smallest change first."""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING

from tightfit.planning.plans import Option
from tightfit.planning.wishes import Wishes
from tightfit.strategy import Result
from tightfit.units import format_bytes

if TYPE_CHECKING:
    from tightfit.planning.planner import Planner

_MIB = 1 << 20
_SMALLER = {"xlarge": "large", "large": "base"}  # sizes that families usually have


def ways_out(planner: Planner, closest: Option, changed: list[Option], wishes: Wishes) -> Iterator[str]:
    """A larger budget, what --allow different would bring (`changed`, the fastest first), a smaller model."""
    needed = -(-closest.at_most // _MIB) * _MIB
    yield f"--budget {needed // _MIB}MB: the smallest that this model can be trained in here ({closest.title})"
    if wishes.avoided or wishes.pinned:
        yield "drop --use and --avoid: what they rule out may be what fits"
    if wishes.allow is not Result.DIFFERENT and changed:
        best = changed[0]
        yield f"--allow different: {best.recipe.strategies[-1].word} would fit, with {format_bytes(best.peak)}"
    name = planner.rehearsal.company.job.model
    larger = next((word for word in _SMALLER if word in name.rpartition("/")[2].lower()), None)
    if larger:
        yield f"a smaller model of the family: the {_SMALLER[larger]} one in place of the {larger} one"
