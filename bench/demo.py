"""The demo's memory by phase and kind, predicted and measured: the data of the picture in docs/commands.md.

Writes records/demo.json. Given a run folder, it uses the run that is there and does not train.
"""

from __future__ import annotations

import json
import subprocess
import sys
import tempfile
from pathlib import Path

from tightfit import load_run
from tightfit.runs.header import load_header

RECORD = Path(__file__).resolve().parent.parent / "records" / "demo.json"


def main() -> None:
    with tempfile.TemporaryDirectory() as folder:
        run = Path(sys.argv[1]) if len(sys.argv) > 1 else Path(folder) / "demo"
        if not run.exists():
            subprocess.run([sys.executable, "-m", "tightfit", "demo", "--out", str(run)], check=True)
        write(run)


def write(folder: Path) -> None:
    run, header = load_run(folder), load_header(folder)
    assert header is not None
    record = {
        "recipe": run.recipe,
        "device": run.device,
        "estimate": header.estimate,
        "measured": run.measured.phases,
        "seconds": run.measured.seconds,
        "f1": run.metrics["eval_f1"],
        "versions": run.versions,
    }
    RECORD.write_text(json.dumps(record, indent=1) + "\n", "utf-8")
    print(RECORD)


if __name__ == "__main__":
    main()
