"""What the READMEs show is what the source and the records say, and their commands exist."""

from __future__ import annotations

import importlib.util
import re
import shlex
import statistics
import sys
from pathlib import Path
from typing import Any

import pytest
import yaml

ROOT = Path(__file__).resolve().parent.parent


@pytest.fixture(scope="module")
def docs() -> Any:
    sys.path.insert(0, str(ROOT / "scripts"))
    spec = importlib.util.spec_from_file_location("docs", ROOT / "scripts" / "docs.py")
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


@pytest.mark.parametrize("name", ["README.md", "README.zh.md"])
def test_generated_blocks_are_up_to_date(docs: Any, name: str) -> None:
    text = (ROOT / name).read_text("utf-8")
    for block in docs.BLOCKS:
        assert f"<!-- {block} -->" in text, f"{name} has lost its block {block}"
    assert docs.filled(text, docs.READMES[name]) == text, "run `make docs`"


def test_generated_files_are_up_to_date(docs: Any) -> None:
    for path, content in docs.written().items():
        assert path.read_text("utf-8") == content, f"run `make docs` for {path.name}"


def test_the_records_keep_the_promise_of_accuracy(docs: Any) -> None:
    spread = docs.records.Spread.of(docs.records.memory_runs())
    assert spread.count >= 60
    assert spread.median <= 0.02
    assert spread.p95 <= 0.05
    assert spread.too_low <= spread.count / 100
    tables = docs.records.published_errors()
    errors = [abs(e) for source in ("hf_docs_sdpa_bert", "hf_docs_sdpa_gpt2") for e in tables[source]]
    assert statistics.median(errors) <= 0.05


def commands(name: str) -> list[list[str]]:
    text = (ROOT / name).read_text("utf-8")
    blocks = re.findall(r"```bash\n(.*?)```", text, re.DOTALL)
    lines = [line for block in blocks for line in block.replace("\\\n", " ").splitlines()]
    return [shlex.split(line, comments=True) for line in lines if line.startswith("tightfit ")]


@pytest.mark.parametrize("name", ["README.md", "README.zh.md"])
def test_every_command_is_one_that_the_command_line_takes(name: str) -> None:
    """Parsed by the real command line; the run itself is the business of other tests."""
    import typer

    from tightfit.cli.app import app
    from tightfit.strategies.recipe import Recipe

    group = typer.main.get_command(app)
    found = commands(name)
    assert len(found) >= 5
    for _, verb, *words in found:
        command = group.commands[verb]  # type: ignore[attr-defined]
        context = command.make_context(verb, list(words))
        Recipe.parse(context.params.get("use") or [])


def test_the_python_of_the_readme_runs(trained: Path, tiny_model: Path, tmp_path: Path) -> None:
    """The six lines, with a tiny model and file in the places of the named ones."""
    from conftest import write_reviews

    text = (ROOT / "README.md").read_text("utf-8")
    code, own_loop = re.findall(r"```python\n(.*?)```", text, re.DOTALL)
    code = code.replace("hfl/chinese-macbert-large", str(tiny_model)).replace("max_length=128", "max_length=64")
    code = code.replace("reviews.csv", str(write_reviews(tmp_path / "reviews.csv")))
    code = code.replace("runs/hotel", str(tmp_path / "hotel"))
    names: dict[str, Any] = {}
    exec(compile(code, "README.md", "exec"), names)
    assert names["run"].metrics["eval_f1"] >= 0
    assert (tmp_path / "hotel" / "run.json").is_file()
    exec(compile(own_loop, "README.md", "exec"), names)
    assert names["phases"].fits


def test_the_job_file_of_the_readme_is_one(tmp_path: Path) -> None:
    from tightfit.job import Job, read_job_file
    from tightfit.strategies.recipe import Recipe

    text = (ROOT / "README.md").read_text("utf-8")
    content = re.findall(r"```yaml\n(.*?)```", text, re.DOTALL)[0]
    assert yaml.safe_load(content)
    (tmp_path / "job.yaml").write_text(content, "utf-8")
    values, use = read_job_file(tmp_path / "job.yaml")
    assert Job(**values).batch_size == 32
    assert Recipe.parse(use).specs


def test_both_languages_say_the_same() -> None:
    """The same sections, the same commands, the same code."""
    english, chinese = ((ROOT / name).read_text("utf-8") for name in ("README.md", "README.zh.md"))
    assert len(re.findall(r"^## ", english, re.MULTILINE)) == len(re.findall(r"^## ", chinese, re.MULTILINE))
    assert commands("README.md") == commands("README.zh.md")
