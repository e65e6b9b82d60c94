"""Whatever a cache raises, no call is lost and no worker ends."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import pytest

import batched
from batched import aio
from tests.kit.ask import EVERY_KIND_OF_CALL
from tests.kit.caches import Client
from tests.kit.flavours import Flavour
from tests.kit.gate import PATIENCE_S, Gate, until


class Alarm(BaseException):
    """No `Exception`, and not of Python."""


NO_EXCEPTIONS = [SystemExit, KeyboardInterrupt, GeneratorExit, asyncio.CancelledError, Alarm]


class RaisingMapping(dict[Any, Any]):
    """A mapping that raises at some keys."""

    def __init__(self, in_get: dict[Any, Any], in_set: dict[Any, Any]) -> None:
        super().__init__()
        self.in_get, self.in_set = in_get, in_set

    def __getitem__(self, key: Any) -> Any:
        if key in self.in_get:
            raise self.in_get[key](key)
        return super().__getitem__(key)

    def __setitem__(self, key: Any, value: Any) -> None:
        if key in self.in_set:
            raise self.in_set[key](key)
        super().__setitem__(key, value)


class RaisingClient(Client):
    """The same, with `get` and `set`."""

    def __init__(self, in_get: dict[Any, Any], in_set: dict[Any, Any]) -> None:
        super().__init__()
        self.in_get, self.in_set = in_get, in_set

    def get(self, key: Any) -> Any:
        if key in self.in_get:
            raise self.in_get[key](key)
        return super().get(key)

    def set(self, key: Any, value: Any) -> Any:
        if key in self.in_set:
            raise self.in_set[key](key)
        super().set(key, value)


@pytest.mark.parametrize("error", NO_EXCEPTIONS)
@pytest.mark.parametrize("kind", [RaisingMapping, RaisingClient])
def test_whatever_a_cache_raises_as_it_is_told_its_callers_are_answered(
    flavour: Flavour, kind: Any, error: type[BaseException], caplog: pytest.LogCaptureFixture
) -> None:
    """The other results of the batch are kept, one line is logged, and the next calls run."""
    if kind is RaisingClient:
        flavour.needs_threads()  # else the task of the caller stores, and such errors are raised there
    if error is KeyboardInterrupt and flavour.name == "aio":
        pytest.skip("it ends the loop, as the next test says")
    cache = kind({}, {"bad": error, "worse": error})
    gate = Gate()
    fn = flavour.decorate(gate, timeout_ms=0, cache=cache, name="f")
    with caplog.at_level(logging.ERROR, "batched"):
        assert flavour.call(fn, ["a", "bad", "b", "worse", "c"]) == ["a", "bad", "b", "worse", "c"]
    messages = [record.getMessage() for record in caplog.records if record.name == "batched"]
    assert messages == ["f: the cache failed for 2 result(s), which were not stored"]
    assert flavour.call(fn, ["a", "b", "c"]) == ["a", "b", "c"]
    assert flavour.call(fn, "bad") == "bad"
    assert flavour.call(fn, "d") == "d"
    assert gate.batches == [["a", "bad", "b", "worse", "c"], ["bad"], ["d"]]
    flavour.close(fn)


@pytest.mark.parametrize("width", [1, 3])
def test_no_worker_ends_by_what_a_cache_raises(width: int, pool: ThreadPoolExecutor) -> None:
    """Several at once, with callers that ask for what others have in flight."""
    in_set = {item: NO_EXCEPTIONS[item % len(NO_EXCEPTIONS)] for item in range(40)}
    fn = batched.dynamically(
        list, batch_size=4, timeout_ms=0, cache=RaisingMapping({}, in_set), max_concurrent_batches=width
    )
    asked = [[(seed + step) % 40 for step in range(6)] for seed in range(60)]
    futures = [pool.submit(fn, items) for items in asked]
    for items, future in zip(asked, futures, strict=True):
        assert future.result(PATIENCE_S) == items
    fn.shutdown()


@pytest.mark.parametrize("error", NO_EXCEPTIONS)
@pytest.mark.parametrize("kind", [RaisingMapping, RaisingClient])
@pytest.mark.parametrize("ask", EVERY_KIND_OF_CALL)
def test_what_a_cache_raises_as_it_is_asked_goes_to_that_caller_only(
    ask: Callable[..., Any], kind: Any, error: type[BaseException], pool: ThreadPoolExecutor
) -> None:
    """A call that waits beside it, and the next call, are answered; Ctrl-C stays Ctrl-C."""
    gate = Gate(shut=True)
    fn = batched.dynamically(gate, batch_size=1, timeout_ms=0, cache=kind({"bad": error}, {}))
    busy = pool.submit(ask, fn, "busy")
    gate.wait_for_batch()
    waiting = pool.submit(ask, fn, "waiting")
    until(lambda: fn.stats.queue_size == 1)
    with pytest.raises(error):
        ask(fn, "bad")
    gate.open()
    assert (busy.result(PATIENCE_S), waiting.result(PATIENCE_S)) == ("busy", "waiting")
    assert ask(fn, "next") == "next"
    assert gate.batches == [["busy"], ["waiting"], ["next"]]
    assert fn.stats.queue_size == fn.stats.running_items == 0
    fn.shutdown()


def test_an_interrupt_as_results_are_stored_on_a_loop_comes_out_of_it_and_loses_no_answer() -> None:
    """The mapping is told on the loop, in the thread that a Ctrl-C is raised in."""

    async def function(items: list[Any]) -> list[Any]:
        return items

    fn = aio.dynamically(function, timeout_ms=0, cache=RaisingMapping({}, {"bad": KeyboardInterrupt}))
    loop = asyncio.new_event_loop()
    try:
        task = loop.create_task(fn(["a", "bad", "b"]))
        with pytest.raises(KeyboardInterrupt):
            loop.run_until_complete(asyncio.wait_for(task, PATIENCE_S))
        assert loop.run_until_complete(asyncio.wait_for(task, PATIENCE_S)) == ["a", "bad", "b"]
        assert loop.run_until_complete(fn(["a", "c"])) == ["a", "c"]
    finally:
        loop.close()


def test_a_caller_that_fails_leaves_no_result_behind_for_others() -> None:
    """An error that is kept holds its call; a later caller gets what the cache has by then."""
    cache = RaisingMapping({"bad": Alarm}, {})
    fn = batched.dynamically(lambda items: [object() for _ in items], timeout_ms=0, cache=cache)
    with pytest.raises(Alarm) as kept:
        fn(["a", "bad"])
    first = fn("a")
    assert fn("a") is first
    cache.clear()
    assert fn("a") is not first
    assert kept.value.__traceback__ is not None
    fn.shutdown()
