"""Base class of strategies.

A strategy is one file: a docstring on what it saves and why, then a small frozen dataclass with its settings as fields.
`apply` takes the parts of a training step and returns them changed. It has no memory formula: the simulation measures
it.
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

    SAME = "same"  # equal up to rounding
    CLOSE = "close"  # not the same numbers, same quality
    DIFFERENT = "different"  # fewer trained parameters or shorter text


class MemoryKind(str, Enum):
    """What memory is used for."""

    WEIGHTS = "weights"
    GRADIENTS = "gradients"
    OPTIMIZER_STATE = "optimizer state"
    ACTIVATIONS = "activations"
    INPUTS = "inputs"
    TEMPORARY = "temporary"
    ALLOCATOR = "allocator"  # reserved on the device and not in use
    HOST = "host memory"  # of a machine with a GPU: not part of the GPU's memory


class Strategy(ABC):
    """One technique that saves memory or time."""

    name: ClassVar[str]
    """The name on the command line."""
    frees: ClassVar[tuple[MemoryKind, ...]]
    """The kinds of memory it reduces."""
    result: ClassVar[Result]
    """What it does to the trained model."""
    summary: ClassVar[str]
    """One line for plans and the list of strategies, starting with a verb."""
    exclusive: ClassVar[str | None] = None
    """A part that only one strategy of a recipe may set."""
    requires: ClassVar[str | None] = None
    """A package that only this strategy needs."""
    batch_only: ClassVar[bool] = False
    """Whether it changes nothing but the rows and tokens of a micro-batch."""
    gradients_only: ClassVar[bool] = False
    """Whether it changes only how gradients are computed, not how the optimizer uses them."""
    step_only: ClassVar[bool] = False
    """Whether it changes only how the optimizer uses gradients, not how they are computed."""
    steps_in_backward: ClassVar[bool] = False
    """Whether the optimizer steps inside the backward pass, so that the two cannot be traced apart."""
    same_ops_at_any_size: ClassVar[bool] = True
    """Whether a larger batch runs the same operations on larger tensors."""

    @abstractmethod
    def apply(self, parts: Parts) -> Parts:
        """Return the parts with this strategy applied; raise RecipeError where it cannot work."""

    @classmethod
    def is_available(cls) -> bool:
        """Whether the required package is installed; does not import it."""
        return cls.requires is None or is_installed(cls.requires)

    @classmethod
    def import_requirements(cls) -> None:
        """Import the required package."""
        if cls.requires is not None:
            allow_imports(cls.requires)
            import_module(cls.requires)

    @property
    def layer_period(self) -> int | None:
        """The number of layers after which its pattern repeats; None if it treats a layer differently from the rest."""
        return self.layers_per_block

    @property
    def layers_per_block(self) -> int:
        """The number of layers that run as one block."""
        return 1

    @property
    def spec(self) -> str:
        """The strategy as text: `name:key=value,key=value`, without settings at their default."""
        given = {name: getattr(self, name) for name in self.settings()}
        changed = {name: value for name, value in given.items() if value != self.settings()[name]}
        settings = ",".join(f"{name}={_write(value)}" for name, value in changed.items())
        return f"{self.name}:{settings}" if settings else self.name

    @classmethod
    def check_settings(cls, values: dict[str, Any]) -> None:
        """Raise RecipeError if a required setting is missing."""
        for key, default in cls.settings().items():
            if default is REQUIRED and key not in values:
                raise RecipeError(f"'{cls.name}' needs the setting '{key}': write '{cls.example()}'.")

    @classmethod
    def variants(cls) -> tuple[str, ...]:
        """The names of its forms, which may be planned separately; one for most strategies."""
        return (cls.name,)

    @property
    def variant(self) -> str:
        """The variant that this is."""
        return self.name

    @classmethod
    def example(cls) -> str:
        """A spec that works, with example values for the required settings."""
        needed = ",".join(f"{name}=8" for name, default in cls.settings().items() if default is REQUIRED)
        return f"{cls.name}:{needed}" if needed else cls.name

    @classmethod
    def settings(cls) -> dict[str, Any]:
        """The settings with their defaults; REQUIRED for those without."""
        return field_defaults(cls)


REQUIRED = PydanticUndefined


def _write(value: Any) -> str:
    return str(value).lower() if isinstance(value, bool) else str(value)


def require_cuda(name: str, device: Device) -> None:
    """Raise RecipeError unless the device is a GPU, whose memory is separate from host memory."""
    if device.kind != "cuda":
        raise RecipeError(
            f"'{name}' cannot be used on {device.label}: only a GPU has memory separate from host memory. Leave it out."
        )
