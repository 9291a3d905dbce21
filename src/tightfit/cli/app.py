"""Printing: answers go to standard output, for people or as one JSON object."""

from __future__ import annotations

import contextlib
import gc
import json
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from tightfit.cli.options import build_job, setting, with_job_settings
from tightfit.cli.startup import exit_with_message, fast_exit, slim_process
from tightfit.errors import BadInput
from tightfit.job import Job, read_job_file

if TYPE_CHECKING:
    from rich.console import Console


def stdout() -> Console:
    """Made for each answer: standard output may have changed since."""
    from rich.console import Console

    return Console(highlight=False, soft_wrap=True)


def print_json(content: dict[str, Any]) -> None:
    """One object, one line."""
    sys.stdout.write(json.dumps(content, ensure_ascii=False) + "\n")


# The command line: one verb, one function; help is its docstring. torch is imported only when there is work.


app = typer.Typer(
    name="tightfit",
    help="Fine-tune a Hugging Face transformer inside the memory you have.",
    no_args_is_help=True,
    add_completion=False,
    pretty_exceptions_enable=False,
    rich_markup_mode=None,
    context_settings={"help_option_names": ["-h", "--help"]},
)


Device = Annotated[str | None, typer.Option(help="cpu, cuda or mps. [default: cuda if there, else cpu]")]
CardOrDevice = Annotated[
    str | None, typer.Option(help="cpu, cuda, or a card by name, here or not: 'RTX 3050 4GB', T4. [default: as train]")
]
BudgetSize = Annotated[str | None, typer.Option(help="Memory it may take, as 4GB. [plan: all there is]")]
Avoid = Annotated[list[str] | None, typer.Option(help="A strategy to leave out of a plan. Repeat for more.")]
Allow = Annotated[
    str | None, typer.Option(help="What a plan may do to the result: same, close or different. [default: close]")
]
Use = Annotated[list[str] | None, typer.Option(help="A strategy, as name:key=value,key=value. Repeat for more.")]
AsJson = Annotated[bool, typer.Option("--json", help="Print one JSON object and nothing else.")]
Lang = Annotated[str, typer.Option(help="Language of the page: en or zh.")]
RunFolder = Annotated[Path, typer.Argument(help="The folder that train wrote to.", metavar="RUN")]


@app.command()
@with_job_settings
def plan(
    settings: dict[str, Any],
    file: Annotated[Path | None, typer.Argument(help="A YAML file with the job's settings.")] = None,
    budget: BudgetSize = None,
    device: CardOrDevice = None,
    use: Use = None,
    avoid: Avoid = None,
    allow: Allow = None,
    out: Annotated[Path | None, typer.Option(help="Write the plan here (.yaml); tightfit train runs it.")] = None,
    export: Annotated[Path | None, typer.Option(help="Write a plain transformers script with it (.py).")] = None,
    as_json: AsJson = False,
) -> None:
    """Pick the fastest recipe that fits the memory you have, and say why."""
    job, specs = _job_and_recipe(file, settings, use, "plan")
    with _begun_early(job):
        from tightfit.cli.planning import Request, run_plan

        request = Request(budget, device, use, avoid, allow).over(file, specs, cards=True)
        answer = run_plan(job, request, out=out, export=export, quiet=as_json)
    if as_json:
        print_json(answer.to_json())
    else:
        from tightfit.report.terminal import show_plan

        show_plan(answer, stdout())
    if not answer.fits:
        raise SystemExit(1)


@app.command()
@with_job_settings
def train(
    settings: dict[str, Any],
    file: Annotated[Path | None, typer.Argument(help="A plan, or a YAML file with settings and `use`.")] = None,
    budget: BudgetSize = None,
    use: Use = None,
    avoid: Avoid = None,
    allow: Allow = None,
    out: Annotated[Path, typer.Option(help="The run folder: model, record, checkpoints.")] = Path("runs/run"),
    device: Device = None,
    resume: Annotated[bool, typer.Option("--resume", help="Go on with the run in --out.")] = False,
    save_every: Annotated[
        str, typer.Option(help="Write a checkpoint every '100 steps' or '30 minutes', beside every epoch's end.")
    ] = "30 minutes",
    report_to: Annotated[list[str] | None, typer.Option(help="tensorboard, wandb, … as in transformers.")] = None,
    as_json: AsJson = False,
) -> None:
    """Train a model on a data file and write it to a run folder, inside a memory budget if there is one."""
    job, specs = _job_and_recipe(file or _job_file_of(out, resume), settings, use, "train")

    from tightfit.api import train as run_training
    from tightfit.cli.planning import Request, planned_recipe

    said = Request(budget, device, use, avoid, allow)
    request, planned = said.over(file, specs), None if said.has_constraints else planned_recipe(file, job, specs)
    kept: dict[str, Any] = {
        "budget": request.budget,
        "device": request.device,
        "planned": planned,
        **request.constraints,
    }
    how: dict[str, Any] = {"resume": resume, "report_to": report_to or [], "quiet": as_json, "save_every": save_every}
    _show_run(run_training(job, out=out, **how, **kept), as_json)


@app.command()
@with_job_settings
def estimate(
    settings: dict[str, Any],
    file: Annotated[Path | None, typer.Argument(help="A YAML file with the job's settings and `use`.")] = None,
    use: Use = None,
    device: CardOrDevice = None,
    probe: Annotated[
        bool, typer.Option("--probe", help="If the model cannot be rehearsed, try a small step on real tensors.")
    ] = False,
    as_json: AsJson = False,
) -> None:
    """Say what memory a training would take, by moment and kind, without weights and before the first step."""
    job, specs = _job_and_recipe(file, settings, use, "estimate")
    with _begun_early(job):
        from tightfit.api import estimate as run_estimate
        from tightfit.report.progress import Terminal
        from tightfit.report.terminal import show_estimate

        with Terminal(quiet=as_json).status("Rehearsing"):
            estimate = run_estimate(job, specs, device, probe=probe)
    if as_json:
        print_json(estimate.to_json())
    else:
        show_estimate(estimate, stdout())


@app.command()
@with_job_settings
def compare(
    settings: dict[str, Any],
    file: Annotated[Path | None, typer.Argument(help="A YAML file with the job's settings.")] = None,
    preset: Annotated[str, typer.Option(help="tutorial (what the tutorials teach), ours, or all.")] = "all",
    recipe: Annotated[
        list[str] | None,
        typer.Option(help="A recipe in place of a preset, as 'micro-batch:size=8 checkpoint'; or baseline."),
    ] = None,
    steps: Annotated[int, typer.Option(help="Steps that each rung is trained for.")] = 8,
    full: Annotated[bool, typer.Option("--full", help="Train each rung to the end of the job, for its F1.")] = False,
    seeds: Annotated[int, typer.Option(help="How often, each time with another seed.")] = 1,
    budget: Annotated[str | None, typer.Option(help="A line in the picture, as 4GB.")] = None,
    device: Device = None,
    out: Annotated[Path, typer.Option(help="The folder for ladder.json, .md, .html and .png.")] = Path("comparison"),
    lang: Lang = "en",
    as_json: AsJson = False,
) -> None:
    """Measure recipes side by side on this machine: memory, time, and what each does to the result."""
    job, _ = _job_and_recipe(file, settings, None, "compare")

    from tightfit.api import compare as run_comparison
    from tightfit.report.comparison import show_comparison, write_comparison
    from tightfit.report.i18n import Strings

    Strings.of(lang)  # a language that is not there is said before hours of work
    how: dict[str, Any] = {"steps": steps, "full": full, "seeds": seeds, "budget": budget}
    comparison = run_comparison(job, recipe or preset, device=device, out=out, quiet=as_json, **how)
    write_comparison(comparison, out, lang)
    if as_json:
        print_json(comparison.to_json())
    else:
        show_comparison(comparison, stdout())


@app.command()
def explain(
    message: Annotated[
        Path | None, typer.Argument(help="A file with the out-of-memory message; - or a pipe for standard input.")
    ] = None,
    args: Annotated[
        Path | None, typer.Option(help="TrainingArguments as JSON, or the script (.py) that has them.")
    ] = None,
    model: Annotated[str | None, setting("model")] = None,
    device: CardOrDevice = None,
    as_json: AsJson = False,
) -> None:
    """Say what overflowed, and which edits of a script mend it. The script is read, never run."""
    from tightfit.cli.explain import run_explanation

    explanation = run_explanation(message, args, model, device, quiet=as_json)
    if as_json:
        print_json(explanation.to_json())
        return
    for line in explanation.happened:
        stdout().print(line, markup=False)
    for number, edit in enumerate(explanation.edits, 1):
        stdout().print(f"  {number}. {edit}", markup=False)


@app.command()
def evaluate(
    run: RunFolder,
    data: Annotated[
        str | None, typer.Option(help="A file to score on; rows that were trained on are left out.")
    ] = None,
    text: Annotated[str | None, setting("text")] = None,
    label: Annotated[str | None, setting("label")] = None,
    device: Device = None,
    as_json: AsJson = False,
) -> None:
    """Score a trained model on rows it never saw."""
    from tightfit.inference import evaluate as run_evaluation
    from tightfit.report.progress import Terminal
    from tightfit.report.terminal import show_evaluation

    terminal = Terminal(quiet=as_json)
    with terminal.status("Evaluating"):
        evaluation = run_evaluation(run, data, device, text=text, label=label)
    for note in evaluation.notes:
        terminal.log(note)
    if as_json:
        print_json({"metrics": evaluation.metrics, "rows": evaluation.rows, "notes": evaluation.notes})
    else:
        show_evaluation(evaluation, stdout())


@app.command()
def predict(
    run: RunFolder,
    texts: Annotated[
        list[str] | None,
        typer.Argument(help="Texts to label; two for each pair if the model reads pairs.", metavar="[TEXT]..."),
    ] = None,
    data: Annotated[str | None, typer.Option(help="A file of texts to label.")] = None,
    text: Annotated[str | None, setting("text")] = None,
    out: Annotated[Path | None, typer.Option(help="Where to write the labelled file (.csv, .tsv, .jsonl).")] = None,
    device: Device = None,
    as_json: AsJson = False,
) -> None:
    """Label texts with a trained model."""
    if bool(texts) == bool(data):
        raise BadInput('Give either texts (tightfit predict RUN "text") or a file (--data new.csv --out labelled.csv).')
    if bool(data) != bool(out):
        raise BadInput("--data and --out go together: tightfit predict RUN --data new.csv --out labelled.csv.")

    if data and out:
        predict_file(run, data, out, device, text, as_json)
    else:
        predict_texts(run, texts or [], device, as_json)


@app.command()
def report(
    runs: Annotated[list[Path], typer.Argument(help="Run folders; several stand side by side.", metavar="RUN...")],
    out: Annotated[
        Path | None, typer.Option(help="The page. [default: report.html in the run folder, or here for several runs]")
    ] = None,
    lang: Lang = "en",
    no_open: Annotated[bool, typer.Option("--no-open", help="Do not open the page in a browser.")] = False,
    as_json: AsJson = False,
) -> None:
    """Write what happened in a run, and where the memory went, as a page of its own; also of runs that died."""
    from tightfit.report.html import open_in_browser, write_report

    page = write_report(runs, out, lang)
    if as_json:
        print_json({"report": str(page), "runs": [str(run) for run in runs]})
        return
    stdout().print(f"{page} written", markup=False)
    if not no_open:
        open_in_browser(page)


@app.command()
def strategies(as_json: AsJson = False) -> None:
    """List the strategies: what each frees and what it does to the result."""
    from tightfit.report.terminal import show_strategies, strategy_rows

    if as_json:
        print_json({"strategies": [vars(row) for row in strategy_rows()]})
    else:
        show_strategies(stdout())


@app.command()
def demo(
    out: Annotated[Path, typer.Option(help="The run folder.")] = Path("runs/demo"), as_json: AsJson = False
) -> None:
    """Train on hotel reviews that come with tightfit: offline, in about a minute."""
    from tightfit.api import train as run_training
    from tightfit.demo import demo_job, free_folder

    job, folder = demo_job(), free_folder(out)
    run = run_training(job, ["micro-batch:size=8"], out=folder, device="cpu", quiet=as_json)
    _show_run(run, as_json)
    if not as_json:
        stdout().print(_NEXT_STEPS.format(folder=folder), markup=False)


_NEXT_STEPS = """
Try the model:       tightfit predict {folder} "The room was spotless and the staff were kind"
Train on your file:  tightfit train --model bert-base-chinese --data reviews.csv --out runs/mine
                     (a column named text or review, one named label; --text and --label name others)
Less memory:         add --use micro-batch:size=4 --use gradient-checkpointing --use adafactor; tightfit strategies lists them all"""


def _job_and_recipe(
    file: Path | None, settings: dict[str, Any], use: list[str] | None, verb: str
) -> tuple[Job, list[str]]:
    """The job and the strategies: the file's, and what the command line says over it."""
    from tightfit.strategies.recipe import parse_strategy

    values, specs = read_job_file(file) if file else ({}, [])
    job, chosen = build_job({**values, **settings}, verb), use or specs
    for spec in chosen:
        parse_strategy(spec)  # a mistyped one is said at once, before torch is imported
    return job, chosen


@contextlib.contextmanager
def _begun_early(job: Job) -> Iterator[None]:
    """What makes a short answer shorter, begun before torch is imported."""
    from tightfit.data.dataset import start_prefetch, stop_reading

    start_prefetch(job)
    try:
        with _without_collector():
            yield
    finally:
        stop_reading(job)  # where it failed before the rows were asked for


@contextlib.contextmanager
def _without_collector() -> Iterator[None]:
    """For a few seconds: libraries make a million objects while they load, and no garbage."""
    if not gc.isenabled():
        yield
        return
    gc.disable()
    try:
        yield
    finally:
        if not gc.get_freeze_count():  # all of them count as old now: none is looked at before the answer is shown
            gc.freeze()
            gc.unfreeze()
        gc.enable()


def _job_file_of(out: Path, resume: bool) -> Path | None:
    """--resume without a model goes on with what the folder says."""
    if not resume:
        return None
    from tightfit.runs.folder import JOB_FILE, check_run_folder

    check_run_folder(out, resume)
    return out / JOB_FILE


def _show_run(run: Any, as_json: bool) -> None:
    from tightfit.report.terminal import show_run

    if as_json:
        sys.stdout.write(run.to_json())
    else:
        show_run(run, stdout())


def process() -> None:
    """Run the command line in a process that has nothing else to do."""
    slim_process()
    try:
        main()
    finally:
        fast_exit()


def main() -> None:
    """Run the command line; what a user can mend is one sentence and an exit code."""
    goes_on = {"train": " A run that had begun goes on with train --resume.", "compare": " The same command goes on."}
    with exit_with_message(f"stopped.{goes_on.get(''.join(sys.argv[1:2]), '')}"):
        app()


# What the command line does with texts to label: a file beside the one given, or a table on the screen.


def predict_file(run: Path, data: str, out: Path, device: str | None, text: str | None, as_json: bool) -> None:
    """All of a file, and how many rows of it."""
    from tightfit.inference import label_file
    from tightfit.report.progress import Terminal

    terminal = Terminal(quiet=as_json)
    with terminal.status("Labelling"):
        labelled = label_file(run, data, out, device, text)
    for note in labelled.notes:
        terminal.log(note)
    if as_json:
        print_json({"rows": labelled.rows, "out": str(out), "notes": labelled.notes})
    else:
        stdout().print(f"{labelled.rows:,} rows labelled: {out}", markup=False)


def predict_texts(run: Path, texts: list[str], device: str | None, as_json: bool) -> None:
    """Texts as they were typed, two for each pair if the model reads pairs."""
    from tightfit.inference import predict as run_prediction
    from tightfit.report.progress import Terminal
    from tightfit.report.terminal import show_predictions
    from tightfit.runs.record import load_run

    paired = len(load_run(run).data.text_columns) == 2
    if paired and len(texts) % 2:
        raise BadInput(f"This model reads pairs, and {len(texts)} texts do not make pairs: give two for each.")
    inputs = list(zip(texts[::2], texts[1::2], strict=True)) if paired else texts
    with Terminal(quiet=as_json).status("Reading the model"):
        predictions = run_prediction(run, inputs, device)
    texts = [" + ".join(pair) for pair in inputs] if paired else texts
    if as_json:
        answers = [
            {"text": t, "label": p.label, "confidence": p.confidence} for t, p in zip(texts, predictions, strict=True)
        ]
        print_json({"predictions": answers})
    else:
        show_predictions(texts, predictions, stdout())
