"""Legend: what colours mean, inside a picture that stands alone."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from matplotlib.figure import Figure


def add_legend(figure: Figure, keys: Sequence[tuple[str, str]], columns: int = 3) -> None:
    """Colours with their names, below the picture."""
    from matplotlib.patches import Patch

    patches = [Patch(color=colour, label=name) for colour, name in keys]
    figure.legend(handles=patches, loc="outside lower center", ncols=columns, frameon=False, fontsize=9)
