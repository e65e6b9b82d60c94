"""What a batch function may know of the worker that runs it."""

from __future__ import annotations

import _thread
from dataclasses import dataclass
from typing import Any

from batched._features.batch_fault import in_words
from batched._policy.chains import forget_variables
from batched.errors import RestartWorker, error_behind


@dataclass(slots=True, eq=False)
class Worker:
    """The worker that runs the calling batch function."""

    index: int
    """Its place among the workers of the function, from 0."""
    name: str
    """Its name, as `batched.Workers` was given it; else its index."""
    state: Any = None
    """What the `initializer` of `batched.Workers` has returned for it; None if there is none."""


OF_THREAD: dict[int, Worker] = {}
"""The worker of each thread that runs batches, by the thread's id."""

BROKEN: dict[int, str] = {}
"""By thread, what broke a worker that is to be made anew: its function has raised `RestartWorker`."""


def cause_of(restart: RestartWorker) -> BaseException:
    """Note that the worker of this thread is to be made anew; return the error for the callers.

    The state is let go first, as its memory may be needed for the new one: the frames of the errors forget
    their local variables.
    """
    me = _thread.get_ident()
    if (worker := OF_THREAD.get(me)) is not None:  # an event loop has none
        BROKEN[me] = in_words(error_behind(restart))
        worker.state = None
    forget_variables(restart)
    if restart.__cause__ is not None or restart.args:
        return error_behind(restart)
    return RestartWorker("the worker was broken; write `raise batched.RestartWorker from error` to say how")


def current_worker() -> Worker:
    """Return the worker that runs the calling batch function.

    Raises `RuntimeError` outside a worker: in threads that the function starts, and in an `async def`
    function of `batched.aio`, which runs on the event loop of its callers.
    """
    worker = OF_THREAD.get(_thread.get_ident())
    if worker is None:
        raise RuntimeError("current_worker() was called outside a worker thread of a batch function")
    return worker
