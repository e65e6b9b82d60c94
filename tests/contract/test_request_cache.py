"""`request_cache`: what a request has asked for it does not ask for again, and other requests do."""

from __future__ import annotations

import gc
import weakref
from collections import Counter
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from typing import Any

import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from batched import QueueFullError
from tests.kit.cached import nothing_is_left
from tests.kit.caches import Client
from tests.kit.effort import times
from tests.kit.errors import OwnError
from tests.kit.flavours import Flavour
from tests.kit.gate import PATIENCE_S, Gate, until

BEHIND: dict[str, Any] = {"nothing": lambda: None, "a mapping": dict, "a client": Client}
"""What the decorator has as its cache."""


@pytest.mark.parametrize("behind", BEHIND)
@settings(max_examples=times(80), suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(
    asked=st.lists(
        st.tuples(st.integers(0, 2), st.one_of(st.integers(0, 5), st.lists(st.integers(0, 5), max_size=8))),
        max_size=15,
    )
)
def test_each_request_has_its_own_answers_and_asks_for_each_item_once(
    flavour: Flavour, behind: str, asked: list[tuple[int, Any]]
) -> None:
    """Whatever is asked for together, again, and by others; with a cache behind it, all ask once."""
    gate = Gate(lambda items: [("out", item) for item in items])
    fn = flavour.decorate(gate, batch_size=3, timeout_ms=0, cache=BEHIND[behind]())
    kept: list[dict[int, Any]] = [{}, {}, {}]
    requests = [fn.options(request_cache=each) for each in kept]
    futures = [flavour.start(requests[request], items) for request, items in asked]
    for (_, items), future in zip(asked, futures, strict=True):
        expected = [("out", item) for item in items] if isinstance(items, list) else ("out", items)
        assert future.result(PATIENCE_S) == expected
    wanted: list[set[int]] = [set(), set(), set()]
    for request, items in asked:
        wanted[request] |= set(items) if isinstance(items, list) else {items}
    assert kept == [{item: ("out", item) for item in items} for items in wanted]
    ran = Counter(item for batch in gate.batches for item in batch)
    each = Counter(item for items in wanted for item in items)
    assert ran == (each if behind == "nothing" else Counter(each.keys()))
    every = sum(len(items) if isinstance(items, list) else 1 for _, items in asked)
    assert fn.stats.total_accepted + fn.stats.total_cached == every
    nothing_is_left(fn)
    flavour.close(fn)


def test_an_item_in_flight_is_waited_for_by_all_of_the_request(flavour: Flavour) -> None:
    """However much of its list waits; by another request it is asked for once more."""
    gate = Gate(shut=True)
    fn = flavour.decorate(gate, batch_size=4, timeout_ms=0)
    mine: dict[int, int] = {}
    load = fn.options(request_cache=mine)
    many = flavour.start(load, list(range(200)))
    gate.wait_for_batch()
    joined = flavour.start(load, 150)
    gate.open()
    assert (joined.result(PATIENCE_S), many.result(PATIENCE_S)) == (150, list(range(200)))
    assert flavour.call(fn.options(request_cache={}), 150) == 150
    ran = Counter(item for batch in gate.batches for item in batch)
    assert ran == Counter([*range(200), 150])
    nothing_is_left(fn)


def test_views_of_one_cache_share_it_and_their_options_hold(flavour: Flavour) -> None:
    """A view of a view, and one that is made again, each with options of its own; two caches are two."""
    gate = Gate(lambda items: [OwnError(item) if item == 5 else item for item in items])
    fn = flavour.decorate(gate, timeout_ms=0)
    mine: dict[int, int] = {}
    load = fn.options(request_cache=mine)
    assert flavour.call(load, 1) == 1
    again = fn.options(request_cache=mine, deadline_ms=20_000)
    for view in (load.options(deadline_ms=20_000), again, load.options(priority="bulk")):
        assert flavour.call(view, 1) == 1
    errors = load.options(return_exceptions=True)
    first, failed, same = flavour.call(errors, [1, 5, 1])
    assert (first, type(failed), same) == (1, OwnError, 1)
    assert flavour.map(errors, [1, 1]) == [1, 1]
    assert gate.batches == [[1], [5]]
    assert fn.options(request_cache=mine) == load != fn.options(request_cache={})
    assert fn.options(request_cache={}) != fn.options(request_cache={})
    assert load.options(request_cache=None) == fn
    assert flavour.call(load.options(request_cache=None), 1) == 1
    assert gate.batches == [[1], [5], [1]]


def test_a_view_that_is_made_for_each_call_shares_what_is_in_flight(flavour: Flavour) -> None:
    """A request keeps its cache, and perhaps no view."""
    gate = Gate(shut=True)
    fn = flavour.decorate(gate, batch_size=1, timeout_ms=0)
    mine: dict[str, str] = {}
    first = flavour.start(fn.options(request_cache=mine), "a")
    gate.wait_for_batch()
    gc.collect()
    second = flavour.start(fn.options(request_cache=mine), "a")
    gate.open()
    assert (first.result(PATIENCE_S), second.result(PATIENCE_S)) == ("a", "a")
    assert gate.batches == [["a"]]


def test_errors_are_not_kept(flavour: Flavour) -> None:
    """The item is asked for again; callers at once get the error, each a copy."""
    fails = [True]
    gate = Gate(lambda items: [OwnError(1) if fails[0] else item for item in items], shut=True)
    fn = flavour.decorate(gate, batch_size=1, timeout_ms=0)
    mine: dict[str, str] = {}
    load = fn.options(request_cache=mine)
    both = [flavour.start(load, "a"), flavour.start(load, "a")]
    gate.wait_for_batch()
    gate.open()
    errors = [future.exception(PATIENCE_S) for future in both]
    assert [type(error) for error in errors] == [OwnError, OwnError]
    assert errors[0] is not errors[1]
    assert mine == {}
    fails[0] = False
    assert flavour.call(load, "a") == "a"
    assert mine == {"a": "a"}
    assert len(gate.batches) == 2


@pytest.mark.parametrize("behind", BEHIND)
@pytest.mark.parametrize("leaver", [0, 1])
@pytest.mark.parametrize("running", [False, True])
def test_either_of_two_callers_of_a_request_may_leave(
    flavour: Flavour, running: bool, leaver: int, behind: str
) -> None:
    """While the item waits, and while it runs: the other gets the value. If both leave, it never runs."""
    if not flavour.cancels:
        pytest.skip("a blocked thread has no cancel")
    gate = Gate(shut=True)
    fn = flavour.decorate(gate, batch_size=1, timeout_ms=0, cache=BEHIND[behind]())
    mine: dict[str, str] = {}
    load = fn.options(request_cache=mine)
    if not running:
        flavour.start(fn, "busy")
        gate.wait_for_batch()
    futures = [flavour.start(load, "a"), flavour.start(load, "a")]
    if running:
        gate.wait_for_batch()
    unwanted = [flavour.start(load, "b"), flavour.start(load, ["b"])]
    for future in (futures[leaver], *unwanted):
        flavour.cancel(future)
    gate.open()
    assert futures[1 - leaver].result(PATIENCE_S) == "a"
    until(lambda: mine == {"a": "a"})
    nothing_is_left(fn)
    assert ["b"] not in gate.batches


@pytest.mark.parametrize("behind", BEHIND)
def test_a_deadline_ends_the_wait_of_its_own_call(flavour: Flavour, behind: str) -> None:
    """The other call of the request gets the answer, though the one that is late came first."""
    gate = Gate(shut=True)
    fn = flavour.decorate(gate, batch_size=1, timeout_ms=0, cache=BEHIND[behind]())
    load = fn.options(request_cache={})
    flavour.start(fn, "busy")
    gate.wait_for_batch()
    hasty = load.options(deadline_ms=30)
    with ThreadPoolExecutor(2) as pool:
        # A future of `submit` would be late only when the worker looks again: its caller blocks instead.
        futures = []
        for view in (hasty, load):
            futures.append(pool.submit(partial(flavour.call, view) if flavour.in_tasks else view, "a"))
            until(lambda: fn.stats.total_accepted + fn.stats.total_cached == 1 + len(futures))
        with pytest.raises(TimeoutError):
            futures[0].result(PATIENCE_S)
        gate.open()
        assert futures[1].result(PATIENCE_S) == "a"
    nothing_is_left(fn)


def test_it_lies_in_front_of_the_cache_of_the_decorator(flavour: Flavour) -> None:
    """A value that this has is kept for the request, which sees no other later, and asks for it once."""
    gate = Gate()
    client = Client({"a": "old"})
    fn = flavour.decorate(gate, timeout_ms=0, cache=client)
    mine: dict[str, str] = {}
    load = fn.options(request_cache=mine)
    assert flavour.call(load, ["a", "b"]) == ["old", "b"]
    client.kept["a"] = "new"
    assert flavour.call(load, ["a", "b", "a"]) == ["old", "b", "old"]
    assert mine == {"a": "old", "b": "b"}
    assert client.asked == ["a", "b"]
    assert client.kept == {"a": "new", "b": "b"}
    assert flavour.call(fn, "a") == flavour.call(fn.options(request_cache={}), "a") == "new"
    assert gate.batches == [["b"]]
    assert fn.stats.total_cached == 6


def test_the_cache_of_the_decorator_may_be_asynchronous(flavour: Flavour) -> None:
    """Tasks await it, once for each item of the request, and tell it what has run."""
    if flavour.blocks:
        pytest.skip("threads cannot await it")

    class Awaited(Client):
        async def get(self, key: Any) -> Any:
            return super().get(key)

        async def set(self, key: Any, value: Any) -> None:
            super().set(key, value)

    gate = Gate()
    client = Awaited({"a": "old"})
    fn = flavour.decorate(gate, timeout_ms=0, cache=client)
    load = fn.options(request_cache={})
    assert flavour.call(load, ["a", "b", "b"]) == ["old", "b", "b"]
    client.kept["a"] = "new"
    assert flavour.call(load, ["a", "b", "c"]) == ["old", "b", "c"]
    assert flavour.map(load, ["a", "d", "d"]) == ["old", "d", "d"]
    assert client.kept == {"a": "new", "b": "b", "c": "c", "d": "d"}
    assert [sorted(batch) for batch in gate.batches if batch] == [["b"], ["c"], ["d"]]
    nothing_is_left(fn)


def test_what_callers_may_change_is_theirs(flavour: Flavour) -> None:
    """An answer, and the value that is kept, are copies."""
    fn = flavour.decorate(lambda items: [{"row": [item]} for item in items], timeout_ms=0)
    load = fn.options(request_cache={})
    first, second = flavour.call(load, [1, 1])
    first["row"].append("mine")
    assert second == flavour.call(load, 1) == {"row": [1]}


@pytest.mark.parametrize("behind", BEHIND)
def test_a_bounded_queue_and_keys_hold(flavour: Flavour, behind: str) -> None:
    """A refused call leaves nothing in flight; batches have one key; what is known needs no room."""
    gate = Gate(shut=True)
    options = {"max_queue_size": 2, "group_by": lambda item: item[0], "cache": BEHIND[behind]()}
    fn = flavour.decorate(gate, batch_size=2, timeout_ms=0, **options)
    mine = {"known": 1}
    load = fn.options(request_cache=mine)
    busy = flavour.start(fn, "busy")
    gate.wait_for_batch()
    waiting = flavour.start(load, ["known", "a", "b", "a"])
    with pytest.raises(QueueFullError):
        flavour.call(load, ["known", "a", "c"])
    gate.open()
    assert (busy.result(PATIENCE_S), waiting.result(PATIENCE_S)) == ("busy", [1, "a", "b", "a"])
    assert flavour.call(load, ["c", "a"]) == ["c", "a"]
    assert sorted(gate.batches) == [["a"], ["b"], ["busy"], ["c"]]
    nothing_is_left(fn)


def test_the_decorator_says_what_the_keys_are(flavour: Flavour) -> None:
    """It need not have a cache for that; columns have a key of all their arguments without it."""
    gate = Gate(lambda items: [item["id"] for item in items])
    fn = flavour.decorate(gate, timeout_ms=0, cache_key=lambda item: item["id"])
    mine: dict[int, int] = {}
    load = fn.options(request_cache=mine)
    assert flavour.call(load, [{"id": 1}, {"id": 1}]) == [1, 1]
    assert (mine, gate.batches) == ({1: 1}, [[{"id": 1}]])

    bare = flavour.decorate(list, timeout_ms=0)
    with pytest.raises(TypeError, match="needs a cache_key, because this item cannot be a key"):
        flavour.call(bare.options(request_cache={}), {"id": 1})

    batches: list[Any] = []

    def add(xs: list[int], ys: list[int]) -> list[int]:
        batches.append((xs, ys))
        return [x + y for x, y in zip(xs, ys, strict=True)]

    columns = flavour.decorate(add, timeout_ms=0).options(request_cache={})
    assert flavour.call(columns, [1, 1, 2], [3, 3, 3]) == [4, 4, 5]
    assert flavour.map(columns, [1, 2], [3, 3]) == [4, 5]
    assert batches == [([1, 2], [3, 3])]


def test_a_call_of_arrays_is_one_key(flavour: Flavour) -> None:
    """Their rows are copies; without a `cache_key` that is refused."""
    runs: list[int] = []

    def double(features: Any) -> Any:
        runs.append(len(features["x"]))
        return features["x"] * 2

    plain = flavour.decorate_arrays(double, timeout_ms=0)
    with pytest.raises(TypeError, match="request_cache needs a cache_key, because arrays cannot be keys"):
        plain.options(request_cache={})
    fn = flavour.decorate_arrays(double, timeout_ms=0, cache_key=lambda features: features["x"].tobytes())
    load = fn.options(request_cache={})
    two = np.ones((2, 3))
    first = flavour.call(load, x=two)
    first[:] = 7
    assert (flavour.call(load, x=two) == 2).all()
    assert all((rows == 2).all() for rows in flavour.map(load, [{"x": two}, {"x": two}]))
    assert runs == [2]


def test_instances_do_not_see_each_others_results(flavour: Flavour) -> None:
    """Though a request has one cache for both."""

    def plus(self: Any, items: list[int]) -> list[int]:
        return [item + self.more for item in items]

    class Adder:
        def __init__(self, more: int) -> None:
            self.more = more

        add = flavour.decorate(plus, timeout_ms=0)

    one, ten = Adder(1), Adder(10)
    mine: dict[Any, int] = {}
    for _ in range(2):
        assert flavour.call(one.add.options(request_cache=mine), [1, 1]) == [2, 2]
        assert flavour.call(ten.add.options(request_cache=mine), [1, 1]) == [11, 11]
    assert (one.add.stats.total_processed, ten.add.stats.total_processed) == (1, 1)


def test_nothing_keeps_the_cache_of_a_request_that_has_ended(flavour: Flavour) -> None:
    """Neither the function, nor its worker, nor what remembers options."""

    class Kept(dict[str, str]):
        __hash__ = object.__hash__

    fn = flavour.decorate(Gate(), timeout_ms=0)
    mine = Kept()
    gone = weakref.ref(mine)
    assert flavour.call(fn.options(request_cache=mine, deadline_ms=20_000), ["a", "b"]) == ["a", "b"]
    assert flavour.map(fn.options(request_cache=mine), ["a", "c"]) == ["a", "c"]
    assert dict(mine) == {"a": "a", "b": "b", "c": "c"}
    del mine
    assert flavour.call(fn, "other") == "other"
    until(lambda: gc.collect() >= 0 and gone() is None)


def test_what_it_cannot_be(flavour: Flavour) -> None:
    """Only a mapping; and results are kept, not pieces."""
    fn = flavour.decorate(list, timeout_ms=0)
    for wrong in (Client(), dict, [], "redis://"):
        with pytest.raises(TypeError, match="request_cache must be"):
            fn.options(request_cache=wrong)

    def pieces(items: list[int]) -> Any:
        yield items

    with pytest.raises(TypeError, match="request_cache cannot be used with .*pieces, which streams"):
        flavour.decorate(pieces).options(request_cache={})
    with pytest.raises(TypeError, match="cache_key cannot be used with a function that streams"):
        flavour.decorate(pieces, cache_key=int)


class Named:
    """An item, or a row, that can be referred to weakly."""


@pytest.mark.thread_unsafe(reason="it stops the collector")
@pytest.mark.parametrize("cached", ["request", "function"])
def test_what_was_asked_for_does_not_wait_for_the_collector(flavour: Flavour, cached: str) -> None:
    """Neither the cache of a request, once nothing refers to it, nor an item, nor its row."""

    class Kept(dict[Any, Any]):
        """A cache that can be referred to weakly, and keeps nothing that `cachetools` would have dropped."""

        def __setitem__(self, key: Any, value: Any) -> None:
            if cached == "request":
                super().__setitem__(key, value)

    kept = Kept()
    options = {"cache": kept} if cached == "function" else {}
    fn = flavour.decorate(lambda items: [Named() for _ in items], timeout_ms=0, **options)
    view = fn.options(request_cache=kept) if cached == "request" else fn
    item = Named()
    gc.collect()
    gc.disable()
    try:
        row = flavour.call(view, item)
        gone = [weakref.ref(item), weakref.ref(row)] + [weakref.ref(kept)] * (cached == "request")
        del item, row, kept, options, view
        flavour.call(fn, 2)  # what a thread or a loop has at hand is another call
        until(lambda: not any(each() for each in gone))
    finally:
        gc.enable()
    flavour.close(fn)
