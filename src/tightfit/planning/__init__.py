"""Planning: a budget in, the fastest recipe that fits out, with reasons."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

from tightfit.device import Budget
from tightfit.job import Job
from tightfit.planning.plan import Plan


def plan(
    job: Job,
    budget: Budget | str | int | None = None,
    *,
    device: str | None = None,
    use: Sequence[str] = (),
    avoid: Sequence[str] = (),
    allow: str = "close",
) -> Plan:
    """Pick the fastest recipe that keeps to the budget; raises DoesNotFit, with the closest plan, where none does.

    `use` pins strategies, `avoid` leaves some out, and `allow="different"` also takes those that change what is
    trained. The batch size, the epochs and the learning rate never change.
    """
    from tightfit.planning.constraints import Wishes
    from tightfit.planning.planner import Planner

    wanted = budget if isinstance(budget, Budget) else Budget.of(budget, device)
    made = Planner.of(job, wanted.device).plan(wanted, Wishes.of(use, avoid, allow))
    return replace(made, job=job)  # as given: a batch of more rows than there are today may have them tomorrow


__all__ = ["Plan", "plan"]
