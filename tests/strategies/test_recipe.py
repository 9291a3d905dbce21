"""Parsing of strategy specs, and the corrections for what people type from habit."""

from __future__ import annotations

import pytest

from tightfit.errors import RecipeError
from tightfit.strategies import STRATEGIES
from tightfit.strategies.recipe import Recipe, parse_strategy, split_specs

HABITS = {
    "gradient-accumulation": "micro-batch:size=8",
    "gradient_accumulation_steps": "micro-batch:size=8",
    "gradient_accumulation_steps=4": "micro-batch:size=8",
    "slice": "micro-batch:size=8",
    "slice:size=4": "micro-batch:size=8",
    "checkpoint": "gradient-checkpointing",
    "checkpointing": "gradient-checkpointing",
    "activation-checkpointing": "gradient-checkpointing",
    "activation_checkpointing": "gradient-checkpointing",
    "group_by_length": "length-bucketing",
    "bucket": "length-bucketing",
    "fp16": "mixed-precision:dtype=fp16",
    "fp16=True": "mixed-precision:dtype=fp16",
    "bf16": "mixed-precision:dtype=bf16",
    "AMP": "mixed-precision",
    "optim=adafactor": "adafactor",
    "optim=adamw_bnb_8bit": "adamw-8bit",
    "8bit": "adamw-8bit",
    "adamw_8bit": "adamw-8bit",
    "adamw_bnb_8bit": "adamw-8bit",
}
SPELLINGS = {
    "gradient_checkpointing": "gradient-checkpointing",
    "gradient_checkpointing:every=2": "gradient-checkpointing:every=2",
    "micro_batch": "micro-batch:size=8",
    "micro_batch:tokens=256": "micro-batch:tokens=256",
}


@pytest.mark.parametrize(("typed", "spec"), [*HABITS.items(), *SPELLINGS.items()])
def test_specs_typed_from_habit_are_rejected_with_a_spec_that_works(typed: str, spec: str) -> None:
    with pytest.raises(RecipeError) as error:
        parse_strategy(typed)
    assert str(error.value) == f"There is no strategy '{typed.partition(':')[0]}': did you mean --use {spec}?"
    assert parse_strategy(spec).spec == spec


def test_every_strategy_name_with_underscores_is_corrected() -> None:
    for name in (name for name in STRATEGIES if "-" in name):
        with pytest.raises(RecipeError, match=f"did you mean --use {name}(:|\\?$)"):
            parse_strategy(name.replace("-", "_"))


@pytest.mark.parametrize(
    ("typed", "spec"), [("LoRA", "lora"), ("Freeze:pattern=*.LayerNorm.*", "freeze:pattern=*.LayerNorm.*")]
)
def test_the_case_of_a_name_does_not_matter(typed: str, spec: str) -> None:
    assert parse_strategy(typed) == parse_strategy(spec)


PRINTED = ["micro-batch:size=8", "chunked-layers:size=8,layers=2", "lora"]


@pytest.mark.parametrize("between", [" ", ",", ", ", "\n", " , "])
def test_a_recipe_can_be_pasted_as_it_is_printed(between: str) -> None:
    assert split_specs([between.join(PRINTED)]) == PRINTED
    assert Recipe.parse([between.join(PRINTED)]) == Recipe.parse(PRINTED)
    assert split_specs(["adafactor", between.join(PRINTED), ""]) == ["adafactor", *PRINTED]


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("adafactor,chekpoint", "no strategy 'chekpoint'"),
        ("micro-batch:size=8,fp16", "did you mean --use mixed-precision:dtype=fp16"),
        ("micro-batch:size=8,sise=4", "'micro-batch' has no setting 'sise'"),
    ],
)
def test_each_part_of_a_pasted_recipe_is_checked(text: str, message: str) -> None:
    with pytest.raises(RecipeError, match=message):
        Recipe.parse([text])


def test_other_unknown_names_get_the_nearest_name_and_all_names() -> None:
    with pytest.raises(RecipeError, match=r"There is no strategy 'adafacter': did you mean 'adafactor'\?.* max-length"):
        parse_strategy("adafacter")


def test_a_recipe_is_sorted_as_the_list_of_strategies() -> None:
    specs = ["lora", "micro-batch:size=4", "adafactor"]
    assert Recipe.parse(specs).specs == ["micro-batch:size=4", "adafactor", "lora"]
