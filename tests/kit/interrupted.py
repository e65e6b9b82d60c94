"""Ctrl-C at each bytecode of what holds the lock of a batcher: for a process of its own, as traces may leak.

`python -m tests.kit.interrupted thread stats 100` fails if a call is lost, or the lock held, after one.
With a name behind that, only the bytecodes of the function of this qualified name are interrupted.
"""

from __future__ import annotations

import asyncio
import sys
from collections.abc import AsyncIterator, Callable
from concurrent.futures import Future
from typing import Any

import batched
from batched import DONE, BatchError, aio
from tests.kit.gate import PATIENCE_S, Gate
from tests.kit.interrupts import Interrupt
from tests.kit.kept import driver_of
from tests.kit.stats import check_sums


def third(item: int) -> int:
    """Return a key, a tenant or a length of an item."""
    return item % 3


OPTIONS: dict[str, Callable[[], dict[str, Any]]] = {
    "plain": dict,
    "bounded": lambda: {"max_queue_size": 64},
    "group_by": lambda: {"group_by": third},
    "fair_by": lambda: {"fair_by": third},
    "cache": lambda: {"cache": {}},
    "length": lambda: {"length": third},
}


async def staged(items: Any) -> Any:
    """Return the items, as a stage that waits."""
    await asyncio.sleep(0)
    return items


ON_LOOPS: dict[str, Callable[[], dict[str, Any]]] = OPTIONS | {
    "window": lambda: {"timeout_ms": 2, "adaptive": False},
    "stages": lambda: {"prepare": staged, "finish": staged},
    "stream": dict,
    "continuous": lambda: {"continuous": True},
}
WORKERS = batched.Workers(1)
IN_THREADS = OPTIONS | {"workers": lambda: {"workers": WORKERS}}
STEPS: dict[str, Callable[[Any], Any]] = {
    "stats": lambda fn: fn.stats,
    "configure": lambda fn: fn.configure(batch_size=2),
    "submit": lambda fn: fn.submit(99),
    "shutdown": lambda fn: fn.shutdown(wait=False),
    "cancel": lambda fn: fn.shutdown(wait=False, cancel_futures=True),
}


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


class Alarm(Exception):
    """What a signal handler raises that ends what takes too long, such as that of Celery."""


def interrupt_thread(step: str, stride: int, error: type[BaseException] = KeyboardInterrupt) -> None:
    """Interrupt a step that a thread takes while calls wait, with each of the options."""
    for number, option in enumerate(IN_THREADS):
        at = 1 + stride * number // len(IN_THREADS)
        came = True
        while came:
            gate = Gate(shut=True)
            fn = batched.dynamically(gate, batch_size=4, timeout_ms=0, **IN_THREADS[option]())
            others = [fn.submit(0)]
            gate.wait_for_batch()
            others += [fn.submit(item) for item in (1, 2, 3, [4, 5, 6, 7, 8, 9])]
            interrupt = Interrupt(at, error=error)
            own = None
            try:
                own = interrupt.during(lambda fn=fn: STEPS[step](fn))
            except BatchError as wrapped:
                if not isinstance(wrapped.__cause__, error):  # else it came in a function that users give
                    raise
            came = interrupt.came
            where = (option, at, interrupt.place)
            assert free_again(fn), where
            gate.open()
            answers = [answer_of(other) for other in others]
            if step != "cancel":
                assert answers == [0, 1, 2, 3, [4, 5, 6, 7, 8, 9]], where
            if own is not None and step == "submit":
                assert own.result(PATIENCE_S) == 99, where
            if step not in {"shutdown", "cancel"}:
                assert fn.submit(77).result(PATIENCE_S) == 77, where
                check_sums(fn)
            fn.shutdown()
            at += stride


def interrupt_loop(option: str, stride: int, inside: str | None = None) -> None:
    """Interrupt the loop of callers, whatever it was doing: taking a batch, running it, answering."""
    at = 1 + len(option) * 41 % stride
    came = True
    while came:
        interrupt = Interrupt(at, inside)
        ask_on_loop(option, interrupt)
        came = interrupt.came
        at += stride


async def echo(items: list[int]) -> list[int]:
    """Return the items."""
    await asyncio.sleep(0)
    return items


async def twice(items: list[int]) -> AsyncIterator[list[Any]]:
    """Yield each item twice."""
    for _ in range(2):
        await asyncio.sleep(0)
        yield items


async def twice_refilled(items: list[int]) -> AsyncIterator[list[Any]]:
    """Yield each item twice, also those that join."""
    live = [(item, 0) for item in items]
    while True:
        await asyncio.sleep(0)
        change = yield [DONE if step == 2 else item for item, step in live]
        live = [(item, step + 1) for at, (item, step) in enumerate(live) if at not in change.left]
        live += [(item, 0) for item in change.joined]


STREAMS = {"stream": twice, "continuous": twice_refilled}


def ask_on_loop(option: str, interrupt: Interrupt) -> None:
    """Ask a batched function on a loop that is interrupted, and see that all have an answer."""
    options = ON_LOOPS[option]()
    fn: Any = aio.dynamically(STREAMS.get(option, echo), batch_size=4, **{"timeout_ms": 0, **options})
    asked: list[int | list[int]] = [0, 1, 2, 3, 4, [5, 6, 7, 8, 9, 10]]
    callers: list[asyncio.Task[Any]] = []

    async def read(item: Any) -> list[Any]:
        return [piece async for piece in fn.astream(item)]

    async def ask() -> None:
        callers.extend(asyncio.ensure_future(fn(item)) for item in asked)
        if option in STREAMS:
            callers.extend(asyncio.ensure_future(read(item)) for item in asked)
        await asyncio.wait(callers, timeout=PATIENCE_S)

    def right(item: Any) -> Any:
        return [item, item] if option in STREAMS else item

    async def look() -> None:
        where = (option, interrupt.at, interrupt.place)
        _, pending = await asyncio.wait(callers, timeout=PATIENCE_S) if callers else ((), ())
        assert not pending, where
        assert await asyncio.wait_for(fn(77), PATIENCE_S) == right(77), where

    loop = asyncio.new_event_loop()
    try:
        main = loop.create_task(ask())
        interrupt.during(lambda: loop.run_until_complete(main))
        assert free_again(fn), (option, interrupt.at, interrupt.place)
        loop.run_until_complete(look())
        for item, caller in zip([*asked, *asked], callers, strict=False):
            if not caller.cancelled() and caller.exception() is None:
                assert caller.result() == right(item)
        loop.run_until_complete(asyncio.wait([main], timeout=PATIENCE_S))
        if main.done() and not main.cancelled():
            main.exception()
    finally:
        loop.close()


if __name__ == "__main__":
    kind, name, every, *inside = sys.argv[1:]
    if kind == "alarm":
        interrupt_thread(name, int(every), Alarm)
    else:
        {"thread": interrupt_thread, "loop": interrupt_loop}[kind](name, int(every), *inside)
