"""Single batches of a decorated function: no queue, no worker and no wait."""

from __future__ import annotations

import reprlib
from collections.abc import Sequence
from copy import deepcopy
from functools import partial
from typing import Any

from batched._api.function import DecoratedFunction
from batched._api.lists import dynamically
from batched._api.through_class import ThroughClass
from batched._clock import monotonic
from batched._collate.columns import ColumnCollator
from batched._collate.used_up import is_used_up
from batched._core.batch import Batch
from batched._core.call import Call
from batched._core.change import DONE, OVER, Change
from batched._core.collator import InFront
from batched._core.options import ArrayOptions, Options
from batched._drivers.generators import run_steps
from batched._drivers.thread import ThreadDriver
from batched._parts.layers import Grouping, LayeredCollator
from batched._policy.size_choice import SizeChoice
from batched.errors import is_error
from batched.testing.at_once import check_runs_here, loops_of, run_at_once, stand_in_of
from batched.testing.own_loops import result_of


def check_on_instance(function: object, tool: str) -> None:
    """Raise an error if a `tool` is given a method that was found through its class."""
    if isinstance(function, ThroughClass):
        name: str = function.__qualname__
        raise TypeError(f"{tool} takes the method of an instance, got {name}, found through its class")


def decorated(function: Any, tool: str) -> DecoratedFunction[Any]:
    """Return a function for a `tool`, decorated if it is a plain one; `TypeError` if it is none."""
    if isinstance(function, DecoratedFunction):
        return function
    check_on_instance(function, tool)
    if not callable(function):
        raise TypeError(f"{tool} takes a function, got {function!r}")
    plain: Any = function  # `callable` has made it one that returns an `object`
    found: DecoratedFunction[Any] = dynamically(plain)
    return found


class Trial:
    """Runs batches of a function, as they would run: with its stages, and in one of its `batch_sizes`."""

    def __init__(self, function: DecoratedFunction[Any]) -> None:
        driver: Any = function._driver  # noqa: SLF001
        self.name: str = function._name  # noqa: SLF001
        check_runs_here(driver, self.name)
        self.options: Options = driver.options
        self.is_of_arrays: bool = isinstance(driver.options, ArrayOptions)
        self._function: Any = function
        self._wait = partial(result_of, loops_of(driver))
        self._worker = stand_in_of(driver.options) if isinstance(driver, ThreadDriver) else None
        collator: Any = driver.collator
        while isinstance(collator, LayeredCollator):
            collator = collator.inner  # a cache would answer in the place of the function
        self._collator = collator
        if (group_by := driver.options.group_by) is not None:
            self._collator = LayeredCollator(collator, [Grouping(collator, group_by, self.name)])
        while isinstance(collator, InFront):
            collator = collator.inner
        self._columns = collator if isinstance(collator, ColumnCollator) else None
        self.has_columns: bool = self._columns is not None
        sizes = driver.options.batch_sizes
        self._sizes = None if sizes is None else SizeChoice(tuple(sizes))

    def call(self, item: Any) -> Call:
        """Return a call of one item: features, or a value for each parameter if there are several.

        Of a copy of it, as the function may change it, and the item is tried again and again.
        """
        item = self._copied(item)
        now = monotonic()
        call: Call
        if self.is_of_arrays:
            call = self._collator.read(self._function, (item,), {}, now)
        else:
            args: tuple[Any, ...] = (item,)
            named: dict[str, Any] = {}
            if self._columns is not None:
                args, named = self._columns.arguments(tuple(item) if isinstance(item, tuple | list) else args)
            call = self._collator.one(self._function, args, named, now)
        call.note_context()
        return call

    def _copied(self, item: Any) -> Any:
        try:
            return deepcopy(item)
        except Exception as error:
            if is_used_up(item):
                raise TypeError(
                    f"{self.name}: {reprlib.repr(item)} can only be used once, as it cannot be copied "
                    f"({error}): give items that can be, such as the text or bytes of a file"
                ) from error
            return item

    def can_repeat(self, calls: Sequence[Call]) -> bool:
        """Return whether calls may run again, as none of their items is used up."""
        repeats: bool = self._collator.can_repeat(Batch([(call, 0, call.size) for call in calls], len(calls)))
        return repeats

    def size_of(self, items: int) -> int:
        """Return how many items the function is given with a batch of so many."""
        return items if self._sizes is None else max(self._sizes.size_of(items), items)

    def run(self, calls: Sequence[Call]) -> list[Any]:
        """Return the answer of each call of a batch; of one that streams, only run it."""
        found: list[Any] = [None] * len(calls)
        for places in that_share(calls):  # calls of unlike keys, or layouts, never share a batch
            slices = [(calls[at], 0, calls[at].size) for at in places]
            batch = Batch(slices, sum(calls[at].size for at in places))
            if copies := self.size_of(batch.size) - batch.size:
                last = len(slices) - 1
                has_copy = self._collator.can_repeat(Batch(slices[last:], 1))
                batch.copies = copies, ((last, 0) if has_copy else None)
            outputs = run_at_once(batch, self._collator, self._wait, self._worker)
            if self.options.streams:
                run_steps(outputs, self._goes_on, self.name, self._wait)
                continue
            for at, part in zip(places, batch.split(outputs, self._collator), strict=True):
                found[at] = part
        return found

    def _goes_on(self, pieces: Any) -> Change[Any] | None:
        gone = tuple(at for at, piece in enumerate(pieces) if piece is DONE or is_error(piece))
        if len(gone) == len(pieces):  # the function may go on for ever
            return OVER
        return Change(gone) if self.options.continuous else None


def that_share(calls: Sequence[Call]) -> list[list[int]]:
    """Return the places of the calls that may share a batch, for each key and layout."""
    groups: dict[Any, list[int]] = {}
    for at, call in enumerate(calls):
        groups.setdefault(getattr(call, "key", None), []).append(at)
    return list(groups.values())
