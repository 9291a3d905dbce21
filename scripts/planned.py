"""The generated blocks that tell of plans: what they answer, whether they keep to it, and how long they take."""

from __future__ import annotations

import statistics
from typing import Any

from records import RECORDS, record
from tables import ASKED, HEADINGS, gib, table


def answers(language: str) -> str:
    """BERT-Large in 4 GB."""
    from tightfit.units import format_seconds

    rows = [
        (
            answer["device"],
            gib(answer["budget_bytes"]),
            f"{gib(answer['plain']['peak_bytes'])}, {format_seconds(answer['plain']['seconds_per_epoch'])}",
            f"`{' '.join(answer['recipe'])}`",
            gib(answer["peak_bytes"]),
            format_seconds(answer["seconds_per_epoch"]),
            f"`{answer['result']}`",
        )
        for answer in record("answers").values()
    ]
    return table(HEADINGS["answers"][language], rows)


def answer(_: str) -> str:
    """What a plan looks like."""
    asked = '$ tightfit plan --model hfl/chinese-macbert-large --data reviews.csv --device "GTX 1650 4GB"'
    return f"```\n{asked}\n{(RECORDS / 'answer.txt').read_text('utf-8').strip()}\n```\n"


def promise(language: str) -> str:
    """Runs under a hard limit, by model."""
    runs = record("promise")["runs"]
    rows = []
    for model in dict.fromkeys(name.partition(" ")[0] for name in runs):
        chosen = {name: run for name, run in runs.items() if name.partition(" ")[0] == model}
        done = [run for run in chosen.values() if run["exit"] == 0]
        used = [run["peak_bytes"] / run["budget_bytes"] for run in done]
        ratios = [run["peak_bytes"] / run["predicted_bytes"] for run in done]
        budgets = ", ".join(name.partition(" ")[2] for name in chosen)
        spread = f"{min(used):.2f} – {max(used):.2f}", f"{min(ratios):.3f} – {max(ratios):.3f}"
        mended = [len(run["not_as_planned"]) for run in done if "not_as_planned" in run]
        noted = f"{len([count for count in mended if count])} / {len(mended)}" if mended else "–"
        rows.append((model, str(len(chosen)), str(len(chosen) - len(done)), noted, budgets, *spread))
    return table(HEADINGS["promise"][language], rows)


def regret(language: str) -> str:
    """The chosen recipe beside the other ones that fit, measured, and alone."""
    rows = []
    for name, case in record("regret")["cases"].items():
        beside, alone = case["together"], case.get("alone")
        plan = f"`{' '.join(beside['runs'][0]['recipe'])}`"
        error = off(alone) if alone else "–"
        if alone and alone["recipe"] != beside["runs"][0]["recipe"]:  # times so close that another day has another plan
            error += f" (`{' '.join(alone['recipe'])}`)"
        pairs = f"{beside['pairs_in_order']} / {beside['pairs']}" if beside["pairs"] else "–"
        rows.append((*name.split(), plan, slower(beside), slower(case.get("near")), pairs, error))
    return table(HEADINGS["regret"][language], rows)


def slower(measured: dict[str, Any] | None) -> str:
    """Than the fastest that does no more to the result; nothing where it had no rival."""
    return f"{measured['regret']:.0%}" if measured and len(alike(measured["runs"])) > 1 else "–"


def alike(runs: list[dict[str, Any]]) -> list[dict[str, Any]]:
    """Those that do as much to the result as the chosen one."""
    return [run for run in runs if run["result"] == runs[0]["result"]]


def off(alone: dict[str, Any]) -> str:
    """How far its time was foretold from what it took, and how far by each measuring of the machine."""
    predicted = alone.get("foretold_before_amid_after", [alone["predicted_seconds"]])
    of_each = [seconds / alone["seconds_per_step"] - 1 for seconds in predicted]
    each = f" ({', '.join(f'{one:+.0%}' for one in of_each)})" if len(of_each) > 1 else ""
    return f"{statistics.mean(of_each):+.0%}{each}"


def planning(language: str) -> str:
    """How long a plan takes: in a fresh process, and for other budgets in one that has made a plan."""
    found = record("planning")
    first, fresh, again = ASKED[language]
    seconds = [run["seconds"] for run in found["cold"]]
    rows = [(found["budget"], first, f"{found['first_use']['seconds']:.1f} s")]
    rows += [(found["budget"], fresh, f"{statistics.median(seconds):.1f} s ({min(seconds):.1f} – {max(seconds):.1f})")]
    rows += [(budget, again, f"{run['seconds']:.2f} s") for budget, run in found["others"].items()]
    return table(HEADINGS["planning"][language], rows)
