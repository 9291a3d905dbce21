"""The four figures of the README, each with a link to how it was measured."""

from __future__ import annotations

import records
from records import TRAINER
from tables import HEADINGS, gib, table

_WORDS = {
    "en": {
        "memory": "Peak memory of training all layers of {model}, batch {batch} × {length}, whole process on a CPU",
        "memory_value": "{ours} with `{recipe}`, {baseline} with `{trainer}`; {ratio:.2f} × Trainer's time per step",
        "memory_link": "[BERT-Large](docs/benchmarks.md#bert-large-every-layer)",
        "error": "Predicted against measured peak memory on a CPU, {count} configurations of {models} models",
        "error_value": "median error {median:.1%}, 95th percentile {p95:.1%}",
        "error_link": "[accuracy](docs/accuracy.md#peak-memory-on-a-cpu)",
        "limit": "Runs that finished under a hard memory limit equal to the budget (CPU)",
        "limit_value": "{finished} of {runs}",
        "limit_link": "[hard limit](docs/accuracy.md#runs-under-a-hard-memory-limit)",
        "quality": "F1 of {model} after one epoch of hotel reviews, mean of {seeds} seeds, recipe of the first row",
        "quality_value": "{ours:.4f}, with `{trainer}` {baseline:.4f}, whose F1 varies by {noise:.4f} between seeds",
        "quality_link": "[F1](docs/benchmarks.md#f1)",
    },
    "zh": {
        "memory": "全参数训练 {model} 的内存峰值（批大小 {batch}，长度 {length}，CPU 上整个进程）",
        "memory_value": "{ours}（`{recipe}`），`{trainer}` 为 {baseline}；每步用时为后者的 {ratio:.2f} 倍",
        "memory_link": "[BERT-Large](docs/benchmarks.md#bert-large-every-layer)",
        "error": "CPU 上内存峰值的预测与实测之差（{models} 个模型的 {count} 个配置）",
        "error_value": "误差中位数 {median:.1%}，P95 误差 {p95:.1%}",
        "error_link": "[准确度](docs/accuracy.md#peak-memory-on-a-cpu)",
        "limit": "把内存硬性限制在预算值时，能跑完的训练（CPU）",
        "limit_value": "{runs} 次中跑完 {finished} 次",
        "limit_link": "[硬性上限](docs/accuracy.md#runs-under-a-hard-memory-limit)",
        "quality": "{model} 在酒店评论上训练 1 个 epoch 后的 F1（{seeds} 个随机种子的平均值，方案同第一行）",
        "quality_value": "{ours:.4f}，`{trainer}` 为 {baseline:.4f}；`{trainer}` 不同随机种子之间最多相差 {noise:.4f}",
        "quality_link": "[F1](docs/benchmarks.md#f1)",
    },
}


def figures(language: str) -> str:
    """One row for each figure."""
    words = _WORDS[language]
    rows = []
    for name, values in {"memory": _memory(), "error": _error(), "limit": _limit(), "quality": _quality()}.items():
        rows.append((words[name].format(**values), words[f"{name}_value"].format(**values), words[f"{name}_link"]))
    return table(HEADINGS["figures"][language], rows)


def _smallest() -> records.ComparedRun:
    """The recipe with the lowest peak."""
    return min(records.compared_runs(), key=lambda run: run.peak_bytes)


def _memory() -> dict[str, object]:
    baseline = next(run for run in records.compared_runs() if run.recipe == TRAINER)
    ours, about = _smallest(), records.record(records.COMPARISON)
    sizes = {"ours": gib(ours.peak_bytes), "baseline": gib(baseline.peak_bytes), "ratio": ours.ratio}
    return {**sizes, "recipe": ours.recipe, "trainer": TRAINER, **{k: about[k] for k in ("model", "batch", "length")}}


def _error() -> dict[str, object]:
    spread = records.Spread.of(records.memory_runs())
    return {"median": spread.median, "p95": spread.p95, "count": spread.count, "models": spread.models}


def _limit() -> dict[str, object]:
    runs = records.limited_runs()
    return {"finished": sum(run.finished for run in runs), "runs": len(runs)}


def _quality() -> dict[str, object]:
    """The F1 of the recipe with the lowest peak."""
    found = records.record("quality")
    ours, baseline = found["runs"][_smallest().recipe], found["runs"][TRAINER]
    seeds = {"seeds": len(ours["each"]), "noise": found["seed_noise"]}
    return {"ours": ours["f1"], "baseline": baseline["f1"], "model": found["model"], "trainer": TRAINER, **seeds}
