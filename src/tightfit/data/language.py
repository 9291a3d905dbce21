"""Language detection: Chinese, Japanese and Korean by their script, English by its most common words."""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Iterable

_SCRIPTS = {"ja": "[぀-ヿ]", "ko": "[가-힯]", "zh": "[一-鿿]"}
_ENGLISH = {"the", "and", "is", "was", "of", "to", "a", "in", "it", "for", "this", "that", "with", "not", "i", "you"}
_MIN_SHARE = 0.5  # of the texts


def detect_language(texts: Iterable[str]) -> str | None:
    """The code of the language that most texts are in; None if it is not known."""
    counts = Counter(map(_language_of, texts))
    language, count = counts.most_common(1)[0] if counts else (None, 0)
    return language if count > _MIN_SHARE * counts.total() else None


def _language_of(text: str) -> str | None:
    letters = [len(re.findall(script, text)) for script in _SCRIPTS.values()]
    words = re.findall(r"[^\W\d_]+", text.lower())
    if sum(letters) * 2 > len(words):  # CJK text has no spaces; Japanese text also contains Chinese characters
        return next(language for language, found in zip(_SCRIPTS, letters, strict=True) if found > sum(letters) / 10)
    common = sum(word in _ENGLISH for word in words)
    return "en" if common > len(words) / 10 else None
