"""The project speaks the field's language: words that only this project used must not come back."""

from __future__ import annotations

import re
from collections.abc import Iterator
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[1]
FOLDERS = ("src", "tests", "bench", "scripts", "docs", "fake_gpu")
SUFFIXES = {".py", ".md", ".html", ".jinja"}
EXEMPT = {Path(__file__), ROOT / "docs" / "log.md"}  # the log is history: its glossary explains the old words
BANNED = re.compile(
    r"(?<![a-z])("
    r"foretold|foretell\w*|foresee\w*|foreseen|unforeseen|rehears\w*|rungs?|ladders?|mended|trunks?|cloakroom|unplayed|"
    r"by[_ ]chance|aloud|climb(ed|ing|s)?|cards?|bills?|the plain way"
    r")(?![a-z])",
    re.IGNORECASE,
)
FINE = re.compile(r"model[-_ ]?cards?|write_card|card_?data", re.IGNORECASE)


def private_words(text: str) -> list[str]:
    """The banned words in a text; a model card is the field's own word."""
    return [match.group(1) for match in BANNED.finditer(FINE.sub("", text))]


def files() -> Iterator[Path]:
    yield from (ROOT / name for name in ("README.md", "README.zh.md", "CHANGELOG.md", "Makefile"))
    for folder in FOLDERS:
        yield from (path for path in sorted((ROOT / folder).rglob("*")) if path.suffix in SUFFIXES)


def test_no_private_words() -> None:
    found = {
        str(path.relative_to(ROOT)): words
        for path in files()
        if path not in EXEMPT and (words := private_words(path.read_text(encoding="utf-8")))
    }
    assert found == {}


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("memory could not be foretold", ["foretold"]),
        ("def rehearse(job): ...", ["rehearse"]),
        ("parts.trunk is None", ["trunk"]),
        ("_foretold_peak", ["foretold"]),
        ("rounded by chance", ["by chance"]),
        ("a card's memory", ["card"]),
        ("the model card, write_card(run), ModelCardData", []),
        ("discard the structured billing", []),
    ],
)
def test_the_check_finds_private_words(text: str, words: list[str]) -> None:
    assert private_words(text) == words
