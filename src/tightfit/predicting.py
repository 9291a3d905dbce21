"""What the command line does with texts to label: a file beside the one given, or a table on the screen."""

from __future__ import annotations

from pathlib import Path

from tightfit.errors import BadInput
from tightfit.report.printing import print_json, stdout


def label_to_file(run: Path, data: str, out: Path, device: str | None, text: str | None, as_json: bool) -> None:
    """All of a file, and how many rows of it."""
    from tightfit.labelling import label_file
    from tightfit.report.screen import Screen

    screen = Screen(quiet=as_json)
    with screen.status("Labelling"):
        labelled = label_file(run, data, out, device, text)
    for note in labelled.notes:
        screen.say(note)
    if as_json:
        print_json({"rows": labelled.rows, "out": str(out), "notes": labelled.notes})
    else:
        stdout().print(f"{labelled.rows:,} rows labelled: {out}", markup=False)


def label_texts(run: Path, texts: list[str], device: str | None, as_json: bool) -> None:
    """Texts as they were typed, two for each pair if the model reads pairs."""
    from tightfit.inference import predict as run_prediction
    from tightfit.record import load_run
    from tightfit.report.screen import Screen
    from tightfit.report.text import show_predictions

    paired = len(load_run(run).data.text_columns) == 2
    if paired and len(texts) % 2:
        raise BadInput(f"This model reads pairs, and {len(texts)} texts do not make pairs: give two for each.")
    inputs = list(zip(texts[::2], texts[1::2], strict=True)) if paired else texts
    with Screen(quiet=as_json).status("Reading the model"):
        predictions = run_prediction(run, inputs, device)
    texts = [" + ".join(pair) for pair in inputs] if paired else texts
    if as_json:
        answers = [
            {"text": t, "label": p.label, "confidence": p.confidence} for t, p in zip(texts, predictions, strict=True)
        ]
        print_json({"predictions": answers})
    else:
        show_predictions(texts, predictions, stdout())
