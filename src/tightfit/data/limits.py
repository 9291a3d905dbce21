"""Limits: how many texts of a length go through at once, and what running out of memory taught about it."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

_NEIGHBOURS = 8  # texts shorter by up to an eighth would fail next, so they learn from it too


class RowLimits:
    """The recipe's number of rows or of tokens, and fewer for texts of lengths that were too large."""

    def __init__(self, rows: int, tokens: int | None = None) -> None:
        self.rows, self.tokens = rows, tokens
        self.learned: dict[int, int] = {}
        """Texts of at least so many tokens: at most so many rows."""

    def at(self, length: int) -> int:
        """Rows that may go through at once where the longest text has so many tokens."""
        room = self.rows if self.tokens is None else max(1, self.tokens // max(1, length))
        return min([self.rows, room, *(rows for shortest, rows in self.learned.items() if shortest <= length)])

    def cut(self, lengths: Sequence[int]) -> Iterator[tuple[int, int]]:
        """Rows and tokens of the slices that texts are cut into, the longest first."""
        start = 0
        while start < len(lengths):
            rows = min(self.at(lengths[start]), len(lengths) - start)
            yield rows, lengths[start]
            start += rows

    def halve(self, rows: int, length: int) -> bool:
        """So many rows of this length were too many; False if there is nothing left to halve."""
        if rows <= 1:
            return False
        self.learn({length - length // _NEIGHBOURS: rows // 2})
        return True

    def learn(self, table: dict[int, int]) -> None:
        """Take over what is stricter."""
        for length, rows in table.items():
            self.learned[length] = min(rows, self.learned.get(length, rows))
