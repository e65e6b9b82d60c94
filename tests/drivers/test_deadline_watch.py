"""Futures with a deadline: no caller waits for them, and they are late in time all the same."""

from __future__ import annotations

import gc
import threading
import weakref
from concurrent.futures import Future
from typing import Any

import pytest

import batched
from batched import QueueFullError
from batched._drivers.fork_and_exit import NO_THREAD
from tests.kit.effort import times
from tests.kit.gate import PATIENCE_S, Gate, until
from tests.kit.held import held
from tests.kit.kept import blocked
from tests.kit.threads import watches


@pytest.mark.parametrize("options", [{}, {"group_by": len}, {"cache": True}, {"length": len}], ids=str)
@pytest.mark.parametrize("item", ["late", ["late", "latest"]], ids=["one", "list"])
def test_a_future_is_late_while_the_worker_is_busy(options: dict[str, Any], item: Any) -> None:
    """It has its `TimeoutError` when the deadline passes, not when the running batch ends, and never runs."""
    gate, fn, first = held(**({"cache": {}} if "cache" in options else options))
    future = fn.options(deadline_ms=5).submit(item)
    with pytest.raises(TimeoutError, match="did not answer within deadline_ms=5"):
        future.result(PATIENCE_S)
    assert not first.done()
    assert fn.stats.total_expired == (1 if item == "late" else 2)
    gate.open()
    assert first.result(PATIENCE_S) == "first"
    assert fn("later") == "later"
    assert not {"late", "latest"} & {item for batch in gate.batches for item in batch}


def test_a_late_future_gives_its_place_back() -> None:
    """Others are not refused for its sake, though the worker has been busy all the time."""
    gate, fn, _ = held(max_queue_size=1)
    late = fn.options(deadline_ms=500).submit("late")
    with pytest.raises(QueueFullError):
        fn.submit("refused")
    assert isinstance(late.exception(PATIENCE_S), TimeoutError)
    admitted = fn.submit("admitted")
    gate.open()
    assert admitted.result(PATIENCE_S) == "admitted"


def test_a_call_that_waits_for_room_gets_the_place_of_a_late_future() -> None:
    """Its thread, blocked at the door, goes on as soon as the deadline of the other passes."""
    gate, fn, _ = held(max_queue_size=1, on_full="wait")
    late = fn.options(deadline_ms=50).submit("late")
    admitted = fn.submit("admitted")  # returns when there is room
    assert isinstance(late.exception(PATIENCE_S), TimeoutError)
    gate.open()
    assert admitted.result(PATIENCE_S) == "admitted"


def test_what_has_started_is_answered_though_late() -> None:
    """A deadline of a future drops only what has not started."""
    gate = Gate(shut=True)
    fn = batched.dynamically(gate, batch_size=2, timeout_ms=0)
    started = fn.options(deadline_ms=500).submit(["a", "b"])
    gate.wait_for_batch()
    late = fn.options(deadline_ms=500).submit("c")
    assert isinstance(late.exception(PATIENCE_S), TimeoutError)
    assert not started.done()
    gate.open()
    assert started.result(PATIENCE_S) == ["a", "b"]


def test_a_list_of_which_a_part_has_started_is_late_as_a_whole() -> None:
    """Its rest never runs, and the call has one answer."""
    gate = Gate(shut=True)
    fn = batched.dynamically(gate, batch_size=2, timeout_ms=0)
    late = fn.options(deadline_ms=500).submit([1, 2, 3, 4])
    gate.wait_for_batch()
    assert isinstance(late.exception(PATIENCE_S), TimeoutError)
    gate.open()
    assert fn(5) == 5
    assert gate.batches == [[1, 2], [5]]
    until(lambda: fn.stats.running_items == 0)
    assert (fn.stats.total_processed, fn.stats.total_expired) == (3, 2)


def test_a_future_that_shares_a_run_in_flight_has_a_deadline_of_its_own() -> None:
    """The run goes on for the caller that has more time."""
    gate, fn, _ = held(cache={})
    patient = fn.submit("a")
    hasty = fn.options(deadline_ms=5).submit("a")
    assert isinstance(hasty.exception(PATIENCE_S), TimeoutError)
    assert not patient.done()
    gate.open()
    assert patient.result(PATIENCE_S) == "a"


@pytest.mark.thread_unsafe(reason="looks at all threads of the process")
def test_one_thread_watches_all_futures_and_ends_with_them() -> None:
    """A thousand deadlines need one thread; none is left when all are answered, or the batcher has ended."""
    gate = Gate(shut=True)
    fn = batched.dynamically(gate, timeout_ms=0, name="watched")
    hours_ms = 1e7
    futures = [fn.options(deadline_ms=hours_ms - number).submit(number) for number in range(1000)]
    assert len(watches("watched")) == 1
    gate.open()
    assert [future.result(PATIENCE_S) for future in futures] == list(range(1000))
    fn.shutdown()
    until(lambda: not watches("watched"))


def test_a_deadline_keeps_no_answered_call() -> None:
    """A future that is answered long before its deadline can be collected."""
    fn = batched.dynamically(list, timeout_ms=0)
    future = fn.options(deadline_ms=1e7).submit(1)
    assert future.result(PATIENCE_S) == 1
    gone = weakref.ref(future)
    del future
    gc.collect()
    assert gone() is None


def test_a_callback_of_a_late_future_may_call_again() -> None:
    """It runs in a thread that waits for nothing of this batcher."""
    gate, fn, _ = held()
    again: list[Any] = []
    late = fn.options(deadline_ms=5).submit("late")
    late.add_done_callback(lambda _: again.append(fn.submit("again")))
    until(lambda: again)
    gate.open()
    assert again[0].result(PATIENCE_S) == "again"


def test_a_call_that_gives_up_waiting_for_room_lets_those_behind_it_in() -> None:
    """A list that found no room holds up no single item for which there is some."""
    gate, fn, _ = held(max_queue_size=4, on_full="wait")
    filling = fn.submit([1, 2])
    let_in = threading.Event()

    def wait_behind() -> None:
        until(lambda: blocked(fn) == 1)
        fn.submit("small")
        let_in.set()

    behind = threading.Thread(target=wait_behind, daemon=True)
    behind.start()
    with pytest.raises(TimeoutError):
        fn.options(deadline_ms=300).submit(["large"] * 3)
    assert let_in.wait(PATIENCE_S)
    gate.open()
    assert filling.result(PATIENCE_S) == [1, 2]


@pytest.mark.parametrize("error", NO_THREAD)
def test_without_a_thread_to_watch_it_a_future_is_late_when_the_worker_looks(
    monkeypatch: pytest.MonkeyPatch, error: type[Exception]
) -> None:
    """Too many threads in the process are no error of the caller; later futures are watched again."""
    gate, fn, first = held()

    def start(thread: threading.Thread) -> None:
        raise error

    with monkeypatch.context() as patched:
        patched.setattr(threading.Thread, "start", start)
        unwatched = fn.options(deadline_ms=1e-3).submit("unwatched")
    gate.let_through()
    assert isinstance(unwatched.exception(PATIENCE_S), TimeoutError)
    assert first.result(PATIENCE_S) == "first"
    fn.submit("second")
    gate.wait_for_batch()
    assert isinstance(fn.options(deadline_ms=5).submit("watched").exception(PATIENCE_S), TimeoutError)
    gate.open()


@pytest.mark.usefixtures("restless")
def test_a_future_is_watched_though_the_thread_that_watches_is_about_to_end() -> None:
    """With deadlines that pass at once the thread ends and starts over and over, and no future is missed."""
    gate, fn, _ = held(name="brief")
    futures: list[Future[Any]] = []
    each = times(100, 4)

    def submit() -> None:
        for number in range(each):
            future = fn.options(deadline_ms=1e-3).submit(number)
            futures.append(future)
            if number % 3 == 0:
                future.exception(PATIENCE_S)

    try:
        callers = [threading.Thread(target=submit, daemon=True) for _ in range(4)]
        for caller in callers:
            caller.start()
        for caller in callers:
            caller.join(PATIENCE_S)
        assert len(futures) == 4 * each
        assert {type(future.exception(PATIENCE_S)) for future in futures} == {TimeoutError}
        until(lambda: not watches("brief"))
    finally:
        gate.open()
