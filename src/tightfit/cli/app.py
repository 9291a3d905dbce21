"""Commands: one function each, with its docstring as help text. torch is imported only by commands that need it."""

from __future__ import annotations

import sys
from collections.abc import Callable
from pathlib import Path
from typing import Annotated, Any

import typer

from tightfit.activity import EVALUATING, SIMULATING
from tightfit.cli.demo import run_demo
from tightfit.cli.exit import exit_with_message, fast_exit, print_error
from tightfit.cli.help import WIDTH, Command, Group
from tightfit.cli.language import chosen_language
from tightfit.cli.options import Lang, Version, build_job, complete_strategy, setting, with_job_settings, with_language
from tightfit.cli.output import next_line, print_json, stdout, write_json
from tightfit.cli.prefetch import prefetched
from tightfit.cli.startup import command_terminal, replace_unencodable
from tightfit.cli.usage import show_usage_error
from tightfit.demo import BUDGET, demo_in, free_folder
from tightfit.errors import STOPPED, BadInput, Interrupted
from tightfit.i18n import current_language, language_of, render, using_language
from tightfit.job import Job, read_job_file
from tightfit.messages import Message, in_sequence, msg
from tightfit.models import check_available
from tightfit.optional_imports import slim_process

app = typer.Typer(
    name="tightfit",
    cls=Group,
    help="Fine-tune a Hugging Face transformer inside the memory you have.",
    no_args_is_help=True,
    pretty_exceptions_enable=False,
    rich_markup_mode=None,
    context_settings={"help_option_names": ["-h", "--help"], "max_content_width": WIDTH},
)


Device = Annotated[str | None, typer.Option(help="cpu, cuda or mps. [default: cuda if available, else cpu]")]
DeviceOrGpu = Annotated[
    str | None,
    typer.Option(
        help="cpu, cuda, a GPU by name, in this machine or not ('RTX 3060 12GB', T4), or any GPU by its memory (6GB). "
        "[default: cuda if available, else cpu]"
    ),
]
Avoid = Annotated[
    list[str] | None,
    typer.Option(help="Strategy to exclude from the plan. Repeatable.", autocompletion=complete_strategy),
]
Allow = Annotated[
    str | None,
    typer.Option(
        help="How much the trained model may differ from the baseline: same (equal up to rounding), close (same "
        "quality) or different (fewer trained parameters). A larger difference is used only if no recipe with a "
        "smaller one fits. [default: close]"
    ),
]
Prefer = Annotated[
    str | None,
    typer.Option(
        help="Which to take if a `same` recipe and a faster `close` recipe both fit: exact takes the `same` one, speed "
        "the faster one. [default: exact]"
    ),
]
Use = Annotated[
    list[str] | None,
    typer.Option(
        help="Strategy to use, as name:key=value,key=value; several with spaces between them, or repeat the option.",
        autocompletion=complete_strategy,
    ),
]
AsJson = Annotated[bool, typer.Option("--json", help="Print one JSON object and nothing else.")]
RunFolder = Annotated[Path, typer.Argument(help="Run folder written by tightfit train.", metavar="RUN")]


def _command(function: Callable[..., None]) -> Callable[..., None]:
    """Register a command, with the option --lang."""
    command: Callable[..., None] = app.command(cls=Command)(with_language(function))
    return command


@app.callback()
def program(lang: Lang = None, version: Version = False) -> None:
    """Options before the name of a command."""


@_command
@with_job_settings
def plan(
    settings: dict[str, Any],
    file: Annotated[
        Path | None, typer.Argument(help="Job file (YAML: model, data, …) or plan file.", metavar="FILE")
    ] = None,
    budget: Annotated[
        str | None,
        typer.Option(
            help="Memory limit, such as 4GB (1 GB = 1024 MB); auto is what the device has free now. [default: auto]"
        ),
    ] = None,
    device: DeviceOrGpu = None,
    use: Use = None,
    avoid: Avoid = None,
    allow: Allow = None,
    prefer: Prefer = None,
    take: Annotated[
        int | None, typer.Option(help="Choose alternative N of the printed plan instead.", metavar="N")
    ] = None,
    out: Annotated[Path | None, typer.Option(help="Write the plan to this file (.yaml) for tightfit train.")] = None,
    export: Annotated[
        Path | None,
        typer.Option(
            help="Write the plan as a Python script (.py); plain transformers if possible, else it calls tightfit."
        ),
    ] = None,
    as_json: AsJson = False,
) -> None:
    """Choose a recipe (a set of strategies) that fits a memory budget. Prints the reasons and the alternatives.

    The chosen recipe is the fastest with result `same` that fits; if there is none, the fastest with result `close`.

    With `--prefer speed` it is the fastest of both.
    """
    job, specs = _job_and_recipe(file, settings, use, "plan")
    with prefetched(job):
        from tightfit.cli.planning import Request, next_command, run_plan

        request = Request(budget, device, use, avoid, allow, prefer).merged_with(file, specs, allow_absent_gpu=True)
        made = run_plan(job, request, take=take, out=out, export=export, quiet=as_json)
    if as_json:
        print_json(made.to_json())
    else:
        from tightfit.report.terminal import show_plan

        show_plan(made, stdout())
        if made.fits:
            stdout().print(f"\n{render(next_line(next_command(made, request, take=take, out=out)))}", markup=False)
    if not made.fits:
        raise SystemExit(1)


@_command
@with_job_settings
def train(
    settings: dict[str, Any],
    file: Annotated[
        Path | None, typer.Argument(help="Plan file, or job file (its key `use` lists the strategies).", metavar="FILE")
    ] = None,
    budget: Annotated[
        str | None,
        typer.Option(
            help="Memory limit, such as 4GB: train with the recipe that plan would choose. auto is what the device has "
            "free now; none trains the baseline. [default: auto; with --use, no planning: only these strategies]"
        ),
    ] = None,
    use: Use = None,
    avoid: Avoid = None,
    allow: Allow = None,
    prefer: Prefer = None,
    out: Annotated[
        Path | None,
        typer.Option(help="Run folder for model, report, run.json and checkpoints. [default: runs/MODEL-DATA-NUMBER]"),
    ] = None,
    device: Device = None,
    resume: Annotated[
        bool,
        typer.Option(
            "--resume",
            help="Continue the unfinished run in --out. [default without --out: the newest unfinished run in runs]",
        ),
    ] = False,
    save_every: Annotated[
        str,
        typer.Option(
            help="Save a checkpoint every '100 steps' or '30 minutes', and after each evaluation. "
            "--save-steps replaces it."
        ),
    ] = "30 minutes",
    keep_checkpoints: Annotated[
        int, typer.Option(help="Checkpoints to keep when the run has finished; 0 keeps only the model.")
    ] = 2,
    report_to: Annotated[
        list[str] | None, typer.Option(help="Experiment tracker as in transformers: tensorboard, wandb, … Repeatable.")
    ] = None,
    as_json: AsJson = False,
) -> None:
    """Fine-tune a model on a data file, with a recipe that fits the memory, chosen as `plan` does."""
    if resume and out is None:
        from tightfit.cli.resuming import folder_to_resume

        out = folder_to_resume(file, settings, quiet=as_json)
    job, specs = _job_and_recipe(file or _job_file_of(out, resume), settings, use, "train")

    from tightfit.api import train as run_training
    from tightfit.cli.planning import Request, planned_recipe

    given = Request(budget, device, use, avoid, allow, prefer)
    request = given.merged_with(file, specs)
    run = run_training(
        job,
        out=out,
        budget=request.budget,
        device=request.device,
        planned=None if given.has_constraints else planned_recipe(file, job, specs),
        **request.constraints,
        resume=resume,
        report_to=report_to or [],
        quiet=as_json,
        save_every=save_every,
        keep_checkpoints=keep_checkpoints,
    )
    from tightfit.cli.training import show_trained  # now: charts take memory

    show_trained(run, as_json=as_json)


@_command
@with_job_settings
def estimate(
    settings: dict[str, Any],
    file: Annotated[
        Path | None, typer.Argument(help="Job file (its key `use` lists the strategies).", metavar="FILE")
    ] = None,
    use: Use = None,
    device: DeviceOrGpu = None,
    probe: Annotated[
        bool, typer.Option("--probe", help="If the model cannot be simulated, measure a small step on real tensors.")
    ] = False,
    as_json: AsJson = False,
) -> None:
    """Predict the memory of training, by phase and type of memory. Loads no weights and runs no training step."""
    job, specs = _job_and_recipe(file, settings, use, "estimate")
    with prefetched(job):
        from tightfit.api import estimate as run_estimate
        from tightfit.report.terminal import show_estimate

        with command_terminal(quiet=as_json).status(SIMULATING):
            estimate = run_estimate(job, specs, device, probe=probe)
    if as_json:
        print_json(estimate.to_json())
    else:
        show_estimate(estimate, stdout())


@_command
@with_job_settings
def compare(
    settings: dict[str, Any],
    file: Annotated[Path | None, typer.Argument(help="Job file (YAML: model, data, …).", metavar="FILE")] = None,
    preset: Annotated[
        str,
        typer.Option(
            help="Recipes to compare: tutorial (the usual advice, one strategy added at a time), "
            "tightfit (recipes that train every layer) or all."
        ),
    ] = "all",
    recipe: Annotated[
        list[str] | None,
        typer.Option(help="Recipe instead of a preset: 'micro-batch:size=8 adafactor', or baseline. Repeatable."),
    ] = None,
    steps: Annotated[int, typer.Option(help="Steps to train each recipe for.")] = 8,
    full: Annotated[
        bool, typer.Option("--full", help="Train each recipe for all epochs, and report its score.")
    ] = False,
    seeds: Annotated[int, typer.Option(help="Runs per recipe, each with a different seed.")] = 1,
    budget: Annotated[str | None, typer.Option(help="Memory limit to mark in the chart, such as 4GB.")] = None,
    device: Device = None,
    out: Annotated[Path, typer.Option(help="Folder for comparison.json, .md, .html and .png.")] = Path("comparison"),
    as_json: AsJson = False,
) -> None:
    """Measure recipes side by side: memory, time and quality. Each is trained on this machine, in its own process."""
    job, _ = _job_and_recipe(file, settings, None, "compare")

    from tightfit.api import compare as run_comparison
    from tightfit.report.comparison import show_comparison, write_comparison, written_files
    from tightfit.report.terminal import say

    comparison = run_comparison(
        job,
        recipe or preset,
        steps=steps,
        full=full,
        seeds=seeds,
        budget=budget,
        device=device,
        out=out,
        quiet=as_json,
    )
    write_comparison(comparison, out, current_language())
    if as_json:
        print_json(comparison.to_json())
    else:
        show_comparison(comparison, stdout())
        say(stdout(), written_files(out))


@_command
def explain(
    message: Annotated[
        Path | None,
        typer.Argument(help="File with the out-of-memory message; - for standard input.", metavar="FILE"),
    ] = None,
    args: Annotated[Path | None, typer.Option(help="TrainingArguments as JSON, or the training script (.py).")] = None,
    model: Annotated[str | None, setting("model")] = None,
    device: Annotated[
        str | None,
        typer.Option(help="cpu, cuda, or a GPU by name: T4. [default: a GPU with the memory size in the message]"),
    ] = None,
    as_json: AsJson = False,
) -> None:
    """Explain an out-of-memory error and suggest fixes. The training script is read, never run."""
    from tightfit.cli.explain import run_explanation

    explanation = run_explanation(message, args, model, device, quiet=as_json)
    if as_json:
        print_json(explanation.to_json())
        return
    for line in explanation.findings:
        stdout().print(render(line), markup=False)
    if explanation.order:
        stdout().print(render(explanation.order), markup=False)
    for number, edit in enumerate(explanation.edits, 1):
        stdout().print(f"  {number}. {render(edit.text)}", markup=False)
    if explanation.command:
        stdout().print(render(msg("Or train it within that memory, with the same effective batch:")), markup=False)
        stdout().print(f"  {explanation.command}", markup=False, soft_wrap=True)


@_command
def evaluate(
    run: RunFolder,
    data: Annotated[
        str | None,
        typer.Option(help="File to evaluate on; rows that were trained on are skipped. [default: the held-out rows]"),
    ] = None,
    text: Annotated[str | None, setting("text")] = None,
    label: Annotated[str | None, setting("label")] = None,
    device: Device = None,
    as_json: AsJson = False,
) -> None:
    """Evaluate a trained model on rows it was not trained on."""
    from tightfit.inference import evaluate as run_evaluation
    from tightfit.report.terminal import show_evaluation

    terminal, stopped = command_terminal(quiet=as_json), None
    try:
        with terminal.rows(EVALUATING) as on_rows:
            evaluation = run_evaluation(run, data, device, text=text, label=label, on_rows=on_rows)
    except Interrupted as error:
        evaluation, stopped = error.result, error
    for note in evaluation.notes:
        terminal.log(note)
    if as_json:
        print_json(evaluation.to_json())
    else:
        show_evaluation(evaluation, stdout())
    if stopped:
        raise stopped


@_command
def predict(
    run: RunFolder,
    texts: Annotated[
        list[str] | None,
        typer.Argument(help="Texts to predict for; two per pair if the model was trained on pairs.", metavar="TEXT"),
    ] = None,
    data: Annotated[str | None, typer.Option(help="Data file with rows to predict for.")] = None,
    text: Annotated[str | None, setting("text")] = None,
    out: Annotated[Path | None, typer.Option(help="Output file for --data (.csv, .tsv, .jsonl).")] = None,
    device: Device = None,
    as_json: AsJson = False,
) -> None:
    """Predict for texts or for the rows of a data file. RUN is the folder of the trained model."""
    if bool(texts) == bool(data):
        raise BadInput(
            msg('Give either texts (tightfit predict RUN "text") or a file (--data new.csv --out predicted.csv).')
        )
    if bool(data) != bool(out):
        raise BadInput(msg("--data and --out go together: tightfit predict RUN --data new.csv --out predicted.csv."))

    from tightfit.cli.prediction import predict_file, predict_texts

    if data and out:
        predict_file(run, data, out, device, text, as_json)
    else:
        predict_texts(run, texts or [], device, as_json)


@_command
def report(
    runs: Annotated[list[Path], typer.Argument(help="Run folders; several are compared.", metavar="RUN")],
    out: Annotated[
        Path | None,
        typer.Option(
            help="HTML file. [default: report.html in the run folder; in the current folder for several runs]"
        ),
    ] = None,
    no_open: Annotated[bool, typer.Option("--no-open", help="Do not open the report in a browser.")] = False,
    as_json: AsJson = False,
) -> None:
    """Write an HTML report of runs, failed ones included."""
    from tightfit.report.html import open_in_browser, write_report

    page = write_report(runs, out, current_language())
    if as_json:
        print_json({"report": str(page), "runs": [str(run) for run in runs]})
        return
    stdout().print(render(msg("{file} written", file=page)), markup=False)
    if not no_open:
        open_in_browser(page)


@_command
def strategies(as_json: AsJson = False) -> None:
    """List the strategies and their effect on the result."""
    from tightfit.report.terminal import show_strategies, strategy_rows

    if as_json:
        print_json({"strategies": [vars(row) for row in strategy_rows()]})
    else:
        show_strategies(stdout())


@_command
def tasks(as_json: AsJson = False) -> None:
    """List the tasks, their data and their metrics."""
    from tightfit.report.terminal import show_tasks, task_rows

    if as_json:
        print_json({"tasks": [vars(row) for row in task_rows()]})
    else:
        show_tasks(stdout())


@_command
def doctor(
    device: Device = None,
    quick: Annotated[bool, typer.Option("--quick", help="Leave out the check that trains a small model.")] = False,
    out: Annotated[
        Path | None, typer.Option(help="File for what was found. [default: doctor.json; with --quick none]")
    ] = None,
    as_json: AsJson = False,
) -> None:
    """Check what this machine trains on: driver, build of torch, memory, speed. Trains a small model for a minute.

    The check compares predicted with measured memory. Nothing is downloaded.
    """
    from tightfit.cli.doctor import run_doctor

    run_doctor(device, out, quick=quick, as_json=as_json)


@_command
def demo(
    out: Annotated[Path, typer.Option(help="Run folder.")] = Path("runs/demo"),
    budget: Annotated[str, typer.Option(help="Memory limit to plan for.")] = BUDGET,
    as_json: AsJson = False,
) -> None:
    """Plan for a memory budget, train on bundled hotel reviews and write a report, offline, in about a minute."""
    run_demo(demo_in(current_language()), free_folder(out), budget, as_json=as_json)


def _job_and_recipe(
    file: Path | None, settings: dict[str, Any], use: list[str] | None, verb: str
) -> tuple[Job, list[str]]:
    """The job and the strategies of the file, overridden by the command line."""
    from tightfit.engine.arguments import check_job
    from tightfit.strategies.recipe import parse_strategy, split_specs
    from tightfit.tasks import with_task

    values, specs = read_job_file(file) if file else ({}, [])
    job, chosen = with_task(build_job({**values, **settings}, verb)), split_specs(use or specs)
    check_job(job)
    for spec in chosen:
        parse_strategy(spec)  # reject a misspelt spec before torch is imported
    check_available(job.model)
    return job, chosen


def _job_file_of(out: Path | None, resume: bool) -> Path | None:
    """The job file of the run folder, for --resume without other settings."""
    if not resume or out is None:
        return None
    from tightfit.runs.folder import JOB_FILE, check_run_folder

    check_run_folder(out, resume)
    return out / JOB_FILE


def _show_run(run: Any, as_json: bool) -> None:
    from tightfit.report.terminal import show_run

    if as_json:
        write_json(run.to_json())
    else:
        show_run(run, stdout())


def console_main() -> None:
    """Entry point of the `tightfit` command, in a process of its own."""
    slim_process()
    replace_unencodable()
    try:
        main()
    finally:
        fast_exit()


def main() -> None:
    """Run the command line; errors that a user can fix become one sentence and an exit code."""
    with using_language(language_of()), exit_with_message():
        language = chosen_language(sys.argv[1:])
    with using_language(language), exit_with_message(_when_stopped()):
        _run()


def _run() -> None:
    try:
        code = app(standalone_mode=False)
    except Exception as error:
        if not hasattr(error, "show"):
            raise
        show_usage_error(error)
        code = getattr(error, "exit_code", 2)
    if code == 130:  # typer returns it on Ctrl-C
        print_error(_when_stopped())
    raise SystemExit(code or 0)


def _when_stopped() -> Message:
    """How to continue what Ctrl-C stopped."""
    if sys.argv[1:2] == ["compare"]:
        return in_sequence(STOPPED, msg("Run the same command again to continue."))
    return STOPPED
