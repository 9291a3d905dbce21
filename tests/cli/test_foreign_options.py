"""Options of transformers scripts are rejected with the command that does the same here."""

from __future__ import annotations

import shlex
from typing import Any

import pytest
import typer
from cli.test_app import Run, run

from tightfit.cli import foreign_options
from tightfit.cli.app import app
from tightfit.strategies.recipe import Recipe

__all__ = ["run"]  # the fixture
GROUP: Any = typer.main.get_command(app)
TRAIN = "train --model m --data d.csv"
CASES = {
    f"{TRAIN} --lr 3e-5": f"{TRAIN} --learning-rate 3e-5",
    f"{TRAIN} --batch_size=8 --random_weights": f"{TRAIN} --batch-size 8 --random-weights",
    f"{TRAIN} --fp16": f"{TRAIN} --use mixed-precision:dtype=fp16",
    f"{TRAIN} --bf16 True --out o": f"{TRAIN} --out o --use mixed-precision:dtype=bf16",
    f"{TRAIN} --fp16 False": TRAIN,
    f"{TRAIN} --gradient_checkpointing --budget 4GB": f"{TRAIN} --budget 4GB --use gradient-checkpointing",
    f"{TRAIN} --group_by_length true": f"{TRAIN} --use length-bucketing",
    f"{TRAIN} --optim adafactor": f"{TRAIN} --use adafactor",
    f"{TRAIN} --optim adamw_bnb_8bit": f"{TRAIN} --use adamw-8bit",
    f"{TRAIN} --optim adamw_torch_fused": TRAIN,
    f"{TRAIN} --gradient-accumulation-steps 4": f"{TRAIN} --use micro-batch:size=8",
    f"{TRAIN} --batch-size 64 --gradient_accumulation_steps 4": f"{TRAIN} --batch-size 64 --use micro-batch:size=16",
    f"{TRAIN} --per_device_train_batch_size 4": f"{TRAIN} --batch-size 4",
    f"{TRAIN} --per_device_train_batch_size 4 --gradient_accumulation_steps 8": (
        f"{TRAIN} --batch-size 32 --use micro-batch:size=4"
    ),
    f"{TRAIN} --use_lora --lora_r 16": f"{TRAIN} --use lora:r=16",
    f"{TRAIN} --no_cuda": f"{TRAIN} --device cpu",
    f"{TRAIN} --warmup_ratio 0.1 --adam_beta2 0.98": f"{TRAIN} --warmup-ratio 0.1 --set adam_beta2=0.98",
    f"{TRAIN} --save_steps 500": f"{TRAIN} --save-steps 500",
    "train --model_name_or_path m --train_file d.csv --max_seq_length 128 --num_train_epochs 3 --output_dir o": (
        f"{TRAIN} --max-length 128 --epochs 3 --out o"
    ),
    "--model_name_or_path m --data d.csv": TRAIN,
    "plan job.yaml --fp16": "plan job.yaml --use mixed-precision:dtype=fp16",
}


@pytest.mark.parametrize("typed", CASES)
def test_the_corrected_command_is_shown(run: Run, typed: str) -> None:
    code, out, err = run(*shlex.split(typed))
    problem, command = err.splitlines()
    assert (code, out) == (2, "")
    assert problem.startswith("tightfit: ")
    assert problem.endswith(": write it like this.")
    assert command == f"  tightfit {CASES[typed]}"


def test_what_has_no_counterpart_is_named(run: Run) -> None:
    typed = "--do_train --save_strategy epoch --per_device_eval_batch_size=8 --fp16"
    _, _, err = run(*TRAIN.split(), *typed.split())
    left_out = "--do_train, --save_strategy, --per_device_eval_batch_size"
    assert f"has no {left_out}, --fp16: write it like this, without {left_out}, which tightfit does not have." in err
    assert err.splitlines()[1] == f"  tightfit {TRAIN} --use mixed-precision:dtype=fp16"
    chinese = run(*TRAIN.split(), "--fp16", "--lang", "zh")[2]
    assert chinese.startswith("tightfit: train 没有 --fp16：请这样写。\n  tightfit train")


def test_options_that_nobody_knows_get_the_nearest_name(run: Run) -> None:
    code, _, err = run(*TRAIN.split(), "--fp16", "--bugdet", "4GB")
    assert code == 2
    assert "write it like this" not in err
    assert "--fp16" in err


OPTIONS = {*foreign_options._OPTIONS, *foreign_options._WITH_VALUES}
SWITCHES = {*foreign_options._SPECS, *foreign_options._DEVICES, *foreign_options._SWITCHES}


@pytest.mark.parametrize("verb", ["plan", "train", "estimate", "compare", "predict"])
def test_every_corrected_command_is_valid(verb: str) -> None:
    command = GROUP.commands[verb]
    options = {o: not p.is_flag for p in command.params if p.param_type_name == "option" for o in p.opts}
    for option in sorted(OPTIONS | SWITCHES):
        found = foreign_options.corrected_command(verb, [f"--{option}", "3" if option in OPTIONS else "true"], options)
        assert found is not None, option
        assert found.unknown == [f"--{option}"]
        program, name, *arguments = shlex.split(found.command)
        assert (program, name) == ("tightfit", verb)
        assert bool(arguments) != bool(found.left_out), option
        context = command.make_context(verb, [*arguments, "run"] if verb == "predict" else arguments)
        Recipe.parse(context.params.get("use") or [])
