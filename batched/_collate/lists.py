"""Lists in, lists out: the collator of functions of one list."""

from __future__ import annotations

import reprlib
from collections.abc import Iterable, Sequence
from typing import Any

from batched._collate.libraries import library_of
from batched._collate.misanswers import are_columns, may_be_rows, remedy, remedy_of_tuple
from batched._collate.own_copies import own_copy
from batched._collate.owned import owned
from batched._collate.plain import PLAIN, are_plain, kinds_of
from batched._collate.used_up import is_used_up
from batched._core.batch import Batch
from batched._core.call import Call, Row, Slice, Wrapper
from batched._core.options import told_of_options
from batched._core.parameters import signature_of
from batched.errors import BatchError, ResultTypeError, is_error


class ListCollator:
    """Joins items to a list; splits any sized, ordered object of one row per item."""

    chunk_size: int | None = None

    def __init__(self, name: str, *, streams: bool = False, last: str | None = None) -> None:
        """Read calls of the function of this name; the results are returned by it, or by the `last` stage."""
        self._name = name
        self._last = last or name
        self._streams = streams  # then the function goes on with what it has yielded
        self._follows = False  # whether results of which the number is right have been looked at

    def read(self, function: Wrapper, args: tuple[Any, ...], named: dict[str, Any], now: float) -> Call:
        """Return the call for one item or a list of items; the list is copied."""
        items = args[0] if len(args) == 1 and not named else self._argument(function, args, named)
        if not isinstance(items, list):
            return Call().begin(function, items, 1, False, now)  # noqa: FBT003
        inputs = items[:] if type(items) is list else list(items)
        return Call().begin(function, inputs, len(inputs), True, now)  # noqa: FBT003

    def one(self, function: Wrapper, args: tuple[Any, ...], named: dict[str, Any], now: float) -> Call:
        """Return the call for one item, even a list; of a function that streams, its answer is a list."""
        item = args[0] if len(args) == 1 and not named else self._argument(function, args, named)
        call = Call().begin(function, item, 1, False, now)  # noqa: FBT003
        if self._streams:
            call.results = []
        return call

    def _argument(self, function: Wrapper, args: tuple[Any, ...], named: dict[str, Any]) -> Any:
        """Return the only argument, however it was passed."""
        parameter = next(iter(signature_of(function.__wrapped__).parameters), "items")
        if not args and list(named) == [parameter]:
            return named[parameter]
        given = ", ".join(
            [*map(reprlib.repr, args), *(f"{name}={reprlib.repr(value)}" for name, value in named.items())]
        )
        raise TypeError(
            f"{self._name} takes one argument, {parameter!r} (an item or a list of items), got ({given})"
            + told_of_options(named, {parameter})
        )

    def items(self, call: Call) -> Iterable[tuple[tuple[Any, ...], dict[str, Any]]]:
        """Return each item of `call`, as arguments."""
        return [((item,), {}) for item in (call.inputs if call.many else [call.inputs])]

    def pick(self, inputs: list[Any], places: list[int]) -> list[Any]:
        """Return the inputs of some of the items of a list call."""
        return [inputs[place] for place in places]

    def chunk(self, function: Wrapper, items: list[Any], now: float) -> Call:
        """Return a call of several items."""
        if isinstance(items[0], Row):
            raise TypeError(f"{self._name} takes one argument, so `map` takes one iterable")
        return Call().begin(function, items, len(items), True, now)  # noqa: FBT003

    def own(self, call: Call) -> None:
        """Do nothing: the list was copied when it was read, and its items are not copied."""

    def collate(self, batch: Batch) -> list[Any]:
        """Return a new list of the batch's items."""
        slices = batch.slices
        call, start, stop = slices[0]
        if call.many and len(slices) == 1:
            batch.has_lists = True
            part: list[Any] = call.inputs[start:stop]
            return part
        items: list[Any] = []
        for call, start, stop in slices:
            if call.many:
                batch.has_lists = True
                items += call.inputs[start:stop]
            else:
                items.append(call.inputs)
        return items

    @staticmethod
    def columns_of(call: Call) -> Sequence[Any]:
        """Return the columns of `call`: here its item, or the list of its items, is the only one."""
        return (call.inputs,)

    def can_repeat(self, batch: Batch) -> bool:
        """Return whether no item of `batch` may be used up, in any column."""
        return not any(
            is_used_up(item)
            for call, start, stop in batch.slices
            for column in self.columns_of(call)
            for item in (column[start:stop] if call.many else (column,))
        )

    def split(self, outputs: Any, batch: Batch) -> list[Any]:
        """Return one part per slice: a row for a single item, else a list of rows."""
        rows, are_mine = (outputs, False) if type(outputs) is list else self._own_rows(outputs, batch.size)
        if len(rows) != batch.size:
            batch.returned = len(rows)
            raise BatchError(self._miscounted(len(rows), batch.size) + remedy_of_tuple(outputs, batch.size))
        # A lone row, the most frequent case, is looked at here.
        try:
            is_plain = are_mine or (type(rows[0]) in PLAIN if batch.size == 1 else are_plain(rows))
        except Exception:  # noqa: BLE001  of a metaclass, as in `are_plain`
            is_plain = False
        batch.may_fail = not is_plain
        if not is_plain:
            if not self._follows:
                self._believe(rows, batch, in_tuple=isinstance(outputs, tuple))
            rows = owned([*map(own_copy, rows)] if self._streams else rows)
        elif self._streams:
            self._follows = True  # no later step runs again in parts
        if not batch.has_lists:
            return rows
        slices = batch.slices
        if len(slices) == 1:
            # Copied where it becomes the answer: the function may keep and reuse its own list.
            part = rows[:] if rows is outputs and slices[0][0].size == batch.size else rows
            return [part if is_plain else _checked(part, slices[0], batch)]
        parts: list[Any] = []
        at = 0
        for piece in slices:
            call, start, stop = piece
            if call.many:
                parts.append(_checked(rows[at : at + stop - start], piece, batch))
                at += stop - start
            else:
                parts.append(rows[at])
                at += 1
        return parts

    def split_first(self, outputs: Any, batch: Batch, given: int) -> list[Any]:
        """Return one part per slice, where the function was `given` more items than `batch` has, last."""
        rows = outputs if type(outputs) is list else self._rows(outputs)
        if len(rows) != given:
            batch.returned = len(rows)
            raise BatchError(self._miscounted(len(rows), given) + remedy_of_tuple(outputs, given))
        if not self._follows:
            self._believe(rows, batch, in_tuple=isinstance(outputs, tuple))
        return self.split(rows[: batch.size], batch)

    def _believe(self, rows: list[Any], batch: Batch, *, in_tuple: bool) -> None:
        """Take it that the number of results follows that of items, or raise a `BatchError`, once.

        Two arrays are returned for any batch, and each of them is as long as that. The parts of this batch,
        or of the next one, show whether they were results after all, if sizes are not fixed.
        """
        self._follows = True
        if are_columns(rows, in_tuple=in_tuple):
            batch.returned = len(rows)
            raise BatchError(self._columns(len(rows)))

    def place(self, piece: Slice, part: list[Any]) -> None:
        """Write `part` over the inputs that it answers, in the first column.

        The list of inputs becomes the list of results, so a long list takes no second one.
        """
        call, start, stop = piece
        results = call.results = self.columns_of(call)[0]
        results[start:stop] = part

    def _own_rows(self, outputs: Any, size: int) -> tuple[list[Any], bool]:
        """Return the rows of `outputs`, and whether they are known to be neither views nor exceptions."""
        library = library_of(outputs)
        copies = None if library is None else library.rows(outputs, size)
        return (self._rows(outputs), False) if copies is None else (copies, True)

    def _rows(self, outputs: Any) -> list[Any]:
        """Return the rows of `outputs`, such as an array or a tuple, as a list."""
        if may_be_rows(outputs):
            try:
                size = len(outputs)
                rows = list(outputs)
            except TypeError:
                pass  # not sized or not iterable; a 0-dimensional array has `__len__`, which raises
            else:
                if len(rows) == size:
                    return rows
                raise BatchError(self._miscounted(len(rows), size))
        raise ResultTypeError(
            f"{self._last} must return one result per item, as a list, tuple or array, "
            f"not {type(outputs).__qualname__}{remedy(outputs)}"
        )

    def _columns(self, size: int) -> str:
        return (
            f"{self._last} returned {size} results for its first batch of {size} items, and each of them has "
            f"{size} elements, so they are taken for columns, not for one result per item: write "
            f"`return list(zip(*outputs))`; or, if each is the result of an item, return one array, or a "
            f"list of arrays of one shape"
        )

    def _miscounted(self, results: int, items: int) -> str:
        if self._streams:
            return (
                f"{self._last} yielded {results} {'piece' if results == 1 else 'pieces'} for a batch of "
                f"{items} {'item' if items == 1 else 'items'}; each step must yield one piece per item, in "
                f"the same order: batched.DONE for an item that has ended; and with continuous=True, leave "
                f"out those of `change.left`, and append those of `change.joined`"
            )
        return (
            f"{self._last} returned {results} {'result' if results == 1 else 'results'} for a batch of "
            f"{items} {'item' if items == 1 else 'items'}; it must return one result per item, in the same "
            f"order: None or an exception for an item without a result"
        )


def _checked(part: list[Any], piece: Slice, batch: Batch) -> list[Any] | BaseException:
    """Return `part`, the results of a slice of a list, or its first exception if that fails the list."""
    if not any(issubclass(kind, BaseException) for kind in kinds_of(part)):
        return part
    failed = [at for at, row in enumerate(part) if is_error(row)]
    batch.failed += len(failed)
    return batch.first_error(piece, part, failed) if failed and not piece[0].keep_errors else part
