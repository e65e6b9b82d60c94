"""Items, results and errors are collected as soon as their callers have dropped them."""

from __future__ import annotations

import asyncio
import contextvars
import gc
import weakref
from collections.abc import Iterator
from concurrent.futures import CancelledError
from contextlib import suppress
from typing import Any

import numpy as np
import pytest

import batched
import batched.aio.inference
from batched import aio
from tests.kit.flavours import Flavour
from tests.kit.gate import PATIENCE_S, Gate, turns, turns_until, until
from tests.kit.kept import driver_of
from tests.kit.threads import until_asleep


def test_an_idle_batcher_holds_nobodys_items() -> None:
    """Items, results and errors are the callers' alone once they are answered."""

    class Item:
        pass

    def fail(items: list[Item]) -> list[Item]:
        if len(items) == 3:
            raise ValueError("three")
        return items

    fn = batched.dynamically(fail, timeout_ms=0)
    items = [Item(), Item(), Item()]
    references = [weakref.ref(item) for item in items]
    fn(items[0])
    with pytest.raises(ValueError, match="three"):
        fn(items)
    fn.submit(items[1]).result(PATIENCE_S)
    asyncio.run(fn.acall(items[2]))
    until_asleep(fn)
    del items
    until(lambda: gc.collect() is not None and [reference() for reference in references] == [None] * 3)


def test_outputs_do_not_outlive_their_batch() -> None:
    """Of a list in many batches, one block is there at a time; an error that is kept keeps none."""
    blocks: list[weakref.ref[Any]] = []
    alive = []

    @batched.dynamically(batch_size=4, timeout_ms=0)
    def fn(items: list[int]) -> Any:
        alive.append(sum(block() is not None for block in blocks))
        if -1 in items:
            raise ValueError("no more")
        block = np.zeros((len(items), 2))
        blocks.append(weakref.ref(block))
        return block

    fn([1] * 40)
    assert alive == [0] * 10
    with pytest.raises(ValueError, match="no more") as raised:
        fn([1] * 20 + [-1] * 20)
    assert raised.value.__traceback__ is not None
    assert not any(block() is not None for block in blocks)


def test_a_loop_that_is_closed_with_a_wake_up_pending_is_collected() -> None:
    """And what it was to be woken for: it will never run."""
    gate = Gate(shut=True)
    fn = batched.dynamically(gate, timeout_ms=0)
    inbox = driver_of(fn).batcher

    async def give_up() -> None:
        call = asyncio.create_task(fn.acall(1))
        await asyncio.sleep(0)
        gate.wait_for_batch()
        call.cancel()
        await asyncio.wait([call])

    loop = asyncio.new_event_loop()
    loop.run_until_complete(give_up())
    gate.open()
    until(lambda: inbox.wake_after == 1)  # a look at the stats would tell the worker which calls were left
    loop.close()
    gone = weakref.ref(loop)
    del loop
    gc.collect()
    assert gone() is None
    fn.shutdown()


class Item:
    """One that can be looked for."""


@pytest.mark.parametrize("end", ["raise", "return an error", "cancel", "shutdown"])
def test_a_list_that_ends_midway_lets_go_of_its_items_and_answers(end: str) -> None:
    """At once, not when the collector comes: but for those of the batch whose frames its error leads to."""
    gate = Gate(shut=True, note=len)

    @batched.dynamically(batch_size=4, timeout_ms=0)
    def fn(items: list[Any]) -> list[Any]:
        gate(items)
        if len(gate.batches) == 3 and end == "raise":
            raise ValueError
        return [
            ValueError() if len(gate.batches) == 3 and end == "return an error" else Item() for _ in items
        ]

    items = [Item() for _ in range(100)]
    alive = weakref.WeakSet(items)
    future = fn.submit(items)
    del items
    gate.wait_for_batch()
    gc.disable()
    try:
        for _ in range(2):
            gate.let_through()
            gate.wait_for_batch()
        assert len(alive) == 92
        if end == "cancel":
            future.cancel()
        elif end == "shutdown":
            fn.shutdown(wait=False, cancel_futures=True)
        gate.open()
        with pytest.raises((ValueError, CancelledError)):
            future.result(PATIENCE_S)
        until(lambda: fn.stats.running_items == 0)
        until(lambda: len(alive) <= 4)
    finally:
        gc.enable()
    assert fn.stats.total_processed == 12
    assert fn.stats.total_cancelled == 88


@pytest.mark.parametrize("shared", [False, True])
def test_a_call_that_is_left_while_it_runs_is_let_go_at_the_end_of_its_batch(shared: bool) -> None:
    """Though another worker sleeps, with the turn to look for the next call."""
    results: list[weakref.ref[Item]] = []

    def answer(_: object) -> list[Item]:
        item = Item()
        results.append(weakref.ref(item))
        return [item]

    gate = Gate(answer, shut=True)
    options: Any = {"workers": batched.Workers(2)} if shared else {"max_concurrent_batches": 2}
    fn = batched.dynamically(gate, batch_size=1, timeout_ms=0, **options)
    both = [fn.submit(item) for item in (1, 2)]
    for _ in range(2):
        gate.wait_for_batch()
    gate.let_through(2)
    for future in both:
        future.result(PATIENCE_S)

    async def leave() -> None:
        call = asyncio.create_task(fn.acall(3))
        await asyncio.to_thread(gate.wait_for_batch)
        call.cancel()
        await asyncio.wait([call])

    asyncio.run(leave())
    until(lambda: driver_of(fn).batcher.wake_after == 1)
    del both, future
    gc.disable()
    try:
        gate.open()
        until(lambda: [result() for result in results] == [None] * 3)
    finally:
        gc.enable()


@pytest.mark.parametrize("option", ["group_by", "length"])
def test_a_list_that_is_divided_lets_go_of_its_results(flavour: Flavour, option: str) -> None:
    """Its parts know it, and it knows them until the last one is done."""
    alive: weakref.WeakSet[Any] = weakref.WeakSet()

    def function(items: list[int]) -> list[Any]:
        found = [Item() for _ in items]
        alive.update(found)
        return found

    options: dict[str, Any] = {option: lambda item: item % 2}
    fn = flavour.decorate(function, batch_size=2, timeout_ms=0, **options)
    gc.disable()
    try:
        assert len(flavour.call(fn, [1, 2, 3, 4, 5])) == 5
        until(lambda: not alive)
    finally:
        gc.enable()


@pytest.mark.parametrize("bound", [None, 8])
@pytest.mark.parametrize("fails", [False, True])
def test_a_map_lets_go_of_its_items_and_answers(flavour: Flavour, fails: bool, bound: int | None) -> None:
    """At once, not when the collector comes: a bounded queue knows its calls, and an error its frames."""
    alive: weakref.WeakSet[Any] = weakref.WeakSet()

    def function(items: list[Any]) -> list[Any]:
        found = [ValueError() if fails and at == len(items) - 1 else Item() for at in range(len(items))]
        alive.update(each for each in found if isinstance(each, Item))
        return found

    def source() -> Iterator[Item]:
        for _ in range(4):
            item = Item()
            alive.add(item)
            yield item

    async def consume() -> None:
        with suppress(ValueError):
            async for _ in fn.amap(source()):
                pass

    def read() -> None:
        with suppress(ValueError):
            for _ in fn.map(source()):
                pass

    fn = flavour.decorate(function, batch_size=2, timeout_ms=0, max_queue_size=bound)
    gc.disable()
    try:
        flavour.run(consume()) if flavour.in_tasks else read()
        until(lambda: not alive)
    finally:
        gc.enable()


def test_a_future_that_is_dropped_lets_go_of_its_results() -> None:
    """It keeps its callbacks, and one of them leads to the call."""
    fn = batched.dynamically(lambda items: [Item() for _ in items], batch_size=2, timeout_ms=0)
    gc.disable()
    try:
        for asked in (1, [1, 2], [1, 2, 3, 4, 5]):
            future = fn.submit(asked)
            results = future.result(PATIENCE_S)
            alive = weakref.WeakSet(results if isinstance(results, list) else [results])
            until(lambda: fn.stats.running_items == 0)
            del future, results
            until(lambda alive=alive: not alive)
    finally:
        gc.enable()


def test_nothing_is_kept_of_calls_that_were_cancelled_at_the_door(run: Any) -> None:
    """Where they waited for room: neither they nor their contexts, while no other caller calls."""
    request = contextvars.ContextVar[Any]("request")

    class Item:
        pass

    async def function(items: list[Any]) -> list[Any]:
        await asyncio.sleep(0)
        return items

    fn = aio.dynamically(function, timeout_ms=0, max_queue_size=2, on_full="wait")
    items: list[weakref.ref[Item]] = []

    async def leaver() -> None:
        item = Item()
        request.set(item)
        items.append(weakref.ref(item))
        task = asyncio.create_task(fn.acall(1))
        await asyncio.sleep(0)
        task.cancel()
        await asyncio.gather(task, return_exceptions=True)  # a time limit would keep the context

    async def main() -> None:
        await asyncio.wait_for(asyncio.gather(*(leaver() for _ in range(5))), PATIENCE_S)
        await turns_until(lambda: not fn.stats.running_items)
        await turns(3)
        gc.collect()
        assert [item() for item in items] == [None] * 5

    run(main())
