"""The strings of one language, with values put in and a fallback for names that are not translated."""

from __future__ import annotations

import re
from collections.abc import Iterable
from dataclasses import dataclass, replace
from types import ModuleType
from typing import TYPE_CHECKING

from tightfit.errors import BadInput, suggest
from tightfit.report.i18n import en, zh

if TYPE_CHECKING:
    from tightfit.tasks.base import Metric, Task

# `Estimate.worst` is an English sentence, not data: its numbers are read from the text.
_LARGEST_MICRO_BATCH = re.compile(
    r"the largest micro-batch is (?P<rows>\d+) × (?P<tokens>\d+) tokens, "
    r"first in batch (?P<batch>[\d,]+) of (?P<batches>[\d,]+)"
)
LANGUAGES: dict[str, ModuleType] = {"en": en, "zh": zh}


@dataclass(frozen=True)
class Strings:
    """The strings of one language."""

    language: str
    memory_of: str = "any"
    """`cpu`, `gpu` or `any`: fills `{memory}`, since Chinese has one word for RAM (内存) and one for GPU memory (显存)."""

    @classmethod
    def of(cls, language: str) -> Strings:
        """The strings of a language; BadInput for one that does not exist."""
        if language not in LANGUAGES:
            raise BadInput(f"There is no language '{language}' for --lang: {suggest(language, LANGUAGES)}")
        return cls(language)

    def for_devices(self, devices: Iterable[str | None]) -> Strings:
        """The same strings with the word for the memory of these devices, given by their labels."""
        kinds = {"cpu" if "CPU" in device or "Apple" in device else "gpu" for device in devices if device}
        return replace(self, memory_of=kinds.pop() if len(kinds) == 1 else "any")

    def __call__(self, key: str, **values: object) -> str:
        """A string of the report with its placeholders filled."""
        return self._fill("SENTENCES", key, values)

    def comparison(self, key: str, **values: object) -> str:
        """A string of a comparison with its placeholders filled."""
        return self._fill("COMPARISON", key, values)

    def phase(self, name: str) -> str:
        """The name of a phase; an unknown one is returned unchanged."""
        return self._name("PHASES", name)

    def kind(self, name: str) -> str:
        """The name of a kind of memory."""
        return self._name("KINDS", name)

    def of_task(self, task: Task, text: str, **values: object) -> str:
        """A text of a task, which brings its own translations."""
        translated = task.zh.get(text, text) if self.language == "zh" else text
        return translated.format(**values)

    def metric(self, task: Task, metric: Metric) -> str:
        """The name of a metric."""
        return self._name("METRICS", self.of_task(task, metric.title))

    def strategy(self, name: str) -> str:
        """One line on what a strategy does."""
        return self._name("STRATEGIES", name)

    def result(self, name: str) -> str:
        """What `same`, `close` or `different` means for the trained model."""
        return self._name("RESULTS", name)

    def device(self, name: str) -> str:
        """The label of a device."""
        return self._name("DEVICES", name)

    def worst(self, sentence: str) -> str:
        """The batch that an estimate is for; an unknown sentence is returned unchanged."""
        found = _LARGEST_MICRO_BATCH.fullmatch(sentence)
        return self("largest_micro_batch", **found.groupdict()) if found else sentence

    def seconds(self, seconds: float) -> str:
        """A duration."""
        text: str = LANGUAGES[self.language].seconds(seconds)
        return text

    def join(self, items: Iterable[str]) -> str:
        """A list in the language's punctuation."""
        separator: str = LANGUAGES[self.language].SEPARATOR
        return separator.join(items)

    def paragraph(self, sentences: Iterable[str]) -> str:
        """Sentences one after the other, with the language's space between them."""
        space: str = LANGUAGES[self.language].SPACE
        return space.join(sentences)

    def _fill(self, table: str, key: str, values: dict[str, object]) -> str:
        language = LANGUAGES[self.language]
        sentence: str = getattr(language, table)[key]
        return sentence.format(memory=language.MEMORY[self.memory_of], **values)

    def _name(self, table: str, name: str) -> str:
        names: dict[str, str] = getattr(LANGUAGES[self.language], table)
        return names.get(name, name)
