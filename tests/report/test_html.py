"""The report of real small runs: finished, died, resumed, several, and of earlier versions."""

from __future__ import annotations

import json
import re
import shutil
from html.parser import HTMLParser
from pathlib import Path
from typing import Any

import pytest
from conftest import write_reviews
from typer.testing import CliRunner

from tightfit import Job, load_run, train
from tightfit.errors import BadInput, OutputError, RunFailed, TightfitError
from tightfit.report.html import report_page, write_report
from tightfit.report.i18n import LANGUAGES, Strings
from tightfit.runs.folder import read_account
from tightfit.runs.header import load_header
from tightfit.units import format_bytes

REASON = "the disk went to the beach"
SECTIONS = ("what", "how", "why", "cost", "good", "next", "use", "notes")


@pytest.fixture(scope="module")
def died(tiny_model: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A run that stopped in its second epoch, behind a checkpoint."""
    from tightfit.training.trainer import Trainer

    folder = tmp_path_factory.mktemp("died")
    data = write_reviews(folder / "reviews.csv")
    take = Trainer.training_step

    def step(trainer: Trainer, *args: Any, **kwargs: Any) -> Any:
        if trainer.state.global_step == 10:
            raise RunFailed(REASON)
        return take(trainer, *args, **kwargs)

    job = Job(model=str(tiny_model), data=str(data), batch_size=8, max_length=16, epochs=2, learning_rate=5e-3)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(Trainer, "training_step", step)
        with pytest.raises(RunFailed):
            train(job, ["micro-batch:size=4"], out=folder / "run", device="cpu", quiet=True, save_every="2 steps")
    return folder / "run"


@pytest.fixture(scope="module")
def resumed(died: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("resumed") / "run"
    shutil.copytree(died, folder)
    values = load_job(folder)
    train(Job(**values), ["micro-batch:size=4"], out=folder, device="cpu", quiet=True, resume=True)
    return folder


def load_job(folder: Path) -> dict[str, Any]:
    from tightfit.job import read_job_file

    return read_job_file(folder / "job.yaml")[0]


def page_of(*folders: Path, language: str = "en") -> str:
    return report_page([read_account(folder) for folder in folders], Strings.of(language))


def plain(page: str) -> str:
    """What a reader reads."""
    import html

    body = page.partition("<body>")[2]
    return html.unescape(re.sub(r"\s+", " ", re.sub(r"<[^>]+>", " ", body)))


class Loaded(HTMLParser):
    """Collects whatever a browser would fetch, and everything that could fetch more."""

    def __init__(self, page: str) -> None:
        super().__init__()
        self.links: list[str] = []
        self.tags: set[str] = set()
        self.feed(page)

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.tags.add(tag)
        fetching = ("src", "href", "xlink:href", "srcset", "data", "action", "poster", "background")
        self.links += [value or "" for name, value in attrs if name in fetching]
        self.links += re.findall(r"url\((.*?)\)", " ".join(value or "" for _, value in attrs))


@pytest.mark.parametrize("language", list(LANGUAGES))
@pytest.mark.parametrize("which", ["trained", "died", "resumed"])
def test_every_section_is_there_and_nothing_is_fetched(
    which: str, language: str, request: pytest.FixtureRequest
) -> None:
    page, say = page_of(request.getfixturevalue(which), language=language), Strings.of(language)
    headings = re.findall(r"<h2>(.*?)</h2>", page)
    assert headings == [say(name) for name in SECTIONS]
    loaded = Loaded(page)
    assert all(link.startswith(("#", "data:")) for link in loaded.links), loaded.links
    assert not loaded.tags & {"script", "iframe", "object", "embed", "base"}
    assert "@import" not in page
    assert "http" not in page.replace("http-equiv", "")
    ids = re.findall(r' id="([^"]+)"', page)
    assert len(ids) == len(set(ids))
    assert "Traceback" not in page
    assert "None" not in plain(page).split()


def test_numbers_are_those_of_the_run(trained: Path) -> None:
    run, text = load_run(trained), plain(page_of(trained))
    assert f"{run.metrics['eval_f1']:.4f}" in text
    assert run.predicted.phases is not None
    for phase, size in run.predicted.phases.items():
        if phase in run.measured.phases:
            error = f"{size / run.measured.phases[phase] - 1:+.1%}"
            assert f"{format_bytes(size)} {format_bytes(run.measured.phases[phase])} {error}" in text
    assert "micro-batch:size=4" in text
    assert "This run did not finish" not in text
    assert f"tightfit train {trained}/job.yaml --out" in text


def test_what_is_known_before_the_first_step(trained: Path) -> None:
    run, known = load_run(trained), load_header(trained)
    assert known is not None
    assert known.steps == run.steps == 42
    assert known.data == run.data
    assert (known.parameters, known.trainable_parameters) == (run.parameters, run.trainable_parameters)
    assert known.estimate is not None
    assert known.estimate["peak_bytes"] == run.predicted.peak_bytes
    assert known.step is not None
    assert known.step.slices == 2
    assert {each.kind for each in known.largest} == {"activations", "optimizer state"}
    assert all(each.owner and each.owner.startswith(("bert.", "classifier.")) for each in known.largest)
    assert known.smaller[0].recipe == ["micro-batch:size=2"]
    assert known.smaller[0].peak_bytes < known.estimate["peak_bytes"]
    assert [each.ended for each in known.attempts] == [None]
    assert run.attempts == 1


def test_a_run_that_died_says_where_why_and_how_to_go_on(died: Path) -> None:
    text = plain(page_of(died))
    assert "This run did not finish. Its last checkpoint is from step 10 of 14." in text
    assert REASON in text
    assert f"tightfit train --out {died} --resume" in text
    assert "the run did not finish" in text
    assert "backward" in text
    assert "There is no model yet" in text


def test_a_killed_run_left_no_word(died: Path, tmp_path: Path) -> None:
    folder = tmp_path / "run"
    shutil.copytree(died, folder)
    content = json.loads((folder / "start.json").read_text("utf-8"))
    content["attempts"][-1]["ended"] = None
    (folder / "start.json").write_text(json.dumps(content), "utf-8")
    assert "It left no word" in plain(page_of(folder))


def test_without_an_evaluation_and_without_a_checkpoint(died: Path, tmp_path: Path) -> None:
    folder = tmp_path / "run"
    shutil.copytree(died, folder)
    for checkpoint in folder.glob("checkpoint-*"):
        shutil.rmtree(checkpoint)
    text = plain(page_of(folder))
    assert "There was no evaluation" in text
    assert "It has no checkpoint from which it could go on." in text
    (folder / "start.json").unlink()  # as of a tightfit from before there was one
    text = plain(page_of(folder))
    assert "This run holds no forecast." in text
    assert "This run did not finish." in text


def test_a_resumed_run_says_so(resumed: Path, died: Path) -> None:
    run, known = load_run(resumed), load_header(resumed)
    assert known is not None
    assert [each.from_step for each in known.attempts] == [0, 10]
    assert [each.ended for each in known.attempts] == [REASON, None]
    assert run.attempts == 2
    text = plain(page_of(resumed))
    assert "It was started 2 times" in text
    assert "from step 10" in text
    assert "This run did not finish" not in text


def test_several_runs_stand_side_by_side(trained: Path, died: Path, resumed: Path) -> None:
    page = page_of(trained, died, resumed)
    text = plain(page)
    assert "3 runs side by side" in text
    for folder in (trained, resumed):
        assert f"{load_run(folder).metrics['eval_f1']:.4f}" in text
    assert "10 / 14" in text
    assert page.count("<details>") >= 3
    assert all(link.startswith(("#", "data:")) for link in Loaded(page).links)
    ids = re.findall(r' id="([^"]+)"', page)
    assert all(f"#{each}" in page for each in ids)


@pytest.mark.parametrize("lost", [["attempts"], ["attempts", "predicted", "result", "max_length", "notes", "versions"]])
def test_records_of_earlier_versions(trained: Path, tmp_path: Path, lost: list[str]) -> None:
    folder = tmp_path / "run"
    folder.mkdir()
    content = json.loads((trained / "run.json").read_text("utf-8"))
    early = {key: value for key, value in content.items() if key not in lost}
    early["measured"] = {key: value for key, value in early["measured"].items() if key != "epochs"}
    (folder / "run.json").write_text(json.dumps(early), "utf-8")
    text = plain(page_of(folder))
    assert f"{content['metrics']['eval_f1']:.4f}" in text
    assert format_bytes(content["measured"]["peak_bytes"]) in text


def test_a_training_that_could_not_be_foretold(
    tiny_model: Path, reviews: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    from tightfit.simulation.simulation import Simulation

    monkeypatch.setattr(Simulation, "phases", lambda *_: 1 // 0)
    job = Job(model=str(tiny_model), data=str(reviews), batch_size=8, max_length=32, max_steps=2)
    train(job, out=tmp_path / "run", device="cpu", quiet=True)
    text = plain(page_of(tmp_path / "run"))
    assert "Memory could not be foretold for this run; this is what was measured." in text
    assert "not foretold" in text
    assert "Nothing is known that would take less memory." in text


def test_a_run_under_a_budget_says_why(tiny_model: Path, reviews: Path, tmp_path: Path) -> None:
    job = Job(model=str(tiny_model), data=str(reviews), batch_size=8, max_length=32)
    train(job, out=tmp_path / "run", device="cpu", budget="3GB", quiet=True)
    known = load_header(tmp_path / "run")
    assert known is not None
    assert known.plan is not None
    assert known.budget_bytes == 3 << 30
    text = plain(page_of(tmp_path / "run"))
    assert "The budget is 3.00 GiB" in text
    for option in known.plan["alternatives"]:
        assert " ".join(option["recipe"]) in text
    for reason in known.plan["why"]:
        assert reason["strategy"] in text


def test_names_are_never_tags(trained: Path, tmp_path: Path) -> None:
    folder = tmp_path / "<script>alert(1)</script>"
    shutil.copytree(trained, folder.parent / "run")
    folder.parent.joinpath("run").rename(tmp_path / "a<b>&c")
    page = page_of(tmp_path / "a<b>&c")
    assert "a<b>&c" not in page
    assert "a&lt;b&gt;&amp;c" in page


def test_where_a_report_is_written(trained: Path, died: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    folder = tmp_path / "run"
    shutil.copytree(trained, folder)
    assert write_report([folder]) == folder / "report.html"
    assert write_report([folder], tmp_path / "new" / "page.html", "zh").read_text("utf-8").count("报告")
    monkeypatch.chdir(tmp_path)
    assert write_report([folder, died]) == Path("report.html")
    assert (tmp_path / "report.html").is_file()
    with pytest.raises(OutputError, match=r"should end in \.html"):
        write_report([folder], tmp_path / "page.pdf")


@pytest.mark.parametrize("content", ["", "[]", "{}", '{"job": 3}', "\0" * 9])
def test_what_is_no_run_is_said_in_a_sentence(tmp_path: Path, content: str) -> None:
    (tmp_path / "run.json").write_text(content, "utf-8")
    with pytest.raises(BadInput, match="damaged or of another version"):
        read_account(tmp_path)


def test_the_verb(trained: Path, tmp_path: Path) -> None:
    from tightfit.cli.app import app

    done = CliRunner().invoke(app, ["report", str(trained), "--out", str(tmp_path / "a.html"), "--json"])
    assert json.loads(done.stdout) == {"report": str(tmp_path / "a.html"), "runs": [str(trained)]}
    done = CliRunner().invoke(app, ["report", str(trained), "--out", str(tmp_path / "b.html")])
    assert done.stdout.split() == [str(tmp_path / "b.html"), "written"]
    for words in (["nowhere"], [str(tmp_path)], [str(trained), "--lang", "fr"], [str(trained), "--out", "a.txt"]):
        failed = CliRunner().invoke(app, ["report", *words]).exception
        assert isinstance(failed, TightfitError)
        assert failed.exit_code == 2


def test_a_beginning_that_does_not_fly_leaves_nothing(died: Path, tmp_path: Path) -> None:
    from tightfit.runs.folder import check_run_folder, discard_start

    folder = tmp_path / "run"
    folder.mkdir()
    shutil.copy(died / "start.json", folder)
    check_run_folder(folder, resume=False)  # killed before its job was written: free for another try
    shutil.copy(died / "job.yaml", folder)
    discard_start(folder)
    assert not folder.exists()


def test_the_card_has_foretold_beside_measured(trained: Path) -> None:
    run, card = load_run(trained), (trained / "README.md").read_text("utf-8")
    assert run.predicted.phases is not None
    for phase, size in run.measured.phases.items():
        predicted = format_bytes(run.predicted.phases[phase]) if phase in run.predicted.phases else "–"
        assert f"| {phase} | {predicted} | {format_bytes(size)} |" in card
    assert "- `micro-batch:size=4` runs the batch" in card
    assert not re.findall(r"\]\((?!http)", card)


def test_runs_and_bills_show_themselves_in_a_notebook(trained: Path) -> None:
    from tightfit import estimate

    run = load_run(trained)
    shown = run._repr_html_()
    assert f"{run.metrics['eval_f1']:.4f}" in shown
    assert "<svg" in shown
    estimate = estimate(run.job, run.recipe, "cpu")
    shown = estimate._repr_html_()
    assert format_bytes(estimate.peak) in shown
    assert all(f"<td>{phase}</td>" in shown for phase in estimate.phases)
    assert "<svg" in shown


def test_nobody_sits_before_a_test(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    import webbrowser

    from tightfit.report.html import open_in_browser

    monkeypatch.setattr(webbrowser, "open", lambda _: pytest.fail("opened"))
    assert not open_in_browser(tmp_path)
