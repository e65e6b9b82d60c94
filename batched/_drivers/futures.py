"""Calls that are answered by a `concurrent.futures.Future`."""

from __future__ import annotations

from concurrent.futures import Future
from functools import partial
from typing import TYPE_CHECKING, Any

from batched._drivers.wakeups import FUTURE

if TYPE_CHECKING:
    from batched._core.call import Call
    from batched._drivers.thread import ThreadDriver


def submit(driver: ThreadDriver, call: Call) -> Future[Any]:
    """Have `call` arrive, and return the future of its answer; may block while there is no room."""
    driver.check()  # first: nothing is to be dropped of a call that cannot come
    future: Future[Any] = Future()
    call.waiter = future
    call.waits_at = FUTURE
    future.add_done_callback(partial(_notice_cancel, [driver, call]))
    try:
        driver.push_future(call)
        if call.deadline is not None:
            driver.deadline_watch.add(call, call.deadline)
    except BaseException:  # Ctrl-C, or a refusal: no caller has this future
        driver.cancel(call)
        raise
    return future


def _notice_cancel(known: list[Any], future: Future[Any]) -> None:
    if future.cancelled():
        future.set_running_or_notify_cancel()  # wakes `concurrent.futures.wait`
        driver, call = known
        driver.cancel(call)
    known.clear()  # a future keeps its callbacks for good, and would keep the function and its workers alive
