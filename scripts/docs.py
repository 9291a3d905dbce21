"""Fill the generated blocks of README.md, README.zh.md and docs/*.md: `make docs`. A test checks that they are current.

A block stands between two markers, each on its own line; everything between them is replaced:

    <!-- NAME -->
    <!-- /NAME -->

Any page may use any block, any number of times. Blocks are in Chinese in README.zh.md and in English everywhere else.
Numbers come from records/, names and descriptions from src/tightfit; nothing in a block is typed by hand.

    plan-short             the start of a printed plan: recipe, peak, baseline, reasons     README
    tasks                  every task with its data, metrics and a command                  README
    strategies-short       strategies by the memory they free and their effect on results   README
    figures                four figures, each with a link to how it was measured            README
    folders                the folders of the project, one line each                        docs/architecture.md
    plan                   the whole printed plan                                           docs/plans.md
    devices                the plan for the same job on several devices                     docs/plans.md
    planning-time          how long planning takes                                          docs/benchmarks.md
    strategies             every strategy with settings, result, memory and description     docs/strategies.md
    memory                 predicted against measured peak, by model                        docs/accuracy.md
    architectures          predicted against measured peak, by architecture                 docs/architectures.md
    gpu                    simulated GPUs against torch's allocator on the fake GPU          docs/accuracy.md
    hard-limit             runs under a hard memory limit of exactly the budget             docs/accuracy.md
    tight-budget           planning and training in a cgroup of just the budget             docs/accuracy.md
    exported-scripts       exported scripts in a cgroup of just the budget                  docs/accuracy.md
    plan-choice            the chosen recipe against its alternatives, measured             docs/accuracy.md
    published              error against published GPU measurements, by grade and source    docs/accuracy.md
    published-rows         every published GPU measurement beside its prediction            docs/published.md
    comparison             BERT-Large, every layer, beside transformers.Trainer             docs/benchmarks.md
    recipes-macbert-large  what `tightfit compare` measured for BERT-Large                  docs/benchmarks.md
    recipes-minilm         what `tightfit compare --full` measured for MiniLM               docs/benchmarks.md
    quality                F1 by seed                                                       docs/benchmarks.md
    language-models        a small language model tuned within a budget on a CPU           docs/benchmarks.md
    language-model-plans   language models on GPUs of 4, 6 and 8 GB                        docs/benchmarks.md
    torchtune              Llama-3.2-3B beside torchtune's published figures               docs/benchmarks.md
    same-result            losses after some steps from the same weights                    docs/benchmarks.md
    step                   time and gradient error of a micro-batched step                  docs/benchmarks.md
    cpu-speed              steps on a CPU beside those of transformers.Trainer              docs/benchmarks.md
    cpu-speed-machine      the machine of that record                                       docs/benchmarks.md
    roofline               the share of a step that its matrix products need alone          docs/benchmarks.md
    roofline-machine       the machine of that record                                       docs/benchmarks.md
    freeze                 epochs of a frozen encoder                                       docs/benchmarks.md
    padding                tokens computed in an epoch                                      docs/benchmarks.md
    reliability            the results of the fault-injection tests                         docs/reliability.md
    modules                every module with the first line of its docstring                docs/architecture.md
"""

from __future__ import annotations

import re
from collections.abc import Callable
from pathlib import Path

import pictures
import records
import source
from blocks import BLOCKS

ROOT = Path(__file__).resolve().parent.parent
CHINESE = {"README.zh.md"}
MARKER = re.compile(r"^<!-- (/?)([a-z][a-z0-9-]*) -->$", re.MULTILINE)


def main() -> None:
    for path, content in written().items():
        path.write_text(content, "utf-8")


def pages() -> list[Path]:
    """Every page that may hold blocks."""
    return [ROOT / "README.md", ROOT / "README.zh.md", *sorted((ROOT / "docs").glob("*.md"))]


def written() -> dict[Path, str]:
    """Every generated file, and what it has to hold."""
    files = {page: filled(page.read_text("utf-8"), language(page)) for page in pages()}
    files[ROOT / "docs" / "comparison.svg"] = pictures.comparison_picture()
    files[ROOT / "docs" / "accuracy.svg"] = pictures.accuracy_picture()
    files[ROOT / "docs" / "demo.svg"] = pictures.report_picture()
    files[source.ERROR_BAND] = records.error_band_file()
    return files


def language(page: Path) -> str:
    return "zh" if page.name in CHINESE else "en"


def filled(text: str, language: str) -> str:
    """The text with the content of every block replaced."""
    for name in dict.fromkeys(markers(text)) & BLOCKS.keys():
        pattern = re.compile(rf"^(<!-- {name} -->\n).*?^(<!-- /{name} -->)$", re.DOTALL | re.MULTILINE)
        text = pattern.sub(_with_content(BLOCKS[name](language)), text)
    return text


def _with_content(content: str) -> Callable[[re.Match[str]], str]:
    return lambda found: found[1] + content + found[2]


def markers(text: str) -> list[str]:
    """The names of the blocks that a page opens."""
    return [name for closing, name in MARKER.findall(text) if not closing]


def prose(text: str) -> str:
    """A page without its generated blocks."""
    return re.sub(r"^<!-- ([a-z0-9-]+) -->$.*?^<!-- /\1 -->$", "", text, flags=re.DOTALL | re.MULTILINE)


if __name__ == "__main__":
    main()
