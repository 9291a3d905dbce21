"""Words: everything a report says, in one language or the other."""

from __future__ import annotations

import re
from dataclasses import dataclass
from types import ModuleType

from tightfit.errors import BadInput, suggest
from tightfit.report.i18n import en, zh

_LARGEST_SLICE = re.compile(
    r"the largest slice is (?P<rows>\d+) × (?P<tokens>\d+) tokens, first in batch (?P<batch>[\d,]+) of (?P<batches>[\d,]+)"
)
LANGUAGES: dict[str, ModuleType] = {"en": en, "zh": zh}


@dataclass(frozen=True)
class Strings:
    """Says things in a language."""

    language: str

    @classmethod
    def of(cls, language: str) -> Strings:
        """Refuses a language that is not there."""
        if language not in LANGUAGES:
            raise BadInput(f"--lang '{language}' is not there: {suggest(language, LANGUAGES)}")
        return cls(language)

    def __call__(self, key: str, **values: object) -> str:
        """The sentence, with values put in."""
        sentence: str = LANGUAGES[self.language].SENTENCES[key]
        return sentence.format(**values) if values else sentence

    def comparison(self, key: str, **values: object) -> str:
        """A word of a ladder, with values put in."""
        sentence: str = LANGUAGES[self.language].COMPARISON[key]
        return sentence.format(**values) if values else sentence

    def phase(self, name: str) -> str:
        """A moment of a training; one that is new here keeps its name."""
        return self._name("PHASES", name)

    def kind(self, name: str) -> str:
        """A kind of memory."""
        return self._name("KINDS", name)

    def strategy(self, name: str) -> str:
        """What a strategy does, in a sentence."""
        return self._name("STRATEGIES", name)

    def result(self, name: str) -> str:
        """What a recipe does to the trained model."""
        return self._name("RESULTS", name)

    def device(self, name: str) -> str:
        """Where it ran."""
        return self._name("DEVICES", name)

    def worst(self, sentence: str) -> str:
        """Which rows make a bill so large; a sentence that is new here stays as it is."""
        found = _LARGEST_SLICE.fullmatch(sentence)
        return self("largest_slice", **found.groupdict()) if found else sentence

    def seconds(self, seconds: float) -> str:
        """A time."""
        text: str = LANGUAGES[self.language].seconds(seconds)
        return text

    def _name(self, table: str, name: str) -> str:
        names: dict[str, str] = getattr(LANGUAGES[self.language], table)
        return names.get(name, name)
