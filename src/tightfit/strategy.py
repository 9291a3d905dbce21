"""The contract of a strategy, and Parts: what a strategy may replace.

A strategy is one file: what it frees and why in words, then a small frozen dataclass whose fields are its
settings. `apply` gets the parts of a training and returns them changed. It carries no memory formula.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable
from dataclasses import dataclass
from enum import Enum
from importlib import import_module
from typing import TYPE_CHECKING, Any, ClassVar

from tightfit.compat import PydanticUndefined, field_defaults
from tightfit.data.limits import RowLimits
from tightfit.device import Device
from tightfit.lean import is_installed, let_in

if TYPE_CHECKING:
    import torch
    from transformers import PreTrainedModel

    from tightfit.adapter import Adapter
    from tightfit.trunk import FrozenTrunk

    OptimizerFactory = Callable[[list[dict[str, Any]], float], torch.optim.Optimizer]


class Result(str, Enum):
    """What a strategy does to the trained model."""

    SAME = "same"  # equal to rounding
    CLOSE = "close"  # other arithmetic, the same quality
    DIFFERENT = "different"  # another training: fewer parameters or less text


class Kind(str, Enum):
    """What memory is used for."""

    WEIGHTS = "weights"
    GRADIENTS = "gradients"
    OPTIMIZER_STATE = "optimizer state"
    ACTIVATIONS = "activations"
    INPUTS = "inputs"
    TEMPORARY = "temporary"
    ALLOCATOR = "allocator"  # taken from the device and held without a use
    HOST = "host memory"  # beside a card: no part of what the card has to hold


class Precision(str, Enum):
    """The number format of the forward and backward pass; weights stay in fp32."""

    FP32 = "no"
    BF16 = "bf16"
    FP16 = "fp16"


@dataclass(frozen=True, kw_only=True)
class Parts:
    """Everything a training step is made of. Strategies replace some of it; the rest is as the job says."""

    model: PreTrainedModel
    device: Device
    optimizer: OptimizerFactory
    batch_size: int
    """Rows per optimizer step. No strategy may change it."""
    max_length: int
    """Tokens a text is cut at."""
    learning_rate: float
    weight_decay: float
    max_grad_norm: float
    slice_rows: int
    """Rows that go through the model at once."""
    slice_tokens: int | None = None
    """Tokens that do, where a recipe counts them in place of rows."""
    layer_rows: int | None = None
    """Rows that go through one layer at once, where that is fewer than go through the model."""
    layer_limits: RowLimits | None = None
    """The same, for a run to make smaller when memory runs out."""
    step_in_backward: bool = False
    """Whether each parameter is stepped when its gradient arrives."""
    precision: Precision = Precision.FP32
    pool: int = 0
    """Batches whose rows are sorted by length together, so that rows of like length meet; 0: rows meet by chance."""
    adapter: Adapter | None = None
    """What learns beside the weights; it is taken out before the model is saved."""
    trunk: FrozenTrunk | None = None
    """A trunk that runs once over each text; what trains then reads what was kept of it."""
    notes: tuple[str, ...] = ()
    """What the strategies have to say to the user."""

    @property
    def parameters(self) -> int:
        """How many numbers the model holds."""
        return sum(parameter.numel() for parameter in self.model.parameters())

    @property
    def trainable_parameters(self) -> int:
        """How many of them learn."""
        return sum(parameter.numel() for parameter in self.model.parameters() if parameter.requires_grad)

    @property
    def trained_weights(self) -> dict[str, torch.Tensor]:
        """What learns, by name."""
        return {name: parameter for name, parameter in self.model.named_parameters() if parameter.requires_grad}

    @property
    def checkpoint_weights(self) -> dict[str, torch.Tensor]:
        """What a checkpoint holds, by name."""
        return self.trained_weights if self.base_stays else self.model.state_dict()

    @property
    def base_stays(self) -> bool:
        """Whether the base model is left as it was, so that a checkpoint need not repeat it."""
        return self.adapter is not None or self.trunk is not None

    @property
    def step_rows(self) -> int:
        """Rows trained at once: of what was kept of a trunk, which is little, all of them."""
        return self.batch_size if self.trunk else self._rows_at_once

    @property
    def slices(self) -> RowLimits:
        """How a batch is cut into slices."""
        if self.slice_tokens is None or self.trunk:
            return RowLimits(self.step_rows)
        return RowLimits(self.batch_size, self.slice_tokens)

    @property
    def _rows_at_once(self) -> int:
        """Where texts are as long as they may be."""
        if self.slice_tokens is None:
            return self.slice_rows
        return min(self.batch_size, RowLimits(self.batch_size, self.slice_tokens).at(self.max_length))

    @property
    def trunk_rows(self) -> int:
        """Rows that go at once through a model that does not learn: no fewer than 8, since nothing waits."""
        return min(self.batch_size, max(self.layer_rows or self._rows_at_once, 8))

    @property
    def evaluation_rows(self) -> int:
        """Rows evaluated at once."""
        return self.batch_size if self.trunk else self.trunk_rows


class Strategy(ABC):
    """One technique that trades something for memory."""

    name: ClassVar[str]
    """The word on the command line."""
    frees: ClassVar[tuple[Kind, ...]]
    """The kinds of memory it makes smaller."""
    result: ClassVar[Result]
    """What it does to the trained model."""
    summary: ClassVar[str]
    """One sentence for the list of strategies."""
    chooses: ClassVar[str | None] = None
    """A part that only one strategy of a recipe may choose."""
    cards_only: ClassVar[bool] = False
    """Whether it moves things to the memory around a card, so that there has to be a card."""
    needs: ClassVar[str | None] = None
    """A package that tightfit does without otherwise."""
    shapes_only: ClassVar[bool] = False
    """Whether it changes nothing but how many rows and tokens go through the model at once."""
    passes_only: ClassVar[bool] = False
    """Whether it changes how gradients are computed and nothing of what is then done with them."""
    steps_only: ClassVar[bool] = False
    """Whether it changes what is done with gradients and nothing of how they are computed."""
    steps_in_pass: ClassVar[bool] = False
    """Whether the optimizer steps inside the backward pass, so that the two cannot be told apart."""
    usual: ClassVar[int] = 8
    """What one would try first for a setting that has no default."""
    scales: ClassVar[bool] = True
    """Whether a larger batch does the same operations on larger tensors."""

    @abstractmethod
    def apply(self, parts: Parts) -> Parts:
        """Return the parts with this strategy in them, or raise RecipeError where it cannot work."""

    @classmethod
    def is_there(cls) -> bool:
        """Whether the package that it needs is installed; nothing is imported to find out."""
        return cls.needs is None or is_installed(cls.needs)

    @classmethod
    def load(cls) -> None:
        """Import the package that it needs."""
        if cls.needs is not None:
            let_in(cls.needs)
            import_module(cls.needs)

    @property
    def period(self) -> int | None:
        """After how many layers it does the same again; None if it treats some layer unlike the others."""
        return self.together

    @property
    def together(self) -> int:
        """How many layers it takes as one."""
        return 1

    @property
    def word(self) -> str:
        """The strategy as the user would write it: `name:key=value,key=value`, defaults left out."""
        given = {name: getattr(self, name) for name in self.settings()}
        changed = {name: value for name, value in given.items() if value != self.settings()[name]}
        settings = ",".join(f"{name}={_write(value)}" for name, value in changed.items())
        return f"{self.name}:{settings}" if settings else self.name

    @classmethod
    def example(cls) -> str:
        """How one would write it to try it out."""
        needed = ",".join(f"{name}={cls.usual}" for name, default in cls.settings().items() if default is REQUIRED)
        return f"{cls.name}:{needed}" if needed else cls.name

    @classmethod
    def settings(cls) -> dict[str, Any]:
        """The names of its settings with their defaults; REQUIRED where there is none."""
        return field_defaults(cls)


REQUIRED = PydanticUndefined


def _write(value: Any) -> str:
    return str(value).lower() if isinstance(value, bool) else str(value)
