"""Items that fail, caches that fail, and keys that are none."""

from __future__ import annotations

import logging
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from typing import Any

import cachetools
import pytest

from batched import BatchError
from tests.kit.cached import nothing_is_left
from tests.kit.failing_log import log_fails
from tests.kit.flavours import Flavour
from tests.kit.gate import PATIENCE_S, Gate, until


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


def test_all_callers_of_a_failing_item_get_errors_of_their_own(flavour: Flavour) -> None:
    """A caller that keeps errors finds them in place."""
    gate = Gate(lambda items: [KeyError(item) if item == "bad" else item for item in items], shut=True)
    fn = flavour.decorate(gate, batch_size=4, timeout_ms=0, cache={})
    busy = flavour.start(fn, "busy")
    gate.wait_for_batch()
    futures: list[Any] = []
    with ThreadPoolExecutor(3) as pool:
        for at, asked in enumerate(["bad", ["bad", "good"]]):
            futures.append(pool.submit(flavour.call, fn, asked))
            until(lambda at=at: fn.stats.total_accepted + fn.stats.total_cached == 1 + (1, 3)[at])
        view = fn.options(return_exceptions=True)
        kept: Any = pool.submit(flavour.call, view, ["good", "bad", "bad"])
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
    assert messages == ["embed: the cache failed and is bypassed"] * 4
    nothing_is_left(fn)


class Timeout(Exception):
    """What a cache on a disk raises for a lock that another process has, without the system's error."""


class Undecided(Exception):
    """Cannot be asked whether it is true."""

    def __bool__(self) -> bool:
        raise RuntimeError("neither")


class Slow:
    """A cache of which each step takes as long as its time limit."""

    def __init__(self, cause: BaseException | None, error: Exception) -> None:
        self.asked: list[Any] = []
        self._cause = cause
        self._error = error

    def get(self, key: Any) -> Any:
        self.asked.append(key)
        raise self._error from self._cause

    def set(self, key: Any, result: Any) -> None:
        self.get(key)


@pytest.mark.parametrize("error", [Timeout(), ValueError()])
def test_a_cache_that_is_away_is_asked_once_for_each_list(flavour: Flavour, error: Exception) -> None:
    """However its library says so: each time limit would delay all items of the list."""
    cache = Slow(None if type(error) is Timeout else ConnectionError("down"), error)
    fn = flavour.decorate(lambda items: [item * 2 for item in items], timeout_ms=0, cache=cache)
    assert flavour.call(fn, [1, 2, 3, 4]) == [2, 4, 6, 8]
    assert cache.asked == [1, 1]
    nothing_is_left(fn)


def test_an_error_of_a_cache_is_not_asked_whether_it_is_true(
    flavour: Flavour, caplog: pytest.LogCaptureFixture
) -> None:
    """Nor is its cause."""
    cache = Slow(Undecided(), ValueError("odd"))
    fn = flavour.decorate(lambda items: [item * 2 for item in items], timeout_ms=0, cache=cache)
    with caplog.at_level(logging.ERROR, "batched"):
        answer = None
        with suppress(RuntimeError):  # its context is one that pytest cannot show
            answer = flavour.call(fn, [1, 2])
    assert answer == [2, 4]
    assert cache.asked == [1, 2, 1, 2]
    assert len(caplog.records) == 2
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
        "f: the cache failed for 2 result(s), which were not stored"
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


@pytest.mark.thread_unsafe(reason="the log is that of the process")
def test_a_cache_that_fails_and_a_log_that_fails_are_none(flavour: Flavour) -> None:
    """Neither hides an answer from its caller."""
    fn = flavour.decorate(lambda items: items, timeout_ms=0, cache=Fussy())
    with log_fails():
        assert flavour.call(fn, [1, 2, 3, 4]) == [1, 2, 3, 4]
        assert flavour.call(fn, 5) == 5


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
        TypeError,
        match="the cache needs a cache_key, because this item cannot be a key: unhashable type: 'dict'",
    ):
        flavour.call(fn, {"a": 1})
    keyed = flavour.decorate(Gate(), timeout_ms=0, cache={}, cache_key=lambda item: item["a"])
    assert flavour.call(keyed, [{"a": 1}, {"a": 1}]) == [{"a": 1}] * 2
    assert keyed.stats.total_cached == 1


def test_a_key_that_cannot_be_compared_leaves_no_call_waiting(flavour: Flavour) -> None:
    """A list that fails half-way through takes its first items back: others ask for them anew."""

    class Moody:
        """A key that compares well only as long as it is asked nicely."""

        fails = False

        def __hash__(self) -> int:
            return 1

        def __eq__(self, other: object) -> bool:
            if Moody.fails:
                raise ZeroDivisionError("moody")
            return self is other

    gate = Gate(shut=True)
    fn = flavour.decorate(gate, batch_size=1, timeout_ms=0, cache={}, cache_key=lambda item: item[1])
    busy = flavour.start(fn, ("busy", Moody()))
    gate.wait_for_batch()
    Moody.fails = True
    with pytest.raises(BatchError, match="cache_key returned a key of type .*Moody"):
        flavour.call(fn, [("a", "a"), ("b", Moody())])
    Moody.fails = False
    again = flavour.start(fn, ("a", "a"))
    gate.open()
    assert again.result(PATIENCE_S) == ("a", "a")
    busy.result(PATIENCE_S)
    nothing_is_left(fn)


def test_an_error_of_a_cache_may_be_its_own_cause(flavour: Flavour) -> None:
    """`raise error from error` is a common slip: callers are answered all the same."""

    class Slip(dict[Any, Any]):
        def __setitem__(self, key: Any, value: Any) -> None:
            error = ValueError(key)
            raise error from error

    fn = flavour.decorate(Gate(), timeout_ms=0, cache=Slip())
    assert [flavour.call(fn, item) for item in (1, 1)] == [1, 1]
