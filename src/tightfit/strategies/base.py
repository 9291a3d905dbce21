"""Base class of strategies.

A strategy is one file: a docstring on what it saves and why, then a small frozen dataclass with its settings as fields.
`apply` takes the parts of a training step and returns them changed. It has no memory formula: the simulation measures
it.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from enum import Enum, Flag, IntEnum, auto
from importlib import import_module
from typing import TYPE_CHECKING, Any, ClassVar

from tightfit.compat import PydanticUndefined, field_defaults
from tightfit.errors import RecipeError
from tightfit.messages import Message, msg, name
from tightfit.models import quiet_transformers
from tightfit.optional_imports import allow_imports, is_installed

if TYPE_CHECKING:
    from tightfit.device import Device
    from tightfit.models import Loading
    from tightfit.strategies.parts import Parts


class Result(str, Enum):
    """What a strategy does to the trained model."""

    SAME = "same"  # equal up to rounding
    CLOSE = "close"  # different numbers, same quality
    DIFFERENT = "different"  # fewer trained parameters or shorter text

    @property
    def severity(self) -> int:
        """0 for the least effect."""
        return list(Result).index(self)


class Changes(Flag):
    """What a strategy changes. Strategies are applied in this order, by the last of what they change."""

    MODEL = auto()  # which parameters exist, which of them train, and their number format
    BATCH = auto()  # the rows and tokens of a micro-batch, and the order of the rows
    GRADIENTS = auto()  # how the forward and backward pass compute the gradients
    STEP = auto()  # what the optimizer does with the gradients


@dataclass(frozen=True)
class TraceHints:
    """What a simulation may assume of a strategy, so that it traces less. A wrong hint gives a wrong estimate."""

    same_ops_at_any_size: bool = True
    """Whether a larger batch runs the same operations on larger tensors."""
    layer_period: int | None = 1
    """The number of layers after which its pattern repeats; None if it treats a layer differently from the rest."""
    layers_per_block: int = 1
    """The number of layers that run as one block."""


class Stage(IntEnum):
    """Stages of the search, from fastest to smallest: a stage is tried only if no recipe of an earlier one fits."""

    USUAL = 0
    SMALL = 1  # needs less memory and more time
    SMALLEST = 2
    FEWER_PARAMETERS = 3  # changes what is trained; only if the user allows it
    FEWER_BITS = 4  # changes the frozen weights too


@dataclass(frozen=True)
class Case:
    """Input of the search for recipes: the device, the batch, the model, the stage and the user's constraints."""

    device: Device
    batch_size: int
    longest: int
    """Tokens of the longest text."""
    layers: int | None
    """Layers of the model, where known."""
    stage: Stage
    predicts_words: bool = False
    """Whether the model predicts tokens among all words it knows."""
    avoided: frozenset[str] = frozenset()
    pinned: tuple[Strategy, ...] = ()
    """Strategies that are in every recipe."""
    offered: tuple[Strategy, ...] = ()
    """All proposed strategies, once they are known."""

    @property
    def leanest_optimizer(self) -> Strategy | None:
        """The proposed optimizer with the least state: they are listed from most to least."""
        return next((s for s in reversed(self.offered) if s.exclusive == OPTIMIZER), None)


OPTIMIZER = "optimizer"


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

    @property
    def label(self) -> Message:
        """Its name in sentences and tables."""
        return _KIND_LABELS.get(self) or name(self.value)


_KIND_LABELS = {
    MemoryKind.TEMPORARY: msg("temporary buffers"),
    MemoryKind.ALLOCATOR: msg("allocator cache"),
}


class Strategy(ABC):
    """One technique that saves memory or time."""

    name: ClassVar[str]
    """The name on the command line."""
    frees: ClassVar[tuple[MemoryKind, ...]]
    """The kinds of memory it reduces."""
    result: ClassVar[Result]
    """What it does to the trained model."""
    summary: ClassVar[Message]
    """One line for plans and the list of strategies, starting with a verb."""
    zh: ClassVar[Mapping[str, str]] = {}
    """The Chinese of its summary, and of the errors and notes that only it has; at the end of its file."""
    exclusive: ClassVar[str | None] = None
    """A part that only one strategy of a recipe may set."""
    requires: ClassVar[str | None] = None
    """A package that only this strategy needs."""
    needs: ClassVar[str | None] = None
    """The strategy without which it cannot be used."""
    changes: ClassVar[Changes]
    """What it changes; a strategy that changes gradients and step couples them, so they cannot be traced apart."""
    costs_nothing: ClassVar[bool] = False
    """Whether plans use it wherever it is offered and works, since it takes neither time nor accuracy."""

    @abstractmethod
    def apply(self, parts: Parts) -> Parts:
        """Return the parts with this strategy applied; raise RecipeError where it cannot work."""

    def load(self, loading: Loading) -> Loading:
        """Change how the weights are loaded, before there is a model: number format, quantization."""
        return loading

    @classmethod
    def offers(cls, case: Case) -> Sequence[Strategy]:
        """Return the settings to try in this stage; empty if only users select this strategy, with --use."""
        return ()

    def suits(self, others: Sequence[Strategy], case: Case) -> bool:
        """Whether to try a recipe that combines it with these other candidates."""
        return True

    @classmethod
    def why_not_offered(cls, device: Device) -> Message | None:
        """Why it is not tried on a device where users would expect it."""
        return None

    @property
    def hints(self) -> TraceHints:
        """What a simulation may assume of it."""
        return TraceHints()

    @property
    def steps_in_backward(self) -> bool:
        """Whether the optimizer steps inside the backward pass, so that a step has only one such pass."""
        return Changes.GRADIENTS | Changes.STEP in self.changes

    @classmethod
    def is_available(cls) -> bool:
        """Whether the required package is installed; does not import it."""
        return cls.requires is None or is_installed(cls.requires)

    @classmethod
    def import_requirements(cls) -> None:
        """Import the required package."""
        if cls.requires is not None:
            allow_imports(cls.requires)
            with quiet_transformers():
                import_module(cls.requires)

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
                raise RecipeError(
                    msg(
                        "'{name}' needs the setting '{key}': write '{example}'.",
                        name=cls.name,
                        key=key,
                        example=cls.example(),
                    )
                )

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
            msg(
                "'{name}' cannot be used on {device}: only a GPU has memory separate from host memory. {suggestion}",
                name=name,
                device=device.label,
                suggestion=msg("Leave it out."),
            )
        )
