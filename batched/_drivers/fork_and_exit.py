"""What the process does to batchers: it starts their threads, it forks, and it exits."""

from __future__ import annotations

import _thread
import atexit
import sys
import threading
import weakref
from collections.abc import Callable
from typing import Protocol, runtime_checkable

from batched._drivers.private_python import (
    HAS_DAEMONS,
    call_before_threads_are_joined,
    free_lock_of_starts,
    holds_lock_of_starts,
)
from batched._drivers.semaphores import new_semaphore
from batched._locks import in_child


class Forkable(Protocol):
    """A batcher, in a child process too."""

    def after_fork(self) -> None:
        """Start afresh in the child: what is queued and running is the parent's."""
        ...


@runtime_checkable
class HasThreads(Forkable, Protocol):
    """A batcher with threads of its own."""

    idents: set[int]

    def shutdown(self, *, wait: bool, cancel_futures: bool) -> None:
        """Take no more calls, run or cancel what is queued, and end the threads."""
        ...


# By their ids. Each use is one step of a dict's, and takes no lock: the garbage collector may run code that
# makes a batcher while another is registered, in the same thread.
_live: weakref.WeakValueDictionary[int, Forkable] = weakref.WeakValueDictionary()
_exiting = False


def register(batcher: Forkable) -> None:
    """Tell `batcher` when it finds itself in a child process; end its threads when the interpreter exits."""
    _live[id(batcher)] = batcher


def live() -> list[Forkable]:
    """Return all batchers that there are."""
    return [batcher for reference in _live.valuerefs() if (batcher := reference()) is not None]


def _workers() -> list[HasThreads]:
    return [batcher for batcher in live() if isinstance(batcher, HasThreads)]


NO_THREAD = (RuntimeError, MemoryError)
"""What the start of a thread raises, but for an interrupt: the process has too many, or no memory for it."""


def new_thread(name: str, work: Callable[..., object], *args: object) -> threading.Thread:
    """Return a thread for `work`. It outlives the main thread only as long as `at_exit` waits for it."""
    return threading.Thread(target=work, args=args, name=name, daemon=HAS_DAEMONS)


def start_thread(thread: threading.Thread) -> None:
    """Start `thread`; raise one of `NO_THREAD` if there can be no more, and nothing else but an interrupt.

    After an interrupt (Ctrl-C) the thread may run or not.
    """
    if sys.is_finalizing():  # Python raises so itself from 3.12 on; before, the thread would never run
        raise RuntimeError("can't start new thread at interpreter shutdown")
    handled = sys.exception()
    held = holds_lock_of_starts()
    try:
        thread.start()
    except BaseException as error:
        if not held:
            free_lock_of_starts()
        if not isinstance(error, RuntimeError):
            raise
        # An interrupt in the wait for the new thread makes that wait raise a `RuntimeError` of its own.
        interrupt = error.__context__
        if interrupt is handled or isinstance(interrupt, Exception | None):
            raise
        raise interrupt from None


def is_exiting() -> bool:
    """Whether the interpreter exits, and all non-daemon threads have ended."""
    return _exiting


def park_at_exit() -> None:
    """Stop a daemon thread: its call fails because the interpreter exits, which would only be printed."""
    if _exiting and threading.current_thread().daemon:
        me = _thread.get_ident()
        if all(me not in worker.idents for worker in _workers()):
            new_semaphore().acquire()


def at_exit() -> None:
    """Wait for running batches and cancel what is only queued. All non-daemon threads have ended."""
    global _exiting  # noqa: PLW0603
    _exiting = True
    workers = _workers()
    for worker in workers:
        worker.shutdown(wait=False, cancel_futures=True)
    for worker in workers:
        worker.shutdown(wait=True, cancel_futures=True)
    for batcher in live():  # those of event loops, which have no threads to end
        if not isinstance(batcher, HasThreads) and (teller := getattr(batcher, "teller", None)) is not None:
            teller.flush()


def _after_fork() -> None:
    for batcher in live():
        batcher.after_fork()


if HAS_DAEMONS:
    atexit.register(at_exit)
else:
    call_before_threads_are_joined(at_exit)
in_child(_after_fork)
