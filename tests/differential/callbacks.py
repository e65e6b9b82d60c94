"""The options of a run as they are given to the decorator: its callbacks, and its cache."""

from __future__ import annotations

import asyncio
from itertools import count
from random import Random
from typing import Any

import cachetools

import batched
from tests.differential.plan import Plan
from tests.differential.work import CallbackFault, numbers_of_rows


def options_of(plan: Plan) -> dict[str, Any]:
    """Return the options of a run, with functions and a cache in place of their names."""
    callbacks = Callbacks(plan)
    options = {name: value for name, value in plan.options.items() if name != "cache_key" or value}
    for name in ("length", "group_by", "cache_key"):
        if name in options:
            options[name] = getattr(callbacks, name)
    if "cache" in options:
        options["cache"] = CACHES[options["cache"]]()
    if plan.shares_workers:
        options["workers"] = batched.Workers(options["max_concurrent_batches"], name=f"run-{plan.seed}")
    return options


class Callbacks:
    """What is asked for each item."""

    def __init__(self, plan: Plan) -> None:
        self._plan = plan

    def length(self, x: Any, y: Any = None) -> int:
        """Return how long an item is."""
        return len(x)

    def group_by(self, x: Any, y: Any = None) -> int:
        """Return the group of an item, or of the rows of a call."""
        numbers = self._checked(x, "ungrouped")
        return self._plan.group_of(numbers[0]) if numbers else 0

    def cache_key(self, x: Any, y: Any = None) -> Any:
        """Return what an item, or the arrays of a call, are kept under."""
        numbers = self._checked(x, "unkeyed")
        if self._plan.shape != "arrays":
            return numbers[0], y
        rows = x["x"]
        kinds = [(type(one).__name__, str(one.dtype), tuple(one.shape)) for one in rows]
        return type(rows).__name__, str(kinds), str([one.tolist() for one in rows])

    def _checked(self, x: Any, fault: str) -> list[int]:
        """Return the items that were asked for, unless there is a fault in one of them."""
        numbers = numbers_of_rows(x["x"]) if self._plan.shape == "arrays" else [x.number]
        for number in numbers:
            if self._plan.fault_of(number) == fault:
                raise CallbackFault(fault, number)
        return numbers


class Broken(dict[Any, Any]):
    """A cache that fails now and then."""

    def __init__(self) -> None:
        super().__init__()
        self._random = Random(0)

    def __getitem__(self, key: Any) -> Any:
        if self._random.random() < 0.1:
            raise OSError("the cache is broken")
        return super().__getitem__(key)

    def __setitem__(self, key: Any, value: Any) -> None:
        if self._random.random() < 0.1:
            raise OSError("the cache is broken")
        super().__setitem__(key, value)


class Asynchronous:
    """A cache that is awaited."""

    def __init__(self) -> None:
        self._results: dict[Any, Any] = {}
        self._turns = count()

    async def get(self, key: Any) -> Any:
        """Return what is kept, None if nothing is."""
        await asyncio.sleep(0.001 if next(self._turns) % 8 == 0 else 0)
        return self._results.get(key)

    async def set(self, key: Any, value: Any) -> None:
        """Keep a result."""
        await asyncio.sleep(0)
        self._results[key] = value


CACHES: dict[str, Any] = {
    "dict": dict,
    "least recently used": lambda: cachetools.LRUCache(10),
    "broken": Broken,
    "asynchronous": Asynchronous,
}
