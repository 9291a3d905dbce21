"""Markdown tables: headings in both languages, and number formats."""

from __future__ import annotations

from collections.abc import Sequence

HEADINGS: dict[str, dict[str, tuple[str, ...]]] = {
    "figures": {
        "en": ("", "", "how it was measured"),
        "zh": ("", "", "测量方法"),
    },
    "tasks": {
        "en": ("task", "data", "metrics, the first chooses the best checkpoint", "command"),
        "zh": ("任务", "数据", "指标（第一个用于选择最佳检查点）", "命令"),
    },
    "strategies": {
        "en": ("strategy", "result", "reduces", "what it does"),
        "zh": ("策略", "训练结果", "节省的内存", "作用"),
    },
    "strategies-short": {
        "en": ("reduces", "result `same`", "result `close`", "result `different`"),
        "zh": ("节省", "结果 `same`", "结果 `close`", "结果 `different`"),
    },
    "only-time": {
        "en": ("time only",),
        "zh": ("只省时间",),
    },
    "plan-choice": {
        "en": (
            "model",
            "budget",
            "chosen recipe",
            "slower than the fastest alternative",
            "slower than the fastest of its neighbours",
            "pairs in predicted order",
            "error of predicted time, run alone",
        ),
        "zh": (
            "模型",
            "预算",
            "选中的方案",
            "比最快的备选方案慢",
            "比最快的相邻方案慢",
            "快慢次序与预测一致的方案对",
            "单独运行时的用时预测误差",
        ),
    },
    "planning-time": {
        "en": ("budget", "when", "time to plan"),
        "zh": ("预算", "场景", "规划用时"),
    },
    "quality": {
        "en": ("", "F1 of seeds 1, 2, …"),
        "zh": ("", "随机种子 1、2……的 F1"),
    },
    "devices": {
        "en": ("device", "budget", "baseline", "plan", "peak", "time/epoch", "result"),
        "zh": ("设备", "预算", "基线", "方案", "峰值", "每个 epoch 用时", "训练结果"),
    },
    "hard-limit": {
        "en": ("model", "runs", "failed", "recovered", "budgets", "measured peak / budget", "measured / predicted"),
        "zh": ("模型", "次数", "失败", "中途恢复", "预算", "实测峰值 / 预算", "实测 / 预测"),
    },
    "tight-budget": {
        "en": (
            "model",
            "smallest recipe, predicted",
            "budgets",
            "finished",
            "measured peak / budget",
            "measured / predicted",
        ),
        "zh": ("模型", "最小方案的预测值", "预算", "完成", "实测峰值 / 预算", "实测 / 预测"),
    },
    "exported-scripts": {
        "en": ("model", "script", "recipe", "budget", "finished", "measured peak / budget"),
        "zh": ("模型", "脚本", "方案", "预算", "完成", "实测峰值 / 预算"),
    },
    "comparison": {
        "en": ("", "peak, whole process", "predicted", "time per step"),
        "zh": ("", "整个进程的峰值", "预测", "每步用时"),
    },
    "language-models": {
        "en": ("", "peak, predicted", "peak, measured", "time per step", "loss of the first step"),
        "zh": ("", "预测的峰值", "实测的峰值", "每步用时", "第一步的损失"),
    },
    "language-model-plans": {
        "en": ("model", "GPU", "trained", "fits", "recipe", "predicted peak"),
        "zh": ("模型", "GPU", "训练方式", "放得下", "方案", "预测的峰值"),
    },
    "torchtune": {
        "en": ("torchtune", "published", "our recipe", "predicted", "difference"),
        "zh": ("torchtune", "公布值", "我们的方案", "预测值", "差异"),
    },
    "same-result": {
        "en": ("", "loss", "difference from Trainer"),
        "zh": ("", "损失", "与 Trainer 之差"),
    },
    "freeze": {
        "en": ("model", "rows", "recipe", "epoch 1", "epoch 2", "epoch 2 / epoch 1", "F1"),
        "zh": ("模型", "样本数", "方案", "第 1 个 epoch", "第 2 个 epoch", "第 2 个 / 第 1 个", "F1"),
    },
    "cpu-speed": {
        "en": ("model", "recipe", "beside", "step", "step beside", "ratio (quartiles)", "peak", "peak beside"),
        "zh": ("模型", "方案", "对照", "每步用时", "对照用时", "比值（四分位数）", "峰值", "对照峰值"),
    },
    "roofline": {
        "en": ("model", "precision", "recipe", "step", "its products alone"),
        "zh": ("模型", "精度", "方案", "每步用时", "其中矩阵乘法单独所需"),
    },
    "padding": {
        "en": ("max length", "shuffled batches"),
        "zh": ("最大长度", "随机组批"),
    },
    "memory": {
        "en": ("model", "parameters", "recipes", "median error", "lowest", "highest"),
        "zh": ("模型", "参数量", "方案数", "误差中位数", "最低", "最高"),
    },
    "gpu": {
        "en": (
            "cells",
            "count",
            "live: median error",
            "largest",
            "within 0.1%",
            "reserved: median error",
            "lowest",
            "highest",
            "within -3% to +5%",
        ),
        "zh": (
            "范围",
            "条数",
            "已分配：误差中位数",
            "最大",
            "0.1% 以内",
            "已保留：误差中位数",
            "最低",
            "最高",
            "-3% 到 +5% 以内",
        ),
    },
    "published": {
        "en": ("grade or source", "rows", "median absolute error", "lowest", "highest"),
        "zh": ("等级或来源", "条数", "误差绝对值中位数", "最低", "最高"),
    },
    "published-rows": {
        "en": (
            "source",
            "model",
            "batch x length",
            "precision",
            "optimizer",
            "attention",
            "grade",
            "published MiB",
            "predicted MiB",
            "error",
            "",
        ),
        "zh": (
            "来源",
            "模型",
            "批大小 × 长度",
            "精度",
            "优化器",
            "注意力",
            "等级",
            "公布值（MiB）",
            "预测值（MiB）",
            "误差",
            "",
        ),
    },
}

PLANNING_TIMES = {
    "en": (
        "first use, including the calibration of the machine",
        "fresh process, median and range",
        "later, in the same process",
    ),
    "zh": ("首次使用，含测量本机速度", "新进程，中位数与范围", "同一进程内再次规划"),
}


def table(headings: Sequence[str], rows: Sequence[Sequence[str]]) -> str:
    lines = [headings, ["---"] * len(headings), *rows]
    return "".join(f"| {' | '.join(line)} |\n" for line in lines)


def percent(share: float) -> str:
    return f"{share:+.1%}" if share else "0 %"


SCRIPTS = {"en": ("transformers", "calls tightfit"), "zh": ("纯 transformers", "调用 tightfit")}
FINISHED = {"en": ("yes", "no"), "zh": ("是", "否")}


def mib(size: int) -> str:
    return f"{size / 2**20:.0f} MiB"


def gib(size: int) -> str:
    return f"{size / 2**30:.2f} GiB"
