"""Weights and gradients in bf16.

Weights take 4 bytes a parameter and gradients as many. In bf16 they take 2 each, and activations take half as well:
bf16 has the range of fp32 but only two to three decimal digits. The optimizer updates each parameter in fp32, and the
result is rounded stochastically, so that updates below the last digit are not lost: they are applied with a
proportional probability. Saved weights are in bf16 too. The results are close to those of fp32; mixed-precision, which
keeps the weights in fp32, is closer where it fits.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import TYPE_CHECKING, Any, ClassVar

from pydantic.dataclasses import dataclass

from tightfit.errors import RecipeError
from tightfit.messages import Message, msg
from tightfit.models import Loading
from tightfit.strategies.base import Case, Changes, MemoryKind, Result, Stage, Strategy
from tightfit.strategies.parts import Parts

if TYPE_CHECKING:
    import torch

    from tightfit.strategies.parts import OptimizerFactory


@dataclass(frozen=True)
class BF16Weights(Strategy):
    """The whole model in bf16, with stochastic rounding of the optimizer steps."""

    name: ClassVar[str] = "bf16-weights"
    frees: ClassVar[tuple[MemoryKind, ...]] = (MemoryKind.WEIGHTS, MemoryKind.GRADIENTS, MemoryKind.ACTIVATIONS)
    result: ClassVar[Result] = Result.CLOSE
    summary: ClassVar[Message] = msg(
        "keeps weights, gradients and activations in bf16, with stochastic rounding of the updates"
    )
    exclusive: ClassVar[str | None] = "number format"
    changes: ClassVar[Changes] = Changes.MODEL

    @classmethod
    def offers(cls, case: Case) -> Sequence[Strategy]:
        usable = case.device.kind != "mps" and case.device.bf16 and case.device.bf16_products
        return (cls(),) if usable and case.stage in (Stage.SMALL, Stage.SMALLEST) else ()

    def suits(self, others: Sequence[Strategy], case: Case) -> bool:
        """Where all else is not enough: mixed precision, with weights in fp32, is closer to the fp32 result."""
        return any(other.steps_in_backward for other in others)

    def load(self, loading: Loading) -> Loading:
        return replace(loading, dtype="bfloat16")  # there is never a copy in fp32

    def apply(self, parts: Parts) -> Parts:
        if not parts.device.bf16:
            device = parts.device.label
            raise RecipeError(
                msg("'{name}' cannot be used: {device} has no bf16. Leave it out.", name=self.name, device=device)
            )
        import torch

        for parameter in parts.model.parameters():  # no change, unless the model was built before the recipe was known
            parameter.data = parameter.data.to(torch.bfloat16)
        return parts.wrap_optimizer(_build)


def _build(inner: OptimizerFactory, groups: list[dict[str, Any]], learning_rate: float) -> torch.optim.Optimizer:
    """Build the optimizer; a module-level function, because parts are pickled for other processes."""
    from tightfit.optimizers.stochastic_rounding import StochasticRounding

    return StochasticRounding(groups, learning_rate, inner)


BF16Weights.zh = {
    BF16Weights.summary: "权重、梯度和激活值都用 bf16，更新时采用随机舍入",
    "'{name}' cannot be used: {device} has no bf16. Leave it out.": (
        "“{name}”无法使用：{device} 不支持 bf16。请去掉它。"
    ),
}
