"""Reports of small real runs: finished, failed, resumed, several side by side, and with incomplete records."""

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
from tightfit.i18n import LANGUAGES, render, using_language
from tightfit.messages import msg, name
from tightfit.report.html import report_page, write_report
from tightfit.report.model_card import write_card
from tightfit.report.names import phase_name
from tightfit.runs.folder import read_run_folder
from tightfit.runs.header import load_header, record_failure
from tightfit.strategies import STRATEGIES
from tightfit.units import format_bytes

REASON = "the disk is full"
SECTIONS = (
    "Model and data",
    "Training setup",
    "Why this recipe",
    "Memory and time",
    "Quality",
    "Suggestions",
    "Using the model",
    "Notes",
)


@pytest.fixture(scope="module")
def failed(tiny_model: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A run that failed in its second epoch, after a checkpoint."""
    from tightfit.training.trainer import Trainer

    folder = tmp_path_factory.mktemp("failed")
    data = write_reviews(folder / "reviews.csv")
    training_step = Trainer.training_step

    def step(trainer: Trainer, *args: Any, **kwargs: Any) -> Any:
        if trainer.state.global_step == 10:
            raise RunFailed(REASON)
        return training_step(trainer, *args, **kwargs)

    job = Job(model=str(tiny_model), data=str(data), batch_size=8, max_length=16, epochs=2, learning_rate=5e-3)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(Trainer, "training_step", step)
        with pytest.raises(RunFailed):
            train(job, ["micro-batch:size=4"], out=folder / "run", device="cpu", quiet=True, save_every="2 steps")
    return folder / "run"


@pytest.fixture(scope="module")
def resumed(failed: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("resumed") / "run"
    shutil.copytree(failed, folder)
    values = load_job(folder)
    train(Job(**values), ["micro-batch:size=4"], out=folder, device="cpu", quiet=True, resume=True)
    return folder


def load_job(folder: Path) -> dict[str, Any]:
    from tightfit.job import read_job_file

    return read_job_file(folder / "job.yaml")[0]


def page_of(*folders: Path, language: str = "en") -> str:
    return report_page([read_run_folder(folder) for folder in folders], language)


def text_of(page: str) -> str:
    """The visible text of a page."""
    import html

    body = page.partition("<body>")[2]
    return html.unescape(re.sub(r"\s+", " ", re.sub(r"<[^>]+>", " ", body)))


class Loaded(HTMLParser):
    """The tags of a page, and every address that a browser would fetch."""

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


@pytest.mark.parametrize("language", LANGUAGES)
@pytest.mark.parametrize("which", ["trained", "failed", "resumed"])
def test_report_has_every_section_and_fetches_nothing(
    which: str, language: str, request: pytest.FixtureRequest
) -> None:
    page = page_of(request.getfixturevalue(which), language=language)
    headings = re.findall(r"<h2>(.*?)</h2>", page)
    assert headings == [render(name(heading), language) for heading in SECTIONS]
    loaded = Loaded(page)
    assert all(link.startswith(("#", "data:")) for link in loaded.links), loaded.links
    assert not loaded.tags & {"script", "iframe", "object", "embed", "base"}
    assert "@import" not in page
    assert "http" not in page.replace("http-equiv", "")
    ids = re.findall(r' id="([^"]+)"', page)
    assert len(ids) == len(set(ids))
    assert "Traceback" not in page
    assert "None" not in text_of(page).split()


def test_report_shows_the_numbers_of_the_run(trained: Path) -> None:
    run, text = load_run(trained), text_of(page_of(trained))
    assert f"{run.metrics['eval_f1']:.4f}" in text
    assert run.predicted.phases is not None
    for phase, size in run.predicted.phases.items():
        if phase in run.measured.phases:
            error = f"{size / run.measured.phases[phase] - 1:+.1%}"
            assert f"{format_bytes(size)} {format_bytes(run.measured.phases[phase])} {error}" in text
    assert "micro-batch:size=4" in text
    assert "This run did not finish" not in text
    assert f"tightfit train {trained}/job.yaml --out" in text


def test_header_describes_the_run_before_its_first_step(trained: Path) -> None:
    run, header = load_run(trained), load_header(trained)
    assert header is not None
    assert header.steps == run.steps == 42
    assert header.data == run.data
    assert (header.parameters, header.trainable_parameters) == (run.parameters, run.trainable_parameters)
    assert header.estimate is not None
    assert header.estimate["peak_bytes"] == run.predicted.peak_bytes
    assert header.step is not None
    assert header.step.micro_batches == 2
    assert {each.kind for each in header.largest_tensors} == {"activations", "optimizer state"}
    assert all(each.owner and each.owner.startswith(("bert.", "classifier.")) for each in header.largest_tensors)
    assert header.smaller_recipes[0].recipe == ["micro-batch:size=2"]
    assert header.smaller_recipes[0].peak_bytes < header.estimate["peak_bytes"]
    assert [each.error for each in header.attempts] == [None]
    assert run.attempts == 1


def test_failed_run_shows_where_it_stopped_why_and_how_to_resume(failed: Path) -> None:
    text = text_of(page_of(failed))
    assert "This run did not finish. Its last checkpoint is at step 10 of 14." in text
    assert REASON in text
    assert f"tightfit train --out {failed} --resume" in text
    assert "the run did not finish" in text
    assert "backward" in text
    assert "There is no model yet" in text


def test_killed_run_has_no_recorded_reason(failed: Path, tmp_path: Path) -> None:
    folder = tmp_path / "run"
    shutil.copytree(failed, folder)
    content = json.loads((folder / "start.json").read_text("utf-8"))
    content["attempts"][-1]["error"] = None
    (folder / "start.json").write_text(json.dumps(content), "utf-8")
    assert "No reason was recorded" in text_of(page_of(folder))


def test_failed_run_without_evaluation_checkpoint_or_header(failed: Path, tmp_path: Path) -> None:
    folder = tmp_path / "run"
    shutil.copytree(failed, folder)
    for checkpoint in folder.glob("checkpoint-*"):
        shutil.rmtree(checkpoint)
    text = text_of(page_of(folder))
    assert "No evaluation: the run stopped" in text
    assert "It has no checkpoint to resume from." in text
    (folder / "start.json").unlink()
    text = text_of(page_of(folder))
    assert "This run has no saved prediction." in text
    assert "This run did not finish." in text


def test_resumed_run_lists_its_starts(resumed: Path, failed: Path) -> None:
    run, header = load_run(resumed), load_header(resumed)
    assert header is not None
    assert [each.from_step for each in header.attempts] == [0, 10]
    assert [each.error for each in header.attempts] == [REASON, None]
    assert run.attempts == 2
    text = text_of(page_of(resumed))
    assert "It was started 2 times" in text
    assert "from step 10" in text
    assert "This run did not finish" not in text


def test_several_runs_side_by_side(trained: Path, failed: Path, resumed: Path) -> None:
    page = page_of(trained, failed, resumed)
    text = text_of(page)
    assert "3 runs side by side" in text
    for folder in (trained, resumed):
        assert f"{load_run(folder).metrics['eval_f1']:.4f}" in text
    assert "10 / 14" in text
    assert page.count("<details>") >= 3
    assert all(link.startswith(("#", "data:")) for link in Loaded(page).links)
    ids = re.findall(r' id="([^"]+)"', page)
    assert all(f"#{each}" in page for each in ids)


@pytest.mark.parametrize("lost", [[], ["attempts"]])
def test_run_record_without_optional_fields(trained: Path, tmp_path: Path, lost: list[str]) -> None:
    content = json.loads((trained / "run.json").read_text("utf-8"))
    reduced = {key: value for key, value in content.items() if key not in lost}
    reduced["measured"] = {key: value for key, value in reduced["measured"].items() if key != "epochs"}
    (tmp_path / "run.json").write_text(json.dumps(reduced), "utf-8")
    text = text_of(page_of(tmp_path))
    assert f"{content['metrics']['eval_f1']:.4f}" in text
    assert format_bytes(content["measured"]["peak_bytes"]) in text


@pytest.mark.parametrize("lost", ["predicted", "result", "max_length", "notes", "versions"])
def test_run_record_without_a_required_field_is_rejected(trained: Path, tmp_path: Path, lost: str) -> None:
    content = json.loads((trained / "run.json").read_text("utf-8"))
    del content[lost]
    (tmp_path / "run.json").write_text(json.dumps(content), "utf-8")
    with pytest.raises(BadInput, match="damaged or was written by another version"):
        read_run_folder(tmp_path)


def test_report_without_a_prediction(
    tiny_model: Path, reviews: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    from tightfit.simulation.job_simulation import Simulation

    monkeypatch.setattr(Simulation, "estimate", lambda *_: 1 // 0)
    job = Job(model=str(tiny_model), data=str(reviews), batch_size=8, max_length=32, max_steps=2)
    train(job, out=tmp_path / "run", device="cpu", quiet=True)
    text = text_of(page_of(tmp_path / "run"))
    assert "Peak memory could not be predicted for this run; only measured values are shown." in text
    assert "no prediction" in text
    assert "No recipe is known to need less memory." in text


@pytest.mark.slow
def test_run_under_a_budget_shows_its_plan(tiny_model: Path, reviews: Path, tmp_path: Path) -> None:
    job = Job(model=str(tiny_model), data=str(reviews), batch_size=8, max_length=32)
    train(job, out=tmp_path / "run", device="cpu", budget="3GB", quiet=True)
    header = load_header(tmp_path / "run")
    assert header is not None
    assert header.plan is not None
    assert header.budget_bytes == 3 << 30
    text = text_of(page_of(tmp_path / "run"))
    assert "The budget is 3.00 GiB" in text
    for option in header.plan["alternatives"]:
        assert " ".join(option["recipe"]) in text
    for reason in header.plan["reason_details"]:
        assert reason["strategy"] in text


def test_names_are_escaped(trained: Path, tmp_path: Path) -> None:
    folder = tmp_path / "<script>alert(1)</script>"
    shutil.copytree(trained, folder.parent / "run")
    folder.parent.joinpath("run").rename(tmp_path / "a<b>&c")
    page = page_of(tmp_path / "a<b>&c")
    assert "a<b>&c" not in page
    assert "a&lt;b&gt;&amp;c" in page


def test_report_is_written_to_the_run_folder_or_to_out(
    trained: Path, failed: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    folder = tmp_path / "run"
    shutil.copytree(trained, folder)
    assert write_report([folder]) == folder / "report.html"
    assert write_report([folder], tmp_path / "new" / "page.html", "zh").read_text("utf-8").count("报告")
    monkeypatch.chdir(tmp_path)
    assert write_report([folder, failed]) == Path("report.html")
    assert (tmp_path / "report.html").is_file()
    with pytest.raises(OutputError, match=r"should end in \.html"):
        write_report([folder], tmp_path / "page.pdf")


@pytest.mark.parametrize("content", ["", "[]", "{}", '{"job": 3}', "\0" * 9])
def test_damaged_run_record_is_rejected(tmp_path: Path, content: str) -> None:
    (tmp_path / "run.json").write_text(content, "utf-8")
    with pytest.raises(BadInput, match="damaged or was written by another version"):
        read_run_folder(tmp_path)


def test_report_command(trained: Path, tmp_path: Path) -> None:
    from tightfit.cli.app import app

    done = CliRunner().invoke(app, ["report", str(trained), "--out", str(tmp_path / "a.html"), "--json"])
    assert json.loads(done.stdout) == {"report": str(tmp_path / "a.html"), "runs": [str(trained)]}
    done = CliRunner().invoke(app, ["report", str(trained), "--out", str(tmp_path / "b.html")])
    assert done.stdout.split() == [str(tmp_path / "b.html"), "written"]
    for options in (["nowhere"], [str(tmp_path)], [str(trained), "--lang", "fr"], [str(trained), "--out", "a.txt"]):
        failed = CliRunner().invoke(app, ["report", *options]).exception
        assert isinstance(failed, TightfitError)
        assert failed.exit_code == 2


def test_failed_start_leaves_the_folder_free(failed: Path, tmp_path: Path) -> None:
    from tightfit.runs.folder import check_run_folder, discard_start

    folder = tmp_path / "run"
    folder.mkdir()
    shutil.copy(failed / "start.json", folder)
    check_run_folder(folder, resume=False)  # killed before its job was written: free for another try
    shutil.copy(failed / "job.yaml", folder)
    discard_start(folder)
    assert not folder.exists()


def test_model_card_shows_predicted_beside_measured(trained: Path) -> None:
    run, readme = load_run(trained), (trained / "README.md").read_text("utf-8")
    assert run.predicted.phases is not None
    for phase, size in run.measured.phases.items():
        predicted = format_bytes(run.predicted.phases[phase]) if phase in run.predicted.phases else "–"
        assert f"| {phase_name(phase)} | {predicted} | {format_bytes(size)} |" in readme
    assert f"- `micro-batch:size=4`: {STRATEGIES['micro-batch'].summary}" in readme
    assert not re.findall(r"\]\((?!http)", readme)


def test_runs_and_estimates_render_in_a_notebook(trained: Path) -> None:
    from tightfit import estimate

    run = load_run(trained)
    shown = run._repr_html_()
    assert f"{run.metrics['eval_f1']:.4f}" in shown
    assert "<svg" in shown
    predicted = estimate(run.job, run.recipe, "cpu")
    shown = predicted._repr_html_()
    assert format_bytes(predicted.peak) in shown
    assert all(f"<td>{phase_name(phase)}</td>" in shown for phase in predicted.phases)
    assert "<svg" in shown


def test_no_browser_is_opened_without_a_terminal(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    import webbrowser

    from tightfit.report.html import open_in_browser

    monkeypatch.setattr(webbrowser, "open", lambda _: pytest.fail("opened"))
    assert not open_in_browser(tmp_path)


def test_a_run_of_an_english_session_is_reported_in_chinese(trained: Path, failed: Path) -> None:
    """Also its notes and the reason why it stopped, which are stored as data."""
    assert any("training rows" in note for note in load_run(trained).notes)
    for folder in (trained, failed):
        page = re.sub(r"<pre>.*?</pre>", "", page_of(folder, language="zh"), flags=re.DOTALL)
        assert re.findall(r"[A-Za-z]{3,} [a-z]{3,} [a-z]{3,}", text_of(page).replace(REASON, "")) == []
        assert "条训练样本" in page
    assert f"中断原因：{REASON}" in page_of(failed, language="zh")


def test_messages_in_a_header_stay_data(tmp_path: Path, trained: Path) -> None:
    """Also those of the plan, and after the header was read and written again."""
    header = load_header(trained)
    assert header is not None
    plan = {"rejected": [msg("{name}: {reason}", name="lora", reason=msg("Leave it out."))]}
    header.model_copy(update={"plan": plan}).save(tmp_path)
    record_failure(tmp_path, msg("stopped."))
    again = load_header(tmp_path)
    assert again is not None
    assert again.plan == {"rejected": ["lora: Leave it out."]}
    assert render(again.plan["rejected"][0], "zh") == "lora：请去掉它。"
    assert render(again.attempts[-1].error or "", "zh") == "已停止。"
    assert [note.template for note in again.notes] == [note.template for note in header.notes]


def test_the_model_card_is_in_the_language_of_the_session(trained: Path, tmp_path: Path) -> None:
    run = load_run(trained).model_copy(update={"folder": str(tmp_path)})
    with using_language("zh"):
        write_card(run)
    model_card = (tmp_path / "README.md").read_text("utf-8").partition("\n# ")[2]
    assert "训练效果" in model_card
    assert "方案中的策略：" in model_card
    assert re.findall(r"[A-Za-z]{3,} [a-z]{3,} [a-z]{3,}", re.sub(r"```.*?```", "", model_card, flags=re.DOTALL)) == []
