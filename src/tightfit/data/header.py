"""Header lines: whether the first line of a file names its columns, or is a row."""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass

from tightfit.data.columns import Columns, is_number

Records = Sequence[Sequence[str]]


@dataclass(frozen=True)
class HeaderHints:
    """What is known about the columns of a file before it is read."""

    usual: frozenset[str]
    """Names that columns usually have, in lower case."""
    given: Columns
    """The columns that the user named, or those of a trained model."""

    def has_header(self, records: Records) -> bool:
        """Whether the first of these records is a header: what is unclear counts as one, unless it looks like a row."""
        cells = [cell.strip() for cell in records[0]]
        if any(cell in self.given.names or cell.lower() in self.usual for cell in cells) or _counts_columns(cells):
            return True
        if len(cells) == 1:
            return not self.given.numbered and self._is_like_a_name(cells[0])
        if self.given.all:
            return not self.given.numbered
        return not any(_is_like_the_rows(records, column) for column in range(len(cells)))

    def _is_like_a_name(self, cell: str) -> bool:
        """Whether a usual name is part of it: `reviews`, `review_text`, 用户评论; a text has spaces or punctuation."""
        return bool(re.fullmatch(r"\w{1,24}", cell)) and any(name in cell.lower() for name in self.usual)


def _counts_columns(cells: list[str]) -> bool:
    """0, 1, 2, … as pandas names columns, with or without an empty name for the index."""
    names = cells[1:] if cells[0] == "" else cells
    return len(names) > 1 and names == [str(number) for number in range(len(names))]


def _is_like_the_rows(records: Records, column: int) -> bool:
    """Whether the first cell of a column occurs again below it, or is a number as all others are."""
    first = records[0][column].strip()
    below = [record[column].strip() for record in records[1:] if record != records[0] and column < len(record)]
    return bool(first and below) and (first in below or all(map(is_number, [first, *below])))
