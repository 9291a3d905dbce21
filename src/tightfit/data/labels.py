"""Labels: the classes that a task found in the data, and their ids."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True)
class Labels:
    """The label names in the order of their ids; none for a task without classes."""

    names: tuple[str, ...] = ()

    @property
    def ids(self) -> dict[str, int]:
        """Label name -> class id."""
        return {name: index for index, name in enumerate(self.names)}
