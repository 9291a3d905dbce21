"""Models that cannot be built: one sentence that says why, with a fix that fits."""

from __future__ import annotations

from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import transformers

from tightfit.errors import ModelError
from tightfit.models import load_model


def load(folder: Path, error: Exception, *, random_weights: bool) -> None:
    def fail(*args: Any, **kwargs: Any) -> Any:
        raise error

    head = SimpleNamespace(from_config=fail, from_pretrained=fail)
    load_model(head, str(folder), transformers.BertConfig(), random_weights=random_weights)


@pytest.mark.parametrize("random_weights", [True, False])
def test_a_missing_library_is_named(tmp_path: Path, random_weights: bool) -> None:
    error = ImportError("LayoutLMv2Model requires the detectron2 library but it was not found. Check out the\npage")
    message = r"cannot be built: LayoutLMv2Model requires the detectron2 library but it was not found\. Install it"
    with pytest.raises(ModelError, match=message):
        load(tmp_path, error, random_weights=random_weights)


def test_random_weights_are_suggested_only_where_they_are_not_used(tmp_path: Path) -> None:
    error = TypeError("unsupported operand type(s)")
    with pytest.raises(ModelError, match=r"weights .* cannot be loaded: .*Add --random-weights"):
        load(tmp_path, error, random_weights=False)
    with pytest.raises(ModelError, match=r"cannot be built from its config: .*Correct the config"):
        load(tmp_path, error, random_weights=True)
