"""Every part of a training run is measured in its phase."""

from __future__ import annotations

from pathlib import Path

import pytest
from trainers import make_trainer, scripted

from tightfit.engine.meter import OTHER


@pytest.mark.parametrize("specs", [["micro-batch:size=4"], ["optimizer-in-backward"]])
def test_the_phases_of_two_steps_follow_each_other(tmp_path: Path, specs: list[str]) -> None:
    trainer = make_trainer(tmp_path, *specs, max_steps=4, compute_metrics=scripted("f1", (0.9, 0.5)))
    enter, entered = trainer.meter._enter, []

    def recording(name: str) -> str:
        entered.append(name)
        return enter(name)

    trainer.meter._enter = recording
    trainer.train()
    seen = [name for name, before in zip(entered, [None, *entered], strict=False) if name not in (OTHER, before)]
    passes = ["forward", "backward"] * (2 if "micro-batch:size=4" in specs else 1)
    epoch = [*passes, "step", "step", *passes, "step", "step", "evaluate", "save"]
    assert seen == ["save", *epoch, *epoch, "load-best"]
