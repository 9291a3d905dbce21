"""The command line in Chinese: by --lang and by the environment."""

from __future__ import annotations

import os
import re
import sys
from pathlib import Path

import pytest
from cli.test_app import Run, fastest, run

from tightfit.cli.help import _columns
from tightfit.cli.language import chosen_language

__all__ = ["run"]  # the fixture
VERBS = ["plan", "train", "estimate", "compare", "explain", "evaluate", "predict", "report", "strategies", "demo"]
WORDS = re.compile(r"[A-Za-z]{3,} [a-z]{3,} [a-z]{3,}")  # three English words in a row


@pytest.mark.parametrize("verb", ["", *VERBS])
def test_help_is_in_chinese(run: Run, verb: str) -> None:
    code, out, _ = run(*verb.split(), "--help", "--lang", "zh")
    assert code == 0
    assert out.startswith("用法：")
    assert "选项：" in out
    assert "显示帮助并退出。" in out
    assert WORDS.findall(out.partition("示例：")[0]) == []  # commands are the same in every language
    assert max(map(_columns, out.splitlines())) <= 80


def test_help_is_in_english_again(run: Run) -> None:
    assert "选项：" in run("plan", "--help", "--lang", "zh")[1]
    _, out, _ = run("plan", "--help")
    assert "Options:" in out
    assert not re.search("[一-鿿]", out)


def test_chinese_help_is_fast_and_does_not_import_torch() -> None:
    script = (
        "import sys; from tightfit.cli import app\ntry: app.main()\nexcept SystemExit: print('torch' in sys.modules)"
    )
    command = [sys.executable, "-c", script, "train", "--help"]
    out, seconds = fastest(command, {**os.environ, "LC_ALL": "zh_CN.UTF-8", "PYTHONIOENCODING": "utf-8"})
    assert out.startswith("用法：")
    assert out.split()[-1] == "False"
    assert seconds < 0.5


@pytest.mark.parametrize(
    ("arguments", "problem"),
    [
        (["plan", "--bugdet", "4GB"], "没有 --bugdet 这个选项（相近的选项：--budget"),
        (["pln"], "没有“pln”这个命令：是否想输入“plan”？可选值：plan、train、"),
        (["predict"], "缺少参数 'RUN'。"),
        (["compare", "--steps", "x"], "'--steps' 的值无效：应为整数"),
    ],
)
def test_usage_errors_are_in_chinese(run: Run, arguments: list[str], problem: str) -> None:
    code, out, err = run(*arguments, "--lang", "zh")
    assert (code, out) == (2, "")
    assert err.startswith("用法：")
    assert f"错误：{problem}" in err


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["plan", "--model", "m"], "缺少 --data：tightfit plan --model NAME --data FILE。"),
        (
            ["plan", "--model", "m", "--data", "d.csv", "--budget", "4gigs"],
            "“4gigs”不是有效的内存大小：请写成 4GB 这样的形式。",
        ),
        (["train", "--model", "m", "--data", "d.csv", "--batch-size", "0"], "batch-size 的值是 0：应大于或等于 1。"),
        (["report", "nowhere"], "找不到训练文件夹“nowhere”：请指定 train 写入的文件夹。"),
    ],
)
def test_errors_are_in_chinese(run: Run, arguments: list[str], message: str) -> None:
    code, out, err = run(*arguments, "--lang=zh")
    assert (code, out, err) == (2, "", f"tightfit: {message}\n")


def test_errors_are_in_the_language_of_the_environment(run: Run, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("LC_ALL", "zh_CN.UTF-8")
    assert run("report", "nowhere")[2] == "tightfit: 找不到训练文件夹“nowhere”：请指定 train 写入的文件夹。\n"
    assert run("report", "nowhere", "--lang", "fr")[2] == "tightfit: --lang 没有“fr”这种语言：可选值：en、zh。\n"
    assert run("report", "nowhere", "--lang", "en")[2].startswith("tightfit: There is no run folder 'nowhere'")


@pytest.mark.parametrize(
    ("verb", "message"),
    [
        ("train", "已停止。"),
        ("compare", "已停止。再次运行同一命令即可继续。"),
        ("strategies", "已停止。"),
    ],
)
def test_ctrl_c_says_how_to_continue(run: Run, verb: str, message: str, monkeypatch: pytest.MonkeyPatch) -> None:
    def stopped(*_: object) -> None:
        raise KeyboardInterrupt

    monkeypatch.setattr("tightfit.cli.app._job_and_recipe", stopped)
    monkeypatch.setattr("tightfit.report.terminal.show_strategies", stopped)
    assert run(verb, "--lang", "zh") == (130, "", f"tightfit: {message}\n")


@pytest.mark.slow
def test_a_plan_is_in_chinese(run: Run, tiny_model: Path, reviews: Path) -> None:
    job = ["--model", tiny_model, "--data", reviews, "--device", "T4", "--max-length", 32, "--batch-size", 8]
    for budget, verdict in (("2GB", "放得下"), ("520MB", "放不下任何方案")):
        _, out, err = run("plan", *job, "--budget", budget, "--lang", "zh")
        assert out.startswith(
            f"预算 {budget.replace('2GB', '2.00 GiB').replace('520MB', '520 MiB')}（T4 16GB），{verdict}"
        )
        assert WORDS.findall(out + err) == []
    _, out, _ = run("plan", *job, "--budget", "2GB", "--lang", "zh", "--json")
    assert not re.search("[一-鿿]", out)  # scripts read the same in every language


def test_the_list_of_strategies_is_in_chinese(run: Run) -> None:
    _, out, _ = run("strategies", "--lang", "zh")
    _, tasks, _ = run("tasks", "--lang", "zh")
    assert "gradient-checkpointing   训练结果：same（结果一致）   节省：激活值   配置项：every=1" in out
    assert "指标：F1、准确率、宏平均 F1、MCC、损失" in tasks
    assert WORDS.findall(out + tasks) == []


@pytest.mark.parametrize(
    ("arguments", "language"),
    [
        (["plan", "--lang", "zh"], "zh"),
        (["--lang=zh", "plan"], "zh"),
        (["predict", "RUN", "--", "--lang", "zh"], "en"),
        ([], "en"),
    ],
)
def test_the_option_is_found_anywhere(
    arguments: list[str], language: str, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    for variable in ("LC_ALL", "LC_MESSAGES", "LANG"):
        monkeypatch.delenv(variable, raising=False)
    assert chosen_language(arguments) == language
