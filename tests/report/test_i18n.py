"""Both languages have every string, with the same placeholders."""

from __future__ import annotations

import re
import string

import pytest

from tightfit.errors import BadInput
from tightfit.report.i18n.strings import Strings, en, zh
from tightfit.simulation.estimate import PHASES
from tightfit.simulation.worst_case import WorstShapes
from tightfit.strategies import STRATEGIES
from tightfit.strategies.base import MemoryKind, Result


def placeholders(sentence: str) -> set[str]:
    return {name for _, name, _, _ in string.Formatter().parse(sentence) if name}


def test_both_languages_have_every_string_with_the_same_placeholders() -> None:
    assert list(en.SENTENCES) == list(zh.SENTENCES)
    for key, sentence in en.SENTENCES.items():
        assert placeholders(sentence) == placeholders(zh.SENTENCES[key]), key
    assert list(en.COMPARISON) == list(zh.COMPARISON)
    for key, sentence in en.COMPARISON.items():
        assert placeholders(sentence) == placeholders(zh.COMPARISON[key]), key


def test_chinese_strings_are_in_chinese() -> None:
    for key, sentence in zh.SENTENCES.items():
        assert re.search("[一-鿿。，（）：]", sentence) or key == "unknown", key


@pytest.mark.parametrize("language", [en, zh])
def test_every_name_is_translated(language: object) -> None:
    for table, names in (
        ("STRATEGIES", list(STRATEGIES)),
        ("PHASES", [*PHASES, "between"]),
        ("KINDS", [*(kind.value for kind in MemoryKind), "process", "context"]),
        ("RESULTS", [result.value for result in Result]),
    ):
        assert set(getattr(language, table)) == set(names), table


def test_every_string_is_used() -> None:
    from pathlib import Path

    import tightfit.report

    folder = Path(tightfit.report.__file__).parent
    files = [path for path in folder.rglob("*") if path.suffix in (".py", ".html") and path.parent.name != "i18n"]
    text = "".join(path.read_text("utf-8") for path in files) + Path(folder, "i18n", "strings.py").read_text("utf-8")
    unused = [key for key in en.SENTENCES if f'"{key}"' not in text and f"'{key}'" not in text]
    assert not unused


def test_chinese_durations() -> None:
    strings = Strings.of("zh")
    assert strings.seconds(75.2) == "1 分 15 秒"
    assert strings.seconds(3.21) == "3.2 秒"
    assert strings.seconds(7260) == "2 小时 1 分"


def test_largest_micro_batch_is_translated() -> None:
    strings, shape = Strings.of("zh"), (8, 109)
    worst = WorstShapes((shape,), shape, first_batch=(shape,), batch=1024, batches=2000)
    assert strings.worst(str(worst)) == "最大的微批次为 8 条样本 × 109 个 token，首次出现在第 1,024 批，共 2,000 批"
    assert strings.worst("something new") == "something new"


@pytest.mark.parametrize(
    ("devices", "peak"),
    [
        (["this machine's CPU"], "内存峰值"),
        (["Tesla T4"], "显存峰值"),
        (["this machine's CPU", "Tesla T4"], "内存/显存峰值"),
        ([None], "内存/显存峰值"),
    ],
)
def test_chinese_word_for_memory_depends_on_the_device(devices: list[str | None], peak: str) -> None:
    assert Strings.of("zh").for_devices(devices)("peak") == peak


def test_unknown_language_is_rejected() -> None:
    with pytest.raises(BadInput, match="choose from en, zh"):
        Strings.of("fr")
