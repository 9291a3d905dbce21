"""Known values: what follows from the batch alone is computed beside the fake tensors, so that a model may read it.

Fake tensors have no data, and models read some: is the mask all ones, where does each row end, which expert takes which
token, is this layer dropped. Token ids, masks, positions and constants depend on no weight, so their values are
computed and read as they are. Of a random number the lowest and the highest value are computed: an answer that is the
same for both is known. Weights choose experts: they are taken to choose evenly.

What remains is a yes or no that depends on weights or on chance: `Unknowns` answers it, and both answers are traced.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from functools import cache, partial
from pathlib import Path
from typing import Any, TypeVar

import torch

from tightfit.compat import (
    DataDependentOutputException,
    DisableTorchDispatch,
    DynamicOutputShapeException,
    FakeTensor,
    OpOverload,
    get_frame,
    index_put_in_place,
    read_scalar,
    schema_of,
    storage_id,
    unique_values,
)
from tightfit.errors import ModelError
from tightfit.messages import Message, msg

T = TypeVar("T")
_aten = torch.ops.aten
_UNKNOWN_SIZE = (DataDependentOutputException, DynamicOutputShapeException)
VALUE = "tightfit_value"
"""The attribute of a fake tensor that holds its value."""
_MOST_QUESTIONS = 20_000  # at one place: more than layers x experts x passes
_LIMIT = 1 << 24  # elements of the largest tensor that is computed, such as a mask of 32 x 512 x 512


class EndlessLoop(ModelError):
    """A loop that ends by a value which a simulation does not have."""


_LEFT_OUT = (*_UNKNOWN_SIZE, EndlessLoop)
"""Failures of one answer that are no check of the model: training may take that branch."""


@dataclass
class Unknowns:
    """What a model asks of data that a simulation does not have."""

    answer: bool = True
    """The answer to every yes-or-no question."""
    questions: dict[str, int] = field(default_factory=dict)
    """Where they are asked, file and line, and how often."""
    choices: dict[str, None] = field(default_factory=dict)
    """Where it matters what was chosen evenly."""

    def decide(self) -> bool:
        """The answer to a question; where it is asked is recorded."""
        place = _place()
        self.questions[place] = asked = self.questions.get(place, 0) + 1
        if asked > _MOST_QUESTIONS:  # `while x.any():` would never end
            raise EndlessLoop(
                msg("a value that is not known ends the loop at {place}, so it cannot be simulated", place=place)
            )
        return self.answer


def trace_answers(trace: Callable[[Unknowns], T], size: Callable[[T], float]) -> tuple[T, tuple[Message, ...]]:
    """What `trace` returns, and what had to be assumed.

    Where a model asks what is not known, both answers are traced and the larger trace is taken. An answer that makes it
    fail is no answer: models check their inputs.
    """
    traced: list[tuple[T, Unknowns]] = []
    failure: Exception | None = None
    for unknowns in (Unknowns(True), Unknowns(False)):
        try:
            traced.append((trace(unknowns), unknowns))
        except Exception as error:
            failure = failure or error
        if not unknowns.questions:
            break
    if failure is not None and not traced:
        raise failure
    largest, unknowns = max(traced, key=lambda each: size(each[0]))
    differ = len({size(each) for each, _ in traced}) > 1
    notes = (*_choice_note(unknowns), *(_question_note(unknowns) if differ else ()))
    return largest, (*notes, *(_left_out_note(unknowns) if isinstance(failure, _LEFT_OUT) else ()))


def _choice_note(unknowns: Unknowns) -> tuple[Message, ...]:
    places = ", ".join(unknowns.choices)
    return (
        (msg("predicted as if every expert received the same number of tokens ({places})", places=places),)
        if places
        else ()
    )


def _question_note(unknowns: Unknowns) -> tuple[Message, ...]:
    return (
        msg(
            "the model's weights or random numbers decide what it computes ({places}): predicted for what needs more "
            "memory",
            places=", ".join(unknowns.questions),
        ),
    )


def _left_out_note(unknowns: Unknowns) -> tuple[Message, ...]:
    return (
        msg(
            "one branch of the model ({places}) computes with sizes that depend on its data and was left out: "
            "training may need more memory than predicted",
            places=", ".join(unknowns.questions),
        ),
    )


def _place() -> str:
    """The line of the model's code that runs now."""
    frame = get_frame(1)
    while frame.f_back and str(frame.f_globals.get("__name__")).partition(".")[0] in ("torch", "tightfit"):
        frame = frame.f_back
    return f"{Path(frame.f_code.co_filename).name}:{frame.f_lineno}"


@dataclass(slots=True)
class _Value:
    """The data of a fake tensor."""

    cases: tuple[torch.Tensor, ...]
    """One, or two where it depends on a random number: for its lowest and for its highest value."""
    chosen: bool
    """Whether it depends on a choice that was taken to be even."""
    overwritten: list[bool]
    """Whether something unknown was written to it; shared with its views."""


class KnownValues:
    """Runs operations on fake tensors and computes the values that are known."""

    def __init__(self, unknowns: Unknowns, run: Callable[..., Any]) -> None:
        self._unknowns, self._run = unknowns, run

    def run(self, func: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        """The result of an operation, also where it depends on the data of its arguments."""
        if func in _DATA_DEPENDENT_OPS:
            return self._read(func, args, kwargs)
        if func in _INDEXING and any(_is_mask(index) for index in args[1]):
            args = args[0], self._indices(args[1]), *args[2:]
        out = self._run(func, args, kwargs)
        _follow(func, args, kwargs, out)
        return out

    def _read(self, func: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        """The result of an operation whose value or shape is that of the data."""
        values = [_value_of(tensor) for tensor in _tensors(args)]
        cases = _compute(func, args, kwargs)
        if cases and all(_same(cases[0], case) for case in cases):
            chosen = self._record_choice(values)
            return _map(partial(_fake_like, chosen=chosen), cases[0])
        if func is _aten.equal.default or (func is read_scalar and args[0].dtype == torch.bool):
            return self._unknowns.decide()
        return self._run(func, args, kwargs)

    def _indices(self, indices: list[Any]) -> list[Any]:
        """Masks as the indices that they select, as the kernel does it."""
        found: list[Any] = []
        for index in indices:
            value = _value_of(index) if _is_mask(index) else None
            if value is None or len(value.cases) > 1:
                found.append(index)
            else:
                chosen = self._record_choice([value])
                found += [_fake_like(one, chosen=chosen) for one in _nonzero(value.cases[0])]
        return found

    def _record_choice(self, values: list[_Value | None]) -> bool:
        chosen = any(value is not None and value.chosen for value in values)
        if chosen:
            self._unknowns.choices[_place()] = None
        return chosen


def _is_mask(index: Any) -> bool:
    return index is not None and index.dtype == torch.bool


def _nonzero(mask: torch.Tensor) -> tuple[torch.Tensor, ...]:
    with DisableTorchDispatch():
        return mask.nonzero(as_tuple=True)


def _same(first: Any, second: Any) -> bool:
    return first is second or (not isinstance(first, torch.Tensor) and first == second)


def _map(change: Callable[[torch.Tensor], Any], result: Any) -> Any:
    if isinstance(result, (tuple, list)):
        return type(result)([_map(change, one) for one in result])
    return change(result) if isinstance(result, torch.Tensor) else result


def _fake_like(value: torch.Tensor, *, chosen: bool) -> torch.Tensor:
    """A fake tensor with this value; made in a mode that makes fake tensors."""
    tensor = torch.empty_strided(value.shape, value.stride(), dtype=value.dtype)
    tensor.__dict__[VALUE] = _Value((value,), chosen, overwritten=[False])
    return tensor


# Which values are known


def _follow(func: Any, args: tuple[Any, ...], kwargs: dict[str, Any], out: Any) -> None:
    """Compute the values of the results, or forget those of the arguments that were written to."""
    if args and type(args[0]) is FakeTensor and VALUE not in args[0].__dict__ and "out" not in kwargs:
        if func in _INDEX_RETURNING_OPS:
            _choose_evenly(func, args, out)
        return  # computed from weights, as most are
    if not isinstance(func, OpOverload):
        return
    cases = _compute(func, args, kwargs) if _is_small(func, out) else None
    if cases is None:
        _forget_written(func, args, kwargs)
    elif isinstance(out, torch.Tensor):
        _attach(out, cases, args)
    elif isinstance(out, (tuple, list)):
        for index, one in enumerate(out):
            _attach(one, tuple(case[index] for case in cases), args)


def _value_of(tensor: Any) -> _Value | None:
    """What is known of a fake tensor; a real one is known."""
    if type(tensor) is not FakeTensor:
        return _Value((tensor,), chosen=False, overwritten=[False]) if tensor.device.type == "cpu" else None
    value: _Value | None = tensor.__dict__.get(VALUE)
    return None if value is None or value.overwritten[0] else value


def _attach(tensor: Any, cases: tuple[torch.Tensor, ...], args: Any) -> None:
    if type(tensor) is not FakeTensor or VALUE in tensor.__dict__ or tensor.shape != cases[0].shape:
        return  # written in place, or no tensor
    values = [value for value in map(_value_of, _tensors(args)) if value is not None]
    storage = storage_id(cases[0].untyped_storage())
    shared = [value for value in values if storage_id(value.cases[0].untyped_storage()) == storage]
    chosen = any(value.chosen for value in values)
    tensor.__dict__[VALUE] = _Value(cases, chosen, shared[0].overwritten if shared else [False])


def _forget_written(func: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> None:
    for position, name in _written_arguments(func):
        target = kwargs.get(name) if position >= len(args) else args[position]
        for tensor in _tensors(target):
            if type(tensor) is FakeTensor and VALUE in tensor.__dict__:
                tensor.__dict__[VALUE].overwritten[0] = True


@cache
def _written_arguments(func: Any) -> list[tuple[int, str]]:
    """Position and name of the arguments that an operation writes to."""
    arguments = enumerate(schema_of(func).arguments)
    return [(place, each.name) for place, each in arguments if each.alias_info and each.alias_info.is_write]


def _tensors(value: Any) -> Iterator[torch.Tensor]:
    if isinstance(value, torch.Tensor):
        yield value
    elif isinstance(value, (tuple, list)):
        for one in value:
            yield from _tensors(one)


# Computing them


def _compute(func: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> tuple[Any, ...] | None:
    """The result of an operation in each case; None if it depends on something unknown."""
    values = [_value_of(tensor) for tensor in _tensors((args, tuple(kwargs.values())))]
    if func is _aten.rand.default:
        return _extremes(args[0])
    if None in values or _is_unpredictable(func):
        return None
    count = max((len(value.cases) for value in values if value), default=1)
    if count > 1 and _written_arguments(func):
        return None
    if "device" in kwargs:
        kwargs = kwargs | {"device": torch.device("cpu")}
    with DisableTorchDispatch():
        try:
            return tuple(func(*_in_case(args, case), **_in_case(kwargs, case)) for case in range(count))
        except RuntimeError:  # the kernel expects another layout
            return None


def _in_case(value: Any, case: int) -> Any:
    """The arguments as real tensors; views of the user's own are copied, since they may be written to."""
    if isinstance(value, dict):
        return {name: _in_case(one, case) for name, one in value.items()}
    if isinstance(value, (tuple, list)):
        return type(value)([_in_case(one, case) for one in value])
    if type(value) is FakeTensor:
        cases = value.__dict__[VALUE].cases
        return cases[min(case, len(cases) - 1)]
    return value.clone() if isinstance(value, torch.Tensor) else value


def _extremes(shape: Any) -> tuple[torch.Tensor, ...] | None:
    """The lowest and the highest random number of one element."""
    if any(size != 1 for size in shape):
        return None
    with DisableTorchDispatch():
        return torch.zeros(shape), torch.ones(shape).nextafter(torch.zeros(shape))


@cache
def _is_unpredictable(func: Any) -> bool:
    """Whether its result is random, or memory that was not written to."""
    return torch.Tag.nondeterministic_seeded in func.tags or func.name().startswith(("aten::empty", "aten::new_empty"))


def _is_small(func: Any, out: Any) -> bool:
    """A view takes no memory, whatever its size."""
    return func.is_view or all(tensor.numel() <= _LIMIT for tensor in _tensors(out))


def _choose_evenly(func: Any, args: tuple[Any, ...], out: Any) -> None:
    """The indices that an operation returns, spread over all that it chooses from."""
    indices, dim = _INDEX_RETURNING_OPS[func](args, out)
    if indices.numel() > _LIMIT or dim % args[0].dim() != args[0].dim() - 1:
        return
    with DisableTorchDispatch():
        value = (torch.arange(indices.numel()) % args[0].shape[-1]).view(indices.shape)
    indices.__dict__[VALUE] = _Value((value,), chosen=True, overwritten=[False])


_DATA_DEPENDENT_OPS = {
    read_scalar,
    _aten.equal.default,
    _aten.nonzero.default,
    _aten.masked_select.default,
    _aten.repeat_interleave.Tensor,
    _aten.bincount.default,
    unique_values,
    _aten.unique_dim.default,
    _aten.unique_consecutive.default,
}
_INDEXING = {_aten.index.Tensor, _aten.index_put_.default, _aten.index_put.default, index_put_in_place}
_INDEX_RETURNING_OPS: dict[Any, Callable[[tuple[Any, ...], Any], tuple[torch.Tensor, int]]] = {
    _aten.topk.default: lambda args, out: (out[1], args[2] if len(args) > 2 else -1),
    _aten.max.dim: lambda args, out: (out[1], args[1]),
}
