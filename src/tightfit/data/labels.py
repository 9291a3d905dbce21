"""Labels: the values of the label column and the numbers the model knows them by."""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass

from tightfit.data.flaws import named
from tightfit.data.rows import Rows
from tightfit.data.store import Store
from tightfit.errors import DataError


@dataclass(frozen=True)
class Labels:
    """Label names in the order of their numbers."""

    names: tuple[str, ...]

    @property
    def ids(self) -> dict[str, int]:
        """Name -> number."""
        return {name: number for number, name in enumerate(self.names)}


def find_labels(rows: Rows, *, will_be_split: bool) -> Labels:
    """Collect the labels: whole numbers in their order, words in the alphabet's."""
    counts = Counter(rows.dataset["label"])
    if len(counts) == 1:
        raise DataError(
            f"{rows.name}: all {len(rows):,} rows have the label '{next(iter(counts))}': "
            "at least two labels are needed to learn a difference."
        )
    if will_be_split:
        _refuse_single_rows(rows, counts)
    return Labels(tuple(sorted(counts, key=_order)))


def about_unknown_labels(name: str, dataset: Store, labels: Labels) -> tuple[str, ...]:
    """Rows whose label was never trained cannot be scored."""
    pairs = zip(dataset["line"], dataset["label"], strict=True)
    lines = [line for line, label in pairs if label not in labels.ids]
    return (f"{name}: {len(lines):,} rows with labels unseen in training left out ({named(lines)})",) if lines else ()


def _refuse_single_rows(rows: Rows, counts: Counter[str]) -> None:
    """A label with one row cannot be both trained and validated on."""
    single = [label for label, count in counts.items() if count == 1]
    if not single:
        return
    line = rows.dataset["line"][rows.dataset["label"].index(single[0])]
    more = f" (and {len(single) - 1:,} more)" if len(single) > 1 else ""
    wrong = " Is it the right column?" if len(single) > len(rows) / 10 else ""
    raise DataError(
        f"{rows.name}: the label '{single[0]}'{more} appears only once, on line {line}: "
        f"add rows, remove it, or give --validation a file of its own.{wrong}"
    )


def _order(label: str) -> tuple[int, float, str]:
    try:
        return 0, int(label), label
    except ValueError:
        return 1, 0, label
