"""Recipe: the strategies of a training run with their settings, and how they are written as text (specs)."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass

from pydantic import ValidationError

from tightfit.errors import RecipeError, suggest, why_invalid
from tightfit.messages import Message, msg
from tightfit.messages import name as name_of
from tightfit.strategies import STRATEGIES
from tightfit.strategies.base import OPTIMIZER, Changes, Result, Strategy, TraceHints

_ORDER = {name: position for position, name in enumerate(STRATEGIES)}


@dataclass(frozen=True)
class Recipe:
    """Strategies in the order of the list, whatever order the user named them in."""

    strategies: tuple[Strategy, ...] = ()

    @classmethod
    def parse(cls, specs: Iterable[str]) -> Recipe:
        """Parse specs such as `["micro-batch:size=8", "gradient-checkpointing"]`; one text may hold several."""
        return cls.of(parse_strategy(spec) for spec in split_specs(specs))

    @classmethod
    def of(cls, strategies: Iterable[Strategy]) -> Recipe:
        """A recipe of these strategies; raises RecipeError if two of them clash."""
        in_order = sorted(strategies, key=lambda strategy: _ORDER[strategy.name])
        _check_clashes(in_order)
        _check_needs(in_order)
        return cls(tuple(in_order))

    @property
    def specs(self) -> list[str]:
        """The recipe as a list of specs."""
        return [strategy.spec for strategy in self.strategies]

    @property
    def title(self) -> str:
        """The specs as one text; `baseline` if there are none."""
        return " ".join(self.specs) or msg("baseline")

    def import_requirements(self) -> None:
        """Import the installed packages that its strategies require, since they add to the process size."""
        for strategy in self.strategies:
            if strategy.is_available():
                strategy.import_requirements()

    @property
    def in_order_of_application(self) -> list[Strategy]:
        """The strategies in the order of what they change; the recipe itself is in the order of the list."""
        return sorted(self.strategies, key=lambda strategy: strategy.changes.value.bit_length())

    def without_batching(self) -> Recipe:
        """The recipe without strategies that change only the rows and tokens of a micro-batch."""
        return Recipe(tuple(s for s in self.strategies if s.changes is not Changes.BATCH))

    def without(self, strategy: Strategy) -> Recipe:
        """The recipe without one of its strategies."""
        return Recipe(tuple(s for s in self.strategies if s != strategy))

    def gradient_part(self) -> Recipe:
        """Only the strategies that affect how gradients are computed."""
        return Recipe(tuple(s for s in self.strategies if Changes.STEP not in s.changes))

    @property
    def steps_in_backward(self) -> bool:
        """Whether the optimizer steps inside the backward pass, so that the two cannot be traced apart."""
        return any(s.steps_in_backward for s in self.strategies)

    @property
    def hints(self) -> list[TraceHints]:
        """What a simulation may assume of each strategy."""
        return [s.hints for s in self.strategies]

    @property
    def optimizer(self) -> str:
        """The name of its optimizer."""
        return next((s.name for s in self.strategies if s.exclusive == OPTIMIZER), "adamw")

    def optimizer_part(self) -> Recipe:
        """Only the strategies that affect the parameters and the optimizer step."""
        return Recipe(tuple(s for s in self.strategies if s.changes & (Changes.MODEL | Changes.STEP)))

    @property
    def result(self) -> Result:
        """What the recipe does to the trained model: the strongest effect among its strategies."""
        return max((s.result for s in self.strategies), key=lambda result: result.severity, default=Result.SAME)


def split_specs(texts: Iterable[str]) -> list[str]:
    """Single specs, from texts as recipes are printed: several with spaces or commas between them."""
    specs: list[str] = []
    for text in texts:
        for word in text.split():
            first, *others = word.strip(",").split(",")
            specs.append(first)
            for piece in others:
                if _continues(specs[-1], piece):
                    specs[-1] += f",{piece}"
                else:
                    specs.append(piece)
    return [spec for spec in specs if spec]


def _continues(spec: str, piece: str) -> bool:
    """Whether what follows a comma is another setting of the strategy before it."""
    return ":" in spec and piece.partition(":")[0].lower() not in STRATEGIES and corrected_spec(piece) is None


def parse_strategy(spec: str) -> Strategy:
    """Parse one spec, `name:key=value,key=value`."""
    written, _, settings = spec.strip().partition(":")
    name = written.lower()
    if name not in STRATEGIES:
        raise RecipeError(
            msg("There is no strategy '{name}': {suggestion}", name=written, suggestion=_correction(spec))
        )
    kind = STRATEGIES[name]
    values = dict(_setting(kind, item) for item in settings.split(",") if item)
    kind.check_settings(values)
    try:
        return kind(**values)
    except ValidationError as error:
        first = error.errors()[0]
        value = f"{name}:{first['loc'][0]}={first['input']}"
        raise RecipeError(msg("'{value}' is not valid: {reason}.", value=value, reason=why_invalid(first))) from None


_HABITS = {
    "gradient-accumulation": "micro-batch:size=8",
    "gradient-accumulation-steps": "micro-batch:size=8",
    "slice": "micro-batch:size=8",
    "checkpoint": "gradient-checkpointing",
    "checkpointing": "gradient-checkpointing",
    "activation-checkpointing": "gradient-checkpointing",
    "group-by-length": "length-bucketing",
    "bucket": "length-bucketing",
    "fp16": "mixed-precision:dtype=fp16",
    "bf16": "mixed-precision:dtype=bf16",
    "amp": "mixed-precision",
    "8bit": "adamw-8bit",
    "adamw-bnb-8bit": "adamw-8bit",
}
"""What people type from habit, such as arguments of transformers.Trainer, and the spec that does the same here."""


def corrected_spec(spec: str) -> str | None:
    """The spec that was probably meant: by habit (`fp16`, `optim=adafactor`) or in another spelling (`micro_batch`)."""
    written, _, settings = spec.strip().partition(":")
    name = written.strip().lower().replace("_", "-").removeprefix("optim=").partition("=")[0]
    if name in STRATEGIES:
        return f"{name}:{settings}" if settings else STRATEGIES[name].example()
    return _HABITS.get(name)


def _correction(spec: str) -> Message:
    """The end of an error message: the corrected spec, ready to paste, or the nearest name and all names."""
    corrected = corrected_spec(spec)
    if corrected:
        return msg("did you mean --use {spec}?", spec=corrected)
    return suggest(spec.strip().partition(":")[0], STRATEGIES)


def _setting(kind: type[Strategy], item: str) -> tuple[str, str]:
    key, equals, value = (part.strip() for part in item.partition("="))
    known = list(kind.settings())
    if not known:
        raise RecipeError(msg("'{name}' has no settings: write just '{name}'.", name=kind.name))
    written = f"{kind.name}:{item}"
    if not equals and len(known) == 1 and key not in known:
        meant = f"{kind.name}:{known[0]}={item}"
        raise RecipeError(msg("'{spec}' does not name the setting: write '{meant}'.", spec=written, meant=meant))
    if key not in known:
        hint = suggest(key, known)
        raise RecipeError(
            msg("'{name}' has no setting '{key}': {suggestion}", name=kind.name, key=key, suggestion=hint)
        )
    if not equals or not value:
        raise RecipeError(msg("'{spec}' has no value: write '{meant}'.", spec=written, meant=f"{kind.name}:{key}=..."))
    return key, value


def _check_needs(strategies: list[Strategy]) -> None:
    names = {strategy.name for strategy in strategies}
    for strategy in strategies:
        if strategy.needs is not None and strategy.needs not in names:
            raise RecipeError(
                msg(
                    "'{spec}' needs '{needed}': add --use {needed}, or leave it out.",
                    spec=strategy.spec,
                    needed=strategy.needs,
                )
            )


def _check_clashes(strategies: list[Strategy]) -> None:
    for i, first in enumerate(strategies):
        for second in strategies[i + 1 :]:
            if first.name == second.name:
                raise RecipeError(
                    msg(
                        "'{first}' and '{second}' are the same strategy twice: keep one.",
                        first=first.spec,
                        second=second.spec,
                    )
                )
            if first.exclusive and first.exclusive == second.exclusive:
                raise RecipeError(
                    msg(
                        "'{first}' and '{second}' clash: both set the {part}. Keep one.",
                        first=first.spec,
                        second=second.spec,
                        part=name_of(first.exclusive),
                    )
                )
