"""What the documentation reads from src/tightfit: every import from the package is in this file."""

from __future__ import annotations

import ast
from collections.abc import Iterable
from pathlib import Path
from typing import Any

SOURCE = Path(__file__).resolve().parent.parent / "src" / "tightfit"
ERROR_BAND = SOURCE / "simulation" / "accuracy.json"  # measured / predicted, low and high; written by `make docs`


def modules() -> list[tuple[str, str]]:
    """Path and purpose of every module: those of the root first, then the packages."""
    return [(path.relative_to(SOURCE).as_posix(), purpose(path)) for path in sorted(SOURCE.rglob("*.py"), key=_order)]


def packages() -> list[tuple[str, str]]:
    """Name and purpose of every package directly below the root."""
    return [(path.parent.name, purpose(path)) for path in sorted(SOURCE.glob("*/__init__.py"))]


def purpose(path: Path) -> str:
    """The first line of the module's docstring."""
    return (ast.get_docstring(ast.parse(path.read_text("utf-8"))) or "").splitlines()[0]


def _order(path: Path) -> tuple[bool, str]:
    inner = path.relative_to(SOURCE)
    return len(inner.parts) > 1, inner.as_posix()


def strategy_rows() -> list[Any]:
    """Every strategy with its name, result, freed kinds, summary and settings."""
    from tightfit.report.terminal import strategy_rows

    return strategy_rows()


def task_rows() -> list[Any]:
    """Every task, as `tightfit tasks` shows it."""
    from tightfit.report.terminal import task_rows

    return task_rows()


def text(message: str, language: str) -> str:
    """A message of the program in a language."""
    from tightfit.i18n import render

    return render(message, language)


def joined(items: Iterable[str], language: str) -> str:
    """A list in the language's punctuation."""
    from tightfit.messages import listed

    return text(listed(items), language)


def kind_name(kind: str, language: str) -> str:
    """A kind of memory."""
    from tightfit.report.names import kind_name

    return text(kind_name(kind), language)


def phase_name(phase: str) -> str:
    """A phase."""
    from tightfit.report.names import phase_name

    return str(phase_name(phase))


def format_seconds(seconds: float) -> str:
    from tightfit.units import format_seconds

    return format_seconds(seconds)


def comparison_as_markdown(path: Path, language: str) -> str:
    """The table that `tightfit compare` writes."""
    from tightfit.comparison.comparison import load_comparison
    from tightfit.report.comparison import comparison_as_markdown

    return comparison_as_markdown(load_comparison(path), language)


def comparison_figure(path: Path) -> Any:
    """The picture that `tightfit compare` writes."""
    from tightfit.comparison.comparison import load_comparison
    from tightfit.report.charts import comparison_chart

    return comparison_chart(load_comparison(path))


def scatter_figure(measured: list[int], predicted: list[int]) -> Any:
    """Predicted against measured peak, one dot per run."""
    from tightfit.report.charts import scatter

    return scatter(measured, predicted)


def phases_figure(phases: dict[str, Any], overhead_bytes: int, measured: dict[str, int]) -> Any:
    """Memory by phase and kind, predicted and measured."""
    from tightfit.report.charts import memory

    return memory(phases, overhead_bytes, measured, name=phase_name)


def kind_colours(kinds: list[str], estimate: dict[str, Any]) -> list[tuple[str, str]]:
    """Colour and name of each kind of memory."""
    from tightfit.report.figures import kind_keys

    return [(key.colour, str(key.name)) for key in kind_keys(kinds, estimate)]


def add_legend(figure: Any, keys: list[tuple[str, str]]) -> None:
    """A legend inside the picture, with the colour of what was measured at its end."""
    from matplotlib.patches import Patch

    from tightfit.report.charts import MEASURED

    entries = [*keys, (MEASURED, "measured")]
    patches = [Patch(color=colour, label=name) for colour, name in entries]
    figure.legend(handles=patches, loc="outside lower center", ncols=4, frameon=False, fontsize=9)


def as_svg(figure: Any) -> str:
    from tightfit.report.charts import as_file_svg

    return as_file_svg(figure)
