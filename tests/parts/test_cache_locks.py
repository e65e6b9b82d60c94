"""The user's cache is used without a lock of the batcher."""

from __future__ import annotations

import sys
import threading
from collections import Counter
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor, wait
from typing import Any

import pytest

import batched
from tests.kit.ask import EVERY_KIND_OF_CALL
from tests.kit.caches import Client
from tests.kit.effort import times
from tests.kit.flavours import Flavour
from tests.kit.gate import PATIENCE_S, Gate


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
    assert fn.stats is not None  # which makes the driver
    answer: Any = pool.submit(flavour.call, fn, ["a", "b"])
    assert answer.result(PATIENCE_S) == ["a", "b"]
    assert gate.batches == [["a", "c"], ["b"]]
    assert cache.asked == ["a", "a", "c", "b"]
    assert (fn.stats.total_accepted, fn.stats.total_cached) == (3, 1)
    flavour.close(fn)


def test_a_key_that_cannot_be_compared_fails_no_call_that_comes_while_the_cache_is_asked_for_it(
    flavour: Flavour, pool: ThreadPoolExecutor
) -> None:
    """Though that has the same hash."""
    flavour.needs_threads()

    class Number:
        def __hash__(self) -> int:
            return 7

        def __eq__(self, other: object) -> bool:
            return isinstance(other, Number)

    class Broken(Number):
        def __eq__(self, other: object) -> bool:
            raise ZeroDivisionError("no equality")

        __hash__ = Number.__hash__

    answers: list[Any] = []

    class Overtaken(Client):
        def get(self, key: Any) -> Any:
            if isinstance(key, Broken):
                answers.append(pool.submit(fn, "whole"))
                wait(answers, PATIENCE_S)

    keys: dict[str, Any] = {"broken": Broken(), "whole": Number()}
    fn = flavour.decorate(Gate(), timeout_ms=0, cache=Overtaken(), cache_key=keys.__getitem__)
    assert fn.stats is not None  # which makes the driver
    assert pool.submit(flavour.call, fn, "broken").result(PATIENCE_S) == "broken"
    assert [answer.result(PATIENCE_S) for answer in answers] == ["whole"]
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
        for turn in range(times(100, 25)):
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
