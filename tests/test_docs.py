"""The documentation is current with the source and the records, and its commands and code run."""

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
READMES = ["README.md", "README.zh.md"]
PAGES = [*READMES, *(f"docs/{path.name}" for path in sorted((ROOT / "docs").glob("*.md")))]


@pytest.fixture(scope="module")
def docs() -> Any:
    sys.path.insert(0, str(ROOT / "scripts"))
    spec = importlib.util.spec_from_file_location("docs", ROOT / "scripts" / "docs.py")
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def read(page: str) -> str:
    return (ROOT / page).read_text("utf-8")


@pytest.mark.parametrize("page", PAGES)
def test_every_marker_names_a_block_and_is_closed(docs: Any, page: str) -> None:
    found = docs.MARKER.findall(read(page))
    assert [name for _, name in found if name not in docs.BLOCKS] == []
    opening, closing = found[::2], found[1::2]
    assert opening == [("", name) for _, name in opening]
    assert closing == [("/", name) for _, name in opening]


@pytest.mark.parametrize("page", PAGES)
def test_generated_blocks_are_up_to_date(docs: Any, page: str) -> None:
    assert docs.filled(read(page), docs.language(ROOT / page)) == read(page), "run `make docs`"


def test_every_block_is_used_and_described(docs: Any) -> None:
    used = {name for page in PAGES if page != "README.zh.md" for name in docs.markers(read(page))}
    assert used == set(docs.BLOCKS)
    assert set(docs.BLOCKS) <= set(docs.__doc__.split())


def test_both_readmes_show_the_same_blocks(docs: Any) -> None:
    assert docs.markers(read("README.md")) == docs.markers(read("README.zh.md"))


def test_generated_files_are_up_to_date(docs: Any) -> None:
    for path, content in docs.written().items():
        assert path.read_text("utf-8") == content, f"run `make docs` for {path.name}"


def test_recorded_prediction_errors_are_small(docs: Any) -> None:
    spread = docs.records.Spread.of(docs.records.memory_runs())
    assert spread.count >= 60
    assert spread.median <= 0.02
    assert spread.p95 <= 0.05
    assert spread.too_low <= spread.count / 100
    errors = docs.records.published_grades()["A, current versions"]
    assert len(errors) >= 30
    assert max(map(abs, errors)) <= 0.03


def test_recorded_gpu_cells_cover_what_the_page_says_and_are_exact_in_the_median(docs: Any) -> None:
    """How many single cells miss the goals is printed on the page; it is not hidden by a wider limit here."""
    cells = docs.records.gpu_cells()
    assert len(cells) >= 200
    assert len(docs.records.record("gpu")["cells"]) == len(cells), "a cell failed"
    models, recipes = {cell.model for cell in cells}, {cell.recipe for cell in cells}
    assert len(models) >= 5
    assert {(cell.recipe, cell.model) for cell in cells} == {(recipe, model) for recipe in recipes for model in models}
    pairs = {(precision, where) for precision in ("fp32", "fp16", "bf16") for where in ("7.5", "8.6", "9.0")}
    assert {(cell.precision, cell.capability) for cell in cells} == pairs - {("bf16", "7.5")}  # it has no bf16
    for recipe in recipes:
        clash = {"bf16-weights": {"fp16", "bf16"}}.get(recipe, {"fp16"} if "in-backward" in recipe else set())
        assert {cell.precision for cell in cells if cell.recipe == recipe} == {"fp32", "fp16", "bf16"} - clash
    assert statistics.median(abs(cell.live) for cell in cells) <= 0.001
    assert statistics.median(abs(cell.reserved) for cell in cells) <= 0.02


@pytest.mark.parametrize("readme", READMES)
def test_a_readme_is_short(readme: str) -> None:
    assert len(read(readme).splitlines()) <= 250


@pytest.mark.parametrize("page", [page for page in PAGES if page.startswith("docs/")])
def test_a_page_states_its_purpose_first(page: str) -> None:
    title, empty, first, *_ = read(page).splitlines()
    assert title.startswith("# ")
    assert not empty
    assert first.startswith("This page is ")


@pytest.mark.parametrize("page", PAGES)
def test_links_have_a_target(page: str) -> None:
    for target in re.findall(r"\]\(([^)\s]+)\)", read(page)):
        if not target.startswith("http"):
            name, _, anchor = target.partition("#")
            path = (ROOT / page).parent / name if name else ROOT / page
            assert path.exists(), f"{page} links to {target}"
            assert not anchor or anchor in anchors(path), f"{page} links to {target}"


def anchors(path: Path) -> set[str]:
    """The anchors that GitHub makes from a page's headings."""
    headings = re.findall(r"^#+ (.*)$", path.read_text("utf-8"), re.MULTILINE)
    return {re.sub(r"[^\w\- ]", "", heading.lower()).replace(" ", "-") for heading in headings}


def test_the_architecture_page_names_modules_that_exist(docs: Any) -> None:
    source = ROOT / "src" / "tightfit"
    text = docs.prose(read("docs/architecture.md"))
    files = set(re.findall(r"(?<![\w/])(?:[a-z_]+/)?[a-z_]+\.py\b", text))
    known = {path.name for path in source.rglob("*.py")} | {f"{p.parent.name}/{p.name}" for p in source.rglob("*.py")}
    folders = set(re.findall(r"(?<![\w/.])([a-z_]+)/(?=[\s`,.;:]|$)", text, re.MULTILINE))
    assert sorted(name for name in files - known if not (ROOT / name).is_file()) == []
    assert sorted(name for name in folders if not ((source / name).is_dir() or (ROOT / name).is_dir())) == []


def commands(page: str) -> list[list[str]]:
    blocks = re.findall(r"```bash\n(.*?)```", read(page), re.DOTALL)
    lines = [line for block in blocks for line in block.replace("\\\n", " ").splitlines()]
    return [shlex.split(line, comments=True) for line in lines if line.startswith("tightfit ")]


@pytest.mark.parametrize("page", [page for page in PAGES if commands(page)])
def test_every_command_parses(page: str) -> None:
    """With the options of the real command line; other tests run the commands."""
    import typer

    from tightfit.cli.app import app
    from tightfit.strategies.recipe import Recipe

    group = typer.main.get_command(app)
    for _, verb, *arguments in commands(page):
        command = group.commands[verb]  # type: ignore[attr-defined]
        context = command.make_context(verb, list(arguments))
        Recipe.parse(context.params.get("use") or [])


@pytest.mark.parametrize("readme", READMES)
def test_a_readme_shows_the_main_commands(readme: str) -> None:
    assert {verb for _, verb, *_ in commands(readme)} >= {"plan", "train", "estimate", "compare", "explain"}


@pytest.mark.parametrize("page", ["README.md", "docs/plans.md"])
def test_the_python_of_a_page_runs(page: str, tiny_model: Path, tmp_path: Path) -> None:
    """With a tiny model and a small file in place of those on the page."""
    names = run_python(page, tiny_model, tmp_path)
    assert names["job"].batch_size == 32
    if "run" in names:
        assert names["run"].metrics["eval_f1"] >= 0
        assert (tmp_path / "hotel" / "run.json").is_file()


def test_the_custom_training_loop_of_the_documentation_can_be_estimated(tiny_model: Path, tmp_path: Path) -> None:
    assert run_python("docs/prediction.md", tiny_model, tmp_path)["estimate"].fits


def run_python(page: str, model: Path, folder: Path) -> dict[str, Any]:
    """Run the only Python block of a page and return its global names."""
    from conftest import write_reviews

    (code,) = re.findall(r"```python\n(.*?)```", read(page), re.DOTALL)
    code = code.replace("hfl/chinese-macbert-large", str(model)).replace("max_length=128", "max_length=64")
    code = code.replace("reviews.csv", str(write_reviews(folder / "reviews.csv")))
    code = code.replace("runs/hotel", str(folder / "hotel"))
    names: dict[str, Any] = {}
    exec(compile(code, page, "exec"), names)
    return names


def test_the_job_file_of_the_documentation_can_be_read(tmp_path: Path) -> None:
    from tightfit.job import Job, read_job_file
    from tightfit.strategies.recipe import Recipe

    (content,) = re.findall(r"```yaml\n(.*?)```", read("docs/commands.md"), re.DOTALL)
    assert yaml.safe_load(content)
    (tmp_path / "job.yaml").write_text(content, "utf-8")
    values, use = read_job_file(tmp_path / "job.yaml")
    assert Job(**values).batch_size == 32
    assert Recipe.parse(use).strategies


def test_both_readmes_have_the_same_sections_and_commands() -> None:
    english, chinese = map(read, READMES)
    assert len(re.findall(r"^## ", english, re.MULTILINE)) == len(re.findall(r"^## ", chinese, re.MULTILINE))
    assert commands("README.md") == commands("README.zh.md")
