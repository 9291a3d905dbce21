"""Base class of the strategies that set the optimizer."""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Sequence
from dataclasses import replace
from typing import TYPE_CHECKING, Any, ClassVar

from tightfit.strategies.base import OPTIMIZER, Case, Changes, Stage, Strategy
from tightfit.strategies.parts import Parts

if TYPE_CHECKING:
    import torch


class OptimizerStrategy(Strategy):
    """Replaces the optimizer."""

    exclusive: ClassVar[str | None] = OPTIMIZER
    changes: ClassVar[Changes] = Changes.STEP
    averages_gradients: ClassVar[bool] = True
    """Whether its update averages the gradients of many steps (a first moment)."""

    @abstractmethod
    def build(self, groups: list[dict[str, Any]], learning_rate: float) -> torch.optim.Optimizer:
        """Build the optimizer over parameter groups."""

    def apply(self, parts: Parts) -> Parts:
        return replace(parts, optimizer=self.build)

    @classmethod
    def offers(cls, case: Case) -> Sequence[Strategy]:
        # Where few parameters train, the default's state is small: only the least state is worth another recipe.
        return (cls(),) if case.stage < Stage.FEWER_PARAMETERS or not cls.averages_gradients else ()
