"""Lengths: the worst that the sampler can really make of the data, which is rarely the longest text allowed."""

from __future__ import annotations

from dataclasses import dataclass

from tightfit.data.tokens import Tokens
from tightfit.strategy import Parts


@dataclass(frozen=True)
class Shapes:
    """Rows × tokens of the two largest slices of a batch, and of the largest batch of the evaluation."""

    slices: tuple[tuple[int, int], ...]
    evaluation: tuple[int, int]

    def __str__(self) -> str:
        first = " × ".join(str(number) for number in self.slices[0])
        return f"the worst slice the data can make has {first} tokens"


@dataclass(frozen=True)
class Lengths:
    """How long the texts are, longest first."""

    train: tuple[int, ...]
    validation: tuple[int, ...]

    @classmethod
    def of(cls, train: Tokens, validation: Tokens) -> Lengths:
        return cls(tuple(sorted(train.lengths, reverse=True)), tuple(sorted(validation.lengths, reverse=True)))

    def worst(self, parts: Parts) -> Shapes:
        """The slices of a batch that holds the longest rows of all; a second one meets the gradients of the first."""
        batch = min(parts.batch_size, len(self.train))
        starts = range(0, batch, parts.slice_rows)[:2]
        slices = tuple(
            (min(parts.slice_rows, batch - start), min(self.train[start], parts.max_length)) for start in starts
        )
        rows = min(parts.evaluation_rows, len(self.validation))
        return Shapes(slices, (rows, min(self.validation[0], parts.max_length)))
