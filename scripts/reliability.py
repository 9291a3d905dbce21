"""The block with the results of the fault-injection tests, from what `make test-stress` wrote."""

from __future__ import annotations

from collections import Counter
from typing import Any

from records import record
from tables import table

# The parts of records/reliability.json.
KILLS, MEMORY_ERRORS, ALLOCATIONS, MEMORY_LIMITS = "kills", "memory_errors", "allocations", "memory_limits"
DISK, BAD_INPUTS, FUZZ = "disk", "bad_inputs", "fuzz"
WHAT = {
    KILLS: "runs killed with SIGKILL one to three times each, then resumed: weights and losses are bit-identical",
    MEMORY_ERRORS: "injected out-of-memory errors, dropout off: same steps and batches, losses equal up to rounding, "
    "one line logged",
    ALLOCATIONS: "runs in which one allocation of a training step failed, dropout off: finished, weights equal up to "
    "rounding, one line logged",
    MEMORY_LIMITS: "runs under a hard memory limit below what their recipe needs: finished with smaller micro-batches",
    DISK: "disks filled up during a run: last checkpoint intact, one sentence, resumed bit-identically",
    BAD_INPUTS: "bad inputs: one sentence and exit code 2, nothing written; or a damaged checkpoint skipped",
    FUZZ: "mutated CSV, TSV, JSON and YAML files: read, or rejected in one sentence",
}


def block(_: str) -> str:
    """A summary, then one section for each kind of fault."""
    found = record("reliability")
    tested = [part for part in WHAT if part in found]
    rows = [(WHAT[part], f"{found[part]['passed']:,} of {found[part]['of']:,}") for part in tested]
    installed = ", ".join(f"{name} {version}" for name, version in found["versions"].items())
    minutes = sum(found[part]["seconds"] for part in tested) / 60
    below = f"\n{minutes:.0f} minutes in all, with {installed}.\n"
    parts = (_kills, _memory_errors, _allocations, _memory_limits, _disk, _bad_inputs, _fuzz)
    return table(("fault", "passed"), rows) + below + "".join(part(found) for part in parts)


def _kills(found: dict[str, Any]) -> str:
    runs = found[KILLS]["results"]
    times = Counter(_when(text) for run in runs for text in run["killed_while"])
    rows = [(when, str(count)) for when, count in times.most_common()]
    recipes = ", ".join(sorted({run["recipe"] for run in runs}))
    return (
        f"\n### Killed processes\n\n{sum(times.values())} kills of {len(runs)} runs (recipes: {recipes}), dropout on, "
        "a checkpoint every 3 steps. What the process was doing when it was killed:\n\n"
        + table(("phase", "kills"), rows)
    )


def _when(text: str) -> str:
    return "training, after a checkpoint" if text.startswith("training") else text


def _memory_errors(found: dict[str, Any]) -> str:
    results = found[MEMORY_ERRORS]["results"]
    steps = ("first", "middle", "last")
    rows = []
    for phase in dict.fromkeys(result["phase"] for result in results):
        here = [result for result in results if result["phase"] == phase]
        passed = [sum(r["passed"] for r in here if r["when"] == when) for when in steps]
        cells = [
            f"{count} of {sum(r['when'] == when for r in here)}" for count, when in zip(passed, steps, strict=True)
        ]
        rows.append((phase, *cells, f"{max(r['loss_difference'] for r in here):.1e}"))
    errors = ", ".join(dict.fromkeys(result["error"] for result in results))
    partial = sum("checkpoint-" in line for result in results for line in result["messages"])
    recipes = ", ".join(dict.fromkeys(result["recipe"] for result in results))
    return (
        f"\n### Out-of-memory errors\n\nEvery phase and step with every error ({errors}); recipes rotate ({recipes}). "
        "Dropout is off: with dropout the same random numbers go to other rows, and the losses differ. "
        f"In {partial} of them some weights had already been updated, and the run resumed from its last checkpoint. "
        "For example:\n\n"
        f"> {next(line for result in results for line in result['messages'])}\n\n"
        + table(("phase", *(f"{when} step" for when in steps), "largest relative difference of a loss"), rows)
    )


def _allocations(found: dict[str, Any]) -> str:
    if ALLOCATIONS not in found:
        return ""
    groups: dict[tuple[str, int], list[dict[str, Any]]] = {}
    for result in found[ALLOCATIONS]["results"]:
        groups.setdefault((result["recipe"], result["step"]), []).append(result)
    rows = [
        (
            recipe,
            str(step),
            f"{sum(each['passed'] for each in here)} of {len(here)}",
            str(sum(each["resumed"] for each in here)),
            f"{max(each['difference'] for each in here):.1e}",
        )
        for (recipe, step), here in groups.items()
    ]
    titles = ("recipe", "step", "passed", "of these from the last checkpoint", "largest difference of a weight")
    return (
        "\n### Failing allocations\n\nEach allocation of the first step with micro-batches fails in a run of its own, "
        "and every tenth of the second step with the other recipes. An allocation is an operation whose result is in "
        "new memory. The run continues at the same step, or from its last checkpoint if the optimizer had begun to "
        "change weights. The biases of keys are left out: attention does not depend on them, so their gradients are "
        "rounding errors, which AdamW scales up.\n\n" + table(titles, rows)
    )


def _memory_limits(found: dict[str, Any]) -> str:
    rows = [
        (run["recipe"], _mib(run["needed_bytes"]), _mib(run["limit_bytes"]), str(run["times_halved"]))
        for run in found[MEMORY_LIMITS]["results"]
    ]
    return "\n### Memory limits below what is needed\n\n" + table(("recipe", "needs", "limit", "times halved"), rows)


def _mib(size: int) -> str:
    return f"{size / 2**20:,.0f} MiB"


def _disk(found: dict[str, Any]) -> str:
    rows = [(run["fault"], run["disk"], str(run["exit_code"]), run["message"]) for run in found[DISK]["results"]]
    return "\n### Full disks\n\n" + table(("", "disk", "exit code", "message"), rows)


def _bad_inputs(found: dict[str, Any]) -> str:
    groups: dict[str, list[str]] = {}
    for result in found[BAD_INPUTS]["results"]:
        kind, _, name = result["input"].partition(": ")
        groups.setdefault(kind, []).append(name if result["passed"] else f"**{name} (failed)**")
    rows = [(kind, str(len(names)), ", ".join(names)) for kind, names in groups.items()]
    return "\n### Bad inputs\n\n" + table(("", "inputs", ""), rows)


def _fuzz(found: dict[str, Any]) -> str:
    (files,) = found[FUZZ]["results"]
    rows = [(f"{files['read']:,}", f"{files['rejected']:,}", str(len(files["unhandled"])))]
    return "\n### Mutated files\n\n" + table(("read", "rejected in one sentence", "unhandled"), rows)
