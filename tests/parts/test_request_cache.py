"""The cache of a request in front of that of the decorator, step by step."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import pytest

from batched._core.mending import close, give_up_batch
from batched._core.options import CallOptions, Options
from batched._drivers.manual_clock import ManualDriver
from batched._parts.in_flight import Item
from batched._parts.request_cache import RequestCache, RequestCaches
from batched._parts.stack import join
from tests.kit.kept import kept_by
from tests.kit.lines import lines_of

same = SimpleNamespace(__wrapped__=list)


def driver_of(options: Options, cache: Any = None) -> tuple[ManualDriver, Any, RequestCache]:
    """Return a driver, its collator, and one with the cache of a request."""
    collator, queue = join(list, options, "f", bound=False, owner=list)
    mine = CallOptions(request_cache={} if cache is None else cache)
    in_front = RequestCaches().of(mine, options, collator, "f", bound=False)
    return ManualDriver(options, queue, collator), collator, in_front


@pytest.mark.parametrize("items", ["a", ["a", "b"]])
def test_what_another_call_has_got_meanwhile_answers_at_once(items: Any) -> None:
    """It lands after the cache of the decorator was asked, and before this call is in flight."""
    mine: dict[str, str] = {}
    driver, collator, in_front = driver_of(Options(timeout_ms=0, cache={}), mine)
    other = collator.read(same, (["a", "b"],), {}, 0.0)
    driver.batcher.admit(other, wait=False)
    call = in_front.read(same, (items,), {}, 0.0)
    assert driver.delay(0.0) == 0.0
    assert driver.run(driver.pop(0.0), 0.0) == [other]

    driver.batcher.admit(call, wait=False)
    assert driver.take_answered() == [call]
    assert call.results == items
    assert mine == dict.fromkeys(items, "a") | ({"b": "b"} if "b" in items else {})
    assert driver.delay(0.0) is None
    assert call.hits == len(items)
    assert kept_by(driver.batcher.in_flight, Item) == []


@pytest.mark.parametrize("cache", [None, {}])
def test_a_fault_of_the_library_answers_all_calls_of_a_request(cache: Any) -> None:
    """Those that wait for the items of a batch, and not what stands in their place."""
    driver, _, in_front = driver_of(Options(timeout_ms=0, cache=cache))
    calls = [in_front.read(same, (["a", "b"],), {}, 0.0), in_front.read(same, ("a",), {}, 0.0)]
    for call in calls:
        driver.batcher.admit(call, wait=False)
    assert driver.delay(0.0) == 0.0
    fault = RuntimeError("a fault")
    give_up_batch(driver.batcher, driver.pop(0.0), fault)
    assert set(driver.take_answered()) == set(calls)
    assert [call.error for call in calls] == [fault, fault]
    assert kept_by(driver.batcher.in_flight, Item) == []


@pytest.mark.parametrize("cache", [None, {}])
@pytest.mark.parametrize(("first", "second", "kept"), [(5.0, 9.0, 9.0), (9.0, 5.0, 9.0), (5.0, None, None)])
def test_the_run_has_the_latest_deadline_of_its_calls(
    cache: Any, first: float, second: float | None, kept: float | None
) -> None:
    """Also what runs in the place of it."""
    driver, _, in_front = driver_of(Options(timeout_ms=0, cache=cache))
    for deadline in (first, second):
        call = in_front.read(same, (["a", "b"],), {}, 0.0)
        call.deadline = deadline
        driver.batcher.admit(call, wait=False)
    assert driver.delay(0.0) == 0.0
    (run,) = driver.pop(0.0).calls
    assert run.deadline == kept


@pytest.mark.parametrize("cache", [None, {}])
@pytest.mark.parametrize("deadline", [None, 5.0])
def test_a_list_that_is_in_flight_is_joined_in_a_few_lines_for_each_item(
    cache: Any, deadline: float | None
) -> None:
    """However long it is, and divided by keys: with both caches, one of 2,000 took a minute."""

    def lines_with(size: int) -> int:
        options = Options(timeout_ms=0, cache=cache, group_by=lambda item: item % (size // 10))
        driver, _, in_front = driver_of(options)
        first, second = (in_front.read(same, (list(range(size)),), {}, 0.0) for _ in range(2))
        first.deadline = second.deadline = deadline
        driver.batcher.admit(first, wait=False)
        return lines_of(lambda: driver.batcher.admit(second, wait=False))

    assert lines_with(400) < 11 * lines_with(40)


def test_what_is_late_of_a_call_fails_it_and_is_no_fault_of_an_item() -> None:
    """Where another call has the other item in flight; that one, and the batcher, go on."""
    driver, collator, in_front = driver_of(Options(timeout_ms=0, cache={}))
    other = collator.read(same, ("a",), {}, 0.0)
    driver.batcher.admit(other, wait=False)
    assert driver.delay(0.0) == 0.0
    batch = driver.pop(0.0)
    call = in_front.read(same, (["a", "b"],), {}, 0.0)
    driver.batcher.admit(call, wait=False)
    driver.delay(0.0)
    (late,) = driver.queue.waiting_calls()
    driver.batcher.expire(late, TimeoutError("late"))
    assert driver.take_answered() == [call]
    assert (str(call.error), call.note, call.left) == ("late", None, "expired")
    assert driver.run(batch, 0.0) == [other]
    assert other.results == "a"
    assert kept_by(driver.batcher.in_flight, Item) == []


@pytest.mark.parametrize("is_view", [False, True])
def test_calls_that_end_before_they_run_blame_no_item(is_view: bool) -> None:
    """As when the initializer of the workers raises, also where one item is not in flight for others."""
    driver, collator, in_front = driver_of(Options(timeout_ms=0, cache={}))
    asked = in_front if is_view else collator
    calls = [asked.read(same, (items,), {}, 0.0) for items in ("a", ["a", "b"])]
    for call in calls:
        driver.batcher.admit(call, wait=False)
    close(driver.batcher, RuntimeError("no model"))
    assert set(driver.take_answered()) == set(calls)
    assert [(str(call.error), getattr(call, "note", None)) for call in calls] == [("no model", None)] * 2


def test_one_cache_has_one_collator_as_long_as_it_is_used() -> None:
    """Views that are made for each call find it."""
    options = Options()
    collator, _ = join(list, options, "f", bound=False, owner=list)
    caches = RequestCaches()
    mine: dict[Any, Any] = {}

    def of(cache: Any) -> Any:
        return caches.of(CallOptions(request_cache=cache), options, collator, "f", bound=False)

    first = of(mine)
    assert of(mine) is first
    assert of({}) is not first
    assert first.cache is mine
