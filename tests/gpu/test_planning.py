"""Plans for the memory that a fake GPU has, and what offloading takes of the host's."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from gpu.fakes import GB, run


def test_memory_that_other_processes_hold_is_not_planned_with(tmp_path: Path) -> None:
    """Nor with what is left for the context; and the run stays beside them."""
    code = """
        made = plan(job(), device="cuda")
        run = train(job(), out=folder / "run", device="cuda", quiet=True)
        print(json.dumps([made.fits, made.budget.size, made.chosen.upper_bound, run.steps, fake_gpu.counters()]))
    """
    gpu = {"memory": 4 * GB, "others": 3 * GB, "context": GB // 2}
    fits, budget, needed, steps, counters = json.loads(run(code, tmp_path, **gpu).splitlines()[-1])
    assert fits
    assert needed <= budget
    assert budget == GB  # with the context that the question has created
    assert (steps, counters["failed"]) == (3, 0)


def test_too_little_memory_beside_other_processes_says_so(tmp_path: Path) -> None:
    """The process that holds it is named, and there is no traceback."""
    code = """
        wide = make_model(folder / "wide", hidden_size=512, num_attention_heads=8, intermediate_size=2048)
        try:
            train(job(model=str(wide)), out=folder / "run", device="cuda", budget="none", quiet=True)
        except Exception as error:
            print(type(error).__name__, error)
    """
    gpu = {"memory": 4 * GB, "others": 4 * GB - (420 << 20), "context": 400 << 20}
    text = run(code, tmp_path, **gpu)
    assert "Other processes hold 3." in text
    assert "of the GPU's 4.00 GiB" in text


@pytest.mark.parametrize(
    "recipe", ["offload-activations", "offload-optimizer", "offload-optimizer offload-activations"]
)
def test_pinned_host_memory_was_predicted(tmp_path: Path, recipe: str) -> None:
    """Activations are in pinned memory; of an optimizer's state only what is being copied is."""
    code = f"""
        from gpu.host_values import host_values

        sizes = {{"hidden_size": 256, "num_attention_heads": 4, "intermediate_size": 1024, "num_hidden_layers": 4}}
        wide = make_model(folder / "wide", **sizes)
        with host_values():
            run = train(job(model=str(wide)), {recipe.split()}, out=folder / "run", device="cuda", quiet=True)
        predicted = json.loads((folder / "run" / "start.json").read_text("utf-8"))["estimate"]["host_bytes"]
        print(predicted, fake_gpu.counters()["pinned_peak"])
    """
    predicted, measured = map(int, run(code, tmp_path, memory=8 * GB).split())
    if recipe == "offload-activations":
        assert predicted == pytest.approx(measured, rel=0.05)
    assert 0 < measured <= 1.05 * predicted


def test_a_run_on_the_gpu_resumes(tmp_path: Path) -> None:
    """It is stopped after some steps; the second attempt does the rest, and has a pre-flight of its own."""
    code = """
        from tightfit.errors import Interrupted
        from tightfit.training.signals import SaveAndStop

        begin, end, steps = SaveAndStop.on_step_end, 2, []

        def stop(self, args, state, control, **kwargs):
            steps.append(state.global_step)
            if len(steps) == end:
                os.kill(os.getpid(), 15)
            return begin(self, args, state, control, **kwargs)

        SaveAndStop.on_step_end = stop
        how = {"out": folder / "run", "device": "cuda", "quiet": True}
        try:
            train(job(max_steps=5), ["micro-batch:size=4", "adafactor"], **how)
        except Interrupted as error:
            print("stopped", "checkpoint-2" in str(error))
        run = train(job(max_steps=5), resume=True, **how)
        print(steps, run.steps, run.attempts)
    """
    assert run(code, tmp_path).splitlines()[-2:] == ["stopped True", "[1, 2, 3, 4, 5] 5 2"]
