"""Write the generated blocks of README.md and README.zh.md: `make docs`. A test checks that they are up to date.

A block stands between `<!-- NAME -->` and `<!-- /NAME -->`; its content comes from the source or from records/.
"""

from __future__ import annotations

import re
import sys
from pathlib import Path

import pictures
import records
import reliability
from blocks import BLOCKS
from tables import percent, table

ROOT = Path(__file__).resolve().parent.parent
READMES = {"README.md": "en", "README.zh.md": "zh"}


def main() -> None:
    for path, content in written().items():
        path.write_text(content, "utf-8")


def written() -> dict[Path, str]:
    """Every file that is made here, and what it has to hold."""
    files = {ROOT / name: filled((ROOT / name).read_text("utf-8"), language) for name, language in READMES.items()}
    files[ROOT / "docs" / "published.md"] = published_page()
    files[ROOT / "docs" / "reliability.md"] = reliability.page(table)
    files[ROOT / "docs" / "ladder.svg"] = pictures.comparison_chart()
    files[ROOT / "docs" / "accuracy.svg"] = pictures.accuracy_picture()
    files[ROOT / "docs" / "demo.svg"] = pictures.report_picture()
    files[ROOT / "src" / "tightfit" / "simulation" / "accuracy.json"] = records.accuracy_file()
    return files


def filled(text: str, language: str) -> str:
    """The text with every block made anew."""
    for name, make in BLOCKS.items():
        pattern = re.compile(rf"(<!-- {name} -->\n).*?(<!-- /{name} -->)", re.DOTALL)
        text = pattern.sub(lambda found, make=make: found[1] + make(language) + found[2], text)
    return text


def published_page() -> str:
    """Every published row, foretold beside measured, with the reason for each miss."""
    headings = ("source", "model", "batch x length", "precision", "optimizer", "attention", "grade", "published MiB")
    rows = []
    for row in records.published_rows():
        what = f"{row['batch']} x {row['length']}" + (" checkpointed" if row["checkpointing"] else "")
        predicted = f"{row['predicted']:,.0f}" if row["predicted"] else "–"
        error = percent(row["error"]) if row["error"] is not None else "–"
        cells = [row[key] for key in ("source", "model")]
        cells += [what, *(row[key] for key in ("precision", "optimizer", "attention", "grade"))]
        cells += [f"{row['published']:,.0f}" if row["published"] else "–", predicted, error, row["reason"]]
        rows.append(tuple(cells))
    return (ROOT / "docs" / "published.head.md").read_text("utf-8") + table(
        (*headings, "foretold MiB", "error", ""), rows
    )


if __name__ == "__main__":
    sys.exit(main())
