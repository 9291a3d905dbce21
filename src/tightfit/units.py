"""Units: parse and format bytes, counts and times."""

from __future__ import annotations

import re

from tightfit.errors import BadInput
from tightfit.messages import Message, msg, verbatim

_POWERS = {"": 0, "K": 1, "M": 2, "G": 3, "T": 4}
_SIZE = re.compile(r"\s*(\d+(?:\.\d+)?)\s*([KMGT]?)(?:I?B)?\s*", re.IGNORECASE)


def parse_bytes(text: str) -> int:
    """Parse "4GB", "3.5 GiB" or "512M"; every unit is a power of 1024, as in the specs of GPUs."""
    match = _SIZE.fullmatch(text)
    if match is None:
        raise BadInput(
            msg("'{text}' is not a memory size: write it like {example}.", text=text, example=_example(text))
        )
    number, unit = match.groups()
    if text.strip() == number:
        raise BadInput(msg("'{text}' has no unit: did you mean {meant}?", text=text, meant=_with_unit(number)))
    try:
        return int(float(number) * 1024 ** _POWERS[unit.upper()])
    except OverflowError:
        raise BadInput(msg("'{text}' is too large for a memory size: write it like 4GB.", text=text)) from None


def _with_unit(number: str) -> str:
    """What was probably meant: gigabytes as in 4, megabytes as in 4096, else bytes."""
    size = float(number)
    unit = "GB" if size < 256 else "MB" if size < 1 << 20 else "B"
    return f"{number}{unit}"


def _example(text: str) -> Message:
    """A valid size close to the text: "4gigs" -> 4GB."""
    guess = re.match(r"\s*(\d{1,9}(?:[.,]\d{1,9})?)\s*([kmgt])", text, re.IGNORECASE)
    if guess is None:
        return msg("4GB, 3.5GB or 512MB")
    return verbatim(f"{guess[1].replace(',', '.')}{guess[2].upper()}B")


def exact_size(size: int) -> str:
    """A size as `parse_bytes` reads it, in MiB if it is a whole number of them: 4294967296 -> "4096MB"."""
    return f"{size}B" if size % (1 << 20) else f"{size >> 20}MB"


def format_bytes(size: int) -> str:
    """2469606195 -> "2.30 GiB"."""
    value, units = float(size), ["B", "KiB", "MiB", "GiB", "TiB"]
    while abs(value) >= 1024 and len(units) > 1:
        value, units = value / 1024, units[1:]
    digits = 0 if units[0] == "B" or value >= 100 else 1 if value >= 10 else 2
    return f"{value:.{digits}f} {units[0]}"


def format_count(number: int) -> str:
    """325522944 -> "325.5 M"; small numbers stay exact."""
    for limit, letter in ((10**9, "B"), (10**6, "M")):
        if number >= limit:
            return f"{number / limit:.1f} {letter}"
    return f"{number:,}"


def format_steps(number: int) -> Message:
    """1 -> "1 step"."""
    return msg("{number:,} step", number=number) if number == 1 else msg("{number:,} steps", number=number)


def format_seconds(seconds: float) -> Message:
    """75.2 -> "1 min 15 s"."""
    if seconds < 60:
        return msg("{seconds:.1f} s", seconds=seconds)
    minutes, rest = divmod(round(seconds), 60)
    if minutes < 60:
        return msg("{minutes} min {seconds} s", minutes=minutes, seconds=rest)
    return msg("{hours} h {minutes} min", hours=minutes // 60, minutes=minutes % 60)
