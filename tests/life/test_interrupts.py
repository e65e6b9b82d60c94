"""Ctrl-C at each bytecode of what holds the lock: it is free then, and no call of others is lost."""

from __future__ import annotations

import asyncio
import contextlib
import os
import subprocess
import sys
import threading
from itertools import count
from typing import Any

import pytest

import batched
from batched import aio
from batched._core.queue import Queue
from tests.kit.effort import is_thorough
from tests.kit.gate import PATIENCE_S, Gate, until
from tests.kit.interrupted import ON_LOOPS, OPTIONS, STEPS, Alarm, answer_of, free_again
from tests.kit.interrupts import Interrupt
from tests.kit.kept import driver_of
from tests.kit.script import ROOT
from tests.kit.stats import adds_up

pytestmark = [
    pytest.mark.thread_unsafe(reason="it traces its thread"),
    pytest.mark.usefixtures("untraced"),
    # Where a Ctrl-C comes as a finalizer runs, Python can only show it.
    pytest.mark.filterwarnings("ignore::pytest.PytestUnraisableExceptionWarning"),
]

STRIDE = 10 if is_thorough() else 250
"""One in so many bytecodes is interrupted."""


def interrupted(*arguments: str) -> None:
    """Run the interrupts in a process of their own: Python has more to say of tasks and finalizers."""
    result = subprocess.run(
        [sys.executable, "-m", "tests.kit.interrupted", *arguments],
        capture_output=True,
        text=True,
        timeout=600,
        check=False,
        cwd=ROOT,
        env={**os.environ, "PYTHONPATH": str(ROOT)},
    )
    assert result.returncode == 0, result.stderr[-4000:]


@pytest.mark.parametrize("step", STEPS)
def test_an_interrupted_step_of_a_thread_loses_no_call(step: str) -> None:
    """Nor does it leave the lock held; calls that follow are answered, and counted."""
    interrupted("thread", step, str(STRIDE))


@pytest.mark.parametrize("step", STEPS)
def test_an_alarm_in_a_step_of_a_thread_loses_no_call(step: str) -> None:
    """As after a Ctrl-C: an error that a signal handler raises is its own thread's, and no other caller's."""
    interrupted("alarm", step, str(STRIDE))


@pytest.mark.parametrize(
    ("option", "step", "inside"),
    [
        ("plain", "stats", "Batcher.take_in"),
        ("plain", "stats", "Queue.push_all"),
        ("plain", "stats", "Dispatcher.__exit__"),
        ("group_by", "submit", "Batcher.add"),
    ],
)
def test_an_alarm_at_each_bytecode_hurts_no_other_caller(option: str, step: str, inside: str) -> None:
    """Neither as it queues their calls, nor as it leaves the lock."""
    for at in count(1):
        gate = Gate(shut=True)
        fn = batched.dynamically(gate, batch_size=4, timeout_ms=0, **OPTIONS[option]())
        others = [fn.submit(0)]
        gate.wait_for_batch()
        others += [fn.submit(item) for item in (1, 2, 3, [4, 5, 6, 7, 8, 9])]
        alarm = Interrupt(at, inside, Alarm)
        alarm.during(lambda fn=fn: STEPS[step](fn))
        assert free_again(fn), alarm.place
        gate.open()
        answers = [answer_of(other) for other in others]
        assert answers == [0, 1, 2, 3, [4, 5, 6, 7, 8, 9]], alarm.place
        until(lambda fn=fn: adds_up(fn.stats))
        fn.shutdown()
        ran = sorted(item for batch in gate.batches for item in batch)
        assert ran in ([*range(10)], [*range(10), 99]), alarm.place  # each ran once
        if not alarm.came:
            break


@pytest.mark.parametrize("option", ON_LOOPS)
def test_an_interrupted_loop_loses_no_call(option: str) -> None:
    """Whatever its thread was doing for the batcher: taking a batch, running it, answering."""
    interrupted("loop", option, str(STRIDE))


def test_a_batch_that_is_interrupted_in_a_stage_lets_the_next_one_in() -> None:
    """Wherever: also as it was about to leave the stage."""
    interrupted("loop", "stages", str(max(STRIDE // 50, 1)), "StagedLoopDispatcher.parts")


def test_callers_in_other_threads_go_on_after_an_interrupt() -> None:
    """They wait for no lock."""
    for at in range(1, 2500, 300):
        fn = batched.dynamically(Gate(), timeout_ms=0, max_queue_size=8)
        Interrupt(at).during(lambda fn=fn: fn.stats)
        answers: list[int] = []
        thread = threading.Thread(target=lambda fn=fn, answers=answers: answers.append(fn(1)), daemon=True)
        thread.start()
        thread.join(PATIENCE_S)
        assert answers == [1]
        fn.shutdown()
        until(lambda thread=thread: not thread.is_alive())


def test_a_second_interrupt_while_the_first_is_mended_leaves_the_lock_free(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """As where what has started the program passes on the signal that the terminal sends to both."""
    fn = batched.dynamically(Gate(), timeout_ms=0)
    dispatcher = driver_of(fn).dispatcher
    take_lock = dispatcher.__enter__
    entered = count()

    def interrupted_once() -> bool:
        took = take_lock()
        if not next(entered):
            raise KeyboardInterrupt
        return took

    monkeypatch.setattr(dispatcher, "__enter__", interrupted_once)
    with contextlib.suppress(KeyboardInterrupt):
        dispatcher.recover(KeyboardInterrupt())
    was_free = free_again(fn)
    monkeypatch.undo()
    assert was_free
    assert next(entered) > 1  # the first was mended all the same
    assert fn.submit(1).result(PATIENCE_S) == 1
    fn.shutdown()


def test_a_call_that_was_let_in_as_an_interrupt_came_runs_though_the_worker_has_looked_before(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Between the interrupt and the mending the worker finds nothing, and sleeps until it is woken."""
    gate = Gate(shut=True)
    fn = batched.dynamically(gate, batch_size=1, timeout_ms=0, max_queue_size=1, on_full="wait")
    dispatcher = driver_of(fn).dispatcher
    batcher, recover = dispatcher.batcher, dispatcher.recover
    first, queued = fn.submit(0), fn.submit(1)
    gate.wait_for_batch()
    waiting: list[Any] = []
    thread = threading.Thread(target=lambda: waiting.append(fn.submit(2)), daemon=True)
    thread.start()
    until(lambda: bool(dispatcher.blocked))

    def recover_late(error: BaseException) -> None:
        dispatcher.lock.free()
        gate.open()
        assert first.result(PATIENCE_S) == 0
        until(lambda: batcher.wake_after == 1 and not batcher.running)
        recover(error)

    dispatcher.recover = recover_late
    queued.cancel()
    right = Queue.push_all

    def push_all(queue: Queue, calls: list[Any]) -> int:
        if queue is not batcher.queue:
            return right(queue, calls)
        monkeypatch.undo()
        raise KeyboardInterrupt

    monkeypatch.setattr(Queue, "push_all", push_all)
    with pytest.raises(KeyboardInterrupt):
        fn.stats  # noqa: B018  it lets the next call in
    dispatcher.recover = recover
    thread.join(PATIENCE_S)
    assert waiting[0].result(PATIENCE_S) == 2
    fn.shutdown()


def test_an_interrupt_of_the_task_that_reads_for_an_amap_ends_the_map() -> None:
    """At each bytecode: its consumer does not wait for more on a loop that goes on."""

    async def echo(items: list[int]) -> list[int]:
        return items

    for at in count(1):
        fn = aio.dynamically(echo, batch_size=2, timeout_ms=0, max_queue_size=2)
        interrupt = Interrupt(at, inside="TaskReadAhead._read")

        async def read(fn: Any = fn) -> list[int]:
            return [answer async for answer in fn.amap(range(9))]

        loop = asyncio.new_event_loop()
        reading = loop.create_task(read())
        interrupt.during(lambda loop=loop, reading=reading: loop.run_until_complete(reading))
        ended = asyncio.wait([reading], timeout=PATIENCE_S)
        with contextlib.suppress(KeyboardInterrupt):  # the consumer may raise it, too
            loop.run_until_complete(ended)
        assert reading.done(), (at, interrupt.place)
        if not isinstance(reading.exception(), KeyboardInterrupt):  # after all elements had been read
            assert reading.result() == [*range(9)]
        loop.run_until_complete(loop.shutdown_asyncgens())
        loop.close()
        if not interrupt.came:
            break
