"""Training and planning on fake GPUs: what they use, what is recovered, and what is said."""

from __future__ import annotations

from pathlib import Path

import pytest
from gpu.fakes import GB, run


def test_a_cpu_run_leaves_the_gpu_alone(tmp_path: Path) -> None:
    """A context takes memory of the GPU and of this process, and processes cannot be forked afterwards."""
    code = """
        run = train(job(), out=folder / "run", device="cpu", quiet=True)
        print(torch.cuda.is_initialized(), fake_gpu.counters()["launches"], run.steps)
    """
    assert run(code, tmp_path) == "False 0 3"


def test_planning_for_the_gpu_traces_in_forked_processes(tmp_path: Path) -> None:
    """The parent asks the GPU for its size; its children only simulate, and need no CUDA."""
    code = """
        from tightfit.simulation.job_simulation import SimulationSetup
        trace, parent = SimulationSetup.trace, os.getpid()

        def traced(setup, recipe, shapes):
            done = trace(setup, recipe, shapes)  # a recipe that is rejected is asked for again: that takes no time
            if os.getpid() == parent:
                print("traced in the parent:", *recipe.specs)
            return done

        SimulationSetup.trace = traced
        made = plan(job(), "2GB", device="cuda")
        print(torch.cuda.is_initialized(), made.fits)
    """
    assert run(code, tmp_path).splitlines() == ["True True"]


@pytest.mark.parametrize("recipe", ["", "micro-batch:size=4 adafactor", "offload-optimizer", "mixed-precision"])
def test_training_runs_on_the_gpu(tmp_path: Path, recipe: str) -> None:
    code = f"""
        run = train(job(), {recipe.split()}, out=folder / "run", device="cuda", quiet=True)
        print(run.steps, run.device, run.measured.peak_bytes > 0, fake_gpu.counters()["launches"] > 100)
    """
    assert run(code, tmp_path, capability="8.6", name="RTX 3050") == "3 RTX 3050 True True"


def test_running_out_of_memory_is_recovered_with_smaller_micro_batches(tmp_path: Path) -> None:
    """The budget leaves room for weights and optimizer state and for a few rows."""
    code = """
        wide = make_model(folder / "wide", hidden_size=512, num_attention_heads=8, intermediate_size=2048)
        big = job(model=str(wide), random_weights=True, batch_size=32)
        run = train(big, out=folder / "run", device="cuda", budget="none", quiet=True, preflight=False)
        print(run.steps, any("out of memory in step" in note and "continuing with" in note for note in run.notes))
    """
    assert run(code, tmp_path, memory=GB, context=GB - (150 << 20)) == "3 True"


def test_a_second_gpu_is_not_used(tmp_path: Path) -> None:
    code = """
        run = train(job(), out=folder / "run", device="cuda", quiet=True)
        print(run.steps, torch.cuda.device_count(), torch.cuda.memory_reserved(1))
    """
    assert run(code, tmp_path, count=2) == "3 2 0"


def test_no_visible_gpu(tmp_path: Path) -> None:
    text = run('train(job(), out=folder / "run", device="cuda", quiet=True)', tmp_path, fails=True, visible="")
    assert "torch finds no CUDA GPU, so 'cuda:0' cannot be used: use --device cpu" in text


def test_a_gpu_without_kernels_in_this_build_of_torch(tmp_path: Path) -> None:
    gpu = {"capability": "6.1", "name": "GTX 1050 Ti", "no_kernel_image": True}
    text = run('train(job(), out=folder / "run", device="cuda", quiet=True)', tmp_path, fails=True, **gpu)
    assert "This build of torch has no kernels for GTX 1050 Ti (compute capability 6.1" in text
