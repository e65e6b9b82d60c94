"""Ctrl-C anywhere: no call is lost but the one that it interrupts."""

from __future__ import annotations

import asyncio
import contextlib
import signal
import threading
from functools import partial
from typing import Any

import pytest

import batched
import batched.aio.inference
import batched.inference
from batched import BatchError, aio
from batched._core.batcher import Batcher
from batched._drivers import private_python
from tests.kit.functions import echo
from tests.kit.gate import PATIENCE_S, Gate, until
from tests.kit.held import held
from tests.kit.script import run_script
from tests.kit.threads import watches, workers


@pytest.mark.parametrize("has_started", [False, True], ids=["before the thread runs", "when the thread runs"])
@pytest.mark.parametrize("is_first", [True, False], ids=["first worker", "second worker"])
def test_shutdown_ends_after_an_interrupted_start_of_a_worker(
    monkeypatch: pytest.MonkeyPatch, has_started: bool, is_first: bool
) -> None:
    """Ctrl-C leaves no worker that never runs, for which `shutdown` would wait."""
    gate = Gate(shut=True)
    fn = batched.dynamically(gate, batch_size=1, timeout_ms=0, name="stillborn")
    if not is_first:
        fn.submit(0)
        gate.wait_for_batch()
    start = threading.Thread.start

    def interrupted(thread: threading.Thread) -> None:
        if has_started:
            start(thread)
        raise KeyboardInterrupt

    interrupt = partial(fn.submit, 1) if is_first else partial(fn.configure, max_concurrent_batches=2)
    with monkeypatch.context() as patched:
        patched.setattr(threading.Thread, "start", interrupted)
        with pytest.raises(KeyboardInterrupt):
            interrupt()
    gate.open()
    closer = threading.Thread(target=fn.shutdown, daemon=True)
    closer.start()
    closer.join(PATIENCE_S)
    assert not closer.is_alive()
    until(lambda: not workers("stillborn"))
    assert gate.batches == ([] if is_first else [[0]])


def test_an_interrupt_within_the_lock_of_threading_leaves_it_to_others(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Python's `with` may be broken off before its block; then no thread could start or end."""
    lock = private_python.lock_of_starts
    is_held = private_python.holds_lock_of_starts
    fn = batched.dynamically(Gate(), timeout_ms=0)

    def interrupted(_: threading.Thread) -> None:
        lock.acquire()
        raise KeyboardInterrupt

    try:
        with monkeypatch.context() as patched:
            patched.setattr(threading.Thread, "start", interrupted)
            with pytest.raises(KeyboardInterrupt):
                fn.submit(1)
        assert not is_held()
        with lock, monkeypatch.context() as patched:  # a destructor, say, calls amid a start
            patched.setattr(threading.Thread, "start", interrupted)
            with pytest.raises(KeyboardInterrupt):
                fn.submit(2)
            lock.release()
            assert is_held()
    finally:
        private_python.free_lock_of_starts()
    assert fn.submit(3).result(PATIENCE_S) == 3
    fn.shutdown()


@pytest.mark.parametrize("options", [{}, {"max_queue_size": 8}], ids=["unbounded", "bounded"])
@pytest.mark.parametrize("ask", ["__call__", "submit"])
def test_a_call_after_an_interrupted_start_of_a_worker_is_answered(
    monkeypatch: pytest.MonkeyPatch, options: dict[str, Any], ask: str
) -> None:
    """Ctrl-C cancels only the call that it interrupts."""
    gate = Gate()
    fn = batched.dynamically(gate, timeout_ms=0, **options)

    def interrupted(thread: threading.Thread) -> None:
        raise KeyboardInterrupt

    with monkeypatch.context() as patched:
        patched.setattr(threading.Thread, "start", interrupted)
        with pytest.raises(KeyboardInterrupt):
            getattr(fn, ask)("interrupted")
    assert fn.submit("later").result(PATIENCE_S) == "later"
    assert gate.batches == [["later"]]
    fn.shutdown()


@pytest.mark.thread_unsafe(reason="signals come to the main thread")
@pytest.mark.skipif(not hasattr(signal, "setitimer"), reason="needs a timer that sends a signal")
# The signal may come in a destructor, where no exception can be raised, only shown.
@pytest.mark.filterwarnings("ignore::pytest.PytestUnraisableExceptionWarning")
@pytest.mark.usefixtures("untraced")
@pytest.mark.timeout(method="thread")  # the other method has the timer that the test takes for itself
@pytest.mark.parametrize("interrupted_s", [0.00001, 0.0005])
def test_a_first_call_that_is_interrupted_leaves_a_batcher_that_works(interrupted_s: float) -> None:
    """Ctrl-C while the worker thread is being started."""

    class Interrupted(BaseException):
        pass

    interrupts = 0

    def interrupt(*_: Any) -> None:
        nonlocal interrupts
        interrupts += 1
        raise Interrupted

    before = signal.signal(signal.SIGALRM, interrupt)
    try:
        for number in range(100):
            fn = batched.dynamically(Gate(), timeout_ms=0)

            def call() -> None:  # in a frame of its own: Python 3.13 may raise beside the `try` of a loop
                signal.setitimer(signal.ITIMER_REAL, interrupted_s)
                fn(1)
                while interrupts == number:  # a wait of `threading` would fall over the interrupt
                    pass

            with contextlib.suppress(Interrupted):
                call()
            assert fn.submit(2).result(PATIENCE_S) == 2
            fn.shutdown()
    finally:
        signal.signal(signal.SIGALRM, before)


@pytest.mark.parametrize("has_started", [False, True], ids=["before the thread runs", "when the thread runs"])
def test_an_interrupted_submit_with_a_deadline_is_cancelled(
    monkeypatch: pytest.MonkeyPatch, has_started: bool
) -> None:
    """Ctrl-C while the thread that watches deadlines starts: its item never runs; later calls are watched."""
    gate, fn, first = held(name="interrupted")
    start = threading.Thread.start

    def interrupted(thread: threading.Thread) -> None:
        if has_started:
            start(thread)
        raise KeyboardInterrupt

    with monkeypatch.context() as patched:
        patched.setattr(threading.Thread, "start", interrupted)
        with pytest.raises(KeyboardInterrupt):
            fn.options(deadline_ms=1e7).submit("interrupted")
    assert isinstance(fn.options(deadline_ms=5).submit("late").exception(PATIENCE_S), TimeoutError)
    assert not first.done()
    gate.open()
    assert fn("later") == "later"
    assert gate.batches == [["first"], ["later"]]
    assert fn.stats.total_cancelled == 1
    fn.shutdown()
    until(lambda: not watches("interrupted"))


def test_a_ctrl_c_while_a_batch_is_taken_loses_no_call(monkeypatch: pytest.MonkeyPatch) -> None:
    """The batch has left the queue, and no task knows it: its caller has an answer all the same."""
    fn = aio.dynamically(echo, timeout_ms=0)
    take = Batcher.next
    armed = {threading.get_ident()}  # not in workers of other tests

    def interrupted(self: Batcher, now: float) -> Any:
        found = take(self, now)
        if threading.get_ident() in armed:
            armed.clear()
            raise KeyboardInterrupt
        return found

    monkeypatch.setattr(Batcher, "next", interrupted)

    async def call(item: int) -> Any:
        async with asyncio.timeout(PATIENCE_S):
            return await fn(item)

    with asyncio.Runner() as runner:
        with pytest.raises(BatchError, match="KeyboardInterrupt"):
            runner.run(call(1))
        assert runner.run(call(2)) == 2


@pytest.mark.skipif(not hasattr(signal, "setitimer"), reason="needs a timer that sends a signal")
def test_a_signal_handler_may_read_the_stats_while_they_are_read() -> None:
    """It runs in the thread that it interrupts, which may hold the lock."""
    run_script(
        """
        import signal
        handled = 0
        def report(*_):
            global handled
            handled += 1
            assert double.stats is not None
        assert double(1) == 2
        signal.signal(signal.SIGALRM, report)
        signal.setitimer(signal.ITIMER_REAL, 0.001, 0.001)
        while handled < 200:
            assert double.stats.total_accepted == 1
        signal.setitimer(signal.ITIMER_REAL, 0)
        """
    )
