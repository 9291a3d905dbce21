"""Scale: the unit that a picture's bytes are best read in, and room for letters that matplotlib has not."""

from __future__ import annotations

import unicodedata


def unit_for(most: float) -> tuple[int, str]:
    """Bytes in a unit, and its name."""
    return (1 << 30, "GiB") if most >= 1 << 30 else (1 << 20, "MiB")


def roomy(text: str) -> str:
    """The text with spaces before it that only matplotlib sees.

    Its font has no Chinese letters and takes each for narrower than it is; in a page leading spaces are not shown.
    """
    wide = sum(unicodedata.east_asian_width(letter) in "WF" for letter in text)
    return " " * round(1.4 * wide) + text
