"""Beginning: what is known of a run before its first step, kept beside it, so that a run that dies can be told of too.

The forecast by moment and kind, one step as it goes, how long the texts are, the plan, and every attempt.
"""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

from pydantic import BaseModel, ConfigDict

from tightfit.files import write_whole
from tightfit.runs.record import Data

FILE = "start.json"


class _Value(BaseModel):
    model_config = ConfigDict(frozen=True, use_attribute_docstrings=True)


class Segment(_Value):
    """A moment of the step that `Step` shows."""

    phase: str
    start: int
    end: int
    slice: int


class Step(_Value):
    """One step: live bytes of each kind at points on the way."""

    kinds: dict[str, list[int]]
    stretches: list[Segment]
    slices: int
    """How many slices a step has; at most two of them are shown."""


class Tensors(_Value):
    """Like tensors that are alive at the peak."""

    kind: str
    owner: str | None
    """The module or parameter, `*` for any layer; empty for the model itself, None where it is not known."""
    shape: list[int] | None
    bytes: int
    """Of each."""
    count: int


class Texts(_Value):
    """How long the training texts are, and what their lengths cost."""

    limit: int
    """Tokens a text is cut at."""
    width: int
    """Tokens that one bar of the histogram stands for."""
    rows: list[int]
    """Texts of 1 to `width` tokens, the next `width`, and so on."""
    padding_factor: float
    """Tokens that go through the model, padding included, for each token of a text."""
    padding_factor_unsorted: float
    """The same if rows met by chance and whole batches were padded."""
    truncated_rows: int
    tokens: int | None = None
    """Of all texts as they are cut."""
    cut_tokens: int | None = None
    """None where the tokenizer does not tell."""


class SmallerRecipe(_Value):
    """A recipe that takes less, with what it was said to take when the run began."""

    recipe: list[str]
    peak_bytes: int
    result: str


class Attempt(_Value):
    """One time that the run was started or gone on with."""

    began: str
    from_step: int = 0
    recipe: list[str] = []
    ended: str | None = None
    """What it said when it did not come to its end; None where it did, or was killed."""


class RunHeader(_Value):
    """What is known before the first step."""

    recipe: list[str]
    result: str
    device: str
    max_length: int
    steps: int
    """How many there are to take."""
    data: Data
    parameters: int
    trainable_parameters: int
    budget_bytes: int | None = None
    notes: list[str] = []
    versions: dict[str, str] = {}
    estimate: dict[str, Any] | None = None
    """As `rehearse --json` prints it; None where memory could not be foretold."""
    seconds_per_step: float | None = None
    step: Step | None = None
    largest: list[Tensors] = []
    texts: Texts | None = None
    plan: dict[str, Any] | None = None
    """As `plan --json` prints it, where the recipe was planned."""
    smaller: list[SmallerRecipe] = []
    attempts: list[Attempt] = []

    def save(self, folder: Path) -> None:
        """Write it whole or not at all."""
        write_whole(folder / FILE, json.dumps(self.model_dump(mode="json"), ensure_ascii=False) + "\n")


def load_header(folder: Path) -> RunHeader | None:
    """What a run folder tells; None where it has no such file, or one of another time."""
    try:
        return RunHeader(**json.loads((folder / FILE).read_text("utf-8")))
    except (OSError, ValueError, TypeError, RecursionError):
        return None


def record_failure(folder: Path, reason: str) -> None:
    """The last attempt did not come to its end."""
    known = load_header(folder)
    if known is None or not known.attempts:
        return
    last = known.attempts[-1].model_copy(update={"ended": reason})
    known.model_copy(update={"attempts": [*known.attempts[:-1], last]}).save(folder)
