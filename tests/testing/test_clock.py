"""`manual_clock`: which batches run, when and why, is known to the millisecond."""

from __future__ import annotations

import asyncio
from contextvars import ContextVar, copy_context
from typing import Any

import numpy as np
import pytest

import batched
import batched.inference
from batched import aio
from batched.testing import Ran, assert_independent, manual_clock


def double(items: list[int]) -> list[int]:
    """Return twice each item."""
    return [item * 2 for item in items]


def test_a_batch_starts_when_its_oldest_call_has_waited_long_enough() -> None:
    """Or when it is full."""
    clock = manual_clock(batched.dynamically(double, batch_size=3, timeout_ms=5, adaptive=False))
    first = clock.call(1)
    assert clock.turn(ms=4) == []
    second = clock.call(2)
    assert not first.done()
    assert [(ran.items, ran.started_ms, ran.reason) for ran in clock.turn(ms=1)] == [([1, 2], 5.0, "window")]
    assert (first.result(), second.result()) == (2, 4)
    for item in range(3):
        clock.call(item)
    assert [(ran.items, ran.started_ms, ran.reason) for ran in clock.turn(ms=0)] == [([0, 1, 2], 5.0, "full")]
    assert clock.stats.total_processed == 5
    assert clock.now_ms == 5.0


def test_batches_take_the_time_that_is_said() -> None:
    """One worker runs them one after another; two of them at once."""
    options: dict[str, Any] = {"batch_size": 2, "timeout_ms": 0, "adaptive": False}
    clock = manual_clock(batched.dynamically(double, **options), takes_ms=lambda size: 10 * size)
    clock.call([1, 2, 3])
    assert [(ran.size, ran.started_ms, ran.ended_ms) for ran in clock.turn(ms=100)] == [
        (2, 0, 20),
        (1, 20, 30),
    ]
    both = manual_clock(batched.dynamically(double, max_concurrent_batches=2, **options), takes_ms=10)
    both.call([1, 2, 3])
    assert [(ran.size, ran.started_ms, ran.ended_ms) for ran in both.turn(ms=100)] == [(2, 0, 10), (1, 0, 10)]


def test_a_step_is_one_batch() -> None:
    """However long it takes."""
    clock = manual_clock(batched.dynamically(double, batch_size=2, timeout_ms=5, adaptive=False), takes_ms=3)
    clock.call([1, 2, 3])
    first, second, none = clock.step(), clock.step(), clock.step()
    assert first is not None
    assert second is not None
    assert none is None
    assert [(each.size, each.ended_ms) for each in (first, second)] == [(2, 3.0), (1, 8.0)]


def test_errors_reach_their_calls_only() -> None:
    """A batch that fails runs again in halves; wrong results are an error of all."""

    def invert(items: list[int]) -> list[float]:
        return [1 / item for item in items]

    clock = manual_clock(batched.dynamically(invert, timeout_ms=0, adaptive=False))
    good, bad = clock.call(2), clock.call(0)
    ran = clock.turn(ms=1)
    assert good.result() == 0.5
    with pytest.raises(ZeroDivisionError):
        bad.result()
    assert type(ran[0].error) is ZeroDivisionError
    wrong = manual_clock(batched.dynamically(lambda items: items[1:], timeout_ms=0, adaptive=False))
    call = wrong.call(1)
    wrong.turn(ms=1)
    with pytest.raises(batched.BatchError, match="returned 0 results"):
        call.result()


def test_deadlines_and_options_are_as_ever() -> None:
    """A call that is late has a `TimeoutError`, though no real time has passed."""
    clock = manual_clock(batched.dynamically(double, batch_size=1, timeout_ms=0), takes_ms=1000)
    clock.call(1)
    clock.turn(ms=0)
    late = clock.call_with({"deadline_ms": 10}, 2)
    kept = clock.call_with({"return_exceptions": True}, [3])
    clock.turn(ms=5000)
    with pytest.raises(TimeoutError):
        late.result()
    assert kept.result() == [6]


def test_a_call_is_late_while_its_batch_runs() -> None:
    """At its deadline, not before; the others of its batch are answered, and one that ends just then is."""
    clock = manual_clock(batched.dynamically(double, timeout_ms=0, adaptive=False), takes_ms=20)
    late, other, just = (clock.call_with({"deadline_ms": ms}, ms or 1) for ms in (10, None, 20))
    clock.turn(ms=9)
    assert not late.done()
    assert clock.turn(ms=1) == []
    assert late.done()
    with pytest.raises(TimeoutError, match="deadline"):
        late.result()
    assert [ran.items for ran in clock.turn(ms=10)] == [[10, 1, 20]]
    assert (other.result(), just.result()) == (2, 40)


def test_a_call_is_late_while_it_waits() -> None:
    """For its batch, or for room in the queue; it never runs."""
    options: dict[str, Any] = {"batch_size": 1, "max_queue_size": 1, "on_full": "wait", "timeout_ms": 0}
    clock = manual_clock(batched.dynamically(double, **options), takes_ms=100)
    clock.call(1)
    clock.turn(ms=0)
    queued, outside = clock.call_with({"deadline_ms": 20}, 2), clock.call_with({"deadline_ms": 10}, 3)
    clock.turn(ms=10)
    assert (queued.done(), outside.done()) == (False, True)
    clock.turn(ms=10)
    for call in (queued, outside):
        with pytest.raises(TimeoutError):
            call.result()
    clock.turn(ms=1000)
    assert [ran.items for ran in clock.ran] == [[1]]
    assert (clock.stats.total_expired, clock.stats.queue_size) == (2, 0)


def test_a_full_queue_refuses_calls_or_lets_them_wait() -> None:
    """As `on_full` says; a list that can never fit is refused in any case."""
    options: dict[str, Any] = {"batch_size": 1, "max_queue_size": 2, "timeout_ms": 0}
    clock = manual_clock(batched.dynamically(double, **options), takes_ms=10)
    clock.call(0)
    clock.turn(ms=0)
    clock.call([1, 2])
    with pytest.raises(batched.QueueFullError, match="max_queue_size=2"):
        clock.call(3)
    with pytest.raises(ValueError, match="max_queue_size"):
        clock.call([1, 2, 3])
    clock.turn(ms=10)
    clock.call(4)
    clock.turn(ms=100)
    assert [ran.items for ran in clock.ran] == [[0], [1], [2], [4]]
    assert clock.stats.total_rejected == 1
    patient = manual_clock(batched.dynamically(double, on_full="wait", **options), takes_ms=10)
    calls = [patient.call(item) for item in range(5)]
    assert patient.stats.queue_size == 2
    assert [(ran.items, ran.started_ms) for ran in patient.turn(ms=100)] == [
        ([n], n * 10.0) for n in range(5)
    ]
    assert [call.result() for call in calls] == [0, 2, 4, 6, 8]


def test_a_call_that_would_be_late_is_refused() -> None:
    """Once it is known how long batches take; and the figures have it at once."""
    clock = manual_clock(batched.dynamically(double, batch_size=1, timeout_ms=0), takes_ms=10)
    for item in range(20):
        clock.call_with({"deadline_ms": 10_000}, item)
        clock.turn(ms=10)
    for item in range(10):
        clock.call(item)
    clock.turn(ms=0)
    with pytest.raises(batched.OverloadError):
        clock.call_with({"deadline_ms": 30}, 1)
    assert clock.stats.total_refused == 1


def test_arrays_methods_and_coroutine_functions() -> None:
    """A clock takes what its function takes."""

    @batched.inference.dynamically(timeout_ms=0, adaptive=False)
    def total(features: dict[str, Any]) -> Any:
        return features["x"].sum(axis=1)

    class Model:
        @batched.dynamically(timeout_ms=0, adaptive=False)
        async def name(self, items: list[str]) -> list[str]:
            await asyncio.sleep(0)
            return [item.upper() for item in items]

    arrays = manual_clock(total)
    call = arrays.call({"x": np.ones((2, 3))})
    assert [ran.size for ran in arrays.turn(ms=0)] == [2]
    assert call.result().tolist() == [3.0, 3.0]
    methods = manual_clock(Model().name)
    word = methods.call("a")
    methods.turn(ms=0)
    assert word.result() == "A"


def test_what_cannot_be_is_refused() -> None:
    """The answer of a call that has none, what runs backwards, streams, and plain functions."""
    clock = manual_clock(batched.dynamically(double))
    with pytest.raises(RuntimeError, match="turn the clock"):
        clock.call(1).result()
    for wrong in (-1, float("nan")):
        with pytest.raises(ValueError, match=f"ms must be at least 0, got {wrong}"):
            clock.turn(ms=wrong)
    backwards = manual_clock(batched.dynamically(double, timeout_ms=0), takes_ms=-5)
    backwards.call(1)
    with pytest.raises(ValueError, match="takes_ms must be at least 0, got -5"):
        backwards.turn(ms=1)
    with pytest.raises(TypeError, match="for decorated functions, got <function double"):
        manual_clock(double)  # type: ignore[arg-type]

    def pieces(items: list[int]) -> Any:
        yield items

    with pytest.raises(TypeError, match="streams"):
        manual_clock(batched.dynamically(pieces))
    with pytest.raises(TypeError, match="embed runs in its server"):
        manual_clock(batched.connect("unix:/there/is/none.sock").embed)


def test_a_batch_that_has_run_can_be_compared() -> None:
    """Tests write down what they expect."""
    clock = manual_clock(batched.dynamically(double, timeout_ms=0, adaptive=False), takes_ms=2)
    clock.call(1)
    clock.turn(ms=2)
    assert clock.ran == [Ran([1], 1, "window", 0.0, 2.0)]


@pytest.mark.parametrize("options", [{"cache": {}}, {}])
def test_calls_of_which_nothing_is_queued_are_answered_and_counted_as_ever(options: dict[str, Any]) -> None:
    """An empty list has an empty list of results, and items that a cache knows count as such."""
    clock = manual_clock(batched.dynamically(double, timeout_ms=0, **options))
    view: dict[str, Any] = {} if options else {"request_cache": {}}
    assert clock.call_with(view, []).result() == []
    clock.call_with(view, [1, 2])
    clock.turn(ms=1)
    assert clock.call_with(view, [1, 2, 1]).result() == [2, 4, 2]
    assert clock.call_with(view, 1).result() == 2
    assert (clock.stats.total_accepted, clock.stats.total_cached) == (2, 4)


@pytest.mark.parametrize("view", [{}, {"request_cache": {}}])
def test_an_asynchronous_cache_is_asked_and_told(view: dict[str, Any]) -> None:
    """As by callers on a loop: what it knows does not run, and what has run it is told."""
    kept = {1: -1}

    class Remote:
        async def get(self, key: int) -> int | None:
            return kept.get(key)

        async def set(self, key: int, result: int) -> None:
            kept[key] = result

    clock = manual_clock(aio.dynamically(double, timeout_ms=0, cache=Remote()))
    both = clock.call_with(view, [1, 2])
    one = clock.call_with(view, 1)
    assert (one.result(), both.done()) == (-1, False)
    clock.turn(ms=1)
    assert both.result() == [-1, 4]
    assert kept == {1: -1, 2: 4}
    kept[2] = -2
    assert clock.call(2).result() == -2
    assert [ran.items for ran in clock.ran] == [[2]]
    assert clock.stats.total_cached == 3


def test_a_function_finds_the_context_of_each_call() -> None:
    """As `current_batch` has it in a service; items of a list have one."""
    tenant: ContextVar[str] = ContextVar("tenant")

    def tenants(items: list[int]) -> list[str]:
        return [context[tenant] for context in batched.current_batch().contexts]

    clock = manual_clock(batched.dynamically(tenants))

    def call(name: str, items: Any) -> Any:
        tenant.set(name)
        return clock.call(items)

    first, second = (copy_context().run(call, *each) for each in (("one", 1), ("other", [2, 3])))
    clock.turn(ms=100)
    assert (first.result(), second.result()) == ("one", ["other", "other"])


def test_context_variables_of_the_test_are_not_set_in_the_function() -> None:
    """As in a service, where a function that needs one would fail."""
    variable: ContextVar[str] = ContextVar("variable", default="unset")

    def sets(items: list[int]) -> list[str]:
        found = [variable.get() for _ in items]
        variable.set("by the function")
        return found

    async def sets_later(items: list[int]) -> list[str]:
        return sets(items)

    def check() -> None:
        variable.set("by the test")
        for function in (sets, sets_later):
            clock = manual_clock(batched.dynamically(function))
            pending = clock.call(1)
            clock.turn(ms=100)
            assert (pending.result(), variable.get()) == ("unset", "by the test")

    copy_context().run(check)


def test_what_listens_is_told_of_each_batch_by_the_end_of_a_turn() -> None:
    """With the times of the clock."""
    told: list[batched.BatchRecord] = []
    fn = batched.dynamically(lambda items: items, batch_size=2, on_batch=told.append)
    clock = manual_clock(fn, takes_ms=10)
    for item in range(4):
        clock.call(item)
    clock.turn(ms=15)
    assert [(each.size, each.waited_ms, each.took_ms) for each in told] == [(2, 0.0, pytest.approx(10))]
    assert clock.step() is not None
    assert [each.waited_ms for each in told] == [0.0, pytest.approx(10)]


def test_layers_caches_and_stages() -> None:
    """Keys, tenants, a cache, and what is prepared and finished."""
    options: dict[str, Any] = {"timeout_ms": 0, "adaptive": False}
    keyed = manual_clock(
        batched.dynamically(double, group_by=lambda item: item % 2, fair_by=lambda item: item % 3, **options)
    )
    calls = [keyed.call(item) for item in range(4)]
    assert sorted(sorted(ran.items) for ran in keyed.turn(ms=1)) == [[0, 2], [1, 3]]
    assert [call.result() for call in calls] == [0, 2, 4, 6]
    cached = manual_clock(batched.dynamically(double, cache={}, **options))
    for _ in range(2):
        call = cached.call(1)
        cached.turn(ms=1)
        assert call.result() == 2
    assert len(cached.ran) == 1
    staged = manual_clock(
        batched.dynamically(double, prepare=lambda items: [item + 1 for item in items], **options)
    )
    call = staged.call(1)
    staged.turn(ms=1)
    assert call.result() == 4


def test_a_batch_that_breaks_its_worker_runs_once_more_with_a_new_state() -> None:
    """As in a service; where that breaks too, callers get the cause."""
    made: list[str] = []

    def run(items: list[int]) -> list[int]:
        if len(made) == 1 or 13 in items:
            raise batched.RestartWorker from ValueError("broken")
        return items

    workers = batched.Workers(1, initializer=made.append)
    clock = manual_clock(batched.dynamically(run, workers=workers, timeout_ms=0))
    answer = clock.call(1)
    clock.turn(ms=1)
    assert answer.result() == 1
    assert [type(ran.error) for ran in clock.ran] == [ValueError, type(None)]
    assert len(made) == 2
    broken = clock.call(13)
    clock.turn(ms=1)
    with pytest.raises(ValueError, match="broken"):
        broken.result()


def test_the_error_of_an_initializer_is_that_of_the_call() -> None:
    """As in a service; the next call tries again."""
    made: list[str] = []

    def load(name: str) -> None:
        made.append(name)
        if len(made) == 1:
            raise OSError("no device")

    workers = batched.Workers(1, initializer=load)
    clock = manual_clock(batched.dynamically(list, workers=workers, timeout_ms=0))
    answer = clock.call(1)
    clock.turn(ms=1)
    with pytest.raises(OSError, match="no device"):
        answer.result()
    answer = clock.call(2)
    clock.turn(ms=1)
    assert answer.result() == 2


def test_a_function_finds_the_first_of_its_workers() -> None:
    """With its state; and so it does where its items are tried alone and together."""
    workers = batched.Workers(["cuda:0"], initializer=len)
    fn = batched.dynamically(
        lambda items: [item + batched.current_worker().state for item in items], workers=workers, timeout_ms=0
    )
    clock = manual_clock(fn)
    call = clock.call(1)
    clock.turn(ms=1)
    assert call.result() == 7
    assert_independent(fn, [1, 2, 3])
