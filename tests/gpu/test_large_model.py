"""A large model on a small GPU: planned, trained, and never over its memory."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from gpu.fakes import GB, ROOT, run

MODEL = ROOT.parent / "shared" / "models" / "chinese-macbert-large"
CODE = f"""
    from gpu.host_values import host_values

    data = folder / "long.csv"
    rows = [f"{{n % 2}},{{'好' * 200}}{{n}}" for n in range(150)]
    data.write_text("\\n".join(["label,text", *rows]), encoding="utf-8")
    large = job(model={str(MODEL)!r}, data=str(data), batch_size=32, max_length=128, random_weights=True)
    with host_values():
        run = train(large, budget="4GB", out=folder / "run", device="cuda", quiet=True, measure_only=True)
    print(json.dumps([run.steps, run.recipe, run.predicted.peak_bytes, run.measured.peak_bytes,
                      torch.cuda.max_memory_reserved(), fake_gpu.counters(), [str(note) for note in run.notes]]))
"""


@pytest.mark.slow
@pytest.mark.skipif(not MODEL.exists(), reason="needs ../shared")
def test_every_layer_of_macbert_large_trains_in_4_gb(tmp_path: Path) -> None:
    """325 million parameters, 32 x 128 tokens, on a GTX 1650; nothing is frozen and no allocation fails."""
    gpu = {"memory": 4 * GB, "capability": "7.5", "name": "GTX 1650"}
    found = json.loads(run(CODE, tmp_path, **gpu).splitlines()[-1])
    steps, recipe, predicted, measured, _, counters, notes = found
    assert steps == 3
    assert not any("freeze" in spec or "lora" in spec or "max-length" in spec for spec in recipe)
    assert counters["failed"] == 0
    assert counters["peak"] <= 4 * GB
    assert max(predicted, measured) <= 4 * GB
    assert not any("out of memory" in note for note in notes)
