"""The generated blocks of README.md and README.zh.md, each from the source or from records/."""

from __future__ import annotations

import ast
import statistics
from collections.abc import Callable
from pathlib import Path

import planned
import records
from records import RECORDS, record
from tables import HEADINGS, gib, percent, table
from tightfit.comparison.comparison import load_comparison

SOURCE = RECORDS.parent / "src" / "tightfit"


def who(name: str) -> str:
    """The plain way by its own name, a recipe of ours as code."""
    return name if name == "transformers.Trainer" else f"tightfit, `{name}`"


def strategies(language: str) -> str:
    from tightfit.report.i18n import Strings
    from tightfit.report.terminal import strategy_rows

    words, rows = Strings.of(language), []
    for row in strategy_rows():
        settings = f"<br>`{row.settings}`" if row.settings else ""
        frees = ", ".join(words.kind(kind) for kind in row.frees.split(", ") if kind)
        rows.append((f"`{row.name}`{settings}", f"`{row.result}`", frees or "–", words.strategy(row.name)))
    return table(HEADINGS["strategies"][language], rows)


def tree(language: str) -> str:
    lines = [
        f"{path.relative_to(SOURCE).as_posix():36}{purpose(path)}" for path in sorted(SOURCE.rglob("*.py"), key=key)
    ]
    return "```\n" + "\n".join(lines) + "\n```\n"


def key(path: Path) -> tuple[bool, str]:
    """Files first, then folders."""
    inner = path.relative_to(SOURCE)
    return len(inner.parts) > 1, inner.as_posix()


def purpose(path: Path) -> str:
    """The first line of the module's docstring."""
    return (ast.get_docstring(ast.parse(path.read_text("utf-8"))) or "").splitlines()[0]


def quality(language: str) -> str:
    found = record("quality")
    rows = []
    for name, runs in found["runs"].items():
        rows.append((who(name), ", ".join(f"{run['f1']:.4f}" for run in runs["each"])))
    noise = f"{found['seed_noise']:.4f}"
    below = (
        f"\n基线各种子之间的差距：{noise}。\n" if language == "zh" else f"\nThe baseline's seeds differ by {noise}.\n"
    )
    return table(HEADINGS["quality"][language], rows) + below


def ladder(language: str) -> str:
    """Every layer of BERT-Large, our recipes beside the plain way."""
    found = record("comparison")
    rows = []
    for name, run in found["runs"].items():
        predicted = gib(run["predicted_bytes"]) if run["predicted_bytes"] else "–"
        low, high = run["ratio_quartiles"]
        spread = "" if run["ratio"] == 1 else f" ({low:.2f} – {high:.2f})"
        rows.append((who(name), gib(run["peak_bytes"]), predicted, f"{run['ratio']:.2f} ×{spread}"))
    return table(HEADINGS["comparison"][language], rows)


def same(language: str) -> str:
    """Losses after some steps from the same weights, without dropout."""
    losses = record("same")["losses"]
    name, expected = next(iter(losses.items()))
    rows = [(name, f"{expected:.6f}", "–")]
    rows += [(who(r), f"{loss:.6f}", f"{loss - expected:+.1e}") for r, loss in losses.items() if r != name]
    return table(HEADINGS["same"][language], rows)


def frozen(language: str) -> str:
    """Only the head learns: what is frozen runs once, or in every epoch."""
    rows = []
    for run in record("frozen")["runs"]:
        first, second, *_ = run["epochs"]
        f1 = f"{run['f1']:.4f}" if run["f1"] is not None else "–"
        cells = (run["model"], f"{run['rows']:,}", f"`{run['recipe']}`", f"{first:.1f} s", f"{second:.1f} s")
        rows.append((*cells, f"{run['ratio']:.3f}", f1))
    return table(HEADINGS["frozen"][language], rows)


def padding(language: str) -> str:
    """Tokens computed in an epoch against those of its texts."""
    runs = record("padding")["runs"]
    rows = [tuple(str(v) if key == "length" else f"{v:.2f} ×" for key, v in run.items()) for run in runs]
    return table(HEADINGS["padding"][language], rows)


def memory(language: str) -> str:
    by_model: dict[str, list[dict[str, float]]] = {}
    runs = records.memory_runs()
    for run in runs:
        by_model.setdefault(run["configuration"].partition(" ")[0], []).append(run)
    rows = [
        (name, f"{few[0]['parameters'] / 1e6:.0f} M", str(len(few)), *map(percent, records.errors_of(few)))
        for name, few in sorted(by_model.items(), key=lambda item: item[1][0]["parameters"])
    ]
    spread = records.Spread.of(runs)
    if language == "zh":
        head = (
            f"{spread.count} 个配置，{len(by_model)} 种模型：误差绝对值的中位数 {spread.median:.1%}，"
            f"95 分位 {spread.p95:.1%}，"
            f"低估超过 2% 的有 {spread.too_low} 个。\n\n"
        )
    else:
        head = (
            f"{spread.count} configurations of {len(by_model)} models: median absolute error {spread.median:.1%}, "
            f"95th percentile {spread.p95:.1%}; {spread.too_low} foretold too low by more than 2 %.\n\n"
        )
    return head + table(HEADINGS["memory"][language], rows)


def published(language: str) -> str:
    rows = [
        (
            source,
            str(len(errors)),
            f"{statistics.median(map(abs, errors)):.1%}",
            percent(min(errors)),
            percent(max(errors)),
        )
        for source, errors in records.published_errors().items()
    ]
    return table(HEADINGS["published"][language], rows)


def step(language: str) -> str:
    found = record("step")
    low, high = found["ratio_quartiles"]
    error = max(found["gradient_error"].values())
    if language == "zh":
        return (
            f"与手写 PyTorch 循环相比，每步用时为 {found['ratio_median']:.3f} 倍"
            f"（四分位 {low:.3f}–{high:.3f}，{found['steps']} 步交替测量）；梯度相对误差最大 {error:.1e}。\n"
        )
    return (
        f"Against a hand-written PyTorch loop over the same slices a step takes {found['ratio_median']:.3f} × "
        f"the time (quartiles {low:.3f} to {high:.3f}, {found['steps']} steps, interleaved); "
        f"the gradient differs from the whole batch's by at most {error:.1e}, relative.\n"
    )


def rungs(name: str) -> Callable[[str], str]:
    """A ladder's own table."""

    def block(language: str) -> str:
        from tightfit.report.comparison import comparison_as_markdown

        return comparison_as_markdown(load_comparison(RECORDS / f"{name}.json"), language)

    return block


BLOCKS = {
    "strategies": strategies,
    "regret": planned.regret,
    "planning": planned.planning,
    "tree": tree,
    "answers": planned.answers,
    "answer": planned.answer,
    "promise": planned.promise,
    "quality": quality,
    "comparison": ladder,
    "recipes-macbert-large": rungs("recipes-macbert-large"),
    "recipes-minilm": rungs("recipes-minilm"),
    "same": same,
    "frozen": frozen,
    "padding": padding,
    "memory": memory,
    "published": published,
    "step": step,
}
