"""What was learned on an event loop, after the loop."""

from __future__ import annotations

import asyncio
import gc
import weakref
from typing import Any

import pytest

from batched import aio
from tests.kit.functions import echo
from tests.kit.kept import driver_of

MANY = 20
"""Calls, of which lists have two sizes: what is learned tells them from fewer."""


async def call(fn: Any, times: int) -> Any:
    """Call so often, one call after another; return what is learned then."""
    for number in range(times):
        await fn.acall([1, 2] if number % 2 or times < MANY else [1])
    return fn.stats.learned


async def stop_at_none(items: list[int | None]) -> list[int | None]:
    """Return the items, but for None, which it waits with."""
    if None in items:
        await asyncio.Event().wait()
    return items


@pytest.mark.parametrize("is_busy", [False, True], ids=["at rest", "busy"])
def test_what_was_learned_on_a_loop_is_told_after_it(is_busy: bool) -> None:
    """So that `asyncio.run(main())` may come before `print(fn.explain())`; the loop is kept by neither."""
    fn = aio.dynamically(stop_at_none, timeout_ms=5)
    loop = asyncio.new_event_loop()
    learned = loop.run_until_complete(call(fn, 9))
    if is_busy:
        loop.set_exception_handler(lambda *_: None)  # it would say that tasks are destroyed
        caller = loop.create_task(fn.acall(None))
        for _ in range(5):
            loop.run_until_complete(asyncio.sleep(0))
        assert fn.stats.running_items == 1
        del caller
    loop.close()
    assert learned is not None
    assert fn.stats.learned == learned
    reference = weakref.ref(loop)
    del loop
    gc.collect()
    assert reference() is None
    assert fn.stats.learned == learned
    assert "not known yet" not in fn.explain()


def test_it_is_told_until_another_loop_has_learned_more() -> None:
    """Whether that is gone too, or not."""
    fn = aio.dynamically(echo, timeout_ms=5)
    first = asyncio.run(call(fn, 9))
    asyncio.run(call(fn, 3))
    assert fn.stats.learned == first
    loop = asyncio.new_event_loop()
    loop.run_until_complete(call(fn, 3))
    assert fn.stats.learned == first
    more = loop.run_until_complete(call(fn, MANY))
    assert fn.stats.learned == more != first
    loop.close()


def test_the_size_that_fits_into_memory_is_told_after_the_loop() -> None:
    """Also where nothing else is learned, and after one that has learned nothing."""

    @aio.dynamically(adaptive=False, timeout_ms=0)
    async def small(items: list[int]) -> list[int]:
        if len(items) > 2:
            raise MemoryError
        return items

    asyncio.run(small.acall([1, 2, 3, 4]))
    assert small.stats.fits_memory == 2
    assert "Batches have at most 2 items, because larger ones ran out of memory." in small.explain()
    asyncio.run(small.acall([1]))
    assert small.stats.fits_memory == 2
    with asyncio.Runner() as runner:  # a loop that is still there
        runner.run(small.acall([1]))
        assert small.stats.fits_memory == 2


def test_what_was_learned_keeps_neither_items_nor_the_instance() -> None:
    """It is numbers only."""

    class Model:
        @aio.dynamically(timeout_ms=5)
        async def run(self, items: list[Any]) -> list[Any]:
            return items

    class Item:
        pass

    async def call_with(model: Model, item: Item) -> None:
        for _ in range(9):
            await model.run(item)

    model, item = Model(), Item()
    asyncio.run(call_with(model, item))
    references = [weakref.ref(model), weakref.ref(item)]
    driver = driver_of(model.run)
    assert driver.stats.learned is not None
    del model, item
    gc.collect()
    assert [reference() for reference in references] == [None, None]


def test_what_a_parent_has_learned_is_none_of_its_child() -> None:
    """Its counters begin anew, also if its loops are gone later."""
    fn = aio.dynamically(echo, timeout_ms=5)
    loop = asyncio.new_event_loop()
    assert loop.run_until_complete(call(fn, 9)) is not None
    driver = driver_of(fn)
    dispatchers = driver.dispatchers()
    driver.after_fork()
    loop.close()
    del loop, dispatchers
    gc.collect()
    assert fn.stats.learned is None
