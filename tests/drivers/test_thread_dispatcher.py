"""What becomes of batches when a worker is hit in the midst of its work."""

from __future__ import annotations

import asyncio
import sys
import threading
from queue import SimpleQueue
from typing import Any

import pytest

import batched
from batched._drivers import thread_dispatcher
from batched._drivers.deadline_watch import DeadlineWatch
from batched._drivers.private_python import frames_of_threads
from tests.kit.gate import PATIENCE_S, Gate, until
from tests.kit.kept import driver_of


def test_an_exception_thrown_into_the_worker_does_not_end_it(caplog: pytest.LogCaptureFixture) -> None:
    """Whatever was running is answered with it, and the next call works."""
    import ctypes

    entered: SimpleQueue[int] = SimpleQueue()
    passes: SimpleQueue[None] = SimpleQueue()

    def hold(items: list[int]) -> list[int]:
        entered.put(threading.get_ident())
        passes.get(timeout=PATIENCE_S)
        return items

    fn = batched.dynamically(hold, timeout_ms=0)
    future = fn.submit(1)
    ident = ctypes.c_ulong(entered.get(timeout=PATIENCE_S))
    # A queue that is written in C lets the worker go on: under a tracer, CPython 3.11 enters no Python
    # function while an exception waits to be taken by another thread.
    ctypes.pythonapi.PyThreadState_SetAsyncExc(ident, ctypes.py_object(ZeroDivisionError))
    passes.put(None)
    assert isinstance(future.exception(PATIENCE_S), ZeroDivisionError)
    passes.put(None)
    assert fn(2) == 2


# What is thrown into a thread is pending while that waits. Meanwhile another thread that is traced, as by
# coverage, does not come out of one bytecode in CPython 3.11.
not_while_traced = pytest.mark.skipif(
    sys.version_info < (3, 12) and sys.gettrace() is not None, reason="the thread of the test is traced"
)


@not_while_traced
@pytest.mark.parametrize("thrown", [SystemExit, KeyboardInterrupt])
@pytest.mark.parametrize("options", [{}, {"max_concurrent_batches": 2}, {"workers": 1}], ids=str)
def test_what_is_thrown_into_an_idle_worker_is_no_answer_of_the_next_call(
    thrown: type[BaseException], options: dict[str, Any], caplog: pytest.LogCaptureFixture
) -> None:
    """The worker takes it as it wakes, and goes on: it would end the thread of a caller."""
    import ctypes

    if "workers" in options:
        options = {"workers": batched.Workers(1)}
    idents: list[int] = []

    def note(items: list[int]) -> list[int]:
        idents.append(threading.get_ident())
        return items

    fn = batched.dynamically(note, timeout_ms=0, **options)
    assert fn(1) == 1
    asleep = {"_next", "_wait_for_turn"}
    until(lambda: frames_of_threads()[idents[0]].f_code.co_name in asleep)
    ctypes.pythonapi.PyThreadState_SetAsyncExc(ctypes.c_ulong(idents[0]), ctypes.py_object(thrown))
    assert [future.result(PATIENCE_S) for future in [fn.submit(2), fn.submit(3)]] == [2, 3]
    assert fn.submit([4, 5]).result(PATIENCE_S) == [4, 5]
    asyncio.run(asyncio.wait_for(fn.aclose(), PATIENCE_S))  # no worker waits for a turn that is never free
    assert fn.stats.total_processed == fn.stats.total_accepted == 5


@not_while_traced
@pytest.mark.parametrize("shares", [False, True], ids=["own", "shared"])
def test_an_exception_thrown_into_a_worker_that_waits_for_its_turn_stops_no_other(
    shares: bool, caplog: pytest.LogCaptureFixture
) -> None:
    """It comes as the worker has the turn: without the turn no worker would look for a batch again."""
    import ctypes

    gate = Gate(shut=True)
    options: dict[str, Any] = {"workers": batched.Workers(2)} if shares else {"max_concurrent_batches": 2}
    fn = batched.dynamically(gate, batch_size=1, timeout_ms=0, **options)
    takers: Any = driver_of(fn).pool if shares else driver_of(fn).workers

    def run_two() -> None:
        futures = [fn.submit(item) for item in range(2)]
        for _ in futures:  # both at once
            gate.wait_for_batch()
        for _ in futures:
            gate.let_through()
        assert [future.result(PATIENCE_S) for future in futures] == [0, 1]
        until(lambda: takers.waiting_for_turn == 1)

    run_two()
    waiting = [
        ident
        for ident, frame in frames_of_threads().items()
        if ident in takers.idents and frame.f_code.co_name == "_wait_for_turn"
    ]
    assert len(waiting) == 1
    thrown = ctypes.py_object(ZeroDivisionError)
    ctypes.pythonapi.PyThreadState_SetAsyncExc(ctypes.c_ulong(waiting[0]), thrown)
    first = fn.submit(2)
    gate.wait_for_batch()  # the other worker has left the turn to it
    until(lambda: "the worker failed" in caplog.text)
    gate.let_through()
    assert first.result(PATIENCE_S) == 2
    until(lambda: takers.waiting_for_turn == 1)  # it has given up what waited then
    run_two()
    run_two()
    fn.shutdown()


def test_a_worker_that_is_hit_before_it_waits_for_its_turn_is_not_counted_for_ever(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    """While one waits for its turn, no other starts: fewer batches would run at once."""
    gate = Gate(shut=True)
    fn = batched.dynamically(gate, batch_size=1, timeout_ms=0, max_concurrent_batches=4)
    workers: Any = driver_of(fn).workers
    hits = [SystemExit]

    def has_asides() -> bool:
        if hits and sys._getframe(1).f_code.co_name == "_wait_for_turn":  # noqa: SLF001
            raise hits.pop()
        return False

    monkeypatch.setattr(workers, "_has_asides", has_asides)
    futures = [fn.submit(item) for item in range(2)]
    for _ in futures:  # at once: then one of their workers waits for the turn of the other
        gate.wait_for_batch()
    for _ in futures:
        gate.let_through()
    until(lambda: "the worker failed" in caplog.text)
    futures += [fn.submit(item) for item in range(2, 6)]
    for _ in range(4):
        gate.wait_for_batch()
    gate.open()
    assert [future.result(PATIENCE_S) for future in futures] == [0, 1, 2, 3, 4, 5]
    fn.shutdown()


@pytest.mark.parametrize("items", [2, [2]])
def test_what_a_worker_has_just_chosen_is_answered_too_when_an_exception_hits_it(
    items: Any, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    """Between two batches as well: no caller waits for a batch that was taken and never ran."""
    gate = Gate(shut=True)
    fn = batched.dynamically(gate, batch_size=1, timeout_ms=0)
    running = fn.submit(1)
    gate.wait_for_batch()
    chosen = fn.submit(items)
    scheduler = driver_of(fn).batcher
    pop = scheduler.pop

    def pop_and_fail(*args: Any) -> Any:
        assert pop(*args)
        monkeypatch.undo()
        raise ZeroDivisionError

    monkeypatch.setattr(scheduler, "pop", pop_and_fail)
    gate.open()
    assert running.result(PATIENCE_S) == 1
    assert isinstance(chosen.exception(PATIENCE_S), ZeroDivisionError)
    assert fn(3) == 3
    assert fn.stats.running_items == 0


def test_a_batch_is_not_lost_where_answering_those_who_are_late_fails(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """A fault of this library in the wake-up of callers hinders no other caller, with several workers too."""
    gate = Gate(shut=True)
    fn = batched.dynamically(gate, batch_size=1, timeout_ms=0, max_concurrent_batches=2)
    first = [fn.submit(item) for item in (1, 2)]
    gate.wait_for_batch()
    gate.wait_for_batch()

    def fail(calls: list[Any]) -> None:
        monkeypatch.undo()
        raise RuntimeError("a fault")

    monkeypatch.setattr(thread_dispatcher, "wake", fail)
    monkeypatch.setattr(DeadlineWatch, "add", lambda *_: None)  # so that the worker finds the late call
    late = fn.options(deadline_ms=1e-6).submit(3)
    due = fn.submit(4)
    gate.open()
    assert isinstance(late.exception(PATIENCE_S), TimeoutError)
    assert due.result(PATIENCE_S) == 4
    assert [future.result(PATIENCE_S) for future in first] == [1, 2]
    assert fn(5) == 5
