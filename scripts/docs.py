"""Write the generated blocks of README.md and README.zh.md: `make docs`. A test checks that they are up to date.

A block stands between `<!-- NAME -->` and `<!-- /NAME -->`; its content comes from the source or from records/.
"""

from __future__ import annotations

import ast
import json
import re
import statistics
import sys
from collections.abc import Callable
from pathlib import Path

import records
import reliability
from tightfit.ladders.record import load_ladder

ROOT = Path(__file__).resolve().parent.parent
SOURCE = ROOT / "src" / "tightfit"
RECORDS = ROOT / "records"
READMES = {"README.md": "en", "README.zh.md": "zh"}
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
            "pairs in the foretold order",
            "its time foretold, alone",
        ),
        "zh": ("模型", "预算", "方案", "比最快的慢", "次序与预测相同的配对", "单独运行时的用时预测误差"),
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
        "en": ("model", "runs", "died", "budgets", "measured peak / budget", "measured / foretold"),
        "zh": ("模型", "次数", "中断", "预算", "实测峰值 / 预算", "实测 / 预测"),
    },
    "ladder": {
        "en": ("", "whole process", "foretold", "time of a step"),
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
        "en": ("texts cut at", "rows meet by chance", "`bucket`", "`slice:size=8`", "`slice:size=8 bucket`"),
        "zh": ("文本截断长度", "随机相遇", "`bucket`", "`slice:size=8`", "`slice:size=8 bucket`"),
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


def main() -> None:
    for path, content in written().items():
        path.write_text(content, "utf-8")


def written() -> dict[Path, str]:
    """Every file that is made here, and what it has to hold."""
    files = {ROOT / name: filled((ROOT / name).read_text("utf-8"), language) for name, language in READMES.items()}
    files[ROOT / "docs" / "published.md"] = published_page()
    files[ROOT / "docs" / "reliability.md"] = reliability.page(table)
    files[ROOT / "docs" / "ladder.svg"] = ladder_picture()
    files[ROOT / "docs" / "accuracy.svg"] = accuracy_picture()
    files[ROOT / "docs" / "demo.svg"] = report_picture()
    files[SOURCE / "rehearsal" / "accuracy.json"] = records.accuracy_file()
    return files


def published_page() -> str:
    """Every published row, foretold beside measured, with the reason for each miss."""
    headings = ("source", "model", "batch x length", "precision", "optimizer", "attention", "grade", "published MiB")
    rows = []
    for row in records.published_rows():
        what = f"{row['batch']} x {row['length']}" + (" checkpointed" if row["checkpointing"] else "")
        foretold = f"{row['predicted']:,.0f}" if row["predicted"] else "–"
        error = percent(row["error"]) if row["error"] is not None else "–"
        cells = [row[key] for key in ("source", "model")]
        cells += [what, *(row[key] for key in ("precision", "optimizer", "attention", "grade"))]
        cells += [f"{row['published']:,.0f}" if row["published"] else "–", foretold, error, row["reason"]]
        rows.append(tuple(cells))
    return (ROOT / "docs" / "published.head.md").read_text("utf-8") + table(
        (*headings, "foretold MiB", "error", ""), rows
    )


def accuracy_picture() -> str:
    """Foretold against measured peak, every run a dot."""
    from tightfit.report.pictures.drawing import as_file_svg
    from tightfit.report.pictures.scatter import scatter

    runs = records.memory_runs()
    return as_file_svg(scatter([run["measured"] for run in runs], [run["predicted"] for run in runs]))


def report_picture() -> str:
    """The demo's memory by moment and kind, foretold and measured."""
    from tightfit.report.figures import kind_keys
    from tightfit.report.pictures.drawing import MEASURED, as_file_svg
    from tightfit.report.pictures.legend import add_legend
    from tightfit.report.pictures.memory import memory as draw
    from tightfit.report.words import Words

    record, say = json.loads((RECORDS / "demo.json").read_text("utf-8")), Words("en")
    bill = record["bill"]
    figure = draw(bill["bill"], bill["overhead_bytes"], record["measured"], name=say.moment)
    figure.set_size_inches(6.4, 4.2)
    seen = [kind for kinds in bill["bill"].values() for kind, size in kinds.items() if size > bill["peak_bytes"] / 200]
    keys = [(key.colour, key.name) for key in kind_keys(seen, bill, say)]
    add_legend(figure, [*keys, (MEASURED, say("measured"))], columns=4)
    return as_file_svg(figure)


def filled(text: str, language: str) -> str:
    """The text with every block made anew."""
    for name, make in BLOCKS.items():
        pattern = re.compile(rf"(<!-- {name} -->\n).*?(<!-- /{name} -->)", re.DOTALL)
        text = pattern.sub(lambda found, make=make: found[1] + make(language) + found[2], text)
    return text


def answers(language: str) -> str:
    """BERT-Large in 4 GB."""
    from tightfit.units import format_seconds

    rows = [
        (
            answer["device"],
            gib(answer["budget_bytes"]),
            f"{gib(answer['plain']['peak_bytes'])}, {format_seconds(answer['plain']['seconds_per_epoch'])}",
            f"`{' '.join(answer['recipe'])}`",
            gib(answer["peak_bytes"]),
            format_seconds(answer["seconds_per_epoch"]),
            f"`{answer['result']}`",
        )
        for answer in json.loads((RECORDS / "answers.json").read_text("utf-8")).values()
    ]
    return table(HEADINGS["answers"][language], rows)


def promise(language: str) -> str:
    """Runs under a hard limit, by model."""
    runs = json.loads((RECORDS / "promise.json").read_text("utf-8"))["runs"]
    rows = []
    for model in dict.fromkeys(name.partition(" ")[0] for name in runs):
        chosen = {name: run for name, run in runs.items() if name.partition(" ")[0] == model}
        done = [run for run in chosen.values() if run["exit"] == 0]
        used = [run["peak_bytes"] / run["budget_bytes"] for run in done]
        ratios = [run["peak_bytes"] / run["foretold_bytes"] for run in done]
        budgets = ", ".join(name.partition(" ")[2] for name in chosen)
        spread = f"{min(used):.2f} – {max(used):.2f}", f"{min(ratios):.3f} – {max(ratios):.3f}"
        rows.append((model, str(len(chosen)), str(len(chosen) - len(done)), budgets, *spread))
    return table(HEADINGS["promise"][language], rows)


def gib(size: int) -> str:
    return f"{size / 2**30:.2f} GiB"


def strategies(language: str) -> str:
    from tightfit.report.text import strategy_rows
    from tightfit.report.words import Words

    words, rows = Words.of(language), []
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
    record = json.loads((RECORDS / "quality.json").read_text("utf-8"))
    rows = []
    for name, runs in record["runs"].items():
        shown = name if name == "transformers.Trainer" else f"tightfit, `{name}`"
        rows.append((shown, ", ".join(f"{run['f1']:.4f}" for run in runs["each"])))
    noise = f"{record['seed_noise']:.4f}"
    below = (
        f"\n基线各种子之间的差距：{noise}。\n" if language == "zh" else f"\nThe baseline's seeds differ by {noise}.\n"
    )
    return table(HEADINGS["quality"][language], rows) + below


def regret(language: str) -> str:
    """The chosen recipe beside the other ones that fit, measured, and alone."""
    rows = []
    for name, case in json.loads((RECORDS / "regret.json").read_text("utf-8"))["cases"].items():
        beside, alone = case["together"], case.get("alone")
        plan = f"`{' '.join(beside['runs'][0]['recipe'])}`"
        error = f"{alone['foretold_seconds'] / alone['seconds_per_step'] - 1:+.0%}" if alone else "–"
        if alone and alone["recipe"] != beside["runs"][0]["recipe"]:  # times so close that another day has another plan
            error += f" (`{' '.join(alone['recipe'])}`)"
        pairs = f"{beside['pairs_in_order']} / {beside['pairs']}" if beside["pairs"] else "–"
        rows.append((*name.split(), plan, f"{beside['regret']:.0%}", pairs, error))
    return table(HEADINGS["regret"][language], rows)


def ladder(language: str) -> str:
    """Every layer of BERT-Large, our recipes beside the plain way."""
    record = json.loads((RECORDS / "ladder.json").read_text("utf-8"))
    rows = []
    for name, run in record["runs"].items():
        shown = name if name == "transformers.Trainer" else f"tightfit, `{name}`"
        foretold = gib(run["foretold_bytes"]) if run["foretold_bytes"] else "–"
        low, high = run["ratio_quartiles"]
        spread = "" if run["ratio"] == 1 else f" ({low:.2f} – {high:.2f})"
        rows.append((shown, gib(run["peak_bytes"]), foretold, f"{run['ratio']:.2f} ×{spread}"))
    return table(HEADINGS["ladder"][language], rows)


def frozen(language: str) -> str:
    """Only the head learns: what is frozen runs once, or in every epoch."""
    rows = []
    for run in json.loads((RECORDS / "frozen.json").read_text("utf-8"))["runs"]:
        first, second, *_ = run["epochs"]
        f1 = f"{run['f1']:.4f}" if run["f1"] is not None else "–"
        cells = (run["model"], f"{run['rows']:,}", f"`{run['recipe']}`", f"{first:.1f} s", f"{second:.1f} s")
        rows.append((*cells, f"{run['ratio']:.3f}", f1))
    return table(HEADINGS["frozen"][language], rows)


def padding(language: str) -> str:
    """Tokens computed in an epoch against those of its texts."""
    runs = json.loads((RECORDS / "padding.json").read_text("utf-8"))["runs"]
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


def same(language: str) -> str:
    """Losses after some steps from the same weights, without dropout."""
    losses = json.loads((RECORDS / "same.json").read_text("utf-8"))["losses"]
    name, expected = next(iter(losses.items()))
    rows = [(name, f"{expected:.6f}", "–")]
    rows += [(f"tightfit, `{r}`", f"{loss:.6f}", f"{loss - expected:+.1e}") for r, loss in losses.items() if r != name]
    return table(HEADINGS["same"][language], rows)


def percent(share: float) -> str:
    return f"{share:+.1%}" if share else "0 %"


def step(language: str) -> str:
    record = json.loads((RECORDS / "step.json").read_text("utf-8"))
    low, high = record["ratio_quartiles"]
    error = max(record["gradient_error"].values())
    if language == "zh":
        return (
            f"与手写 PyTorch 循环相比，每步用时为 {record['ratio_median']:.3f} 倍"
            f"（四分位 {low:.3f}–{high:.3f}，{record['steps']} 步交替测量）；梯度相对误差最大 {error:.1e}。\n"
        )
    return (
        f"Against a hand-written PyTorch loop over the same slices a step takes {record['ratio_median']:.3f} × "
        f"the time (quartiles {low:.3f} to {high:.3f}, {record['steps']} steps, interleaved); "
        f"the gradient differs from the whole batch's by at most {error:.1e}, relative.\n"
    )


def table(headings: tuple[str, ...], rows: list[tuple[str, ...]]) -> str:
    lines = [headings, tuple("---" for _ in headings), *rows]
    return "".join(f"| {' | '.join(line)} |\n" for line in lines)


def rungs(name: str) -> Callable[[str], str]:
    """A ladder's own table."""

    def block(language: str) -> str:
        from tightfit.report.ladder import ladder_as_markdown

        return ladder_as_markdown(load_ladder(RECORDS / f"{name}.json"), language)

    return block


def ladder_picture() -> str:
    """BERT-Large, rung by rung."""
    from tightfit.report.pictures.drawing import as_file_svg
    from tightfit.report.pictures.ladder import ladder_picture
    from tightfit.report.words import Words

    return as_file_svg(ladder_picture(load_ladder(RECORDS / "rungs-macbert-large.json"), Words.of("en")))


BLOCKS = {
    "strategies": strategies,
    "regret": regret,
    "tree": tree,
    "answers": answers,
    "promise": promise,
    "quality": quality,
    "ladder": ladder,
    "rungs-macbert-large": rungs("rungs-macbert-large"),
    "rungs-minilm": rungs("rungs-minilm"),
    "same": same,
    "frozen": frozen,
    "padding": padding,
    "memory": memory,
    "published": published,
    "step": step,
}

if __name__ == "__main__":
    sys.exit(main())
