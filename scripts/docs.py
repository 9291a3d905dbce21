"""Write the generated blocks of README.md and README.zh.md: `make docs`. A test checks that they are up to date.

A block stands between `<!-- NAME -->` and `<!-- /NAME -->`; its content comes from the source or from records/.
"""

from __future__ import annotations

import ast
import json
import re
import sys
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
SOURCE = ROOT / "src" / "tightfit"
RECORDS = ROOT / "records"
READMES = {"README.md": "en", "README.zh.md": "zh"}
HEADINGS = {
    "strategies": {
        "en": ("strategy", "result", "frees", "what it does"),
        "zh": ("策略", "对结果的影响", "省下的内存", "作用（英文）"),
    },
    "quality": {
        "en": ("", "F1 of seeds 1, 2, …"),
        "zh": ("", "种子 1、2……的 F1"),
    },
    "memory": {
        "en": ("model", "recipe", "foretold", "measured", "error"),
        "zh": ("模型", "配方", "预测", "实测", "误差"),
    },
}


def main() -> None:
    for name, language in READMES.items():
        path = ROOT / name
        path.write_text(filled(path.read_text("utf-8"), language), "utf-8")


def filled(text: str, language: str) -> str:
    """The text with every block made anew."""
    for name, make in BLOCKS.items():
        pattern = re.compile(rf"(<!-- {name} -->\n).*?(<!-- /{name} -->)", re.DOTALL)
        text = pattern.sub(lambda found, make=make: found[1] + make(language) + found[2], text)
    return text


def strategies(language: str) -> str:
    from tightfit.report.text import strategy_rows

    rows = []
    for row in strategy_rows():
        settings = f"<br>`{row.settings}`" if row.settings else ""
        rows.append((f"`{row.name}`{settings}", f"`{row.result}`", row.frees or "–", row.summary))
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


def memory(language: str) -> str:
    from tightfit.units import format_bytes

    rows = []
    for run in json.loads((RECORDS / "memory.json").read_text("utf-8"))["runs"]:
        error = run["predicted"] / run["measured"] - 1
        sizes = format_bytes(run["predicted"]), format_bytes(run["measured"])
        rows.append(
            (f"{run['model']}, {run['batch']} × {run['length']}", f"`{run['recipe']}`", *sizes, f"{error:+.1%}")
        )
    return table(HEADINGS["memory"][language], rows)


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


BLOCKS = {"strategies": strategies, "tree": tree, "quality": quality, "memory": memory, "step": step}

if __name__ == "__main__":
    sys.exit(main())
