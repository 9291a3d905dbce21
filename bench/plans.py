"""Plans for BERT-Large in 4 GB on a laptop CPU and two GPUs.

The shape of macbert-large and the data file of the tutorials. Needs ../shared. Writes records/plans.json, and what
`tightfit plan` prints for one of the GPUs to records/plan.txt, in Chinese to records/plan.zh.txt.
"""

from __future__ import annotations

import json
import subprocess
import sys
import time

from quality import ROOT, SHARED

RECORD = ROOT / "records" / "plans.json"
PRINTED = {"en": ROOT / "records" / "plan.txt", "zh": ROOT / "records" / "plan.zh.txt"}
MODEL = ["--model", str(SHARED / "models" / "chinese-macbert-large"), "--random-weights"]
DATA = ["--data", str(SHARED / "data" / "ChnSentiCorp_htl_all.csv")]
TYPED = "--model hfl/chinese-macbert-large --data reviews.csv"  # what a user types instead
DEVICES = ("cpu", "GTX 1650 4GB", "T4")
PRINTED_DEVICE = "GTX 1650 4GB"
BUDGET = {"cpu": "4GB", "T4": "4GB"}  # the GTX 1650 has less, so its budget is all of its memory


def main() -> None:
    plans = {}
    for device in DEVICES:
        start = time.perf_counter()
        plan = json.loads(run_plan(device, "--json"))
        keys = ("fits", "budget_bytes", "device", "recipe", "peak_bytes", "seconds_per_epoch", "result", "baseline")
        plans[device] = {key: plan[key] for key in keys} | {"seconds_to_plan": time.perf_counter() - start}
        print(device, plans[device], flush=True)
    RECORD.write_text(json.dumps(plans, indent=1) + "\n", "utf-8")
    write_printed()


def write_printed() -> None:
    """The plan for one device as it is printed in each language."""
    here = " ".join(MODEL[:2] + DATA + MODEL[2:])
    for language, path in PRINTED.items():
        path.write_text(run_plan(PRINTED_DEVICE, "--lang", language).replace(here, TYPED), "utf-8")


def run_plan(device: str, *options: str) -> str:
    """What `tightfit plan` prints; exit code 1, which means that nothing fits, is not an error here."""
    command = [sys.executable, "-m", "tightfit", "plan", *MODEL, *DATA, "--device", device, *options]
    command += ["--budget", BUDGET[device]] if device in BUDGET else []
    return subprocess.run(command, stdout=subprocess.PIPE, text=True).stdout


if __name__ == "__main__":
    main()
