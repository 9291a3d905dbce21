"""Ranking: which candidates fit a budget, the best first; the smallest, and the closest if none fits."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass

from tightfit.device import Budget
from tightfit.planning.candidate_estimates import CandidateEstimates
from tightfit.planning.constraints import Prefer
from tightfit.planning.plan import CandidateEstimate, Option

_ALTERNATIVES = 5


@dataclass(frozen=True)
class Ranking:
    """Candidates against a budget: first the effect on the result, then the time; or by time alone."""

    estimates: CandidateEstimates
    budget: Budget
    prefer: Prefer = Prefer.EXACT

    def fitting(self, candidates: Iterable[CandidateEstimate]) -> list[Option]:
        """The best few options; skips other settings of the same strategies and recipes that take about as long."""
        candidates, best = list(candidates), list[CandidateEstimate]()
        order = _by_effect_and_time if self.prefer is Prefer.EXACT else _by_time
        for candidate in sorted(candidates, key=order):
            if not any(candidate.is_similar(other) for other in best) and self._fits(candidate):
                best.append(candidate)
            if len(best) > _ALTERNATIVES:
                break
        if best and (faster := self._faster(candidates, best[0])) is not None:
            best = [best[0], faster, *(other for other in best[1:] if not other.is_similar(faster))]
        return [self.estimates.option(candidate) for candidate in best]

    def _faster(self, candidates: Iterable[CandidateEstimate], chosen: CandidateEstimate) -> CandidateEstimate | None:
        """The fastest that fits with more effect on the result than the chosen one, if it is faster."""
        for candidate in sorted(candidates, key=_by_time):
            if candidate.is_similar(chosen) or candidate.seconds_per_step >= chosen.seconds_per_step:
                return None
            if candidate.severity > chosen.severity and self._fits(candidate):
                return candidate
        return None

    def smaller(self, candidates: Iterable[CandidateEstimate], shown: list[Option]) -> list[Option]:
        """The smallest option, if it fits and is not among the shown ones."""
        smallest = self.estimates.option(min(candidates, key=_by_memory))
        return [smallest] if smallest.peak < min(o.peak for o in shown) and smallest.fits(self.budget) else []

    def closest(self, candidates: Iterable[CandidateEstimate]) -> Option:
        """The option with the smallest upper bound; lower bounds rule out most candidates without a full estimate."""
        closest: Option | None = None
        for candidate in sorted(candidates, key=_by_memory):
            if closest is not None and candidate.lower_bound >= closest.upper_bound:
                break
            option = self.estimates.option(candidate)
            closest = option if closest is None or option.upper_bound < closest.upper_bound else closest
        assert closest is not None  # there is at least one candidate
        return closest

    def any_fits(self, candidates: Iterable[CandidateEstimate]) -> bool:
        """Whether there is one that fits."""
        return any(self._fits(candidate) for candidate in sorted(candidates, key=_by_memory))

    def _fits(self, candidate: CandidateEstimate) -> bool:
        return candidate.lower_bound <= self.budget.size and self.estimates.option(candidate).fits(self.budget)


def _by_effect_and_time(candidate: CandidateEstimate) -> tuple[int, float]:
    return candidate.severity, candidate.seconds_per_step


def _by_time(candidate: CandidateEstimate) -> float:
    return candidate.seconds_per_step


def _by_memory(candidate: CandidateEstimate) -> int:
    return candidate.lower_bound
