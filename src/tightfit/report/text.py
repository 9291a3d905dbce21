"""Results as text for a terminal."""

from __future__ import annotations

from dataclasses import dataclass

from rich.console import Console
from rich.table import Table
from rich.text import Text

from tightfit.inference import Evaluation, Prediction
from tightfit.record import Run
from tightfit.rehearsal.bill import Bill
from tightfit.strategies import STRATEGIES
from tightfit.strategy import REQUIRED, Kind
from tightfit.units import format_bytes, format_count, format_seconds

_BAR = 12


def show_run(run: Run, console: Console) -> None:
    """What was trained, how good it is, what it took, where the memory went."""
    trained = f"{format_count(run.trainable_parameters)} of {format_count(run.parameters)} parameters"
    console.print(f"\n{run.folder}: {trained} trained in {run.steps} steps", markup=False, style="bold")
    console.print(f"recipe    {' '.join(run.recipe) or 'plain'} (result: {run.result})", markup=False)
    scores = [f"{name} {run.metrics[f'eval_{name}']:.4f}" for name in ("f1", "accuracy", "loss")]
    console.print(f"quality   {', '.join(scores)} on {run.data.validation_rows:,} held-out rows")
    per_step = run.measured.seconds_per_step
    foretold_step = run.predicted.seconds_per_step
    expected = f" (foretold {format_seconds(foretold_step)})" if foretold_step else ""
    pace = f", {format_seconds(per_step)} a step{expected}" if per_step else ""
    console.print(f"time      {format_seconds(run.measured.seconds)}{pace}")
    foretold = run.predicted.peak_bytes
    beside = f", foretold {format_bytes(foretold)}" if foretold else ""
    console.print(f"memory    peak {format_bytes(run.measured.peak_bytes)} on {run.device}{beside}")
    console.print(_moments(run))


def _moments(run: Run) -> Table:
    table = Table(box=None, pad_edge=False)
    for heading in ("  moment", "measured", "foretold", "", ""):
        table.add_column(heading, justify="right" if heading in ("measured", "foretold") else "left")
    foretold = run.predicted.moments or {}
    for moment, size in run.measured.moments.items():
        bar = Text("█" * max(1, round(_BAR * size / run.measured.peak_bytes)))
        mark = "← peak" if size == run.measured.peak_bytes else ""
        before = format_bytes(foretold[moment]) if moment in foretold else "–"
        table.add_row(f"  {moment}", format_bytes(size), before, bar, mark)
    return table


def show_bill(bill: Bill, console: Console) -> None:
    """Bytes by moment and kind, with a bar that can be read at a glance, and whether the device has that much."""
    trained = f"{format_count(bill.trainable_parameters)} of {format_count(bill.parameters)} parameters train"
    console.print(f"peak {format_bytes(bill.peak)} in {bill.moment} on {bill.device.title}; {trained}", style="bold")
    console.print(_by_moment_and_kind(bill))
    overhead = "the process itself" if bill.device.kind == "cpu" else "the card's own"
    console.print(f"{format_bytes(bill.overhead)} of each is {overhead}; {bill.worst}.", markup=False)
    if bill.host:
        console.print(_beside_the_card(bill), markup=False)
    console.print(_verdict(bill), markup=False)


def _beside_the_card(bill: Bill) -> str:
    there = bill.device.host_memory
    has = "" if there is None else f", which has {format_bytes(there)}: {'it fits' if bill.fits_host else 'too little'}"
    return f"{format_bytes(bill.host)} beside it wait in the memory of the machine around the card{has}."


def _by_moment_and_kind(bill: Bill) -> Table:
    kinds = [kind for kind in Kind if max(sizes.get(kind, 0) for sizes in bill.moments.values()) > bill.peak / 200]
    unit, name = (1 << 30, "GiB") if bill.peak >= 1 << 30 else (1 << 20, "MiB")
    table = Table(box=None, pad_edge=False)
    table.add_column(name, no_wrap=True)
    for heading in ("all", *(_SHORT.get(kind, kind.value) for kind in kinds)):
        table.add_column(heading, justify="right", no_wrap=True)
    table.add_column(no_wrap=True)
    for moment, sizes in bill.moments.items():
        total = bill.overhead + sum(sizes.values())
        cells = [f"{size / unit:.2f}" for size in (total, *(sizes[kind] for kind in kinds))]
        mark = " ←" if moment == bill.moment else ""
        table.add_row(moment, *cells, _bar(total - sizes[Kind.ALLOCATOR], total, bill.peak) + mark)
    return table


def _bar(used: int, held: int, peak: int) -> str:
    """What is used as a solid bar, what the allocator only holds as a pale one behind it."""
    solid = max(1, round(_BAR * used / peak))
    return "█" * solid + "░" * (round(_BAR * held / peak) - solid)


_SHORT = {
    Kind.GRADIENTS: "grads",
    Kind.OPTIMIZER_STATE: "state",
    Kind.ACTIVATIONS: "activ.",
    Kind.TEMPORARY: "temp",
    Kind.ALLOCATOR: "held",
}


def _verdict(bill: Bill) -> str:
    low, high = (format_bytes(size) for size in bill.error_band)
    band = f"Measured runs say: between {low} and {high}."
    if bill.device.memory is None:
        return band
    there = f"{bill.device.title} has {format_bytes(bill.device.memory)}"
    if bill.fits:
        return f"{band} It fits: {there}."
    if not bill.fits_host:
        return f"{band} It does not fit the machine around the card."
    if bill.peak <= bill.device.memory:
        return f"{band} It may not fit: {there}."
    return f"{band} It does not fit: {there}, {format_bytes(bill.peak - bill.device.memory)} too little."


def show_strategies(console: Console) -> None:
    """The list of strategies, two lines each so that it fits any terminal."""
    for row in strategy_rows():
        settings = f"   settings: {row.settings}" if row.settings else ""
        console.print(f"[bold]{row.name}[/bold]   result: {row.result}   frees: {row.frees or 'nothing'}{settings}")
        console.print(f"    {row.summary}", markup=False)
    console.print("\nUse them as --use name:key=value,key=value, as often as needed.")
    console.print("same: equal to rounding; close: other arithmetic, the same quality; different: another training.")


@dataclass(frozen=True)
class StrategyRow:
    """One strategy as the terminal and the README show it."""

    name: str
    result: str
    frees: str
    summary: str
    settings: str


def strategy_rows() -> list[StrategyRow]:
    """Every strategy, in the order of the list."""
    return [
        StrategyRow(
            name=strategy.name,
            result=strategy.result.value,
            frees=", ".join(kind.value for kind in strategy.frees),
            summary=strategy.summary,
            settings=", ".join(f"{key}={_default(value)}" for key, value in strategy.settings().items()),
        )
        for strategy in STRATEGIES.values()
    ]


def _default(value: object) -> str:
    if value is None or value == "" or value is REQUIRED:
        return "…"
    return str(value).lower() if isinstance(value, bool) else str(value)


def show_evaluation(evaluation: Evaluation, console: Console) -> None:
    """Scores on held-out rows."""
    scores = ", ".join(f"{name.removeprefix('eval_')} {value:.4f}" for name, value in evaluation.metrics.items())
    console.print(f"{scores} on {evaluation.rows:,} rows")


def show_predictions(texts: list[str], predictions: list[Prediction], console: Console) -> None:
    """One line a text."""
    for text, prediction in zip(texts, predictions, strict=True):
        console.print(f"{prediction.label}\t{prediction.confidence:.1%}\t{text}", markup=False)
