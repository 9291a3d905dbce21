"""Shrinking: which kinds of memory a rung made smaller, against the rung it grew out of."""

from __future__ import annotations

from tightfit.ladders.record import Ladder, Row

_WORTH_SAYING = 0.02  # of the peak before


def grown_from(ladder: Ladder, row: Row) -> Row | None:
    """The largest earlier rung whose strategies are all in this one; plain is in every one."""
    earlier = ladder.rows[: ladder.rows.index(row)]
    inside = [other for other in earlier if set(other.recipe) < set(row.recipe)]
    return max(inside, key=lambda other: len(other.recipe), default=None)


def shrunk(ladder: Ladder, row: Row) -> dict[str, int]:
    """Bytes that each kind lost from peak to peak, the most first; what grew is negative."""
    before = grown_from(ladder, row)
    if before is None or before.foretold is None or row.foretold is None:
        return {}
    kinds = {**before.foretold.kinds, **row.foretold.kinds}
    kinds.pop("process", None)  # differs a little from process to process, whatever it trains
    lost = {kind: before.foretold.kinds.get(kind, 0) - row.foretold.kinds.get(kind, 0) for kind in kinds}
    least = _WORTH_SAYING * before.foretold.peak_bytes
    worth = {kind: size for kind, size in lost.items() if abs(size) >= least}
    return dict(sorted(worth.items(), key=lambda item: -item[1]))
