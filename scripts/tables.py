"""Tables in Markdown: their headings in both languages, and how figures are written."""

from __future__ import annotations

HEADINGS = {
    "strategies": {
        "en": ("strategy", "result", "frees", "what it does"),
        "zh": ("策略", "对结果的影响", "省下的内存", "作用"),
    },
    "regret": {
        "en": (
            "model",
            "budget",
            "the plan",
            "slower than the fastest",
            "… than those next to it",
            "pairs in the foretold order",
            "its time foretold, alone",
        ),
        "zh": (
            "模型",
            "预算",
            "方案",
            "比最快的慢",
            "比相邻的慢",
            "次序与预测相同的配对",
            "单独运行时的用时预测误差",
        ),
    },
    "planning": {
        "en": ("budget", "asked for", "a plan takes"),
        "zh": ("预算", "何时", "规划用时"),
    },
    "quality": {
        "en": ("", "F1 of seeds 1, 2, …"),
        "zh": ("", "种子 1、2……的 F1"),
    },
    "answers": {
        "en": ("device", "budget", "the plain way", "the plan", "peak", "an epoch", "result"),
        "zh": ("设备", "预算", "普通做法", "方案", "峰值", "每轮用时", "对结果的影响"),
    },
    "promise": {
        "en": (
            "model",
            "runs",
            "died",
            "mended on the way",
            "budgets",
            "measured peak / budget",
            "measured / foretold",
        ),
        "zh": ("模型", "次数", "中断", "途中补救", "预算", "实测峰值 / 预算", "实测 / 预测"),
    },
    "comparison": {
        "en": ("", "whole process", "predicted", "time of a step"),
        "zh": ("", "整个进程", "预测", "每步用时"),
    },
    "same": {
        "en": ("", "loss", "against Trainer's"),
        "zh": ("", "损失", "与 Trainer 之差"),
    },
    "frozen": {
        "en": ("model", "rows", "recipe", "epoch 1", "epoch 2", "epoch 2 / epoch 1", "F1"),
        "zh": ("模型", "行数", "配方", "第 1 轮", "第 2 轮", "第 2 轮 / 第 1 轮", "F1"),
    },
    "padding": {
        "en": (
            "texts cut at",
            "rows meet by chance",
            "`bucket`",
            "`micro-batch:size=8`",
            "`micro-batch:size=8 bucket`",
        ),
        "zh": ("文本截断长度", "随机相遇", "`bucket`", "`micro-batch:size=8`", "`micro-batch:size=8 bucket`"),
    },
    "memory": {
        "en": ("model", "parameters", "recipes", "median error", "lowest", "highest"),
        "zh": ("模型", "参数量", "配方数", "误差中位数", "最低", "最高"),
    },
    "published": {
        "en": ("source", "rows", "median absolute error", "lowest", "highest"),
        "zh": ("来源", "行数", "误差绝对值中位数", "最低", "最高"),
    },
}

ASKED = {
    "en": (
        "on first use, measuring the machine",
        "in a fresh process, median and range",
        "after it, in the same process",
    ),
    "zh": ("首次使用，先测机器速度", "新进程，中位数与范围", "随后在同一进程里"),
}


def table(headings: tuple[str, ...], rows: list[tuple[str, ...]]) -> str:
    lines = [headings, tuple("---" for _ in headings), *rows]
    return "".join(f"| {' | '.join(line)} |\n" for line in lines)


def percent(share: float) -> str:
    return f"{share:+.1%}" if share else "0 %"


def gib(size: int) -> str:
    return f"{size / 2**30:.2f} GiB"
