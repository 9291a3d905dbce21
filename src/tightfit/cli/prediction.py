"""The predict command, for texts and for files."""

from __future__ import annotations

from pathlib import Path

from tightfit import inference
from tightfit.activity import PREDICTING
from tightfit.cli.output import print_json, stdout
from tightfit.cli.startup import command_terminal
from tightfit.errors import BadInput
from tightfit.i18n import render
from tightfit.messages import msg
from tightfit.report.terminal import show_predictions
from tightfit.runs.record import load_run


def predict_file(run: Path, data: str, out: Path, device: str | None, text: str | None, as_json: bool) -> None:
    """Predict for the rows of a file and write a copy of it with the predictions to `out`."""
    terminal = command_terminal(quiet=as_json)
    with terminal.rows(PREDICTING) as on_rows:
        predicted = inference.predict_file(run, data, out, device, text, on_rows)
    for note in predicted.notes:
        terminal.log(note)
    if as_json:
        print_json({"rows": predicted.rows, "out": str(out), "notes": predicted.notes})
    else:
        stdout().print(render(msg("{rows:,} rows predicted: {file}", rows=predicted.rows, file=out)), markup=False)


def predict_texts(run: Path, texts: list[str], device: str | None, as_json: bool) -> None:
    """Predict for texts from the command line, two per pair if the model was trained on pairs."""
    paired = len(load_run(run).data.text_columns) == 2
    if paired and len(texts) % 2:
        count = len(texts)
        raise BadInput(
            msg("This model takes pairs, and {count} texts do not make pairs: give two per pair.", count=count)
        )
    inputs = list(zip(texts[::2], texts[1::2], strict=True)) if paired else texts
    with command_terminal(quiet=as_json).status(PREDICTING):
        predictions = inference.predict(run, inputs, device)
    texts = [" + ".join(pair) for pair in inputs] if paired else texts
    if as_json:
        rows = [{"text": text, **made.to_json()} for text, made in zip(texts, predictions, strict=True)]
        print_json({"predictions": rows})
    else:
        show_predictions(texts, predictions, stdout())
