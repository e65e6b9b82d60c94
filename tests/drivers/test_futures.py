"""Futures: they can be cancelled, their callbacks may do anything, and each has one answer."""

from __future__ import annotations

import threading
from concurrent.futures import Future, wait
from typing import Any, NoReturn

import pytest

import batched
from batched._core.call import Call
from batched._drivers import wakeups
from batched._drivers.wakeups import wake
from tests.kit.gate import PATIENCE_S, Gate


def test_a_future_can_be_cancelled_until_its_result_is_there() -> None:
    """Also while its batch runs; `concurrent.futures.wait` hears of it."""
    gate = Gate(shut=True)
    fn = batched.dynamically(gate, timeout_ms=0)
    future = fn.submit(1)
    gate.wait_for_batch()
    assert not future.done()
    assert future.cancel()
    assert wait([future], PATIENCE_S).done == {future}
    gate.open()
    assert fn(2) == 2
    done = fn.submit(3)
    done.result(PATIENCE_S)
    assert not done.cancel()


def test_a_callback_that_raises_harms_nobody() -> None:
    """Not even one that raises SystemExit, or calls the batcher again."""
    gate = Gate(shut=True)
    fn = batched.dynamically(gate, batch_size=3, timeout_ms=60_000)
    futures = [fn.submit(item) for item in range(3)]
    raised = []

    def leave(_: Any) -> None:
        raise SystemExit

    def again(_: Any) -> None:
        try:
            fn(1)
        except RuntimeError as error:
            raised.append(error)

    futures[0].add_done_callback(leave)
    futures[1].add_done_callback(again)
    gate.open()
    assert [future.result(PATIENCE_S) for future in futures] == [0, 1, 2]
    assert fn([1, 2, 3]) == [1, 2, 3]
    assert len(raised) == 1


class NoErrors(Exception):
    """An error that is false, as it has no parts."""

    def __len__(self) -> int:
        return 0


class Doubtful(Exception):
    """An error that does not say whether it is true."""

    def __bool__(self) -> NoReturn:
        raise RuntimeError


@pytest.mark.parametrize("error", [NoErrors, Doubtful])
@pytest.mark.parametrize("is_returned", [False, True])
def test_an_error_that_is_false_is_an_error(error: type[Exception], is_returned: bool) -> None:
    """A future of Python asks `if error`, and would have the result None in its place."""

    def function(items: list[int]) -> list[Any]:
        if not is_returned:
            raise error
        return [error() for _ in items]

    found = batched.dynamically(function).submit(1).exception(PATIENCE_S)
    assert isinstance(found, batched.BatchError)
    assert isinstance(found.__cause__, error)
    with pytest.raises(batched.BatchError):
        batched.dynamically(function).submit(1).result(PATIENCE_S)
    with pytest.raises(error):
        batched.dynamically(function)(1)


def test_who_is_answered_twice_has_the_first_answer() -> None:
    """A worker that has just answered a call does not fail because another, or a shutdown, has too."""
    call = Call().begin(list, None, 1, False, 0.0)
    call.waits_at, call.waiter, call.missing = None, threading.Lock(), 0
    call.waiter.acquire()
    assert wake([call]) == wake([call]) == []
    assert not call.waiter.locked()
    call.waits_at, call.waiter, call.results = wakeups.FUTURE, Future(), "first"
    future = call.waiter
    wakeups.settle(wake([call]), "f")
    call.error = ValueError()
    wakeups.settle(wake([call]), "f")
    assert future.result(0) == "first"


def test_a_callback_of_a_future_comes_before_the_next_batch() -> None:
    """A call that it cancels never runs, and its time is not that of a batch."""
    gate = Gate(shut=True)
    fn = batched.dynamically(gate, batch_size=1, timeout_ms=0)
    first, second = fn.submit("first"), fn.submit("second")
    cancelled: list[bool] = []
    first.add_done_callback(lambda _: cancelled.append(second.cancel()))
    gate.open()
    assert first.result(PATIENCE_S) == "first"
    assert fn("third") == "third"
    assert cancelled == [True]
    assert gate.batches == [["first"], ["third"]]
