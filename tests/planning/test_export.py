"""Exported scripts have the settings of the job, as transformers takes them."""

from __future__ import annotations

import ast
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from parts import CPU

from tightfit import Job
from tightfit.device import Budget
from tightfit.planning import export
from tightfit.strategies.recipe import Recipe

SETTINGS: dict[str, Any] = {
    "lr_scheduler_type": "cosine",
    "warmup_ratio": 0.1,
    "label_smoothing_factor": 0.2,
    "eval_steps": 5,
    "early_stopping_patience": 2,
    "set": {"adam_beta2": 0.98, "logging_first_step": False},
}
EXPECTED = {
    "lr_scheduler_type": "cosine",
    "warmup_steps": 0.1,
    "label_smoothing_factor": 0.2,
    "eval_strategy": "steps",
    "eval_steps": 5,
    "save_strategy": "steps",
    "save_steps": 5,
    "adam_beta2": 0.98,
    "logging_first_step": False,
}


def plan_of(job: Job) -> Any:
    chosen = SimpleNamespace(peak=1 << 30, and_time="")
    return SimpleNamespace(job=job, recipe=Recipe(), chosen=chosen, budget=Budget.of("4GB", CPU))


def call_of(script: str, function: str) -> dict[str, ast.expr]:
    calls = [node for node in ast.walk(ast.parse(script)) if isinstance(node, ast.Call)]
    found = next(call for call in calls if getattr(call.func, "id", None) == function)
    return {str(keyword.arg): keyword.value for keyword in found.keywords}


def test_a_plain_script_has_the_settings(reviews: Path) -> None:
    script = export._plain(plan_of(Job(model="m", data=str(reviews), **SETTINGS)))
    arguments = call_of(script, "TrainingArguments")
    assert {name: ast.literal_eval(arguments[name]) for name in EXPECTED} == EXPECTED
    assert ast.unparse(call_of(script, "Trainer")["callbacks"]) == "[EarlyStoppingCallback(2)]"


def test_a_plain_script_without_settings_leaves_them_out(reviews: Path) -> None:
    script = export._plain(plan_of(Job(model="m", data=str(reviews))))
    arguments = call_of(script, "TrainingArguments")
    assert not {"lr_scheduler_type", "warmup_steps", "label_smoothing_factor", "eval_steps"} & arguments.keys()
    assert "callbacks" not in call_of(script, "Trainer")


@pytest.mark.parametrize(
    ("settings", "reason"),
    [
        ({"class_weights": "balanced"}, "Weighting classes exactly over micro-batches needs tightfit."),
        ({"save_steps": 5}, "Saving between evaluations needs tightfit."),
    ],
)
def test_a_script_calls_tightfit_for_what_transformers_lacks(
    reviews: Path, settings: dict[str, Any], reason: str
) -> None:
    plan = plan_of(Job(model="m", data=str(reviews), **settings))
    assert export.unexportable_reason(plan) == reason
    script = export._render("tightfit_script", plan, why=reason)
    assert ast.literal_eval(call_of(script, "Job")[next(iter(settings))]) == next(iter(settings.values()))
