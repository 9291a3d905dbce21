"""Labels: the classes of the data and their ids."""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass

from tightfit.data.row_file import RowFile
from tightfit.data.rows import Rows, format_lines
from tightfit.errors import DataError


@dataclass(frozen=True)
class Labels:
    """The label names in the order of their ids."""

    names: tuple[str, ...]

    @property
    def ids(self) -> dict[str, int]:
        """Label name -> class id."""
        return {name: index for index, name in enumerate(self.names)}


def find_labels(rows: Rows, *, will_be_split: bool) -> Labels:
    """Collect the labels: integers in numeric order, then names in alphabetical order."""
    counts = Counter(rows.dataset["label"])
    if len(counts) == 1:
        raise DataError(
            f"{rows.name}: all {len(rows):,} rows have the label '{next(iter(counts))}': "
            "classification needs at least two labels."
        )
    if will_be_split:
        _check_single_rows(rows, counts)
    return Labels(tuple(sorted(counts, key=_sort_key)))


def unknown_label_notes(name: str, dataset: RowFile, labels: Labels) -> tuple[str, ...]:
    """A note on rows whose label is not in the training data: the model cannot predict it."""
    pairs = zip(dataset["line"], dataset["label"], strict=True)
    lines = [line for line, label in pairs if label not in labels.ids]
    if not lines:
        return ()
    return (f"{name}: {len(lines):,} rows with labels unknown to the model dropped ({format_lines(lines)})",)


def _check_single_rows(rows: Rows, counts: Counter[str]) -> None:
    """A label with a single row cannot be in both the training and the validation rows."""
    single = [label for label, count in counts.items() if count == 1]
    if not single:
        return
    line = rows.dataset["line"][rows.dataset["label"].index(single[0])]
    more = f" (and {len(single) - 1:,} more)" if len(single) > 1 else ""
    hint = " Is it the right column?" if len(single) > len(rows) / 10 else ""
    raise DataError(
        f"{rows.name}: the label '{single[0]}'{more} appears only once, on line {line}: "
        f"add rows, remove it, or give --validation a file of its own.{hint}"
    )


def _sort_key(label: str) -> tuple[int, float, str]:
    try:
        return 0, int(label), label
    except ValueError:
        return 1, 0, label
