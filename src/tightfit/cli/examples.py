"""Examples: two commands for each help page."""

from __future__ import annotations

_JOB = "--model bert-base-chinese --data reviews.csv"

EXAMPLES = {
    "tightfit": (
        f"tightfit plan {_JOB} --budget 4GB --out plan.yaml",
        "tightfit train plan.yaml --out runs/hotel",
    ),
    "plan": (
        f"tightfit plan {_JOB} --budget 4GB --out plan.yaml",
        f"tightfit plan {_JOB} --device 'RTX 3050 4GB' --batch-size 32 --max-length 128",
    ),
    "train": (
        f"tightfit train {_JOB} --budget 4GB --out runs/hotel",
        f"tightfit train {_JOB} --use 'micro-batch:size=8 gradient-checkpointing' --out runs/own",
    ),
    "estimate": (
        f"tightfit estimate {_JOB} --use micro-batch:size=8",
        f"tightfit estimate {_JOB} --device T4 --use 'micro-batch:size=8 adafactor'",
    ),
    "compare": (
        f"tightfit compare {_JOB} --budget 4GB",
        f"tightfit compare {_JOB} --recipe baseline --recipe 'micro-batch:size=8 gradient-checkpointing' --steps 20",
    ),
    "explain": (
        "tightfit explain oom.txt --args my_script.py",
        "tightfit explain oom.txt --args training_args.json --model bert-base-chinese --device T4",
    ),
    "evaluate": (
        "tightfit evaluate runs/hotel",
        "tightfit evaluate runs/hotel --data test.csv --json",
    ),
    "predict": (
        'tightfit predict runs/hotel "房间很干净，服务也好"',
        "tightfit predict runs/hotel --data new.csv --out predicted.csv",
    ),
    "report": (
        "tightfit report runs/hotel",
        "tightfit report runs/hotel runs/own --out both.html --lang zh",
    ),
    "strategies": (
        "tightfit strategies",
        "tightfit strategies --json",
    ),
    "tasks": (
        "tightfit tasks",
        "tightfit tasks --json",
    ),
    "doctor": (
        "tightfit doctor",
        "tightfit doctor --quick --json",
    ),
    "demo": (
        "tightfit demo",
        "tightfit demo --lang zh --out runs/demo-zh",
    ),
}
