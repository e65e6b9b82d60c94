"""The user's cache: it is used without a lock of the batcher, and no call is lost by what it raises."""

from __future__ import annotations

import asyncio
import logging
import sys
import threading
from collections import Counter
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import pytest

import batched
from batched import aio
from tests.kit.flavours import Flavour
from tests.kit.gate import PATIENCE_S, Gate, until


class Client:
    """An object with `get` and `set`, as a client of some server; it notes the keys that it is asked for."""

    def __init__(self, known: dict[Any, Any] | None = None) -> None:
        self.kept: dict[Any, Any] = dict(known or {})
        self.asked: list[Any] = []

    def get(self, key: Any) -> Any:
        self.asked.append(key)
        return self.kept.get(key)

    def set(self, key: Any, value: Any) -> Any:
        self.kept[key] = value


@pytest.fixture
def pool() -> Iterator[ThreadPoolExecutor]:
    """Threads for callers; a caller that hangs does not make the test hang."""
    pool = ThreadPoolExecutor(4)
    yield pool
    pool.shutdown(wait=False, cancel_futures=True)


def ask_by_call(fn: Any, item: Any) -> Any:
    return fn(item)


def ask_by_future(fn: Any, item: Any) -> Any:
    return fn.submit(item).result(PATIENCE_S)


def ask_by_map(fn: Any, item: Any) -> Any:
    return next(fn.map([item]))


def ask_on_a_loop(fn: Any, item: Any) -> Any:
    return asyncio.run(fn.acall(item))


EVERY_KIND_OF_CALL = [ask_by_call, ask_by_future, ask_by_map, ask_on_a_loop]


# -- no lock is held ------------------------------------------------------------------------------------


@pytest.mark.parametrize("ask", EVERY_KIND_OF_CALL)
def test_a_slow_get_holds_up_its_own_caller_only(ask: Callable[..., Any], pool: ThreadPoolExecutor) -> None:
    """Other callers ask the same client, run and are answered meanwhile, and the stats can be read."""
    entered, opened = threading.Event(), threading.Event()

    class Slow(Client):
        def get(self, key: Any) -> Any:
            if key == "slow":
                entered.set()
                assert opened.wait(PATIENCE_S)
            return super().get(key)

    fn = batched.dynamically(list, timeout_ms=0, cache=Slow({"known": "K"}))
    slow = pool.submit(ask, fn, "slow")
    assert entered.wait(PATIENCE_S)
    try:
        assert pool.submit(ask, fn, "known").result(PATIENCE_S) == "K"
        assert pool.submit(ask, fn, "new").result(PATIENCE_S) == "new"
        assert pool.submit(lambda: fn.stats).result(PATIENCE_S).total_cached == 1
    finally:
        opened.set()
    assert slow.result(PATIENCE_S) == "slow"
    fn.shutdown()


@pytest.mark.parametrize("ask", EVERY_KIND_OF_CALL)
def test_a_slow_set_holds_up_no_caller_that_the_cache_can_answer(
    ask: Callable[..., Any], pool: ThreadPoolExecutor
) -> None:
    """The worker waits for the client; callers ask the client, and read the stats, without waiting for it."""
    entered, opened = threading.Event(), threading.Event()

    class Slow(Client):
        def set(self, key: Any, value: Any) -> None:
            entered.set()
            assert opened.wait(PATIENCE_S)
            super().set(key, value)

    fn = batched.dynamically(list, timeout_ms=0, cache=Slow({"known": "K"}))
    slow = pool.submit(ask, fn, "slow")
    assert entered.wait(PATIENCE_S)
    try:
        assert pool.submit(ask, fn, "known").result(PATIENCE_S) == "K"
        assert pool.submit(lambda: fn.stats).result(PATIENCE_S).total_cached == 1
    finally:
        opened.set()
    assert slow.result(PATIENCE_S) == "slow"
    fn.shutdown()


def test_a_result_that_lands_while_a_cache_is_asked_is_not_asked_for_again(
    flavour: Flavour, pool: ThreadPoolExecutor
) -> None:
    """Nor computed again; and a cache that reads the stats of its function never waits for itself."""
    flavour.needs_threads()

    class Overtaken(Client):
        """While one caller asks for "b", another caller asks for "a", and has its answer."""

        is_overtaken = False

        def get(self, key: Any) -> Any:
            assert fn.stats is not None
            if key == "b" and not self.is_overtaken:
                self.is_overtaken = True
                assert pool.submit(fn, ["a", "c"]).result(PATIENCE_S) == ["a", "c"]
            return super().get(key)

        def set(self, key: Any, value: Any) -> Any:
            assert fn.stats is not None
            super().set(key, value)

    gate, cache = Gate(), Overtaken()
    fn = flavour.decorate(gate, timeout_ms=0, cache=cache)
    fn._find()
    answer: Any = pool.submit(flavour.call, fn, ["a", "b"])
    assert answer.result(PATIENCE_S) == ["a", "b"]
    assert gate.batches == [["a", "c"], ["b"]]
    assert cache.asked == ["a", "a", "c", "b"]
    assert (fn.stats.total_accepted, fn.stats.total_cached) == (3, 1)
    flavour.close(fn)


class Curious(dict[Any, Any]):
    """A mapping that reads the stats of its function whenever it is used."""

    fn: Any = None

    def __getitem__(self, key: Any) -> Any:
        assert self.fn.stats is not None
        return super().__getitem__(key)

    def __setitem__(self, key: Any, value: Any) -> None:
        assert self.fn.stats is not None
        super().__setitem__(key, value)


class CuriousClient(Client):
    """The same, with `get` and `set`."""

    fn: Any = None

    def get(self, key: Any) -> Any:
        assert self.fn.stats is not None
        return super().get(key)

    def set(self, key: Any, value: Any) -> Any:
        assert self.fn.stats is not None
        super().set(key, value)


@pytest.mark.parametrize("kind", [Curious, CuriousClient])
def test_a_cache_may_read_the_stats_while_callers_and_results_meet(
    flavour: Flavour, kind: Any, pool: ThreadPoolExecutor
) -> None:
    """Threads ask for the same new keys at once: no call hangs, and every key is computed once."""
    cache = kind()
    gate = Gate()
    fn = cache.fn = flavour.decorate(gate, batch_size=3, timeout_ms=0, cache=cache, max_concurrent_batches=2)

    def ask(seed: int) -> None:
        for turn in range(30):
            items = [turn * 3 + (seed + step) % 6 for step in range(4)]
            assert flavour.call(fn, items) == items

    before = sys.getswitchinterval()
    sys.setswitchinterval(1e-6)
    try:
        for caller in [pool.submit(ask, seed) for seed in range(4)]:
            caller.result(PATIENCE_S)
    finally:
        sys.setswitchinterval(before)
    assert set(Counter(item for batch in gate.batches for item in batch).values()) == {1}
    flavour.close(fn)


def test_one_thread_at_a_time_uses_a_mapping(pool: ThreadPoolExecutor) -> None:
    """However many functions share the mapping: those of `cachetools` break otherwise."""
    meetings: list[str] = []

    class Alone(dict[Any, Any]):
        busy: threading.Lock = threading.Lock()

        def _use(self) -> None:
            if not self.busy.acquire(blocking=False):
                meetings.append(threading.current_thread().name)
                return
            threading.Event().wait(0.0001)  # another thread runs meanwhile
            self.busy.release()

        def __getitem__(self, key: Any) -> Any:
            self._use()
            return super().__getitem__(key)

        def __setitem__(self, key: Any, value: Any) -> None:
            self._use()
            super().__setitem__(key, value)

    cache = Alone()
    functions = [batched.dynamically(list, timeout_ms=0, cache=cache) for _ in range(2)]
    items = [[(seed + step) % 40 for step in range(20)] for seed in range(16)]
    answers = pool.map(lambda pair: pair[0](pair[1]), zip(functions * 8, items, strict=True))
    assert list(answers) == items
    assert meetings == []
    for fn in functions:
        fn.shutdown()


# -- whatever a cache raises ----------------------------------------------------------------------------


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
    assert messages == ["f: the cache failed for 2 result(s), not kept"]
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
