"""An error at each call of a function of the package, from a look at the queue on to the answers."""

from __future__ import annotations

import asyncio
import sys
import threading
from collections.abc import Callable, Iterator
from concurrent.futures import CancelledError, Future
from contextlib import suppress
from gc import collect
from typing import Any

import pytest

import batched
from batched import DONE, aio
from tests.kit.effort import times
from tests.kit.gate import PATIENCE_S, turns_until, until
from tests.kit.interrupts import Fault
from tests.kit.stats import adds_up, check_sums

pytestmark = [
    pytest.mark.thread_unsafe(reason="it traces threads"),
    pytest.mark.usefixtures("untraced"),
    # Where the fault comes as a generator is closed, Python can only show it.
    pytest.mark.filterwarnings("ignore::pytest.PytestUnraisableExceptionWarning"),
]

OPTIONS: dict[str, Callable[[], dict[str, Any]]] = {
    "plain": dict,
    "group_by": lambda: {"group_by": third},
    "fair_by": lambda: {"fair_by": third},
    "cache": lambda: {"cache": {}},
    "length": lambda: {"length": third},
    "deadline": dict,
}
IN_THREADS = OPTIONS | {
    "refilled": lambda: {"continuous": True},
    "stages of workers": lambda: {"prepare": list, "finish": list, "workers": batched.Workers(1)},
}
RUNS = {"Workers._next", "ThreadDispatcher.run", "StagesInTurn.run"}
ASKED: list[int | list[int]] = [1, 2, 3, [4, 5, 6, 7, 8, 9]]
STRIDE = 70 // times(10)


@pytest.fixture(autouse=True)
def _collected() -> Iterator[None]:
    """Have what a fault has left, such as a coroutine that was not begun, collected here."""
    yield
    collect()


class Broken(Exception):
    """A fault of the package."""


def third(item: int) -> int:
    """Return a key, a tenant or a length of an item."""
    return item % 3


def held_function(option: str) -> tuple[Any, threading.Event, threading.Event]:
    """Return a function with this option, what says that a batch has entered it, and what lets batches go."""
    entered, gate = threading.Event(), threading.Event()

    def echo(items: list[int]) -> list[int]:
        entered.set()
        gate.wait(PATIENCE_S)
        return items

    def steps(items: list[int]) -> Iterator[list[Any]]:
        rows = [iter(echo([item])) for item in items]
        while True:
            change = yield [next(row, DONE) for row in rows]
            rows = [row for at, row in enumerate(rows) if at not in change.left]
            rows += [iter([item]) for item in change.joined]

    function = steps if option == "refilled" else echo
    fn = batched.dynamically(function, batch_size=4, timeout_ms=0, **IN_THREADS[option]())
    return fn, entered, gate


def answer(option: str, item: Any) -> Any:
    """Return the answer for an item: of a function that generates, all of its pieces."""
    return [item] if option == "refilled" else item


@pytest.mark.parametrize("option", IN_THREADS)
def test_no_fault_in_a_worker_loses_a_call(option: str) -> None:
    """Each has its answer, or the fault; what is counted adds up, and the batcher goes on."""
    at = 1 + len(option) % STRIDE
    came = True
    while came:
        fn, entered, gate = held_function(option)
        ask = fn.options(deadline_ms=PATIENCE_S * 1000) if option == "deadline" else fn
        fault = Fault(at, RUNS, Broken("a fault"))
        threading.settrace(fault)  # type: ignore[arg-type]
        try:
            futures: list[Future[Any]] = [ask.submit(0)]
            futures[0].add_done_callback(lambda _, entered=entered: entered.set())  # it may be the one
            assert entered.wait(PATIENCE_S)
            futures += [ask.submit(item) for item in ASKED]
            gate.set()
            for future, item in zip(futures, [0, *ASKED], strict=True):
                error = future.exception(PATIENCE_S)
                assert isinstance(error, Broken) or future.result() == answer(option, item), fault.place
        finally:
            threading.settrace(None)  # type: ignore[arg-type]
        came = fault.came
        assert _later(lambda fn=fn: fn.submit(77).result(PATIENCE_S)) == answer(option, 77), fault.place
        until(lambda fn=fn: adds_up(fn.stats))  # a worker counts anew after it has told the callers
        check_sums(fn)
        fn.shutdown()
        at += STRIDE


@pytest.mark.parametrize("option", IN_THREADS)
def test_no_fault_as_the_queue_is_cancelled_loses_a_call(option: str) -> None:
    """As where memory runs out in `shutdown(cancel_futures=True)`, or the stack of its caller is too deep."""
    at, came = 1, True
    while came:
        fn, entered, gate = held_function(option)
        futures: list[Future[Any]] = [fn.submit(0)]
        assert entered.wait(PATIENCE_S)
        futures += [fn.submit(item) for item in ASKED]
        fault = Fault(at, {"ThreadDispatcher.turn_away"}, Broken("a fault"))
        sys.settrace(fault)  # type: ignore[arg-type]
        try:
            with suppress(Broken):
                fn.shutdown(wait=False, cancel_futures=True)
        finally:
            sys.settrace(None)
        gate.set()
        for future in futures:
            if not future.cancelled():
                error = future.exception(PATIENCE_S)
                assert isinstance(error, Broken | CancelledError | None), fault.place
        came = fault.came
        fn.shutdown()
        at += 5


def _later(ask: Callable[[], Any]) -> Any:
    try:
        return ask()
    except Broken:  # it came only now
        return ask()


@pytest.mark.parametrize("option", OPTIONS)
def test_no_fault_on_a_loop_loses_a_call(option: str) -> None:
    """Each has its answer, or the fault; what is counted adds up, and the batcher goes on."""
    at = 1 + len(option) % STRIDE
    came = True
    while came:
        fault = Fault(at, {"BatchTask._work"}, Broken("a fault"))
        asyncio.run(_ask_on_a_loop(option, fault))
        came = fault.came
        at += STRIDE


async def _ask_on_a_loop(option: str, fault: Fault) -> None:
    async def echo(items: list[int]) -> list[int]:
        await asyncio.sleep(0)
        return items

    fn = aio.dynamically(echo, batch_size=4, timeout_ms=0, **OPTIONS[option]())
    ask = fn.options(deadline_ms=PATIENCE_S * 1000) if option == "deadline" else fn
    callers = [asyncio.ensure_future(ask(item)) for item in [0, *ASKED]]
    sys.settrace(fault)  # type: ignore[arg-type]
    try:
        _, pending = await asyncio.wait(callers, timeout=PATIENCE_S)
    finally:
        sys.settrace(None)
    assert not pending, fault.place
    for caller, item in zip(callers, [0, *ASKED], strict=True):
        assert isinstance(caller.exception(), Broken) or caller.result() == item, fault.place
    assert await asyncio.wait_for(fn(77), PATIENCE_S) == 77, fault.place
    await turns_until(lambda: not fn.stats.running_items)
    check_sums(fn)
