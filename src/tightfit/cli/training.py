"""What the train command shows when the run has finished."""

from __future__ import annotations

import shlex
from pathlib import Path

from tightfit.cli.output import next_line, stdout, write_json
from tightfit.errors import is_out_of_memory
from tightfit.i18n import current_language, render
from tightfit.messages import msg
from tightfit.report.html import write_report
from tightfit.report.terminal import show_run
from tightfit.runs.record import Run
from tightfit.tasks import find_task


def show_trained(run: Run, *, as_json: bool) -> None:
    """Write the report, and show the run and what to do next."""
    page = _write_report(Path(run.folder))
    if as_json:
        write_json(run.to_json())
        return
    show_run(run, stdout())
    lines = [msg("report    {page}", page=page)] if page else []
    samples = find_task(run.job.task).sample_texts[: len(run.data.text_columns)]
    texts = " ".join(shlex.quote(render(sample)) for sample in samples)
    folder = shlex.quote(run.folder)
    lines.append(next_line(f"tightfit predict {folder} {texts}"))
    for line in lines:
        stdout().print(render(line), markup=False)


def _write_report(folder: Path) -> Path | None:
    """The report of the run; a full disk or a full memory does not make the run fail."""
    try:
        return write_report([folder], None, current_language())
    except (OSError, MemoryError, RuntimeError) as error:
        if isinstance(error, RuntimeError) and not is_out_of_memory(error):
            raise
        return None
