"""Help pages: groups, whole descriptions and two examples; the version; completion for shells."""

from __future__ import annotations

import os
import re
import shlex
import subprocess
import sys
from typing import Any

import pytest
import typer
from cli.test_app import Run, run

from tightfit.cli.app import app
from tightfit.cli.examples import EXAMPLES
from tightfit.cli.help import _columns, _wrapped
from tightfit.i18n import using_language

__all__ = ["run"]  # the fixture
GROUP: Any = typer.main.get_command(app)
PAGES = ["", *GROUP.commands]


def page_of(run: Run, verb: str, width: int, monkeypatch: pytest.MonkeyPatch, language: str = "en") -> str:
    monkeypatch.setenv("COLUMNS", str(width))
    code, out, err = run(*verb.split(), "--help", "--lang", language)
    assert (code, err) == (0, "")
    return out


@pytest.mark.parametrize("language", ["en", "zh"])
@pytest.mark.parametrize("width", [60, 80, 100, 200])
def test_pages_fit_the_terminal(run: Run, monkeypatch: pytest.MonkeyPatch, width: int, language: str) -> None:
    for verb in PAGES:
        lines = page_of(run, verb, width, monkeypatch, language).splitlines()
        assert max(map(_columns, lines)) <= min(width, 100), verb


@pytest.mark.parametrize("verb", PAGES)
def test_every_option_and_its_whole_description_are_shown(run: Run, monkeypatch: pytest.MonkeyPatch, verb: str) -> None:
    words = "".join(page_of(run, verb, 80, monkeypatch).split())
    assert "list[" not in words
    command = GROUP.commands[verb] if verb else GROUP
    for parameter in command.params:
        assert "".join(parameter.help.split()) in words
        assert parameter.param_type_name == "argument" or parameter.opts[0] in words
    for name, listed in getattr(command, "commands", {}).items():
        assert "".join((name + listed.help.partition("\n\n")[0]).split()) in words


def test_options_and_commands_are_in_groups(run: Run, monkeypatch: pytest.MonkeyPatch) -> None:
    headings = re.findall(r"^(\S.*):$", page_of(run, "train", 80, monkeypatch), re.MULTILINE)
    assert headings == ["Arguments", "Model and data", "Memory", "Training", "Options", "Examples"]
    headings = re.findall(r"^(\S.*):$", page_of(run, "", 80, monkeypatch), re.MULTILINE)
    assert headings[:3] == ["Train", "Training memory", "Trained models"]
    headings = re.findall(r"^(\S.*)：$", page_of(run, "train", 80, monkeypatch, "zh"), re.MULTILINE)
    assert headings == ["参数", "模型与数据", "内存/显存", "训练设置", "选项", "示例"]


def test_every_command_has_two_examples() -> None:
    assert set(EXAMPLES) == {"tightfit", *GROUP.commands}
    assert {len(examples) for examples in EXAMPLES.values()} == {2}


@pytest.mark.parametrize(("page", "example"), [(page, each) for page, found in EXAMPLES.items() for each in found])
def test_examples_are_valid(page: str, example: str) -> None:
    program, verb, *arguments = shlex.split(example)
    assert (program, page in ("tightfit", verb)) == ("tightfit", True)
    with using_language("en"), GROUP.commands[verb].make_context(verb, arguments):
        pass


def test_a_long_example_can_be_pasted(run: Run, monkeypatch: pytest.MonkeyPatch) -> None:
    text = page_of(run, "compare", 60, monkeypatch).split("Examples:\n")[1].replace("\\\n", "")
    assert tuple(" ".join(line.split()) for line in text.splitlines()) == EXAMPLES["compare"]


def test_the_version_is_shown(run: Run) -> None:
    code, out, _ = run("--version")
    assert code == 0
    assert re.fullmatch(r"tightfit \d\S* \(torch \d\S*, transformers \d\S*, Python \d+\.\d+\.\d+\)\n", out)


def complete(words: str) -> list[str]:
    """What bash is offered for the last of these words."""
    environment = {"_TIGHTFIT_COMPLETE": "complete_bash", "COMP_WORDS": words, "COMP_CWORD": str(words.count(" "))}
    script = "import sys; sys.argv = ['tightfit']; from tightfit.cli.app import console_main; console_main()"
    command = [sys.executable, "-c", script]
    done = subprocess.run(command, capture_output=True, text=True, check=True, env={**os.environ, **environment})
    return done.stdout.split()


def test_shells_complete_commands_options_and_strategies() -> None:
    assert complete("tightfit e") == ["estimate", "explain", "evaluate"]
    assert complete("tightfit train --ba") == ["--batch-size"]
    assert complete("tightfit train --use gradient") == ["gradient-checkpointing"]


def test_lines_break_between_chinese_characters_but_not_inside_words() -> None:
    lines = list(_wrapped("截断到 gradient-checkpointing 之后，文本（text）更短。", 24))
    assert lines == ["截断到", "gradient-checkpointing", "之后，文本（text）更短。"]
