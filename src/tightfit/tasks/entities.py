"""Entities: spans of tokens with a type, read from tags as seqeval does, and their scores."""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Iterable, Sequence
from typing import NamedTuple

from tightfit.tasks.quality import LabelScore

OUTSIDE = "O"
_TAG = re.compile(r"([BIESLUM])-(.+)")
_LIKE_SEQEVAL = {"L": "E", "U": "S", "M": "I"}  # BILOU and BMES


class Entity(NamedTuple):
    """Consecutive tokens of one type."""

    type: str
    start: int
    end: int
    """The place after its last token."""


def has_prefix(tag: str) -> bool:
    """Whether a tag says where in an entity its token is, such as `B-PER`."""
    return bool(_TAG.fullmatch(tag))


def entity_type(tag: str) -> str:
    """The type of the entity that a token with this tag is in; tags without a prefix are types themselves."""
    return _parts(tag)[1]


def find_entities(tags: Sequence[str], outside: str = OUTSIDE) -> list[Entity]:
    """The entities of a sentence; an `I-` that follows nothing of its type starts an entity, as in conlleval."""
    found, start, before = [], 0, (OUTSIDE, "")
    for place, tag in enumerate([*tags, outside]):
        now = (OUTSIDE, "") if tag == outside else _parts(tag)
        if _ends(before, now):
            found.append(Entity(before[1], start, place))
        if _starts(before, now):
            start = place
        before = now
    return found


def _parts(tag: str) -> tuple[str, str]:
    """Prefix and type; tokens in a row whose tags have no prefix are one entity."""
    match = _TAG.fullmatch(tag)
    return (_LIKE_SEQEVAL.get(match[1], match[1]), match[2]) if match else ("I", tag)


def _ends(before: tuple[str, str], now: tuple[str, str]) -> bool:
    if before[0] == OUTSIDE:
        return False
    return before[0] in "ES" or now[0] in "BSO" or before[1] != now[1]


def _starts(before: tuple[str, str], now: tuple[str, str]) -> bool:
    if now[0] == OUTSIDE:
        return False
    return now[0] in "BS" or before[0] in "ESO" or before[1] != now[1]


def entity_scores(sentences: Iterable[tuple[Sequence[Entity], Sequence[Entity]]]) -> list[LabelScore]:
    """The scores of each type, by the true and the predicted entities of each sentence."""
    truth, predicted, right = Counter[str](), Counter[str](), Counter[str]()
    for true, guessed in sentences:
        truth.update(entity.type for entity in true)
        predicted.update(entity.type for entity in guessed)
        right.update(entity.type for entity in {*true} & {*guessed})
    return [label_score(name, truth[name], predicted[name], right[name]) for name in sorted(truth | predicted)]


def label_score(name: str, truth: int, predicted: int, right: int) -> LabelScore:
    """Precision, recall and F1 of so many entities."""
    return LabelScore(
        label=name,
        rows=truth,
        predicted=predicted,
        precision=right / max(predicted, 1),
        recall=right / max(truth, 1),
        f1=2 * right / max(truth + predicted, 1),
    )
