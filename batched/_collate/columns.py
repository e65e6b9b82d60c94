"""Columns in, one list of rows out: the collator of functions of several parameters."""

from __future__ import annotations

import inspect
import re
import reprlib
import sys
from collections.abc import Callable, Iterable, Sequence
from numbers import Number
from typing import Any

from batched._collate.lists import ListCollator
from batched._core.batch import Batch
from batched._core.call import Call, Row, Wrapper
from batched._core.options import told_of_options
from batched._core.parameters import signature_of

_BY_POSITION = (inspect.Parameter.POSITIONAL_ONLY, inspect.Parameter.POSITIONAL_OR_KEYWORD)
_VARIADIC = (inspect.Parameter.VAR_POSITIONAL, inspect.Parameter.VAR_KEYWORD)
_SCALARS = (Number, str, bytes)
_LISTS = re.compile(
    r"\b(list|List|tuple|Tuple|Sequence|MutableSequence|Collection|Iterable|ndarray|NDArray|ArrayLike|Tensor)\b"
)


def parameters_of(func: Callable[..., Any], *, bound: bool) -> list[inspect.Parameter]:
    """Return the parameters that callers of `func` see, an empty list if it has no signature."""
    try:
        parameters = list(signature_of(getattr(func, "__func__", func)).parameters.values())
    except (TypeError, ValueError):  # some callables in C have none
        return []
    bound = bound or inspect.ismethod(func)
    return parameters[1:] if bound else parameters


def takes_columns(parameters: list[inspect.Parameter]) -> bool:
    """Whether a function with these parameters takes columns, not one list by position."""
    return len(parameters) > 1 or any(parameter.kind not in _BY_POSITION for parameter in parameters)


def is_setting(parameter: inspect.Parameter) -> bool:
    """Whether a parameter is no column but holds for a whole batch, as its default says.

    As a column it would be a list, and `[False]` is true. An annotation as a list says that it is a column.
    """
    if not isinstance(parameter.default, _SCALARS):
        return False
    note = parameter.annotation
    return not _LISTS.search(note if isinstance(note, str) else inspect.formatannotation(note))


class ColumnCollator(ListCollator):
    """Joins the columns that callers pass, one for each parameter, by position or by name.

    The calls of a batch pass the same parameters. A parameter that they leave out is not passed to the
    function, which has a default for it.
    """

    def __init__(
        self,
        name: str,
        parameters: list[inspect.Parameter],
        *,
        streams: bool = False,
        last: str | None = None,
    ) -> None:
        super().__init__(name, streams=streams, last=last)
        self._signature = inspect.Signature(parameters)
        self._positions = [parameter.name for parameter in parameters if parameter.kind in _BY_POSITION]
        self._places = {parameter.name: at for at, parameter in enumerate(parameters)}
        # Not the first one: without it there would be no item.
        self._settings = frozenset(each.name for each in parameters[1:] if is_setting(each))
        at = (at for at, each in enumerate(self._positions) if each in self._settings)
        self._most_by_position = next(at, sys.maxsize)

    def read(self, function: Wrapper, args: tuple[Any, ...], named: dict[str, Any], now: float) -> Call:
        """Return the call for one item, or a list of items, in each column."""
        call = self.one(function, args, named, now)
        columns = call.inputs
        lists = [column for column in columns if isinstance(column, list)]
        if not lists:
            return call
        lengths = set(map(len, lists))
        if len(lists) < len(columns) or len(lengths) > 1:
            remedy = f"; pass one item for all as [item] * {len(lists[0])}" if len(lengths) == 1 else ""
            raise ValueError(
                f"{self._name}: the columns of a call must all be single items or lists of one length, got "
                f"{', '.join(self._described(call.key, columns))}{remedy}"
            )
        return call.begin(call.function, list(map(list, lists)), len(lists[0]), True, now)  # noqa: FBT003

    def one(self, function: Wrapper, args: tuple[Any, ...], named: dict[str, Any], now: float) -> Call:
        """Return the call for one item, even if it is a list in some column.

        Its key is the number of columns by position, and the names of the others. A column that can be passed
        by position is, however its caller passed it, so that equal calls share batches.
        """
        try:
            bound = self._signature.bind(*args, **named)
        except TypeError as error:
            told = told_of_options(named, self._places) if named else _remedy_of_tuples(args)
            raise self._refused(f"{error}{told}") from None
        columns, rest = bound.args, bound.kwargs
        if len(columns) > self._most_by_position or (rest and not self._settings.isdisjoint(rest)):
            raise self._setting_given(bound.arguments, rest)
        if not columns and not rest:
            raise self._refused("none was given")
        names = sorted(rest, key=self._place)
        key = (len(columns), *names)
        inputs = [*columns, *(rest[name] for name in names)]
        call = Call().begin(_ByName(function, key), inputs, 1, False, now)  # noqa: FBT003
        call.key = key
        if self._streams:
            call.results = []
        return call

    def arguments(self, values: tuple[Any, ...]) -> tuple[tuple[Any, ...], dict[str, Any]]:
        """Return values, one for each parameter that is a column, as the arguments of a call."""
        first = self._positions[: self._most_by_position]
        known = self._signature.parameters.values()
        others = [
            each.name
            for each in known
            if each.kind not in _VARIADIC and each.name not in self._settings and each.name not in first
        ]
        if len(values) > len(first) + len(others):  # for `*args`; or too many
            return values, {}
        return values[: len(first)], dict(zip(others, values[len(first) :], strict=False))

    def _place(self, name: str) -> tuple[int, str]:
        """Return what puts columns by name in the order of the parameters, with others behind them."""
        return self._places.get(name, len(self._places)), name

    def _refused(self, why: str) -> TypeError:
        """Return the error for arguments that the function itself would not accept."""
        stars: dict[Any, str] = dict(zip(_VARIADIC, ("*", "**"), strict=True))
        names = [stars.get(at.kind, "") + name for name, at in self._signature.parameters.items()]
        return TypeError(f"{self._name} takes the parameters {', '.join(names)}: {why}")

    def _setting_given(self, arguments: dict[str, Any], rest: dict[str, Any]) -> TypeError:
        """Return the error for a value that one call gives to a parameter that holds for a whole batch."""
        given = {**arguments, **rest}
        name = next(name for name in given if name in self._settings)
        default = self._signature.parameters[name].default
        return TypeError(
            f"{self._name}: {name}={reprlib.repr(given[name])} cannot be passed in a call: {name!r} applies "
            f"to a whole batch, because its default is {default!r}. Set it for all calls before decorating: "
            f"functools.partial(function, {name}=...). (For one value per item, give it the default None or "
            f"annotate it as a list.)"
        )

    def _described(self, key: tuple[Any, ...], columns: list[Any]) -> list[str]:
        positions = [*self._positions[: key[0]], *(f"*{at}" for at in range(len(self._positions), key[0]))]
        return [
            f"{name}: {f'a list of {len(column)}' if isinstance(column, list) else 'one item'}"
            for name, column in zip([*positions, *key[1:]], columns, strict=True)
        ]

    def chunk(self, function: Wrapper, items: list[Any], now: float) -> Call:
        """Return a call of several items, each a `Row` of several columns, or the only column."""
        columns = list(map(list, zip(*items, strict=True))) if isinstance(items[0], Row) else [items]
        return self.read(function, tuple(columns), {}, now)

    def items(self, call: Call) -> Iterable[tuple[tuple[Any, ...], dict[str, Any]]]:
        """Return each item of `call`, as arguments."""
        positions, *names = call.function.key  # not `call.key`, which `group_by` may have replaced
        rows = zip(*call.inputs, strict=True) if call.many else [tuple(call.inputs)]
        for row in rows:
            yield row[:positions], dict(zip(names, row[positions:], strict=True))

    def pick(self, inputs: list[list[Any]], places: list[int]) -> list[list[Any]]:
        """Return the inputs of some of the items of a list call."""
        return [[column[place] for place in places] for column in inputs]

    def collate(self, batch: Batch) -> list[list[Any]]:
        """Return the columns, each a new list."""
        slices = batch.slices
        columns: list[list[Any]] = [[] for _ in slices[0][0].inputs]
        for call, start, stop in slices:
            if call.many:
                batch.has_lists = True
                for column, inputs in zip(columns, call.inputs, strict=True):
                    column.extend(inputs[start:stop])
            else:
                for column, item in zip(columns, call.inputs, strict=True):
                    column.append(item)
        return columns

    @staticmethod
    def columns_of(call: Call) -> Sequence[Any]:
        """Return the columns of `call`: the item in each, or the list of them."""
        columns: list[Any] = call.inputs
        return columns


class _ByName:
    """A batch function that takes its columns as one list, and passes some of them by name."""

    __slots__ = ("_function", "key")

    def __init__(self, function: Wrapper, key: tuple[Any, ...]) -> None:
        self._function = function
        self.key = key  # the number of columns by position, and the names of the others

    def __wrapped__(self, columns: list[list[Any]]) -> Any:
        positions, *names = self.key
        named = dict(zip(names, columns[positions:], strict=True))
        return self._function.__wrapped__(*columns[:positions], **named)


def _remedy_of_tuples(args: tuple[Any, ...]) -> str:
    """Return what to write where a tuple, or a list of tuples, was passed in the place of the columns."""
    match args:
        case (tuple(),):
            return (
                "; a tuple is passed in parts, as in fn(*item), and many to a map as in fn.map(*zip(*items))"
            )
        case ([tuple(), *_],):
            return "; tuples are passed as a list for each parameter, as in fn(*map(list, zip(*items)))"
        case _:
            return ""
