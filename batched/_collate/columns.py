"""Columns in, one list of rows out: the collator of functions of several parameters."""

from __future__ import annotations

import inspect
from typing import TYPE_CHECKING, Any

from batched._collate.lists import ListCollator
from batched._core.call import Call, Row

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable

    from batched._core.batch import Batch
    from batched._core.call import Slice, Wrapper

__all__ = ["ColumnCollator", "parameters_of"]

_BY_POSITION = (inspect.Parameter.POSITIONAL_ONLY, inspect.Parameter.POSITIONAL_OR_KEYWORD)


def parameters_of(func: Callable[..., Any], *, bound: bool) -> list[inspect.Parameter]:
    """Return the parameters that callers of `func` see, an empty list if it has no signature."""
    try:
        parameters = list(inspect.signature(getattr(func, "__func__", func)).parameters.values())
    except (TypeError, ValueError):  # as of some callables in C
        return []
    bound = bound or inspect.ismethod(func)
    return parameters[1:] if bound else parameters


class ColumnCollator:
    """Joins the columns that callers pass, one for each parameter, by position or by name.

    The calls of a batch pass the same parameters. A parameter that they leave out is not passed to the
    function, which has a default for it.
    """

    chunk_size: int | None = None

    def __init__(self, name: str, parameters: list[inspect.Parameter]) -> None:
        self._name = name
        self._rows = ListCollator(name)
        self.split = self._rows.split
        self.own = self._rows.own
        self._positions = [parameter.name for parameter in parameters if parameter.kind in _BY_POSITION]
        self._by_position_only = {p.name for p in parameters if p.kind is inspect.Parameter.POSITIONAL_ONLY}
        self._names = {
            p.name for p in parameters if p.kind not in {p.VAR_KEYWORD, p.VAR_POSITIONAL, p.POSITIONAL_ONLY}
        }
        self._any_name = any(p.kind is p.VAR_KEYWORD for p in parameters)
        self._any_number = any(p.kind is p.VAR_POSITIONAL for p in parameters)
        self._required = [
            p.name
            for p in parameters
            if p.default is p.empty and p.kind not in {p.VAR_KEYWORD, p.VAR_POSITIONAL}
        ]

    def read(self, function: Wrapper, args: tuple[Any, ...], named: dict[str, Any], now: float) -> Call:
        """Return the call for one item, or a list of items, in each column."""
        if not any(isinstance(column, list) for column in (*args, *named.values())):
            return self.one(function, args, named, now)
        key, columns = self._arranged(args, named)
        lists = [column for column in columns if isinstance(column, list)]
        if len(lists) < len(columns) or len(set(map(len, lists))) > 1:
            raise ValueError(
                f"{self._name}: all columns of a call must be one item, or lists of as many items, got "
                + ", ".join(self._described(key, columns))
            )
        call = Call().begin(_ByName(function, key), list(map(list, lists)), len(lists[0]), True, now)  # noqa: FBT003
        call.key = key
        return call

    def one(self, function: Wrapper, args: tuple[Any, ...], named: dict[str, Any], now: float) -> Call:
        """Return the call for one item, even if it is a list in some column."""
        key, columns = self._arranged(args, named)
        call = Call().begin(_ByName(function, key), columns, 1, False, now)  # noqa: FBT003
        call.key = key
        return call

    def _arranged(self, args: tuple[Any, ...], named: dict[str, Any]) -> tuple[tuple[Any, ...], list[Any]]:
        """Return the key of a call, and its columns: first those by position, then those by name.

        The key is the number of columns by position and the names of the others. A column that can be passed
        by position is, however its caller passed it, so that equal calls share batches.
        """
        self._check(args, named)
        columns = [*args]
        named = dict(named)
        for name in self._positions[len(args) :]:
            if name not in named or name in self._by_position_only:
                break
            columns.append(named.pop(name))
        names = sorted(named)
        return (len(columns), *names), columns + [named[name] for name in names]

    def _check(self, args: tuple[Any, ...], named: dict[str, Any]) -> None:
        """Raise `TypeError` for arguments that the function itself would not accept."""
        given = {*self._positions[: len(args)], *named}
        problem = ""
        if len(args) > len(self._positions) and not self._any_number:
            problem = f"at most {len(self._positions)} can be given by position"
        elif twice := named.keys() & set(self._positions[: len(args)]) - self._by_position_only:
            problem = f"{min(twice)!r} was given twice"
        elif not self._any_name and (unknown := named.keys() - self._names):
            problem = f"there is no parameter {min(unknown)!r}"
        elif missing := [name for name in self._required if name not in given]:
            problem = f"{missing[0]!r} is missing"
        elif not given and not args:
            problem = "none was given"
        if problem:
            names = ", ".join([*self._positions, *sorted(self._names - set(self._positions))])
            raise TypeError(f"{self._name} takes the parameters {names}: {problem}")

    def _described(self, key: tuple[Any, ...], columns: list[Any]) -> list[str]:
        positions = [*self._positions[: key[0]], *(f"*{at}" for at in range(len(self._positions), key[0]))]
        return [
            f"{name}: {f'{len(column)} items' if isinstance(column, list) else 'one item'}"
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

    def place(self, piece: Slice, part: list[Any]) -> list[Any]:
        """Write `part` over the items of the first column that it answers; return these items.

        The first column becomes the list of results.
        """
        call, start, stop = piece
        results = call.results = call.inputs[0]
        overwritten: list[Any] = results[start:stop]
        results[start:stop] = part
        return overwritten


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
