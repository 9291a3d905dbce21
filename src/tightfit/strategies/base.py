"""The contract of a strategy, and Parts: what a strategy may replace.

A strategy is one file: what it frees and why in words, then a small frozen dataclass whose fields are its
settings. `apply` gets the parts of a training and returns them changed. It carries no memory formula.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from enum import Enum
from importlib import import_module
from typing import TYPE_CHECKING, Any, ClassVar

from tightfit.compat import PydanticUndefined, field_defaults
from tightfit.errors import RecipeError
from tightfit.optional_imports import allow_imports, is_installed

if TYPE_CHECKING:
    from tightfit.device import Device
    from tightfit.strategies.parts import Parts


class Result(str, Enum):
    """What a strategy does to the trained model."""

    SAME = "same"  # equal to rounding
    CLOSE = "close"  # other arithmetic, the same quality
    DIFFERENT = "different"  # another training: fewer parameters or less text


class MemoryKind(str, Enum):
    """What memory is used for."""

    WEIGHTS = "weights"
    GRADIENTS = "gradients"
    OPTIMIZER_STATE = "optimizer state"
    ACTIVATIONS = "activations"
    INPUTS = "inputs"
    TEMPORARY = "temporary"
    ALLOCATOR = "allocator"  # taken from the device and held without a use
    HOST = "host memory"  # beside a card: no part of what the card has to hold


class Strategy(ABC):
    """One technique that trades something for memory."""

    name: ClassVar[str]
    """The word on the command line."""
    frees: ClassVar[tuple[MemoryKind, ...]]
    """The kinds of memory it makes smaller."""
    result: ClassVar[Result]
    """What it does to the trained model."""
    summary: ClassVar[str]
    """One sentence for the list of strategies."""
    exclusive: ClassVar[str | None] = None
    """A part that only one strategy of a recipe may choose."""
    cards_only: ClassVar[bool] = False
    """Whether it moves things to the memory around a card, so that there has to be a card."""
    needs: ClassVar[str | None] = None
    """A package that tightfit does without otherwise."""
    batch_only: ClassVar[bool] = False
    """Whether it changes nothing but how many rows and tokens go through the model at once."""
    gradients_only: ClassVar[bool] = False
    """Whether it changes how gradients are computed and nothing of what is then done with them."""
    step_only: ClassVar[bool] = False
    """Whether it changes what is done with gradients and nothing of how they are computed."""
    steps_in_backward: ClassVar[bool] = False
    """Whether the optimizer steps inside the backward pass, so that the two cannot be told apart."""
    scales: ClassVar[bool] = True
    """Whether a larger batch does the same operations on larger tensors."""

    @abstractmethod
    def apply(self, parts: Parts) -> Parts:
        """Return the parts with this strategy in them, or raise RecipeError where it cannot work."""

    @classmethod
    def is_available(cls) -> bool:
        """Whether the package that it needs is installed; nothing is imported to find out."""
        return cls.needs is None or is_installed(cls.needs)

    @classmethod
    def load(cls) -> None:
        """Import the package that it needs."""
        if cls.needs is not None:
            allow_imports(cls.needs)
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
    def spec(self) -> str:
        """The strategy as the user would write it: `name:key=value,key=value`, defaults left out."""
        given = {name: getattr(self, name) for name in self.settings()}
        changed = {name: value for name, value in given.items() if value != self.settings()[name]}
        settings = ",".join(f"{name}={_write(value)}" for name, value in changed.items())
        return f"{self.name}:{settings}" if settings else self.name

    @classmethod
    def check_settings(cls, values: dict[str, Any]) -> None:
        """Raise RecipeError where a setting without a default is missing."""
        for key, default in cls.settings().items():
            if default is REQUIRED and key not in values:
                raise RecipeError(f"'{cls.name}' needs its {key}: write it like '{cls.example()}'.")

    @classmethod
    def variants(cls) -> tuple[str, ...]:
        """The ways in which it can be applied, by name; one for most strategies."""
        return (cls.name,)

    @property
    def variant(self) -> str:
        """Which of its variants this is."""
        return self.name

    @classmethod
    def example(cls) -> str:
        """How one would write it to try it out."""
        needed = ",".join(f"{name}=8" for name, default in cls.settings().items() if default is REQUIRED)
        return f"{cls.name}:{needed}" if needed else cls.name

    @classmethod
    def settings(cls) -> dict[str, Any]:
        """The names of its settings with their defaults; REQUIRED where there is none."""
        return field_defaults(cls)


REQUIRED = PydanticUndefined


def _write(value: Any) -> str:
    return str(value).lower() if isinstance(value, bool) else str(value)


def require_cuda(name: str, device: Device) -> None:
    """Only a card has memory of its own."""
    if device.kind != "cuda":
        raise RecipeError(
            f"'{name}' cannot be used on {device.title}: there is no second memory to move things to. Leave it out."
        )
