"""The time of a call of a method, until it is queued and all the way round, beside a call of a function."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from timeit import repeat
from typing import Any

import batched
from benchmarks.kit.bare import Gate, echo
from benchmarks.kit.callers import Call, around_synchronously
from benchmarks.kit.measure import Effort, one_core
from benchmarks.kit.ours import dynamically
from benchmarks.kit.row import Goal, Row
from benchmarks.kit.turns import Measure, Turns, using


class _Gated:
    def __init__(self) -> None:
        self.gate = Gate()

    @dynamically
    def echo(self, items: list[Any]) -> list[Any]:
        return self.gate.echo(items)


class _Model:
    @dynamically
    def echo(self, items: list[Any]) -> list[Any]:
        return items


@contextmanager
def _method_at_the_door(effort: Effort) -> Iterator[Measure]:
    model = _Gated()
    with _held(model.echo, model.gate):
        yield lambda: _seconds(lambda: model.echo(0), effort)  # the access included


@contextmanager
def _function_at_the_door(effort: Effort) -> Iterator[Measure]:
    gate = Gate()
    fn = dynamically(gate.echo)
    with _held(fn, gate):
        yield lambda: _seconds(lambda: fn(0), effort)


@contextmanager
def _held(fn: batched.BatchedFunction[Any, Any], gate: Gate) -> Iterator[None]:
    """Keep the worker busy, so that a call is only queued, and have callers go on without an answer."""
    with fn:
        fn.submit(-1)
        asyncio.run(gate.hold())
        fn._find().collect = _do_not_wait  # type: ignore[method-assign]
        yield
        gate.open()


def _do_not_wait(call: object) -> None:
    """Stand in for the wait of a caller."""


def _seconds(call: Callable[[], Any], effort: Effort) -> float:
    calls = effort.of(200, 20)
    return min(repeat(call, number=calls, repeat=effort.of(50, 2))) / calls


@contextmanager
def _method() -> Iterator[Call]:
    model = _Model()

    def call(item: Any) -> Any:
        return model.echo(item)  # the access of the method is part of the call

    with model.echo:
        yield call


@contextmanager
def _function() -> Iterator[Call]:
    fn = dynamically(echo)

    def call(item: Any) -> Any:
        return fn(item)

    with fn:
        yield call


def _trip(call: Call, effort: Effort) -> float:
    return around_synchronously(call, effort.of(2_000, 50))


DOOR = Turns({"ours": _method_at_the_door, "function": _function_at_the_door}, rounds=15, quick_rounds=2)
ROUND_TRIP = Turns({"ours": using(_method, _trip), "function": using(_function, _trip)}, inside=one_core)

_AT_THE_DOOR = "a call until it is queued, of a method"
_ROUND_TRIP = "idle sync round trip of a method, one core"
ROWS = (
    Row("method / function, at the door", _AT_THE_DOOR, DOOR, "function", goal=Goal(1.3)),
    Row("method / function, round trip", _ROUND_TRIP, ROUND_TRIP, "function"),
)
