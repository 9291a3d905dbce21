"""Preparation: everything a training needs, read and checked before anything is written."""

from __future__ import annotations

import contextlib
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from tightfit.data.columns import Columns
from tightfit.data.labels import Labels
from tightfit.data.order import Buckets, steps_of
from tightfit.data.reading import read_data
from tightfit.data.split import Split
from tightfit.data.tokens import Tokens, encode
from tightfit.device import Device
from tightfit.errors import RecipeError
from tightfit.job import Job
from tightfit.recipe import Recipe
from tightfit.record import Data
from tightfit.rehearsal.bill import Bill
from tightfit.rehearsal.lengths import Lengths
from tightfit.strategies.parts import Parts
from tightfit.tasks import find_task
from tightfit.units import format_count

if TYPE_CHECKING:
    from transformers import PreTrainedTokenizerBase

    from tightfit.beginning import Smaller, Texts
    from tightfit.meter import Meter
    from tightfit.planning.keeping import Keeping, Kept
    from tightfit.rehearsal.course import Course
    from tightfit.rehearsal.performing import Company
    from tightfit.rehearsal.rehearsal import Rehearsal


@dataclass(frozen=True, kw_only=True)
class Prepared:
    """A training that can begin: all input read, the model built, nothing written yet."""

    job: Job
    recipe: Recipe
    labels: Labels
    columns: Columns
    split: Split
    train: Tokens
    validation: Tokens
    tokenizer: PreTrainedTokenizerBase
    parts: Parts
    bill: Bill | None
    """What it is expected to take, where that can be told."""
    notes: tuple[str, ...]
    """What the user should know before it begins."""
    kept: Kept | None = None
    """The recipe as it was planned, where there is a budget to keep to."""
    course: Course | None = None
    """One step of the rehearsal."""
    texts: Texts | None = None
    smaller: list[Smaller] = field(default_factory=list)
    """Recipes that take less, as far as that is known without another rehearsal."""

    @property
    def steps(self) -> int:
        """How many there are to take."""
        return steps_of(self.job, len(self.train))

    @property
    def data(self) -> Data:
        """What is trained on, for the record."""
        return Data(
            train_rows=len(self.train),
            validation_rows=len(self.validation),
            labels=self.labels.names,
            text_columns=self.columns.text,
            label_column=self.columns.label or "",
            cut_rows=self.train.cut,
        )


def prepare(
    job: Job, recipe: Recipe, device: Device, keeping: Keeping | None = None, meter: Meter | None = None
) -> Prepared:
    """Read the data, build the model and put the recipe on it, or one that keeps to a budget.

    The meter leaves out what the forecast takes for a moment: the small steps that load the libraries' own code, and
    the samples that the machine's rates are measured with.
    """
    from tightfit.assembly import assemble
    from tightfit.rehearsal.performing import Company
    from tightfit.texts import texts_of
    from tightfit.weights import load_tokenizer

    find_task(job.task)
    data = read_data(job)
    tokenizer = load_tokenizer(job.model)
    train = encode(data.split.train, tokenizer, job.max_length, data.labels)
    validation = encode(data.split.validation, tokenizer, job.max_length, data.labels)
    fitting = job.for_rows(len(train))
    company = Company(fitting, device, data.labels, tokenizer)
    lengths = Lengths.of(fitting, train.lengths, validation.lengths)
    with meter.left_out() if meter is not None else contextlib.nullcontext():
        kept = keeping.choose(company, lengths) if keeping is not None else None
        recipe = kept.recipe if kept is not None else recipe
        foreseen, unforeseen = _foresee(recipe, company, lengths)
    parts = assemble(fitting, recipe, device, data.labels, tokenizer)
    if parts.max_length < job.max_length:
        train = encode(data.split.train, tokenizer, parts.max_length, data.labels)
        validation = encode(data.split.validation, tokenizer, parts.max_length, data.labels)
    return Prepared(
        job=job,
        recipe=recipe,
        labels=data.labels,
        columns=data.columns,
        split=data.split,
        train=train,
        validation=validation.longest_first(),
        tokenizer=tokenizer,
        parts=parts,
        bill=foreseen.bill,
        course=foreseen.course,
        smaller=foreseen.smaller,
        texts=texts_of(train, lengths, parts),
        kept=kept,
        notes=(
            *(kept.notes if kept else ()),
            *data.notes,
            *_about_batch(job, len(train)),
            *_about_cut(train, parts.max_length),
            *parts.notes,
            *unforeseen,
            _about_training(parts),
        ),
    )


@dataclass(frozen=True)
class _Foreseen:
    """What a rehearsal tells."""

    bill: Bill | None = None
    course: Course | None = None
    smaller: list[Smaller] = field(default_factory=list)


def _foresee(recipe: Recipe, company: Company, lengths: Lengths) -> tuple[_Foreseen, tuple[str, ...]]:
    """The bill, before the model takes its memory; a training that cannot be rehearsed is trained all the same."""
    from tightfit.elsewhere import elsewhere
    from tightfit.rehearsal.rehearsal import Rehearsal

    recipe.load()
    rehearsal = Rehearsal(company, lengths, overhead=company.overhead())
    on_card = company.device.kind != "cpu"  # where it leaves nothing, and a driver does not like forks
    try:
        return (_foreseen(rehearsal, recipe) if on_card else elsewhere(_foreseen, rehearsal, recipe)), ()
    except RecipeError:
        raise
    except Exception as error:  # whatever a rehearsal stumbles over, the training itself may well run
        reason = (str(error).strip().splitlines() or [type(error).__name__])[0]
        return _Foreseen(), (f"memory could not be foretold: {reason}",)


def _foreseen(rehearsal: Rehearsal, recipe: Recipe) -> _Foreseen:
    bill = rehearsal.bill(recipe)
    return _Foreseen(bill, rehearsal.course(recipe), _smaller(rehearsal, recipe, bill))


def _smaller(rehearsal: Rehearsal, recipe: Recipe, bill: Bill) -> list[Smaller]:
    """Half the slice, where what was played tells that too."""
    from tightfit.beginning import Smaller

    rows = rehearsal.played(recipe)[1].step_rows
    if rows < 2 or any(s.steps_in_pass or s.name == "slice-layers" for s in recipe.strategies):
        return []
    words = [s.word for s in recipe.strategies if s.chooses != "slices"]
    half = Recipe.parse([f"slice:size={rows // 2}", *words])
    if rehearsal.unplayed([half]):
        return []
    peak = rehearsal.bill(half).peak
    return [Smaller(recipe=half.words, peak_bytes=peak, result=half.result.value)] if peak < bill.peak else []


def buckets_of(parts: Parts, tokens: Tokens) -> Buckets | None:
    """How rows of like length meet, where a recipe wants them to."""
    return Buckets(tokens.lengths, parts.batch_size, parts.pool) if parts.pool else None


def _about_batch(job: Job, rows: int) -> tuple[str, ...]:
    if job.batch_size <= rows:
        return ()
    return (f"batches of {job.batch_size:,} are more than the {rows:,} training rows: every step takes all of them",)


def _about_cut(tokens: Tokens, max_length: int) -> tuple[str, ...]:
    if not tokens.cut:
        return ()
    share = f"{tokens.cut:,} of {len(tokens):,} training texts ({tokens.cut / len(tokens):.1%})"
    return (f"{share} are longer than {max_length} tokens and are cut",)


def _about_training(parts: Parts) -> str:
    slices = f" in slices of {parts.slice_rows}" if parts.slice_rows < parts.batch_size else ""
    if parts.slice_tokens is not None:
        slices = f" in slices of {parts.slice_tokens} tokens"
    return (
        f"Training {format_count(parts.trainable_parameters)} parameters on {parts.device.title}, "
        f"batches of {parts.batch_size}{slices}"
    )
