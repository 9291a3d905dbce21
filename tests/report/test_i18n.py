"""Both languages say everything, with the same values in it."""

from __future__ import annotations

import re
import string

import pytest

from tightfit.errors import BadInput
from tightfit.report.i18n import Strings, en, zh
from tightfit.simulation.estimate import PHASES
from tightfit.strategies import STRATEGIES
from tightfit.strategies.base import MemoryKind, Result


def fields(sentence: str) -> set[str]:
    return {name for _, name, _, _ in string.Formatter().parse(sentence) if name}


def test_both_have_every_sentence() -> None:
    assert list(en.SENTENCES) == list(zh.SENTENCES)
    for key, sentence in en.SENTENCES.items():
        assert fields(sentence) == fields(zh.SENTENCES[key]), key


def test_chinese_is_chinese() -> None:
    for key, sentence in zh.SENTENCES.items():
        assert re.search("[一-鿿。，（）：]", sentence) or key == "unknown", key


@pytest.mark.parametrize("language", [en, zh])
def test_every_name_has_a_word(language: object) -> None:
    for table, names in (
        ("STRATEGIES", list(STRATEGIES)),
        ("MOMENTS", [*PHASES, "between"]),
        ("KINDS", [*(kind.value for kind in MemoryKind), "overhead", "context"]),
        ("RESULTS", [result.value for result in Result]),
    ):
        assert set(getattr(language, table)) == set(names), table


def test_every_sentence_is_said_somewhere() -> None:
    from pathlib import Path

    import tightfit.report

    folder = Path(tightfit.report.__file__).parent
    files = [path for path in folder.rglob("*") if path.suffix in (".py", ".html") and path.parent.name != "words"]
    text = "".join(path.read_text("utf-8") for path in files) + Path(folder, "words", "__init__.py").read_text("utf-8")
    unsaid = [key for key in en.SENTENCES if f'"{key}"' not in text and f"'{key}'" not in text]
    assert not unsaid


def test_times_and_the_largest_slice() -> None:
    say = Strings.of("zh")
    assert say.seconds(75.2) == "1 分 15 秒"
    assert say.seconds(3.21) == "3.2 秒"
    assert say.seconds(7260) == "2 小时 1 分"
    assert "8 × 109" in say.worst("the largest slice is 8 × 109 tokens, first in batch 1,024 of 2,000")
    assert say.worst("something new") == "something new"
    with pytest.raises(BadInput, match="There are: en, zh"):
        Strings.of("fr")
