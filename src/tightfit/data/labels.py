"""Labels: the classes that a task found in the data, and their ids."""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property


@dataclass(frozen=True)
class Labels:
    """The label names in the order of their ids; none for a task without classes."""

    names: tuple[str, ...] = ()
    positive: str | None = None
    """The class that the model is to find, of which F1 is reported; None if all classes count the same."""

    @property
    def ids(self) -> dict[str, int]:
        """Label name -> class id."""
        return {name: index for index, name in enumerate(self.names)}

    def id_of(self, label: str) -> int | None:
        """The class id of a label, also if it is written in another case or with other spaces; None if unknown."""
        return self._ids.get(label, self._ids.get(spelling(label)))

    @cached_property
    def _ids(self) -> dict[str, int]:
        return {**{spelling(name): index for name, index in reversed(self.ids.items())}, **self.ids}


def spelling(label: str) -> str:
    """What labels that differ only in case or spaces have in common."""
    return " ".join(label.split()).casefold()
