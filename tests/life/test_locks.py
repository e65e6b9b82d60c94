"""A lock that is free after a Ctrl-C."""

from __future__ import annotations

import contextlib
import signal
from typing import Any

import pytest

from batched._locks import InterruptedLock


class Interrupted(BaseException):
    pass


@pytest.fixture
def alarm() -> Any:
    """The timer raises `Interrupted` in this thread."""

    def interrupt(*_: Any) -> None:
        raise Interrupted

    before = signal.signal(signal.SIGALRM, interrupt)
    yield
    signal.signal(signal.SIGALRM, before)


@pytest.mark.skipif(not hasattr(signal, "setitimer"), reason="needs a timer that sends a signal")
@pytest.mark.thread_unsafe(reason="signals come to the main thread")
@pytest.mark.usefixtures("alarm", "untraced")
@pytest.mark.timeout(method="thread")  # the other method has the timer that the test takes for itself
def test_an_interrupt_leaves_the_lock_free() -> None:
    """Wherever it comes: before, while or after the thread has it."""
    for _ in range(300):
        lock = InterruptedLock()

        def use(lock: InterruptedLock = lock) -> None:
            signal.setitimer(signal.ITIMER_REAL, 0.00002)
            while True:
                with lock:
                    pass

        with contextlib.suppress(Interrupted):
            use()
        with pytest.raises(RuntimeError):  # it is not this thread's
            lock.release()


def test_a_thread_may_take_it_again() -> None:
    """The garbage collector may run code that needs the lock, in the middle of what holds it."""
    lock = InterruptedLock()
    with lock, lock:
        pass
    with pytest.raises(RuntimeError):
        lock.release()
