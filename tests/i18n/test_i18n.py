"""Everything the program says exists in Chinese, with the same values."""

from __future__ import annotations

import ast
import re
from collections import Counter
from pathlib import Path

import pytest
from templates import SOURCE, fields_of, help_texts, names, templates_in_pages, templates_in_source

from tightfit import errors
from tightfit.errors import BadInput
from tightfit.i18n import LANGUAGES, _own_texts, chinese, current_language, language_of, render, using_language, zh
from tightfit.messages import SEPARATOR, UNTRANSLATED, msg
from tightfit.report.names import memory_name
from tightfit.simulation.worst_case import WorstShapes
from tightfit.strategies import STRATEGIES
from tightfit.tasks import TASKS
from tightfit.units import format_seconds

TYPER = ("required", "default: {default}", "Show this message and exit.")
SAME_IN_CHINESE = {
    "f1",
    "F1",
    "MCC",
    "{kind} {size}",
    "{what} {time}",
    "{metric} {score:.4f}",
    "{change} → {peak}",
    "– {what}",
}


def used() -> set[str]:
    called = {template.text for template in (*templates_in_source(), *templates_in_pages())}
    return {*called, *help_texts(), *names(), *TYPER, SEPARATOR} - set(UNTRANSLATED)


def translated() -> dict[str, str]:
    return {**zh.TEXTS, **_own_texts()}


def test_every_template_has_a_chinese_text() -> None:
    assert sorted(used() - translated().keys()) == []


def test_no_chinese_text_is_left_over() -> None:
    assert sorted(translated().keys() - used()) == []


def test_a_template_is_translated_in_one_place() -> None:
    owners = (*STRATEGIES.values(), *TASKS.values())
    found = Counter([*zh.TEXTS, *(template for owner in owners for template in vars(owner).get("zh", {}))])
    assert [template for template, count in found.items() if count > 1] == []


def test_a_chinese_text_has_the_fields_of_its_template() -> None:
    texts = translated()
    assert [template for template in texts if fields_of(template) != fields_of(texts[template])] == []


def test_every_call_gives_the_values_of_its_template() -> None:
    calls = [each for each in (*templates_in_source(), *templates_in_pages()) if each.values is not None]
    assert [each for each in calls if each.values != fields_of(each.text)] == []


def test_chinese_texts_are_in_chinese() -> None:
    english = [template for template, text in translated().items() if not re.search("[一-鿿，。：；、（）]", text)]
    assert set(english) - SAME_IN_CHINESE - {"{first} {second}"} == set()
    assert not any("（英文）" in text for template, text in translated().items() if "docs/" not in template)


def _errors_raised(path: Path) -> list[str]:
    """The places where an error is raised with a text that is not a message."""
    found = []
    for node in ast.walk(ast.parse(path.read_text("utf-8"))):
        if isinstance(node, ast.Call) and getattr(node.func, "id", "") in ERRORS and node.args:
            message = node.args[0]
            if isinstance(message, (ast.JoinedStr, ast.Constant, ast.BinOp)):
                found.append(f"{path.relative_to(SOURCE)}:{node.lineno}")
    return found


ERRORS = {key for key, value in vars(errors).items() if isinstance(value, type) and issubclass(value, Exception)}


def test_errors_are_raised_with_messages() -> None:
    assert [place for path in sorted(SOURCE.rglob("*.py")) for place in _errors_raised(path)] == []


def test_chinese_durations() -> None:
    assert render(format_seconds(75.2), "zh") == "1 分 15 秒"
    assert render(format_seconds(3.21), "zh") == "3.2 秒"
    assert render(format_seconds(7260), "zh") == "2 小时 1 分"


def test_the_largest_micro_batch_in_chinese() -> None:
    shape = (8, 109)
    worst = WorstShapes((shape,), shape, batch=1024, batches=2000)
    text = "最大的微批次为 8 条样本 × 109 个 token，首次出现在第 1,024 批，共 2,000 批"
    assert render(worst.about, "zh") == text


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
    assert render(msg("peak {memory}", memory=memory_name(*devices)), "zh") == peak


def test_unknown_language_is_rejected() -> None:
    with pytest.raises(BadInput, match="choose from en, zh"), using_language("fr"):
        pass


def test_the_language_of_the_process_is_restored() -> None:
    with using_language("zh"):
        assert render(msg("baseline")) == "基线"
        assert render(msg("baseline"), "en") == "baseline"
    assert current_language() == "en"
    assert render(msg("baseline")) == "baseline"


def test_other_text_is_shown_as_it_is() -> None:
    assert [render("baseline", language) for language in LANGUAGES] == ["baseline", "baseline"]
    assert chinese("something new") == "something new"


@pytest.mark.parametrize(
    ("environment", "language"),
    [
        ({}, "en"),
        ({"LANG": "zh_CN.UTF-8"}, "zh"),
        ({"LANG": "zh_TW"}, "zh"),
        ({"LANG": "en_US.UTF-8", "LC_MESSAGES": "zh_CN.UTF-8"}, "zh"),
        ({"LANG": "zh_CN.UTF-8", "LC_ALL": "C"}, "en"),
        ({"LANG": "zh_CN.UTF-8", "LC_ALL": ""}, "zh"),
        ({"LANG": "de_DE"}, "en"),
    ],
)
def test_the_environment_chooses_the_language(environment: dict[str, str], language: str) -> None:
    assert language_of(environment) == language
