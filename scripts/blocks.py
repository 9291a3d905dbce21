"""The generated blocks by name. Their markers are described in docs.py."""

from __future__ import annotations

import statistics
from collections.abc import Callable
from typing import Any

import architectures
import plan_blocks
import records
import reliability
import source
from figures import figures
from records import BASELINE, TRAINER, record
from tables import HEADINGS, gib, percent, table

FOLDERS = {
    "bench": "Benchmarks; each writes what it measured to records/.",
    "docs": "Documentation; tables and pictures are generated.",
    "fake_gpu": "Fake GPUs under the CUDA build of torch, for memory tests of GPU code: `make test-gpu`.",
    "records": "What was measured, as JSON.",
    "scripts": "The generator of the documentation: `make docs`.",
    "tests": "Tests; tests/stress injects faults into runs: `make test-stress`.",
}


def label(name: str) -> str:
    """A row's label: transformers.Trainer as text, a recipe of ours as code."""
    return name if name == TRAINER else f"tightfit, `{name}`"


def strategies(language: str) -> str:
    """Every strategy with its settings."""
    rows = []
    for row in source.strategy_rows():
        settings = f"<br>`{row.settings}`" if row.settings else ""
        frees = source.joined((source.kind_name(kind, language) for kind in row.frees.split(", ") if kind), language)
        summary = source.text(row.summary, language)
        rows.append((f"`{row.name}`{settings}", f"`{row.result}`", frees or "–", summary))
    return table(HEADINGS["strategies"][language], rows)


def tasks(language: str) -> str:
    """Every task with what it reads, its metrics and a command."""
    colon = "：" if language == "zh" else ": "
    rows = [
        (
            f"`{row.name}`{colon}{source.text(row.summary, language)}",
            source.text(row.reads, language),
            source.text(row.metrics, language),
            f"`{row.command}`",
        )
        for row in source.task_rows()
    ]
    return table(HEADINGS["tasks"][language], rows)


def strategies_short(language: str) -> str:
    """The strategies by the kind of memory they free and by their effect on the result."""
    found = source.strategy_rows()
    kinds = dict.fromkeys(kind for row in found for kind in row.frees.split(", ") if kind)
    rows = [(source.kind_name(kind, language), *_by_result(kind, found, language)) for kind in kinds]
    rows.append((HEADINGS["only-time"][language][0], *_by_result("", found, language)))
    return table(HEADINGS["strategies-short"][language], rows)


def _by_result(kind: str, found: list[Any], language: str) -> list[str]:
    """The names of the strategies that free a kind, one cell for each effect on the result."""
    here = [row for row in found if kind in row.frees.split(", ")]
    cells = [[f"`{row.name}`" for row in here if row.result == result] for result in ("same", "close", "different")]
    return [source.joined(names, language) or "–" for names in cells]


def folders(_: str) -> str:
    """Folders only, one line each."""
    found = {f"src/tightfit/{name}": purpose for name, purpose in source.packages()} | FOLDERS
    return _listing([(f"{name}/", purpose) for name, purpose in found.items()], 28)


def modules(_: str) -> str:
    """Every module of the package."""
    return _listing(source.modules(), 38)


def _listing(lines: list[tuple[str, str]], width: int) -> str:
    return "```\n" + "\n".join(f"{name:{width}}{purpose}" for name, purpose in lines) + "\n```\n"


def quality(language: str) -> str:
    """F1 by seed."""
    found = record("quality")
    rows = [
        (label(name), ", ".join(f"{run['f1']:.4f}" for run in runs["each"])) for name, runs in found["runs"].items()
    ]
    noise = f"{found['seed_noise']:.4f}"
    english = f"The F1 of transformers.Trainer varies by {noise} between seeds."
    below = f"基线的不同随机种子最多相差 {noise}。" if language == "zh" else english
    return f"{table(HEADINGS['quality'][language], rows)}\n{below}\n"


def comparison(language: str) -> str:
    """Every layer of BERT-Large, our recipes beside transformers.Trainer."""
    rows = []
    for run in records.compared_runs():
        predicted = gib(run.predicted_bytes) if run.predicted_bytes else "–"
        low, high = run.quartiles
        spread = "" if run.recipe == TRAINER else f" ({low:.2f} – {high:.2f})"
        rows.append((label(run.recipe), gib(run.peak_bytes), predicted, f"{run.ratio:.2f} ×{spread}"))
    return table(HEADINGS["comparison"][language], rows)


def same_result(language: str) -> str:
    """Losses after some steps from the same weights, without dropout."""
    losses = record("same_result")["losses"]
    name, expected = next(iter(losses.items()))
    rows = [(name, f"{expected:.6f}", "–")]
    rows += [(label(r), f"{loss:.6f}", f"{loss - expected:+.1e}") for r, loss in losses.items() if r != name]
    return table(HEADINGS["same-result"][language], rows)


def language_models(language: str) -> str:
    """A small language model tuned within a budget, beside transformers.Trainer; as far as it was measured."""
    found, rows = record("language_models"), []
    if (ours := found.get("train")) is not None:
        rows.append(
            (label(" ".join(ours["recipe"])), gib(ours["predicted_bytes"]), gib(ours["peak_bytes"]), *_step_of(ours))
        )
    if (trainer := found.get("trainer")) is not None:
        rows.append((TRAINER, "–", gib(trainer["peak_bytes"]), *_step_of(trainer)))
    return table(HEADINGS["language-models"][language], rows)


def _step_of(run: dict[str, Any]) -> tuple[str, str]:
    return f"{run['seconds_per_step']:.1f} s", f"{run['first_loss']:.6f}"


def language_model_plans(language: str) -> str:
    """Small language models on small GPUs: the fastest recipe that fits, by what is trained."""
    yes, no = {"zh": ("是", "否")}.get(language, ("yes", "no"))
    rows = [
        (
            plan["model"],
            plan["gpu"],
            plan["way"],
            yes if plan["fits"] else no,
            f"`{' '.join(plan['recipe'])}`" if plan.get("recipe") else plan.get("reason", "–"),
            gib(plan["predicted_bytes"]) if "predicted_bytes" in plan else "–",
        )
        for plan in record("language_models")["plans"]
    ]
    return table(HEADINGS["language-model-plans"][language], rows)


def torchtune(language: str) -> str:
    """Llama-3.2-3B: published figures of another library beside predictions of recipes that do the same."""
    rows = []
    for row in record("language_models")["published"]:
        if row["predicted"] is not None:
            difference = row["predicted"] / row["published"] - 1
            cells = (row["what"], f"{row['published']:,.0f} MiB", f"`{row['recipe']}`", f"{row['predicted']:,.0f} MiB")
            rows.append((*cells, f"{difference:+.1%}"))
    return table(HEADINGS["torchtune"][language], rows)


def freeze(language: str) -> str:
    """Only the head is trained: the frozen encoder runs once."""
    rows = []
    for run in record("frozen")["runs"]:
        first, second, *_ = run["epochs"]
        f1 = f"{run['f1']:.4f}" if run["f1"] is not None else "–"
        cells = (run["model"], f"{run['rows']:,}", f"`{run['recipe']}`", f"{first:.1f} s", f"{second:.1f} s")
        rows.append((*cells, f"{run['ratio']:.3f}", f1))
    return table(HEADINGS["freeze"][language], rows)


def padding(language: str) -> str:
    """Tokens computed in an epoch against the tokens of its texts."""
    runs = record("padding")["runs"]
    length, shuffled = HEADINGS["padding"][language]
    named = {"length": length, BASELINE: shuffled}
    headings = tuple(named.get(key, f"`{key}`") for key in runs[0])
    rows = [tuple(str(value) if key == "length" else f"{value:.2f} ×" for key, value in run.items()) for run in runs]
    return table(headings, rows)


def memory(language: str) -> str:
    """Predicted against measured peak, by model."""
    by_model: dict[str, list[records.MemoryRun]] = {}
    runs = records.memory_runs()
    for run in runs:
        by_model.setdefault(run.model, []).append(run)
    rows = [
        (name, f"{few[0].parameters / 1e6:.0f} M", str(len(few)), *map(percent, records.errors_of(few)))
        for name, few in sorted(by_model.items(), key=lambda item: item[1][0].parameters)
    ]
    return f"{_spread(records.Spread.of(runs), language)}\n\n{table(HEADINGS['memory'][language], rows)}"


def _spread(spread: records.Spread, language: str) -> str:
    if language == "zh":
        return (
            f"{spread.count} 个配置，{spread.models} 个模型：误差绝对值的中位数 {spread.median:.1%}，"
            f"P95 误差 {spread.p95:.1%}，低估超过 2% 的有 {spread.too_low} 个。"
        )
    return (
        f"{spread.count} configurations of {spread.models} models: median absolute error {spread.median:.1%}, "
        f"95th percentile {spread.p95:.1%}; {spread.too_low} predicted too low by more than 2 %."
    )


def gpu(language: str) -> str:
    """GPU memory on fake GPUs: errors of all cells, by precision, model and recipe."""
    cells = records.gpu_cells()
    groups: dict[str, list[records.GpuCell]] = {{"en": "all", "zh": "全部"}[language]: cells}
    for cell in cells:
        groups.setdefault(cell.precision, []).append(cell)
    for cell in sorted(cells, key=lambda cell: cell.capability):
        groups.setdefault(cell.capability, []).append(cell)
    for cell in sorted(cells, key=lambda cell: not cell.expandable):
        groups.setdefault(f"expandable_segments:{cell.expandable}", []).append(cell)
    for cell in sorted(cells, key=lambda cell: cell.model):
        groups.setdefault(cell.model, []).append(cell)
    for cell in sorted(cells, key=lambda cell: cell.recipe):
        groups.setdefault(f"`{cell.recipe}`" if cell.recipe else BASELINE, []).append(cell)
    rows = [(name, str(len(group)), *_gpu_errors(group)) for name, group in groups.items()]
    return table(HEADINGS["gpu"][language], rows)


def _gpu_errors(cells: list[records.GpuCell]) -> list[str]:
    live, reserved = [cell.live for cell in cells], [cell.reserved for cell in cells]
    medians = [f"{statistics.median(map(abs, errors)):.1%}" for errors in (live, reserved)]
    exact = f"{sum(cell.is_live_exact for cell in cells)} / {len(cells)}"
    in_range = f"{sum(cell.is_reserved_in_range for cell in cells)} / {len(cells)}"
    errors = [percent(max(live, key=abs)), exact, medians[1], percent(min(reserved)), percent(max(reserved)), in_range]
    return [medians[0], *errors]


def published(language: str) -> str:
    """Error against published measurements, by grade and by source."""
    rows, grades = [], {f"grade {name}": errors for name, errors in records.published_grades().items()}
    for name, errors in {**grades, **records.published_errors()}.items():
        median = f"{statistics.median(map(abs, errors)):.1%}"
        rows.append((name, str(len(errors)), median, percent(min(errors)), percent(max(errors))))
    return table(HEADINGS["published"][language], rows)


def published_rows(language: str) -> str:
    """Every published measurement beside its prediction, with the reason for each miss."""
    rows = []
    for row in records.published_rows():
        shape = f"{row['batch']} x {row['length']}" + (" checkpointed" if row["checkpointing"] else "")
        sizes = [f"{row[key]:,.0f}" if row[key] else "–" for key in ("published", "predicted")]
        error = percent(row["error"]) if row["error"] is not None else "–"
        settings = [row[key] for key in ("precision", "optimizer", "attention", "grade")]
        rows.append((row["source"], row["model"], shape, *settings, *sizes, error, row["reason"]))
    return table(HEADINGS["published-rows"][language], rows)


def step(language: str) -> str:
    """Time and gradient error of a micro-batched step."""
    found = record("step")
    low, high = found["ratio_quartiles"]
    error = max(found["gradient_error"].values())
    if language == "zh":
        return (
            f"每步用时为手写 PyTorch 循环的 {found['ratio_median']:.3f} 倍"
            f"（四分位数 {low:.3f}–{high:.3f}，交替测量 {found['steps']} 步）；"
            f"与整批计算相比，梯度的相对误差最大为 {error:.1e}。\n"
        )
    return (
        f"A step takes {found['ratio_median']:.3f} × the time of a hand-written PyTorch loop over the same "
        f"micro-batches (quartiles {low:.3f} to {high:.3f}, {found['steps']} steps, interleaved). "
        f"Its gradient differs from that of the whole batch by at most {error:.1e} (relative).\n"
    )


_NOT_MEASURED = "Not measured yet.\n"


def cpu_speed(language: str) -> str:
    """Steps on a CPU beside those of transformers.Trainer, in turns."""
    if not records.path_of("cpu_speed").is_file():
        return _NOT_MEASURED
    rows = []
    for run in record("cpu_speed")["models"]:
        for pair in run["pairs"]:
            low, high = pair["ratio"]["quartiles"]
            times = f"{pair['seconds']:.1f} s", f"{pair['base_seconds']:.1f} s"
            ratio = f"{pair['ratio']['median']:.2f} × ({low:.2f} – {high:.2f})"
            peaks = gib(pair["peak_bytes"]), gib(pair["base_peak_bytes"])
            rows.append((run["model"], f"`{pair['recipe']}`", pair["base"], *times, ratio, *peaks))
    return table(HEADINGS["cpu-speed"][language], rows)


def roofline(language: str) -> str:
    """The share of a step's time that its matrix products need alone."""
    if not records.path_of("roofline").is_file():
        return _NOT_MEASURED
    rows = [
        (name, precision, f"`{run['recipe']}`", f"{run['seconds']:.2f} s", f"{run['share']:.0%}")
        for name, runs in record("roofline")["runs"].items()
        for precision, run in runs.items()
    ]
    return table(HEADINGS["roofline"][language], rows)


def measured_on(name: str) -> Callable[[str], str]:
    """The machine of a record."""

    def block(_: str) -> str:
        if not records.path_of(name).is_file():
            return ""
        machine, clock = record(name)["machine"], record(name)["clock"]
        threads = f"{machine['threads']} thread" + ("s" if machine["threads"] > 1 else "")
        bf16 = "with" if machine["bf16_products"] else "without"
        return (
            f"{machine['processor']}, {threads}, {bf16} instructions for bf16, torch {machine['torch']}; "
            f"{'processor time' if clock == 'processor' else 'time'} of a step.\n"
        )

    return block


def recipes(name: str) -> Callable[[str], str]:
    """The table of a comparison, as `tightfit compare` writes it."""
    return lambda language: source.comparison_as_markdown(records.path_of(name), language)


BLOCKS: dict[str, Callable[[str], str]] = {
    "plan-short": plan_blocks.plan_short,
    "strategies-short": strategies_short,
    "tasks": tasks,
    "figures": figures,
    "folders": folders,
    "plan": plan_blocks.plan,
    "devices": plan_blocks.devices,
    "planning-time": plan_blocks.planning_time,
    "strategies": strategies,
    "memory": memory,
    "architectures": architectures.block,
    "hard-limit": plan_blocks.hard_limit,
    "tight-budget": plan_blocks.tight_budget,
    "exported-scripts": plan_blocks.exported_scripts,
    "plan-choice": plan_blocks.plan_choice,
    "gpu": gpu,
    "published": published,
    "published-rows": published_rows,
    "comparison": comparison,
    "recipes-macbert-large": recipes(records.RECIPES_LARGE),
    "recipes-minilm": recipes(records.RECIPES_MINILM),
    "quality": quality,
    "language-models": language_models,
    "language-model-plans": language_model_plans,
    "torchtune": torchtune,
    "same-result": same_result,
    "step": step,
    "cpu-speed": cpu_speed,
    "cpu-speed-machine": measured_on("cpu_speed"),
    "roofline": roofline,
    "roofline-machine": measured_on("roofline"),
    "freeze": freeze,
    "padding": padding,
    "reliability": reliability.block,
    "modules": modules,
}
