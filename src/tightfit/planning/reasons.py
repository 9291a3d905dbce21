"""Reasons: why each strategy is in the plan, and why others are not."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from tightfit.device import Device
from tightfit.planning.wishes import Wishes
from tightfit.recipe import Recipe
from tightfit.strategies import STRATEGIES
from tightfit.strategy import Result, Strategy
from tightfit.units import format_bytes, format_seconds

if TYPE_CHECKING:
    from tightfit.planning.plans import Option

_WORTH_SAYING = 0.01  # of the peak


@dataclass(frozen=True)
class Reason:
    """Why a strategy is in a plan: what it frees, how much of that there is, and what it would be without."""

    strategy: Strategy
    share: float
    """Of the plain way's peak."""
    without: Option | None
    chosen: Option

    def __str__(self) -> str:
        share = _share(self.strategy, self.share) if self.share >= _WORTH_SAYING else ""
        return f"{self.strategy.word}: {share}{self.strategy.summary}{_beside(self.without, self.chosen)}"

    def to_json(self) -> dict[str, Any]:
        """The reason for scripts."""
        return {
            "strategy": self.strategy.word,
            "kinds": [kind.value for kind in self.strategy.frees] if self.share >= _WORTH_SAYING else [],
            "share": round(self.share, 4),
            "without": self.without.to_json() if self.without else None,
        }


def reasons_for(chosen: Option, plain: Option, look: Callable[[Recipe], Option | None]) -> Iterator[Reason]:
    """One for each strategy; `look` tells what it would be without."""
    kinds = plain.bill.moments[plain.bill.moment]
    for strategy in chosen.recipe.strategies:
        share = sum(kinds[kind] for kind in strategy.frees) / plain.peak
        yield Reason(strategy, share, look(chosen.recipe.leaving_out(strategy)), chosen)


def refusals(refused: Iterable[str], chosen: Recipe, device: Device, wishes: Wishes) -> Iterator[str]:
    """What the model or the device cannot do, and what is left alone because it changes the result."""
    yield from dict.fromkeys(refused)
    if device.kind == "cpu" and "mixed-precision" not in (s.name for s in chosen.strategies):
        yield "mixed-precision: a processor computes no faster in 16 bits; pin it with --use to try"
    for kind in STRATEGIES.values():
        if not kind.is_there():
            yield f"{kind.name}: not looked at without the package {kind.needs}; pip install {kind.needs} for it"
    changing = [name for name, kind in STRATEGIES.items() if kind.result is Result.DIFFERENT]
    if wishes.allow is not Result.DIFFERENT:
        yield f"{', '.join(changing)}: they train something else; --allow different takes them where nothing else fits"


def _share(strategy: Strategy, share: float) -> str:
    """How much of the plain way's peak is of the kinds that it frees."""
    names = " and ".join(kind.value for kind in strategy.frees)
    verb = "is" if names == "optimizer state" else "are"
    return f"{names} {verb} {share:.0%} of the plain peak; it "


def _beside(without: Option | None, chosen: Option) -> str:
    if without is None:
        return ""
    longer = without.seconds_per_epoch - chosen.seconds_per_epoch
    time = f"{format_seconds(abs(longer))} an epoch {'slower' if longer > 0 else 'faster'}"
    return f" (without it {format_bytes(without.peak)}, {time})"
