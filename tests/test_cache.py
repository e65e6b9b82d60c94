"""`cache` and `cache_key`: what is known is answered at once, and equal items in flight run once."""

from __future__ import annotations

import asyncio
import contextlib
import gc
import itertools
import logging
import sys
import threading
import time
import weakref
from collections import Counter, defaultdict
from concurrent.futures import ThreadPoolExecutor
from contextvars import ContextVar
from pathlib import Path
from typing import Any

import cachetools
import diskcache
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import batched
import batched.inference
from batched import BatchError, QueueFullError
from batched._core.call import completed
from batched._drivers.thread_dispatcher import ThreadDispatcher
from batched._parts.in_flight import InFlight, Item
from tests.kit.flavours import Flavour
from tests.kit.gate import PATIENCE_S, Gate, until
from tests.kit.kept import batchers, blocked, kept_by, outside, size_of


def nothing_is_left(fn: Any) -> None:
    """Wait until nobody waits, and check that no flight is remembered."""
    until(lambda: fn.stats.queue_size + fn.stats.running_items == 0)
    for batcher in batchers(fn):
        assert not kept_by(batcher.calls.in_flight, Item)
    stats = fn.stats
    assert stats.total_accepted == stats.total_processed + stats.total_cancelled + stats.total_expired


@given(asked=st.lists(st.one_of(st.integers(0, 9), st.lists(st.integers(0, 9), max_size=8)), max_size=15))
@settings(max_examples=80)
def test_every_caller_gets_its_own_answers_and_every_item_runs_once(asked: list[Any]) -> None:
    """Duplicates within a list and between callers, waiting, running and known."""
    gate = Gate(lambda items: [("out", item) for item in items])
    fn = batched.dynamically(gate, batch_size=3, timeout_ms=0, cache={})
    futures = [fn.submit(items) for items in asked]
    for items, future in zip(asked, futures, strict=True):
        expected = [("out", item) for item in items] if isinstance(items, list) else ("out", items)
        assert future.result(PATIENCE_S) == expected
    ran = Counter(item for batch in gate.batches for item in batch)
    assert all(count == 1 for count in ran.values())
    every = [item for items in asked for item in (items if isinstance(items, list) else [items])]
    assert set(ran) == set(every)
    assert fn.stats.total_accepted + fn.stats.total_cached == len(every)
    nothing_is_left(fn)
    fn.shutdown()


def test_a_hit_is_answered_without_queueing(flavour: Flavour) -> None:
    """While the worker is busy, and with a window of a minute."""
    gate = Gate(shut=True)
    cache = {1: "one", 2: None}
    fn = flavour.decorate(gate, batch_size=2, timeout_ms=60_000, cache=cache)
    busy = flavour.start(fn, [3, 4])
    gate.wait_for_batch()
    if flavour.name == "threads":
        assert (fn(1), fn(2), fn([1, 2, 1])) == ("one", None, ["one", None, "one"])
    else:
        assert [flavour.call(fn, items) for items in (1, 2, [1, 2, 1])] == ["one", None, ["one", None, "one"]]
    assert (fn.stats.total_cached, fn.stats.queue_size) == (5, 0)
    gate.open()
    assert busy.result(PATIENCE_S) == [3, 4]
    assert cache == {1: "one", 2: None, 3: 3, 4: 4}


def test_a_mixed_list_runs_only_what_is_not_known(flavour: Flavour) -> None:
    """And is answered in order."""
    gate = Gate(lambda items: [-item for item in items])
    fn = flavour.decorate(gate, timeout_ms=0, cache={2: "known"})
    assert flavour.call(fn, [1, 2, 3, 1]) == [-1, "known", -3, -1]
    assert gate.batches == [[1, 3]]
    assert fn.stats.total_cached == 2
    assert flavour.map(fn, [1, 2, 3, 4]) == [-1, "known", -3, -4]
    assert flavour.map(fn, [1, 2, 3, 4]) == [-1, "known", -3, -4]
    assert gate.batches == [[1, 3], [4]]
    assert fn.stats.total_cached == 2 + 3 + 4


def test_equal_items_in_flight_run_once(flavour: Flavour) -> None:
    """Those that wait and those that run; a joined caller is not counted as accepted."""
    flavour.needs_threads()
    gate = Gate(lambda items: [object() for _ in items], shut=True)
    fn = flavour.decorate(gate, batch_size=1, timeout_ms=0, cache={})
    first = flavour.start(fn, "a")
    gate.wait_for_batch()
    pool = ThreadPoolExecutor(4)
    joined = [pool.submit(fn, "a") for _ in range(3)]
    until(lambda: fn.stats.total_cached == 3)
    assert fn.stats.total_accepted == 1
    gate.open()
    answers = {id(future.result(PATIENCE_S)) for future in (first, *joined)}
    assert len(answers) == 1
    assert gate.batches == [["a"]]
    pool.shutdown()
    nothing_is_left(fn)


@pytest.mark.parametrize("items", ["a", 7, ["a", "b"], ["a", "c"]])
def test_what_lands_after_the_cache_was_asked_does_not_run_twice(
    flavour: Flavour, monkeypatch: pytest.MonkeyPatch, items: Any
) -> None:
    """An item may be answered between a caller's look into the cache and its joining what is in flight."""
    flavour.needs_threads()
    gate = Gate()
    fn = flavour.decorate(gate, timeout_ms=0, cache={})
    admit = ThreadDispatcher.admit
    overtaken: list[Any] = []

    def late(batcher: ThreadDispatcher, call: Any, **named: Any) -> Any:
        if not overtaken:
            overtaken.append(call)
            with ThreadPoolExecutor(1) as pool:
                assert pool.submit(fn, ["a", "b", 7]).result(PATIENCE_S) == ["a", "b", 7]
        return admit(batcher, call, **named)

    fn._find()
    monkeypatch.setattr(ThreadDispatcher, "admit", late)
    future: Any = ThreadPoolExecutor(1).submit(flavour.call, fn, items)
    assert future.result(PATIENCE_S) == items
    asked = items if isinstance(items, list) else [items]
    ran = Counter(item for batch in gate.batches for item in batch)
    assert ran == Counter({"a", "b", 7, *asked})
    nothing_is_left(fn)


# -- leaving --------------------------------------------------------------------------------------------


@pytest.mark.parametrize("leaver", [0, 1])
def test_either_of_two_equal_callers_may_leave(leaver: int) -> None:
    """While the item waits, and while it runs: the other gets the value."""
    for running in (False, True):
        gate = Gate(shut=True)
        cache: dict[Any, Any] = {}
        fn = batched.dynamically(gate, batch_size=1, timeout_ms=0, cache=cache)
        if not running:
            fn.submit("busy")
            gate.wait_for_batch()
        futures = [fn.submit("a"), fn.submit("a")]
        if running:
            gate.wait_for_batch()
        assert futures[leaver].cancel()
        gate.open()
        assert futures[1 - leaver].result(PATIENCE_S) == "a"
        until(lambda cache=cache: cache.get("a") == "a")
        nothing_is_left(fn)
        fn.shutdown()


def test_an_item_that_nobody_wants_any_more_never_runs() -> None:
    """Both have left; a third who comes later gets a run of its own."""
    gate = Gate(shut=True)
    cache: dict[Any, Any] = {}
    fn = batched.dynamically(gate, batch_size=4, timeout_ms=0, cache=cache)
    busy = fn.submit("busy")
    gate.wait_for_batch()
    futures = [fn.submit("a"), fn.submit(["a", "b"])]
    for future in futures:
        future.cancel()
    third = fn.submit(["b", "c"])
    gate.open()
    assert (busy.result(PATIENCE_S), third.result(PATIENCE_S)) == ("busy", ["b", "c"])
    nothing_is_left(fn)
    assert gate.batches == [["busy"], ["b", "c"]]
    assert "a" not in cache
    assert fn.stats.total_cancelled == 2


def test_a_miss_call_that_expires_after_its_last_caller_has_left_answers_no_call() -> None:
    """The worker may have chosen to drop it before the caller said so."""
    fn = batched.dynamically(Gate(), timeout_ms=0, cache={})
    call: Any = fn._find().collator.read(fn, (["a"],), {}, 0.0)
    (miss_call,) = call.enter(InFlight())
    assert list(call.leave()) == [miss_call]
    miss_call.fail(TimeoutError())
    assert completed([miss_call]) == ([], [])


def test_cancelled_tasks_leave_equal_items_to_each_other() -> None:
    """Half of a hundred, at random; all others are answered."""
    gate = Gate(shut=True)
    fn = batched.dynamically(gate, batch_size=8, timeout_ms=0, cache={})

    async def main() -> None:
        tasks = [asyncio.create_task(fn.acall([number % 7, number % 5])) for number in range(100)]
        await asyncio.sleep(0)
        for task in tasks[::2]:
            task.cancel()
        gate.open()
        answers = await asyncio.wait_for(asyncio.gather(*tasks, return_exceptions=True), PATIENCE_S)
        for number, answer in enumerate(answers):
            if number % 2:
                assert answer == [number % 7, number % 5]
            else:
                assert isinstance(answer, asyncio.CancelledError)

    asyncio.run(main())
    nothing_is_left(fn)


def test_an_early_deadline_does_not_end_what_another_waits_for() -> None:
    """The run has as long as the most patient of its callers, whoever came first."""
    for first_ms, second_ms in ((30, None), (None, 30), (30, 60_000)):
        gate = Gate(shut=True)
        fn = batched.dynamically(gate, batch_size=1, timeout_ms=0, cache={})
        fn.submit("busy")
        gate.wait_for_batch()
        pool = ThreadPoolExecutor(2)
        futures = []
        for allowed_ms in (first_ms, second_ms):
            view = fn.options(deadline_ms=allowed_ms) if allowed_ms else fn
            futures.append(pool.submit(view, "a"))
            until(
                lambda fn=fn, futures=futures: (
                    fn.stats.total_accepted + fn.stats.total_cached == 1 + len(futures)
                )
            )
        hasty = futures[0 if first_ms == 30 else 1]
        with pytest.raises(TimeoutError):
            hasty.result(PATIENCE_S)
        gate.open()
        patient = futures[1 if first_ms == 30 else 0]
        assert patient.result(PATIENCE_S) == "a"
        pool.shutdown()
        nothing_is_left(fn)
        fn.shutdown()


# -- failures -------------------------------------------------------------------------------------------


def test_failures_are_not_cached(flavour: Flavour) -> None:
    """Of a batch, of an item; the next call runs again."""
    broken = True
    cache: dict[Any, Any] = {}

    def function(items: list[Any]) -> list[Any]:
        if broken and "batch" in items:
            raise ValueError("batch")
        return [KeyError(item) if broken and item == "item" else item for item in items]

    fn = flavour.decorate(function, timeout_ms=0, cache=cache)
    with pytest.raises(ValueError, match="^batch$"):
        flavour.call(fn, "batch")
    with pytest.raises(KeyError):
        flavour.call(fn, ["good", "item"])
    until(lambda: cache == {"good": "good"})
    broken = False
    assert flavour.call(fn, ["batch", "item"]) == ["batch", "item"]
    nothing_is_left(fn)


def test_all_who_wait_for_a_failing_item_get_errors_of_their_own() -> None:
    """And who keeps errors finds them in place."""
    gate = Gate(lambda items: [KeyError(item) if item == "bad" else item for item in items], shut=True)
    fn = batched.dynamically(gate, batch_size=4, timeout_ms=0, cache={})
    busy = fn.submit("busy")
    gate.wait_for_batch()
    futures = [fn.submit("bad"), fn.submit(["bad", "good"])]
    kept = ThreadPoolExecutor(1).submit(fn.options(return_exceptions=True), ["good", "bad", "bad"])
    until(lambda: fn.stats.total_cached == 4)
    gate.open()
    errors = [future.exception(PATIENCE_S) for future in futures]
    assert all(isinstance(error, KeyError) for error in errors)
    good, *bad = kept.result(PATIENCE_S)
    assert good == "good"
    assert [type(error) for error in bad] == [KeyError, KeyError]
    assert len({id(error) for error in (*errors, *bad)}) == 4
    assert busy.result(PATIENCE_S) == "busy"
    nothing_is_left(fn)


# -- callbacks and caches that misbehave ----------------------------------------------------------------


class Broken(dict[Any, Any]):
    """A cache whose server is down."""

    def __getitem__(self, key: Any) -> Any:
        raise ConnectionError("down")

    def __setitem__(self, key: Any, value: Any) -> None:
        raise ConnectionError("down")


def test_a_broken_cache_is_logged_and_bypassed(flavour: Flavour, caplog: pytest.LogCaptureFixture) -> None:
    """Once a call when asked, however many items it has."""
    fn = flavour.decorate(
        lambda items: [item * 2 for item in items], timeout_ms=0, cache=Broken(), name="embed"
    )
    with caplog.at_level(logging.ERROR, "batched"):
        assert flavour.call(fn, [1, 2, 3, 1]) == [2, 4, 6, 2]
        assert flavour.call(fn, 4) == 8
    messages = [record.getMessage() for record in caplog.records]
    assert messages == ["embed: the cache failed, and is bypassed"] * 4
    nothing_is_left(fn)


def test_a_result_that_the_cache_refuses_concerns_no_other(
    flavour: Flavour, caplog: pytest.LogCaptureFixture
) -> None:
    """An LRU cache says that it is too large: the others of its batch are kept, and one line is logged."""
    cache: Any = cachetools.LRUCache(10, getsizeof=len)
    fn = flavour.decorate(lambda items: ["x" * item for item in items], timeout_ms=0, cache=cache, name="f")
    with caplog.at_level(logging.ERROR, "batched"):
        assert flavour.call(fn, [2, 100, 3, 50, 5]) == ["x" * item for item in (2, 100, 3, 50, 5)]
    assert [record.getMessage() for record in caplog.records] == [
        "f: the cache failed for 2 result(s), not kept"
    ]
    assert dict(cache) == {item: "x" * item for item in (2, 3, 5)}


class Fussy(dict[Any, Any]):
    """A cache that takes no odd numbers as keys."""

    def __getitem__(self, key: Any) -> Any:
        if key % 2:
            raise ValueError("odd")
        return super().__getitem__(key)


def test_a_key_that_the_cache_refuses_concerns_no_other(
    flavour: Flavour, caplog: pytest.LogCaptureFixture
) -> None:
    """The others are looked up, and one line is logged."""
    gate = Gate()
    fn = flavour.decorate(gate, timeout_ms=0, cache=Fussy({2: "two", 4: "four"}), name="f")
    with caplog.at_level(logging.ERROR, "batched"):
        assert flavour.call(fn, [1, 2, 3, 4]) == [1, "two", 3, "four"]
    assert [record.getMessage() for record in caplog.records] == ["f: the cache failed for 2 key(s)"]
    assert gate.batches == [[1, 3]]


class Client:
    """A cache as a synchronous client of some server: no mapping, though this one has `[]` too."""

    def __init__(self) -> None:
        self.kept: dict[Any, Any] = {}

    def get(self, key: Any) -> Any:
        return self.kept.get(key)

    def set(self, key: Any, value: Any, expire: float | None = None) -> bool:
        self.kept[key] = value
        return True

    def __getitem__(self, key: Any) -> Any:
        raise AssertionError("it has `get`")

    def __setitem__(self, key: Any, value: Any) -> None:
        raise AssertionError("it has `set`")


def test_a_cache_may_be_an_object_with_get_and_set(flavour: Flavour) -> None:
    """None is what it does not know; what has run is kept by the time that its caller has the answer."""
    gate = Gate(lambda items: [None if item == 0 else -item for item in items])
    client = Client()
    client.kept[2] = "known"
    fn = flavour.decorate(gate, timeout_ms=0, cache=client)
    assert flavour.call(fn, [1, 2, 3, 1]) == [-1, "known", -3, -1]
    assert client.kept == {1: -1, 2: "known", 3: -3}
    assert flavour.map(fn, [1, 2, 3, 4]) == [-1, "known", -3, -4]
    assert [flavour.call(fn, item) for item in (0, 0, 4)] == [None, None, -4]
    assert gate.batches == [[1, 3], [4], [0], [0]]
    assert fn.stats.total_cached == 2 + 3 + 1
    nothing_is_left(fn)


class Returning(Client):
    """One whose plain functions return what can only be awaited, as those of `redis.asyncio` do."""

    def get(self, key: Any) -> Any:
        return self._get(key)

    async def _get(self, key: Any) -> Any:
        raise AssertionError("it was awaited")


def test_a_cache_that_can_only_be_awaited_is_refused_by_threads() -> None:
    """Where it says so by decoration, else by the first call of any kind; nothing is left of that."""
    gate = Gate()
    fn = batched.dynamically(gate, timeout_ms=0, cache=Returning(), name="f")
    for call in (
        lambda: fn(1),
        lambda: fn([1, 2]),
        lambda: fn.submit(1),
        lambda: list(fn.map([1])),
        lambda: asyncio.run(fn.acall(1)),
    ):
        with pytest.raises(TypeError, match="f: a cache with asynchronous get and set is for batched.aio"):
            call()
    assert gate.batches == []
    nothing_is_left(fn)


@pytest.mark.parametrize("key", [lambda item: item["missing"], lambda item: [item]])
def test_a_cache_key_that_fails_fails_that_call_only(flavour: Flavour, key: Any) -> None:
    """With the callback named; in a map it is raised at its place."""
    fn = flavour.decorate(
        Gate(), batch_size=2, timeout_ms=0, name="embed", cache={}, cache_key=lambda item: item or key(item)
    )
    for items in (0, [1, 0, 2]):
        with pytest.raises(BatchError, match="embed: cache_key failed: TypeError"):
            flavour.call(fn, items)
    assert flavour.call(fn, [1, 2]) == [1, 2]
    assert fn.stats.total_accepted == 2
    answers = flavour.map(fn.options(return_exceptions=True), [1, 0, 3, 0, 0])
    assert [row if isinstance(row, int) else type(row) for row in answers] == [
        1,
        BatchError,
        3,
        BatchError,
        BatchError,
    ]
    nothing_is_left(fn)


def test_an_item_that_is_no_key_needs_a_cache_key(flavour: Flavour) -> None:
    """The error says so."""
    fn = flavour.decorate(Gate(), timeout_ms=0, cache={})
    with pytest.raises(
        TypeError, match="cache_key is needed, since an item is no key: unhashable type: 'dict'"
    ):
        flavour.call(fn, {"a": 1})
    keyed = flavour.decorate(Gate(), timeout_ms=0, cache={}, cache_key=lambda item: item["a"])
    assert flavour.call(keyed, [{"a": 1}, {"a": 1}]) == [{"a": 1}] * 2
    assert keyed.stats.total_cached == 1


class Moody:
    """A key that compares well only as long as it is asked nicely."""

    fails = False

    def __hash__(self) -> int:
        return 1

    def __eq__(self, other: object) -> bool:
        if Moody.fails:
            raise ZeroDivisionError("moody")
        return self is other


def test_a_key_that_cannot_be_compared_leaves_nobody_waiting(flavour: Flavour) -> None:
    """A list that fails half-way through takes its first items back: others ask for them anew."""
    gate = Gate(shut=True)
    fn = flavour.decorate(gate, batch_size=1, timeout_ms=0, cache={}, cache_key=lambda item: item[1])
    busy = flavour.start(fn, ("busy", Moody()))
    gate.wait_for_batch()
    Moody.fails = True
    with pytest.raises(ZeroDivisionError):
        flavour.call(fn, [("a", "a"), ("b", Moody())])
    Moody.fails = False
    again = flavour.start(fn, ("a", "a"))
    gate.open()
    assert again.result(PATIENCE_S) == ("a", "a")
    busy.result(PATIENCE_S)
    nothing_is_left(fn)


class AsyncItems:
    """What would answer with coroutines."""

    async def __getitem__(self, key: Any) -> Any: ...
    async def __setitem__(self, key: Any, value: Any) -> None: ...


@pytest.mark.parametrize(
    ("options", "error", "message"),
    [
        ({"cache": 3}, TypeError, "cache must be a mapping"),
        ({"cache": dict}, TypeError, r"got the class dict: write dict\(...\)"),
        ({"cache": cachetools.LRUCache}, TypeError, r"got the class LRUCache: write LRUCache\(...\)"),
        (
            {"cache": defaultdict(list)},
            TypeError,
            "keys that it does not have, as defaultdict does .*use a dict",
        ),
        ({"cache": Counter()}, TypeError, "keys that it does not have, as Counter does"),
        ({"cache": []}, TypeError, r"cache must be a mapping such as a dict, .* got \[\] of the type list"),
        ({"cache": np.zeros(3)}, TypeError, "cache must be a mapping such as a dict, .* ndarray"),
        ({"cache": "redis://"}, TypeError, "cache must be a mapping such as a dict, .* str"),
        (
            {"cache": ContextVar("cache")},
            TypeError,
            "a set that takes a key and a value; ContextVar has others",
        ),
        ({"cache": AsyncItems()}, TypeError, r"asynchronous needs get and set, and AsyncItems has only \[\]"),
        ({"cache_key": len}, TypeError, "cache_key needs a cache"),
        ({"cache": {}, "cache_key": "k"}, TypeError, "cache_key must be a function"),
    ],
)
def test_senseless_options_are_refused(options: Any, error: Any, message: str) -> None:
    """At decoration."""
    with pytest.raises(error, match=message):
        batched.dynamically(len, **options)


def test_an_asynchronous_cache_is_for_the_event_loop_flavours() -> None:
    """A thread has nowhere to await it, nor the half of it."""

    class Remote:
        async def get(self, key: Any) -> Any: ...
        async def set(self, key: Any, value: Any) -> None: ...

    class Half(Remote):
        def get(self, key: Any) -> Any: ...

    for cache in (Remote(), Half()):
        with pytest.raises(TypeError, match="batched.aio"):
            batched.dynamically(len, cache=cache)


# -- whose results --------------------------------------------------------------------------------------


def test_results_are_nobody_elses(flavour: Flavour) -> None:
    """What a caller does to an array, a list or a dict reaches neither the cache nor another caller."""
    gate = Gate(lambda items: [{"a": np.zeros(2), "l": [1.0, [2]], "s": {1}} for _ in items])
    fn = flavour.decorate(gate, timeout_ms=0, cache={})
    for _ in range(3):
        answer = flavour.call(fn, "x")
        assert (answer["a"].tolist(), answer["l"], answer["s"]) == ([0, 0], [1.0, [2]], {1})
        answer["a"][:] = 1
        answer["l"].append(3)
        answer["l"][1].append(3)
        answer["s"].add(2)
        answer["b"] = 1
    first, second = flavour.call(fn, ["y", "y"])
    assert first["a"] is not second["a"]
    assert len(gate.batches) == 2


def content(value: Any) -> bytes:
    """A key of arrays, however they are passed."""
    if isinstance(value, np.ndarray):
        return value.tobytes()
    return b"|".join(map(content, value.values() if isinstance(value, dict) else value))


def zeros() -> np.ndarray[Any, Any]:
    return np.zeros((1, 2))


def doubled_features(features: dict[str, Any]) -> Any:
    return features["x"] * 2


CHANGEABLE: list[Any] = [
    # what is asked for, how it is changed in place, and what the function makes of one item
    pytest.param(lambda: {"x": zeros()}, lambda asked: asked["x"].fill(9), None, id="features"),
    pytest.param(
        lambda: {"x": [np.zeros(2), np.zeros(1)]}, lambda asked: asked["x"][0].fill(9), None, id="rows"
    ),
    pytest.param(zeros, lambda asked: asked.fill(9), lambda item: item * 2, id="array"),
    pytest.param(lambda: [zeros()], lambda asked: asked[0].fill(9), lambda item: item * 2, id="arrays"),
    pytest.param(
        lambda: {"x": zeros()},
        lambda asked: asked.update(x=zeros() + 9),
        lambda item: item["x"] * 2,
        id="dict",
    ),
]


@pytest.mark.parametrize(("make", "change", "function"), CHANGEABLE)
def test_a_caller_that_has_left_may_change_what_it_has_asked_for(
    flavour: Flavour, make: Any, change: Any, function: Any
) -> None:
    """Whether cancelled or late: an equal call that joined it, and the cache, get the answer of the key."""
    cache: dict[Any, Any] = {}
    options: dict[str, Any] = {"batch_size": 2, "timeout_ms": 0, "cache": cache, "cache_key": content}
    ones: Any = {"x": zeros() + 1} if isinstance(make(), dict) else zeros() + 1
    if function is None:
        gate = Gate(doubled_features, shut=True)
        fn = flavour.decorate_arrays(gate, **options)
    else:
        gate = Gate(lambda items: [function(item) for item in items], shut=True)
        fn = flavour.decorate(gate, **options)
    busy = flavour.start(fn, ones)
    gate.wait_for_batch()

    mine = make()
    first = flavour.start(fn if flavour.cancels else fn.options(deadline_ms=1000), mine)
    with ThreadPoolExecutor(1) as pool:
        second: Any = pool.submit(flavour.call, fn, make())
        until(lambda: fn.stats.total_cached)
        if flavour.cancels:
            flavour.cancel(first)
        else:
            assert isinstance(first.exception(PATIENCE_S), TimeoutError)
        change(mine)
        gate.open()
        assert not np.any(second.result(PATIENCE_S))
    busy.result(PATIENCE_S)
    assert not any(np.any(result) for key, result in cache.items() if key != content(ones))
    flavour.close(fn)


def test_instances_do_not_share_results_unless_cache_key_says_so() -> None:
    """One mapping for all of a class; with a key that names the model they do."""
    shared: dict[Any, Any] = {}
    by_key: dict[Any, Any] = {}

    class Model:
        def __init__(self, factor: int) -> None:
            self.factor = factor

        @batched.dynamically(timeout_ms=0, cache=shared)
        def own(self, items: list[int]) -> list[int]:
            return [item * self.factor for item in items]

        @batched.dynamically(timeout_ms=0, cache=by_key, cache_key=lambda item: item)
        def common(self, items: list[int]) -> list[int]:
            return [item * self.factor for item in items]

    two, three = Model(2), Model(3)
    assert (two.own(1), three.own(1), two.own(1)) == (2, 3, 2)
    assert (two.common(1), three.common(1)) == (2, 2)


def test_arrays_need_a_key_and_are_cached_by_call() -> None:
    """Hits count their rows."""
    with pytest.raises(TypeError, match="a cache of arrays needs a cache_key"):
        batched.inference.dynamically(len, cache={})
    runs = []

    def double(features: dict[str, Any]) -> Any:
        runs.append(len(features["x"]))
        return features["x"] * 2

    fn = batched.inference.dynamically(
        double, timeout_ms=0, cache={}, cache_key=lambda features: features["x"].tobytes()
    )
    x = np.arange(6).reshape(3, 2)
    first = fn(x=x)
    first[:] = -1
    assert np.array_equal(fn(x=x), x * 2)
    assert np.array_equal(next(fn.map([{"x": x}])), x * 2)
    assert runs == [3]
    assert fn.stats.total_cached == 6


@pytest.mark.parametrize("kind", ["dict", "lru", "ttl", "disk"])
def test_any_mutable_mapping_will_do(flavour: Flavour, kind: str, tmp_path: Path) -> None:
    """From several threads and batchers at once; one that evicts, one on disk."""
    flavour.needs_threads()
    cache: Any = {
        "dict": dict,
        "lru": lambda: cachetools.LRUCache(8),
        "ttl": lambda: cachetools.TTLCache(8, 60),
        "disk": lambda: diskcache.Cache(str(tmp_path)),
    }[kind]()
    one = flavour.decorate(lambda items: [item * 2 for item in items], timeout_ms=0, cache=cache)
    two = flavour.decorate(lambda items: [item * 2 for item in items], timeout_ms=0, cache=cache)
    with ThreadPoolExecutor(4) as pool:
        asked = [[(seed * 7 + step) % 20 for step in range(15)] for seed in range(24)]
        answers = list(pool.map(lambda pair: pair[0](pair[1]), zip([one, two] * 12, asked, strict=True)))
    assert answers == [[item * 2 for item in items] for items in asked]
    for fn in (one, two):
        nothing_is_left(fn)
        flavour.close(fn)
    assert len(cache) == (20 if kind in {"dict", "disk"} else 8)
    if kind == "disk":
        cache.close()


# -- together with the rest -----------------------------------------------------------------------------


def test_a_bounded_queue_counts_only_what_is_not_known(flavour: Flavour) -> None:
    """And a refused call leaves no flight behind."""
    gate = Gate(shut=True)
    fn = flavour.decorate(gate, batch_size=1, timeout_ms=0, cache={"known": 1}, max_queue_size=2)
    busy = flavour.start(fn, "busy")
    gate.wait_for_batch()
    waiting = flavour.start(fn, ["known", "a", "b"])
    with pytest.raises(QueueFullError):
        flavour.call(fn, ["known", "a", "c"])
    with pytest.raises(ValueError, match="will never fit"):
        flavour.call(fn, ["d", "e", "f"])
    assert (fn.stats.total_rejected, fn.stats.total_cached) == (1, 1)
    gate.open()
    assert (busy.result(PATIENCE_S), waiting.result(PATIENCE_S)) == ("busy", [1, "a", "b"])
    assert flavour.call(fn, "c") == "c"
    nothing_is_left(fn)


def test_cache_groups_and_a_bounded_queue_together(flavour: Flavour) -> None:
    """Each item once, in batches of one key, within the bound, with errors in place."""
    flavour.needs_threads()
    gate = Gate(lambda items: [KeyError(item) if item == 7 else ("out", item) for item in items])
    fn = flavour.decorate(
        gate, batch_size=3, timeout_ms=0, cache={}, group_by=lambda item: item % 3,
        max_queue_size=12, on_full="wait", isolate_errors=True, max_concurrent_batches=2,
    )  # fmt: skip
    view = fn.options(return_exceptions=True)
    with ThreadPoolExecutor(4) as pool:
        asked = [[(seed + 2 * step) % 10 for step in range(12)] for seed in range(12)]
        for items, answers in zip(asked, pool.map(view, asked), strict=True):
            for item, answer in zip(items, answers, strict=True):
                assert isinstance(answer, KeyError) if item == 7 else answer == ("out", item)
    assert all(len({item % 3 for item in batch}) == 1 for batch in gate.batches)
    ran = Counter(item for batch in gate.batches for item in batch if item != 7)
    assert set(ran) == set(range(10)) - {7}
    assert flavour.map(view, range(6)) == [("out", item) for item in range(6)]
    nothing_is_left(fn)
    assert not blocked(fn)
    assert not outside(fn)
    assert not any(size_of(each.calls.queue) for each in batchers(fn))
    flavour.close(fn)


def test_shutdown_answers_everybody_who_has_joined() -> None:
    """Drained, or cancelled, all who wait for one item alike."""
    for cancel_futures in (False, True):
        gate = Gate(shut=True)
        fn = batched.dynamically(gate, batch_size=1, timeout_ms=0, cache={}, group_by=lambda item: item)
        busy = fn.submit("busy")
        gate.wait_for_batch()
        futures = [fn.submit("a"), fn.submit(["a", "b"]), fn.submit("b")]
        fn.shutdown(wait=False, cancel_futures=cancel_futures)
        gate.open()
        fn.shutdown()
        assert busy.result(0) == "busy"
        if cancel_futures:
            assert all(future.cancelled() for future in futures)
        else:
            assert [future.result(0) for future in futures] == ["a", ["a", "b"], "b"]
        nothing_is_left(fn)


def test_an_instance_is_collected_though_its_results_are_kept() -> None:
    """The cache keeps results, not who made them."""
    cache: dict[Any, Any] = {}

    class Model:
        @batched.dynamically(timeout_ms=0, cache=cache)
        def embed(self, items: list[int]) -> list[int]:
            return items

    model = Model()
    assert model.embed([1, 2, 1]) == [1, 2, 1]
    reference = weakref.ref(model)
    del model
    until(lambda: gc.collect() is not None and reference() is None)
    assert len(cache) == 2


@pytest.mark.parametrize("group_by", [None, lambda item: item % 2])
def test_nobody_joins_what_has_expired_and_has_not_been_answered(group_by: Any) -> None:
    """Who asks in the moment between has no part in the other's deadline, and gets a run of its own."""
    fn = batched.dynamically(timeout_ms=0, cache={}, group_by=group_by)(list)
    driver = fn._find()
    batcher, read = driver.batcher, driver.collator.read
    hasty, patient = (read(fn, ([1, 2, 3],), {}, 0.0) for _ in range(2))
    hasty.deadline = 1.0
    batcher.calls.admit(hasty, wait=False)

    assert batcher.plan(2.0) is None
    assert (batcher.calls.answered, hasty.left) == ([hasty], "expired")
    batcher.calls.answered.clear()
    batcher.calls.admit(patient, wait=False)
    batcher.calls.take_in()
    assert patient.missing == batcher.calls.queue.items == 3
    while batcher.calls.queue.items:
        batch = batcher.next(2.0)
        batcher.running.finish(batch, driver.collator.split(batch.run(driver.collator), batch), 2.0)
    assert (batcher.calls.answered, patient.results) == ([patient], [1, 2, 3])
    batcher.calls.in_flight.take_landed()
    nothing_is_left(fn)


def check(items: list[int], answers: list[Any]) -> None:
    for item, answer in zip(items, answers, strict=True):
        assert isinstance(answer, ValueError) if item == 13 else answer == ("out", item)


def ask_in_a_thread(fn: Any, seed: int) -> None:
    """Ask lists of a few keys, some of them in great haste."""
    for turn in range(80):
        items = [(seed + turn * step) % 16 for step in range(1 + turn % 9)]
        hasty = fn.options(deadline_ms=0.3, return_exceptions=True)
        with contextlib.suppress(TimeoutError):
            check(items, (fn if turn % 4 else hasty)(items))


async def ask_in_a_task(fn: Any, seed: int) -> None:
    """Ask lists of a few keys, and leave at times."""
    for turn in range(60):
        items = [(seed * turn + step) % 16 for step in range(1 + turn % 5)]
        task = asyncio.ensure_future(fn.acall(items))
        if turn % 3 == 0:
            await asyncio.sleep(0)
            task.cancel()
        with contextlib.suppress(asyncio.CancelledError):
            check(items, await task)


def test_equal_items_at_random() -> None:
    """Threads and tasks that ask, leave and are late over a few keys; then nothing is left."""
    fn = batched.dynamically(
        lambda items: [ValueError(item) if item == 13 else ("out", item) for item in items],
        batch_size=4, timeout_ms=0.2, cache=cachetools.LRUCache(4), group_by=lambda item: item % 2,
        max_queue_size=30, on_full="wait", max_concurrent_batches=2,
    )  # fmt: skip
    view = fn.options(return_exceptions=True)

    async def tasks() -> None:
        await asyncio.gather(*(ask_in_a_task(view, seed) for seed in range(10)))

    threads = [threading.Thread(target=ask_in_a_thread, args=[view, seed], daemon=True) for seed in range(4)]
    for thread in threads:
        thread.start()
    asyncio.run(asyncio.wait_for(tasks(), PATIENCE_S))
    for thread in threads:
        thread.join(PATIENCE_S)
        assert not thread.is_alive()
    nothing_is_left(fn)
    fn.shutdown()


@pytest.mark.soak
def test_a_call_that_is_answered_at_its_deadline_has_its_own_answer() -> None:
    """Not the list that answers are gathered in: once in some thousand calls, at a low switch interval."""
    numbers = itertools.count()

    @batched.dynamically(batch_size=4, timeout_ms=0, cache={})
    def halves(items: list[int]) -> list[float]:
        time.sleep(0.0005)
        return [item + 0.5 for item in items]

    def ask(_: int) -> None:
        for item in itertools.islice(numbers, 10_000):
            with contextlib.suppress(TimeoutError):
                assert halves.options(deadline_ms=0.55 + item % 20 / 10)(item) == item + 0.5

    before = sys.getswitchinterval()
    sys.setswitchinterval(1e-6)
    try:
        with ThreadPoolExecutor(3) as pool:
            list(pool.map(ask, range(3)))
    finally:
        sys.setswitchinterval(before)


def test_an_error_of_a_cache_may_be_its_own_cause() -> None:
    """`raise error from error` is a common slip: callers are answered all the same."""

    class Slip(dict[Any, Any]):
        def __setitem__(self, key: Any, value: Any) -> None:
            error = ValueError(key)
            raise error from error

    fn = batched.dynamically(list, timeout_ms=0, cache=Slip())
    assert [fn.submit(item).result(PATIENCE_S) for item in (1, 1)] == [1, 1]


def test_a_cache_that_raises_an_exit_leaves_the_worker_alive() -> None:
    """Whatever a cache raises while it is told of a result, callers are answered, the next ones too."""

    class Exits(dict[Any, Any]):
        def __setitem__(self, key: Any, value: Any) -> None:
            raise SystemExit(key)

    fn = batched.dynamically(list, timeout_ms=0, cache=Exits())
    assert [fn.submit(item).result(PATIENCE_S) for item in (1, 2)] == [1, 2]
