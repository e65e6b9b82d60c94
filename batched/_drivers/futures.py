"""Calls that are answered by a `concurrent.futures.Future`."""

from __future__ import annotations

import contextlib
import logging
from concurrent.futures import Future, InvalidStateError
from functools import partial
from typing import TYPE_CHECKING, Any

from batched._drivers.wakeups import FUTURE, own_errors, release
from batched.errors import copied

if TYPE_CHECKING:
    from batched._core.call import Call
    from batched._drivers.thread import ThreadDriver

_logger = logging.getLogger("batched")


def submit(driver: ThreadDriver, call: Call) -> Future[Any]:
    """Have `call` arrive, and return the future of its answer; may block while there is no room."""
    future: Future[Any] = Future()
    call.waiter = future
    call.loop = FUTURE
    future.add_done_callback(partial(_notice_cancel, driver, call))
    try:
        driver.push_future(call)
        if call.deadline is not None:
            driver.deadline_watch.add(call, call.deadline)
    except BaseException:  # Ctrl-C, or a refusal: no caller has this future
        driver.cancel(call)
        raise
    return future


def _notice_cancel(driver: ThreadDriver, call: Call, future: Future[Any]) -> None:
    if future.cancelled():
        future.set_running_or_notify_cancel()  # wakes `concurrent.futures.wait`
        driver.cancel(call)


def wake_callers(calls: list[Call], name: str) -> None:
    """Wake the threads and event loops that wait for `calls`, and resolve the futures; not under the lock."""
    try:
        settle(release(calls))
    except Exception:  # a fault of this library: each caller is to be woken all the same
        _logger.exception("%s: callers could not be woken together", name)
        for call in calls:
            with contextlib.suppress(Exception):
                settle(release([call]))


def settle(calls: list[Call]) -> None:
    """Resolve the futures of `calls`, which runs their callbacks."""
    for call in calls:
        future = call.waiter
        if future is None:  # it has been resolved, as in `release`
            continue
        try:
            if call.left == "cancelled":
                future.cancel()
            elif call.error is not None:
                future.set_exception(copied(call.error))
            else:
                future.set_result(own_errors(call) if call.keep_errors else call.results)
        except InvalidStateError:  # cancelled by its caller
            pass
        except BaseException:  # a callback of the caller's; an Exception is logged by the future
            _logger.exception("exception in a callback of %r", future)
        call.waiter = call.results = None  # a future keeps its callbacks, and one of them leads here
