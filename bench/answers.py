"""The tutorials' question, BERT-Large in 4 GB, as `tightfit plan` answers it for a laptop and two cards.

Shape of macbert-large, the tutorials' own file. Needs ../shared. Writes records/answers.json, and what `plan` prints
for one of the cards to records/answer.txt.
"""

from __future__ import annotations

import json
import subprocess
import sys
import time

from quality import ROOT, SHARED

RECORD, PRINTED = ROOT / "records" / "answers.json", ROOT / "records" / "answer.txt"
DEVICES = ("cpu", "GTX 1650 4GB", "T4")
SHOWN = "GTX 1650 4GB"
BUDGET = {"cpu": "4GB", "T4": "4GB"}  # the GTX has less than that: all of it


def main() -> None:
    answers = {}
    for device in DEVICES:
        start = time.perf_counter()
        plan = json.loads(asked(device, "--json"))
        keys = ("fits", "budget_bytes", "device", "recipe", "peak_bytes", "seconds_per_epoch", "result", "plain")
        answers[device] = {key: plan[key] for key in keys} | {"seconds_to_plan": time.perf_counter() - start}
        print(device, answers[device], flush=True)
    RECORD.write_text(json.dumps(answers, indent=1) + "\n", "utf-8")
    PRINTED.write_text(asked(SHOWN), "utf-8")


def asked(device: str, *options: str) -> str:
    command = [sys.executable, "-m", "tightfit", "plan", "--random-weights", "--device", device, *options]
    command += ["--model", str(SHARED / "models" / "chinese-macbert-large")]
    command += ["--data", str(SHARED / "data" / "ChnSentiCorp_htl_all.csv")]
    command += ["--budget", BUDGET[device]] if device in BUDGET else []
    return subprocess.run(command, stdout=subprocess.PIPE, text=True).stdout


if __name__ == "__main__":
    main()
