"""Parsing and formatting of sizes, counts and times."""

from __future__ import annotations

import pytest

from tightfit.errors import BadInput
from tightfit.units import format_bytes, format_count, format_seconds, parse_bytes


@pytest.mark.parametrize(
    ("text", "size"),
    [("4GB", 4 << 30), ("3.5 GiB", 7 << 29), ("512M", 512 << 20), ("1tb", 1 << 40), ("100B", 100), (" 2 kb ", 2048)],
)
def test_sizes_are_parsed(text: str, size: int) -> None:
    assert parse_bytes(text) == size


@pytest.mark.parametrize(
    ("text", "suggestion"),
    [("4gigs", "4GB"), ("1,5GB", "1.5GB"), ("", "4GB"), ("GB", "4GB"), ("-1GB", "4GB"), (f"{'9' * 400}GB", "4GB")],
)
def test_invalid_sizes_get_a_suggestion(text: str, suggestion: str) -> None:
    with pytest.raises(BadInput, match=f"write it like {suggestion}"):
        parse_bytes(text)


@pytest.mark.parametrize(
    ("text", "meant"), [("4", "4GB"), (" 3.5 ", "3.5GB"), ("4096", "4096MB"), ("4294967296", "4294967296B")]
)
def test_a_number_without_a_unit_is_refused(text: str, meant: str) -> None:
    with pytest.raises(BadInput, match=f"'{text}' has no unit: did you mean {meant}?"):
        parse_bytes(text)


@pytest.mark.parametrize(
    ("size", "text"),
    [
        (0, "0 B"),
        (1023, "1023 B"),
        (1536, "1.50 KiB"),
        (2469606195, "2.30 GiB"),
        (700 << 20, "700 MiB"),
        (12 << 30, "12.0 GiB"),
    ],
)
def test_sizes_are_formatted(size: int, text: str) -> None:
    assert format_bytes(size) == text


def test_counts_and_times_are_formatted() -> None:
    assert [format_count(n) for n in (2050, 325_522_944, 1_235_814_400)] == ["2,050", "325.5 M", "1.2 B"]
    assert [format_seconds(s) for s in (3.14, 75.2, 3700)] == ["3.1 s", "1 min 15 s", "1 h 1 min"]
