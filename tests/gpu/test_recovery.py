"""Out-of-memory recovery on a fake GPU: any allocation of a training step fails, and nothing of it stays behind."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from gpu.fakes import run

CODE = """
    import gc, random
    from unittest import mock
    from transformers import TrainerCallback
    from tightfit.training.trainer import Trainer

    class Failing(TrainerCallback):
        def __init__(self, fail_at):
            self.fail_at, self.count = fail_at, 0

        def on_step_begin(self, args, state, control, **kwargs):
            self.start = fake_gpu.counters()["allocations"]
            if state.global_step == 1 and self.fail_at:
                fake_gpu.fail_next(str(self.fail_at))
                self.fail_at = 0

        def on_step_end(self, args, state, control, **kwargs):
            if state.global_step == 2:
                self.count = fake_gpu.counters()["allocations"] - self.start

    def train_with(failing):
        def with_callback(trainer, **kwargs):
            init(trainer, **kwargs)
            trainer.add_callback(failing)

        before, init = fake_gpu.counters()["failed"], Trainer.__init__
        with mock.patch.object(Trainer, "__init__", with_callback):
            out = folder / f"run-{failing.fail_at}"
            done = train(job(), SPECS, out=out, device="cuda", budget="none", quiet=True, preflight=False)
        gc.collect()
        said = [str(note) for note in done.notes if "out of memory" in note]
        counters = fake_gpu.counters()
        return done.steps, counters["failed"] - before, said, counters["used"], torch.cuda.memory_allocated()

    undisturbed = Failing(0)
    results = [train_with(undisturbed)]
    for fail_at in random.Random(0).sample(range(1, undisturbed.count + 1), CASES):
        results.append((*train_with(Failing(fail_at)), fail_at))
    print(json.dumps([undisturbed.count, results]))
"""


@pytest.fixture
def uncached(monkeypatch: pytest.MonkeyPatch) -> None:
    """Every tensor is an allocation from the driver."""
    monkeypatch.setenv("PYTORCH_NO_CUDA_MEMORY_CACHING", "1")


def check(folder: Path, recipe: str, cases: int, **gpu: Any) -> None:
    """Every run finishes and says once what happened; the GPU is as empty afterwards as after an undisturbed run."""
    code = CODE.replace("SPECS", repr(recipe.split())).replace("CASES", str(cases))
    count, ((steps, failed, said, used, allocated), *disturbed) = json.loads(run(code, folder, **gpu).splitlines()[-1])
    assert count > 100
    assert (steps, failed, said, allocated) == (3, 0, [], 0)
    assert len(disturbed) == cases
    for steps, failed, said, used_now, allocated, fail_at in disturbed:
        assert (steps, failed, len(said), used_now, allocated) == (3, 1, 1, used, 0), (fail_at, said)


@pytest.mark.usefixtures("uncached")
def test_any_allocation_of_a_step_may_fail(tmp_path: Path) -> None:
    """Two of them, at random: of the model and of clipping."""
    check(tmp_path, "micro-batch:size=4", 2)
