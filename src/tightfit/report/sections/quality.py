"""Quality: the scores of every evaluation, and which of them was kept."""

from __future__ import annotations

from tightfit.report.account import Account
from tightfit.report.words import Words

_SCORES = ("eval_f1", "eval_accuracy", "eval_loss")
_NOT_SCORES = ("eval_runtime", "eval_samples_per_second", "eval_steps_per_second")


def names(account: Account) -> list[str]:
    """The scores that were measured, the usual ones first."""
    found = dict.fromkeys(key for entry in account.evaluations for key in entry if key.startswith("eval_"))
    others = [key for key in found if key not in (*_SCORES, *_NOT_SCORES)]
    return [*(key for key in _SCORES if key in found), *others]


def table(account: Account) -> tuple[list[str], list[tuple[bool, list[str]]]]:
    """Headings, and a row for each evaluation: whether its weights were kept, and its numbers."""
    keys, kept = names(account), account.metrics.get("epoch") if account.run else None
    rows = []
    for entry in account.evaluations:
        cells = [_number(entry.get("epoch"), ".2f"), _number(entry.get("step"), ".0f")]
        rows.append((entry.get("epoch") == kept, [*cells, *(_number(entry.get(key), ".4f") for key in keys)]))
    return [_title(key) for key in keys], rows


def kept(account: Account, say: Words) -> str | None:
    """Which epoch's weights the model has; None where there was only one to choose from."""
    if account.run is None or len(account.evaluations) < 2 or "epoch" not in account.metrics:
        return None
    return say("kept_epoch", epoch=f"{account.metrics['epoch']:g}")


def _title(key: str) -> str:
    name = key.removeprefix("eval_")
    return {"f1": "F1"}.get(name, name)


def _number(value: float | None, form: str) -> str:
    return "–" if value is None else f"{value:{form}}"
