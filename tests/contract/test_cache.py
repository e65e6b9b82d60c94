"""`cache`: what is known is answered at once, and equal items in flight run once."""

from __future__ import annotations

from collections import Counter
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from pathlib import Path
from typing import Any

import cachetools
import diskcache
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from batched._drivers.thread_dispatcher import ThreadDispatcher
from tests.kit.cached import nothing_is_left
from tests.kit.effort import times
from tests.kit.flavours import Flavour
from tests.kit.gate import PATIENCE_S, Gate, until


# The fixture has no state that one example could leave to the next.
@settings(max_examples=times(160), suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(asked=st.lists(st.one_of(st.integers(0, 9), st.lists(st.integers(0, 9), max_size=8)), max_size=15))
def test_every_caller_gets_its_own_answers_and_every_item_runs_once(
    flavour: Flavour, asked: list[Any]
) -> None:
    """Duplicates within a list and between callers, waiting, running and known."""
    gate = Gate(lambda items: [("out", item) for item in items])
    fn = flavour.decorate(gate, batch_size=3, timeout_ms=0, cache={})
    futures = [flavour.start(fn, items) for items in asked]
    for items, future in zip(asked, futures, strict=True):
        expected = [("out", item) for item in items] if isinstance(items, list) else ("out", items)
        assert future.result(PATIENCE_S) == expected
    ran = Counter(item for batch in gate.batches for item in batch)
    assert all(count == 1 for count in ran.values())
    every = [item for items in asked for item in (items if isinstance(items, list) else [items])]
    assert set(ran) == set(every)
    assert fn.stats.total_accepted + fn.stats.total_cached == len(every)
    nothing_is_left(fn)
    flavour.close(fn)


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


def test_a_call_does_not_wait_for_the_rest_of_a_long_list(flavour: Flavour) -> None:
    """An item of a list has its answer with all of the list: here it runs again, and sooner."""
    gate = Gate(shut=True)
    fn = flavour.decorate(gate, batch_size=4, timeout_ms=0, cache={})
    many = flavour.start(fn, list(range(400)))
    gate.wait_for_batch()
    single = flavour.start(fn, 1)
    few = flavour.start(fn, [398, 399])
    gate.let_through(3)
    assert (single.result(PATIENCE_S), few.result(PATIENCE_S)) == (1, [398, 399])
    assert not many.done()
    gate.open()
    assert many.result(PATIENCE_S) == list(range(400))
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

    assert fn.stats is not None  # which makes the driver
    monkeypatch.setattr(ThreadDispatcher, "admit", late)
    future: Any = ThreadPoolExecutor(1).submit(flavour.call, fn, items)
    assert future.result(PATIENCE_S) == items
    asked = items if isinstance(items, list) else [items]
    ran = Counter(item for batch in gate.batches for item in batch)
    assert ran == Counter({"a", "b", 7, *asked})
    nothing_is_left(fn)


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
    client.kept |= {0: None, 2: "known"}
    fn = flavour.decorate(gate, timeout_ms=0, cache=client)
    assert flavour.call(fn, [1, 2, 3, 1]) == [-1, "known", -3, -1]
    assert client.kept == {0: None, 1: -1, 2: "known", 3: -3}
    assert flavour.map(fn, [1, 2, 3, 4]) == [-1, "known", -3, -4]
    assert [flavour.call(fn, item) for item in (0, 4)] == [None, -4]
    assert gate.batches == [[1, 3], [4], [0]]
    assert fn.stats.total_cached == 2 + 3 + 1
    nothing_is_left(fn)


class Disk(diskcache.Cache):
    """Leaves no connection open: a thread that ends with one is warned of from Python 3.13 on."""

    def __getitem__(self, key: Any) -> Any:
        try:
            return super().__getitem__(key)
        finally:
            self.close()

    def __setitem__(self, key: Any, value: Any) -> None:
        try:
            super().__setitem__(key, value)
        finally:
            self.close()


@pytest.mark.parametrize("kind", ["dict", "lru", "ttl", "disk"])
def test_any_mutable_mapping_will_do(flavour: Flavour, kind: str, tmp_path: Path) -> None:
    """From several threads and batchers at once; one that evicts, one on disk."""
    flavour.needs_threads()
    cache: Any = {
        "dict": dict,
        "lru": lambda: cachetools.LRUCache(8),
        "ttl": lambda: cachetools.TTLCache(8, 60),
        "disk": lambda: Disk(str(tmp_path)),
    }[kind]()

    def double(items: list[int]) -> list[int]:
        return [item * 2 for item in items]

    one, two = (flavour.decorate(double, timeout_ms=0, cache=cache) for _ in range(2))
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


def as_text(items: list[int]) -> list[str]:
    """Return each item as text."""
    return [str(item) for item in items]


@pytest.mark.parametrize("option", ["cache", "request_cache"])
def test_two_functions_of_which_the_items_are_the_keys_cannot_have_one_cache(
    flavour: Flavour, option: str
) -> None:
    """Equal items would get the results of the other function. With keys that differ they can."""

    def decorate(function: Any, shared: dict[Any, Any], **options: Any) -> Any:
        if option == "cache":
            return flavour.decorate(function, timeout_ms=0, cache=shared, **options)
        return flavour.decorate(function, timeout_ms=0, **options).options(request_cache=shared)

    shared: dict[Any, Any] = {}
    text, negative = decorate(as_text, shared), decorate(lambda items: [-item for item in items], shared)
    assert flavour.call(text, 1) == "1"
    for _ in range(2):
        with pytest.raises(TypeError, match=r"<lambda> and as_text have one cache and no cache_key, so .*"):
            flavour.call(negative, 1)
    assert shared == {1: "1"}
    negative = decorate(lambda items: [-item for item in items], shared, cache_key=lambda item: ("-", item))
    assert [flavour.call(negative, 1), flavour.call(text, 1)] == [-1, "1"]
    assert flavour.call(decorate(as_text, shared), 1) == "1"


def test_closures_of_one_function_cannot_have_one_cache_nor_can_static_methods(flavour: Flavour) -> None:
    """They have one name, and may give different results; methods of instances have their own keys."""
    shared: dict[Any, Any] = {}

    def times(factor: int) -> Any:
        return flavour.decorate(lambda items: [item * factor for item in items], timeout_ms=0, cache=shared)

    twice, thrice = times(2), times(3)
    assert flavour.call(twice, 1) == 2
    with pytest.raises(TypeError, match="have one cache"):
        flavour.call(thrice, 1)

    decorate = partial(flavour.decorate, timeout_ms=0, cache=shared)

    class Model:
        @decorate
        def add(self, items: list[int]) -> list[int]:
            return [item + 1 for item in items]

        @decorate
        def minus(self, items: list[int]) -> list[int]:
            return [-item for item in items]

    model = Model()
    assert [flavour.call(model.add, 1), flavour.call(model.minus, 1)] == [2, -1]
    still = decorate(staticmethod(as_text))
    with pytest.raises(TypeError, match="as_text and <lambda> have one cache"):
        flavour.call(still, 1)
