"""Ctrl-C at each bytecode of what holds the lock: it is free then, and no call of others is lost."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Callable
from concurrent.futures import Future
from typing import Any

import pytest

import batched
from batched import aio
from tests.kit.gate import PATIENCE_S, Gate, until
from tests.kit.interrupts import Interrupt
from tests.kit.kept import driver_of
from tests.kit.stats import check_sums

pytestmark = [
    pytest.mark.thread_unsafe(reason="it traces its thread"),
    pytest.mark.usefixtures("untraced"),
    # Where a Ctrl-C comes as a finalizer runs, or as a coroutine begins, Python can only show it.
    pytest.mark.filterwarnings("ignore::pytest.PytestUnraisableExceptionWarning"),
    pytest.mark.filterwarnings("ignore:coroutine .* was never awaited:RuntimeWarning"),
]

OPTIONS: dict[str, Callable[[], dict[str, Any]]] = {
    "plain": dict,
    "bounded": lambda: {"max_queue_size": 64},
    "group_by": lambda: {"group_by": third},
    "fair_by": lambda: {"fair_by": third},
    "cache": lambda: {"cache": {}},
    "length": lambda: {"length": third},
}
STEPS: dict[str, Callable[[Any], Any]] = {
    "stats": lambda fn: fn.stats,
    "configure": lambda fn: fn.configure(batch_size=2),
    "submit": lambda fn: fn.submit(99),
    "shutdown": lambda fn: fn.shutdown(wait=False),
    "cancel": lambda fn: fn.shutdown(wait=False, cancel_futures=True),
}
STRIDE = 100
"""One in so many bytecodes is interrupted, from another first one for each case."""


def third(item: int) -> int:
    """Return a key, a tenant or a length of an item."""
    return item % 3


def free_again(fn: Any) -> bool:
    """Return whether the lock was free, and free it."""
    lock = driver_of(fn).lock
    was_mine: bool = lock.is_mine()
    while lock.is_mine():
        lock.release()
    return not was_mine


def answer_of(future: Future[Any]) -> Any:
    """Return the answer, or the type of the error."""
    error = None if future.cancelled() else future.exception(PATIENCE_S)
    return future.result() if error is None and not future.cancelled() else type(error)


@pytest.mark.parametrize("option", OPTIONS)
@pytest.mark.parametrize("step", STEPS)
def test_an_interrupted_step_of_a_thread_loses_no_call(option: str, step: str) -> None:
    """Nor does it leave the lock held; calls that follow are answered, and counted."""
    at = 1 + (len(option) * 7 + len(step)) % STRIDE
    came = True
    while came:
        gate = Gate(shut=True)
        fn = batched.dynamically(gate, batch_size=4, timeout_ms=0, **OPTIONS[option]())
        others = [fn.submit(0)]
        gate.wait_for_batch()
        others += [fn.submit(item) for item in (1, 2, 3, [4, 5, 6, 7, 8, 9])]
        interrupt = Interrupt(at)
        own = interrupt.during(lambda fn=fn: STEPS[step](fn))
        came = interrupt.came
        assert free_again(fn), interrupt.place
        gate.open()
        answers = [answer_of(other) for other in others]
        if step != "cancel":
            assert answers == [0, 1, 2, 3, [4, 5, 6, 7, 8, 9]], interrupt.place
        if own is not None and step == "submit":
            assert own.result(PATIENCE_S) == 99
        if step not in {"shutdown", "cancel"}:
            assert fn.submit(77).result(PATIENCE_S) == 77, interrupt.place
            check_sums(fn)
        fn.shutdown()
        at += STRIDE


@pytest.mark.skip(
    reason="an interrupt may leak into the runner of the tests, and end it: to be run in a process of its own"
)
@pytest.mark.parametrize("option", [*OPTIONS, "window"])
def test_an_interrupted_loop_loses_no_call(option: str) -> None:
    """Whatever its thread was doing for the batcher: taking a batch, running it, answering."""
    at = 1 + len(option) * 41 % (STRIDE * 10)
    came = True
    while came:
        interrupt = Interrupt(at)
        asyncio_run(option, interrupt)
        came = interrupt.came
        at += STRIDE * 10


def asyncio_run(option: str, interrupt: Interrupt) -> None:
    """Ask a batched function on a loop that is interrupted, and see that all have an answer."""

    async def echo(items: list[int]) -> list[int]:
        await asyncio.sleep(0)
        return items

    options = {"timeout_ms": 2, "adaptive": False} if option == "window" else OPTIONS[option]()
    fn = aio.dynamically(echo, batch_size=4, **{"timeout_ms": 0, **options})
    asked: list[int | list[int]] = [0, 1, 2, 3, 4, [5, 6, 7, 8, 9, 10]]
    callers: list[asyncio.Task[Any]] = []

    async def ask() -> None:
        callers.extend(asyncio.ensure_future(fn(item)) for item in asked)
        await asyncio.wait(callers)

    async def look() -> None:
        _, pending = await asyncio.wait(callers, timeout=PATIENCE_S) if callers else ((), ())
        assert not pending, interrupt.place
        assert await asyncio.wait_for(fn(77), PATIENCE_S) == 77, interrupt.place

    loop = asyncio.new_event_loop()
    try:
        main = loop.create_task(ask())
        interrupt.during(lambda: loop.run_until_complete(main))
        assert free_again(fn), interrupt.place
        loop.run_until_complete(look())
        for item, caller in zip(asked, callers, strict=False):
            if not caller.cancelled() and caller.exception() is None:
                assert caller.result() == item
        loop.run_until_complete(asyncio.wait([main], timeout=PATIENCE_S))
        if main.done() and not main.cancelled():
            main.exception()
    finally:
        loop.close()


def test_callers_in_other_threads_go_on_after_an_interrupt() -> None:
    """They wait for no lock."""
    for at in range(1, 2500, STRIDE * 3):
        fn = batched.dynamically(Gate(), timeout_ms=0, max_queue_size=8)
        Interrupt(at).during(lambda fn=fn: fn.stats)
        answers: list[int] = []
        thread = threading.Thread(target=lambda fn=fn, answers=answers: answers.append(fn(1)), daemon=True)
        thread.start()
        thread.join(PATIENCE_S)
        assert answers == [1]
        fn.shutdown()
        until(lambda thread=thread: not thread.is_alive())
