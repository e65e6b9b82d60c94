"""`amap` over an asynchronous source."""

from __future__ import annotations

import asyncio
import contextlib
import gc
from collections.abc import AsyncIterator
from typing import Any

import pytest

from batched import BatchError, ClosedError
from tests.kit.flavours import Flavour
from tests.kit.gate import PATIENCE_S, Gate, turns, turns_until, until
from tests.kit.maps import BAD, picky, slowly


def in_tasks(flavour: Flavour) -> None:
    """Skip a test of `amap` where there is none."""
    if not flavour.in_tasks:
        pytest.skip("only `amap` has an asynchronous source")


async def consumed(fn: Any, source: Any, answers: list[Any]) -> None:
    """Append the answers of an `amap`."""
    async for answer in fn.amap(source):
        answers.append(answer)


@pytest.mark.parametrize("batch_size", [1, 4])
def test_nothing_comes_in_the_place_of_an_element_that_is_refused(flavour: Flavour, batch_size: int) -> None:
    """What the source gives after it is not run; the answers before it are there, however late they come."""
    in_tasks(flavour)
    gate = Gate(lambda items: [str(item).upper() for item in items], shut=True)
    fn = flavour.decorate(
        gate, batch_size=batch_size, timeout_ms=0, length=lambda item: 1 if item != BAD else picky(item)
    )
    answers: list[str] = []

    async def main() -> None:
        consumer = asyncio.create_task(consumed(fn, slowly(["first", BAD, "third", "fourth"]), answers))
        await turns(20)
        gate.open()
        await consumer

    with pytest.raises(BatchError, match="length failed: KeyError"):
        flavour.run(main())
    assert answers == ["FIRST"]
    assert gate.batches == [["first"]]


@pytest.mark.parametrize("how", ["task", "group"])
def test_an_error_is_not_hidden_by_the_end_of_a_source_that_waits(flavour: Flavour, how: str) -> None:
    """It reaches the consumer as it is, also the task group that the consumer is in."""
    in_tasks(flavour)
    fn = flavour.decorate(lambda items: items, batch_size=4, timeout_ms=0, length=picky)
    answers: list[Any] = []

    async def source() -> AsyncIterator[Any]:
        yield 1
        await asyncio.sleep(0)
        yield BAD
        await asyncio.Event().wait()
        yield 3

    async def main() -> None:
        if how == "task":
            await asyncio.wait_for(consumed(fn, source(), answers), PATIENCE_S)
            return
        async with asyncio.timeout(PATIENCE_S), asyncio.TaskGroup() as group:
            group.create_task(consumed(fn, source(), answers))

    with pytest.raises((BatchError, ExceptionGroup)) as caught:
        flavour.run(main())
    error = caught.value.exceptions[0] if isinstance(caught.value, ExceptionGroup) else caught.value
    assert isinstance(error, BatchError)
    assert answers == [1]


def test_an_end_of_the_batcher_is_not_hidden_while_the_source_waits(flavour: Flavour) -> None:
    """The consumer gets `ClosedError` for the next element, after the answers before it."""
    in_tasks(flavour)
    fn = flavour.decorate(lambda items: items, batch_size=4, timeout_ms=0)
    answers: list[Any] = []

    async def main() -> None:
        more = asyncio.Event()

        async def source() -> AsyncIterator[Any]:
            yield 1
            await more.wait()
            yield 2
            await asyncio.Event().wait()

        consumer = asyncio.create_task(consumed(fn, source(), answers))
        await turns(20)
        await fn.aclose()
        more.set()
        await asyncio.wait_for(consumer, PATIENCE_S)

    with pytest.raises(ClosedError):
        flavour.run(main())
    assert answers == [1]


@pytest.mark.parametrize("order", ["source first", "consumer first", "source has given"])
@pytest.mark.parametrize("waits_for", ["source", "answer", "its own business"])
@pytest.mark.parametrize("batch_size", [2, 8])
def test_what_the_source_gives_as_the_consumer_is_cancelled_is_not_run(
    flavour: Flavour, order: str, waits_for: str, batch_size: int
) -> None:
    """Whichever of the two comes first in the turn, and whatever the consumer waits for."""
    in_tasks(flavour)
    gate = Gate(shut=waits_for == "answer")
    fn = flavour.decorate(gate, batch_size=batch_size, timeout_ms=0)

    async def main() -> None:
        loop = asyncio.get_running_loop()
        more = loop.create_future()
        given = loop.create_future()

        async def source() -> AsyncIterator[int]:
            yield 1
            await more
            given.set_result(None)
            yield 2
            await asyncio.Event().wait()

        async def consume() -> None:
            async for _ in fn.amap(source()):
                if waits_for == "its own business":
                    await asyncio.Event().wait()

        consumer = asyncio.create_task(consume())
        await turns_until(lambda: gate.batches if waits_for == "answer" else fn.stats.total_processed)
        await turns(20)
        if order == "source first":
            more.set_result(None)
            consumer.cancel()
        elif order == "consumer first":
            consumer.cancel()
            more.set_result(None)
        else:
            more.set_result(None)
            given.add_done_callback(lambda _: consumer.cancel())
        with pytest.raises(asyncio.CancelledError):
            await consumer
        gate.open()
        await turns(20)
        await fn.aclose()

    flavour.run(main())
    assert gate.batches == [[1]]


@pytest.mark.parametrize("ends", [False, True])
def test_a_consumer_that_goes_on_after_a_cancel_gets_every_answer(flavour: Flavour, ends: bool) -> None:
    """What was held back is queued when it asks again, and then the source ends."""
    in_tasks(flavour)
    fn = flavour.decorate(lambda items: items, batch_size=4, timeout_ms=0)
    answers: list[int] = []

    async def main() -> None:
        more = asyncio.Event()
        is_busy = asyncio.Event()

        async def source() -> AsyncIterator[int]:
            yield 1
            await more.wait()
            yield 2
            yield 3
            if not ends:
                await asyncio.sleep(0)
                yield 4

        async def consume() -> None:
            async for answer in fn.amap(source()):
                answers.append(answer)
                if answer == 1:
                    is_busy.set()
                    with contextlib.suppress(asyncio.CancelledError):
                        await asyncio.Event().wait()
                    await turns(20)

        consumer = asyncio.create_task(consume())
        await is_busy.wait()
        more.set()
        consumer.cancel()
        await asyncio.wait_for(consumer, PATIENCE_S)

    flavour.run(main())
    assert answers == ([1, 2, 3] if ends else [1, 2, 3, 4])


def test_a_source_that_does_not_listen_to_its_end_is_not_read_on(flavour: Flavour) -> None:
    """Leaving ends with what it gives next, which is not run."""
    in_tasks(flavour)
    gate = Gate()
    fn = flavour.decorate(gate, batch_size=4, timeout_ms=0)

    async def source() -> AsyncIterator[int]:
        yield 1
        for item in range(2, 100):
            with contextlib.suppress(asyncio.CancelledError):
                await asyncio.Event().wait()
            yield item

    async def main() -> None:
        answers = fn.amap(source())
        assert await anext(answers) == 1
        await answers.aclose()

    flavour.run(main())
    assert gate.batches == [[1]]


def test_a_consumer_that_is_cancelled_elsewhere_and_keeps_its_iterator_leaves(flavour: Flavour) -> None:
    """Its error leads to its iterator; both are collected, and the loop is told of no pending task."""
    in_tasks(flavour)
    fn = flavour.decorate(list, batch_size=2, timeout_ms=0)
    said: list[Any] = []

    async def consume(reached: asyncio.Event) -> None:
        answers = fn.amap(range(100))
        assert await anext(answers) == 0
        reached.set()
        await asyncio.Event().wait()

    async def main() -> None:
        asyncio.get_running_loop().set_exception_handler(lambda _, context: said.append(context))
        reached = asyncio.Event()
        consumer = asyncio.create_task(consume(reached))
        await reached.wait()
        consumer.cancel()
        await asyncio.wait([consumer])
        del consumer
        gc.collect()
        await turns()
        gc.collect()

    flavour.run(main())
    assert said == []
    until(lambda: fn.stats.queue_size == fn.stats.running_items == 0)
