"""transformers' own tests of its Trainer, run against tightfit.Trainer -> records/trainer_tests.json.

    python bench/trainer_tests.py FOLDER     # a copy of the transformers repository: its folder `tests`

The list is fixed beforehand: of the files below, the tests that pass with transformers' Trainer on this machine, with
no GPU and without a network. Each file runs in a process of its own, first with transformers' Trainer, then with
tightfit's in its place. The package `parameterized` has to be installed.
"""

from __future__ import annotations

import json
import os
import re
import subprocess
import sys
import tempfile
from pathlib import Path
from typing import Any
from xml.etree import ElementTree

ROOT = Path(__file__).parents[1]
RECORD = ROOT / "records" / "trainer_tests.json"
FILES = ("_callback", "_checkpointing", "_evaluation", "", "_optimizers", "_data", "_seq2seq")
TRAINERS = ("transformers.Trainer", "tightfit.Trainer")
PASSED = "passed"
PLUGIN = """
import transformers
import tightfit
for name in ("Trainer", "Seq2SeqTrainer"):
    setattr(transformers, name, getattr(tightfit, name))
"""
EXPLAINED = {
    # test: why it fails
}


def main() -> None:
    """Files that were run before are not run again: delete the record to start anew."""
    copy, record = Path(sys.argv[1]).resolve(), json.loads(RECORD.read_text("utf-8")) if RECORD.is_file() else {}
    runs = record.setdefault("runs", {})
    for file in FILES:
        for trainer in TRAINERS:
            if file not in runs.setdefault(trainer, {}):
                runs[trainer][file] = outcomes(copy, file, trainer)
                RECORD.write_text(json.dumps(summary(runs) | {"runs": runs}, indent=1) + "\n", "utf-8")
                print(trainer, file, len(runs[trainer][file]), flush=True)
    print(json.dumps(summary(runs), indent=1))


def summary(runs: dict[str, dict[str, dict[str, str]]]) -> dict[str, Any]:
    """The listed tests, those that pass, and why the others fail."""
    plain, ours = (runs.get(trainer, {}) for trainer in TRAINERS)
    listed = [(file, test) for file in ours for test, found in plain[file].items() if found == PASSED]
    failed = {test: ours[file].get(test, "not run") for file, test in listed if ours[file].get(test) != PASSED}
    return {
        "files": [f"tests/trainer/test_trainer{file}.py" for file in ours],
        "listed": len(listed),
        "passed": len(listed) - len(failed),
        "failed": {test: {"outcome": found, "why": EXPLAINED.get(test)} for test, found in failed.items()},
    }


def outcomes(copy: Path, file: str, trainer: str) -> dict[str, str]:
    """Of each test: passed, or the first line of what it failed with or why it was skipped."""
    with tempfile.TemporaryDirectory() as folder:
        plugin, report = Path(folder) / "replaced_trainer.py", Path(folder) / "report.xml"
        plugin.write_text(PLUGIN if trainer == TRAINERS[1] else "")
        paths = os.pathsep.join([folder, os.environ.get("PYTHONPATH", "")])
        subprocess.run(
            [sys.executable, "-m", "pytest", "-q", "-p", "replaced_trainer", "-p", "no:cacheprovider",
             f"--junitxml={report}", f"tests/trainer/test_trainer{file}.py"],
            cwd=copy, env={**os.environ, "PYTHONPATH": paths, "HF_HUB_OFFLINE": "1", "CUDA_VISIBLE_DEVICES": ""},
            stdout=subprocess.DEVNULL,
        )  # fmt: skip
        cases = ElementTree.parse(report).getroot().iter("testcase")
        return {f"{case.get('classname', '').rpartition('.')[2]}::{case.get('name')}": outcome(case) for case in cases}


def outcome(case: ElementTree.Element) -> str:
    for kind in ("failure", "error", "skipped"):
        if (found := case.find(kind)) is not None:
            return f"{kind}: {re.sub(r'0x[0-9a-f]+', '0x', (found.get('message') or '').strip().splitlines()[0][:160])}"
    return PASSED


if __name__ == "__main__":
    main()
