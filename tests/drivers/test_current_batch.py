"""`batched.current_batch()`: what a batch function may know besides the items."""

from __future__ import annotations

import asyncio
import contextvars
import threading
from collections.abc import Callable
from typing import Any

import pytest

import batched
import batched.aio.inference
from batched import aio
from tests.kit.divided import LAYERS, options_of_lists
from tests.kit.flavours import Flavour
from tests.kit.gate import PATIENCE_S, Gate, turns, turns_until, until


@pytest.mark.parametrize("layers", LAYERS[1:])
def test_a_batch_knows_that_a_list_has_left(run: Any, layers: str) -> None:
    """Though it was divided or looked up: `current_batch().cancelled()` says so while the batch runs."""

    async def main() -> None:
        entered, left = asyncio.Event(), asyncio.Event()

        async def look(items: list[int]) -> list[int]:
            batch = batched.current_batch()
            assert not batch.cancelled()
            entered.set()
            await turns_until(batch.cancelled)
            left.set()
            return items

        fn = aio.dynamically(look, timeout_ms=0, **options_of_lists(layers))
        task = asyncio.create_task(fn([1, 2, 3, 4]))
        await entered.wait()
        task.cancel()
        await left.wait()
        await turns()
        assert fn.stats.queue_size + fn.stats.running_items == 0

    run(main())


def test_outside_of_a_batch_function_there_is_none(flavour: Flavour) -> None:
    """Also in a worker between batches, and in threads that the function starts."""
    with pytest.raises(RuntimeError, match="outside a batch function"):
        batched.current_batch()
    caught: list[BaseException] = []

    def outside() -> None:
        try:
            batched.current_batch()
        except RuntimeError as error:
            caught.append(error)

    def start(items: list[int]) -> list[int]:
        thread = threading.Thread(target=outside)
        thread.start()
        thread.join(PATIENCE_S)
        return items

    fn = flavour.decorate(start, timeout_ms=0)
    flavour.call(fn, 1)
    assert len(caught) == 1


def test_an_async_function_knows_its_batch_in_all_its_tasks(flavour: Flavour) -> None:
    """Whatever it awaits."""

    async def size() -> int:
        await asyncio.sleep(0)
        return batched.current_batch().size

    async def look(items: list[int]) -> list[int]:
        return await asyncio.gather(*(size() for _ in items))

    fn = flavour.decorate(look, batch_size=3, timeout_ms=0)
    assert flavour.call(fn, [1, 2, 3]) == [3, 3, 3]


def test_a_batch_is_cancelled_when_every_caller_has_left(flavour: Flavour) -> None:
    """And not before."""
    if not flavour.cancels:
        pytest.skip("a blocked thread has no cancel")
    asked = []

    def look(items: list[int]) -> list[int]:
        asked.append(batched.current_batch().cancelled())
        return items

    gate = Gate(look, shut=True)
    fn = flavour.decorate(gate, batch_size=2, timeout_ms=60_000)
    for leavers in (1, 2):
        futures = [flavour.start(fn, item) for item in range(2)]
        gate.wait_for_batch()
        for future in futures[:leavers]:
            flavour.cancel(future)
        gate.let_through()
        until(lambda: not fn.stats.running_items)
    assert asked == [False, True]


@pytest.mark.parametrize("layers", LAYERS)
def test_a_list_that_was_cancelled_is_so_in_all_its_batches(flavour: Flavour, layers: str) -> None:
    """Though it was divided, or looked up: the function can stop early without anybody's help."""
    if not flavour.cancels:
        pytest.skip("a blocked thread has no cancel")
    stopped = threading.Event()

    def look(items: list[int]) -> list[int]:
        batch = batched.current_batch()
        until(batch.cancelled)
        stopped.set()
        return items

    gate = Gate(look, shut=True)
    fn = flavour.decorate(gate, batch_size=4, timeout_ms=0, **options_of_lists(layers))
    future = flavour.start(fn, [1, 2, 3, 4])
    gate.wait_for_batch()
    gate.open()
    flavour.cancel(future)
    assert stopped.wait(PATIENCE_S)
    until(lambda: not fn.stats.running_items)
    assert len(gate.batches) == 1


def test_a_deadline_cancels_as_well() -> None:
    """Once its caller has gone."""
    seen = threading.Event()

    def look(items: list[int]) -> list[int]:
        batch = batched.current_batch()
        until(batch.cancelled)
        seen.set()
        return items

    fn = batched.dynamically(look, timeout_ms=0)
    with pytest.raises(TimeoutError):
        fn.options(deadline_ms=200)(1)
    assert seen.wait(PATIENCE_S)


def test_a_batch_that_is_over_tells_nothing() -> None:
    """Also in the context that the function has left behind."""
    batches: list[Any] = []
    sizes: list[Callable[[], Any]] = []

    def keep(items: list[int]) -> list[int]:
        batches.append(batched.current_batch())
        context = contextvars.copy_context()
        sizes.append(lambda: context.run(batched.current_batch))
        return items

    fn = batched.dynamically(keep, timeout_ms=0)
    fn(1)
    until(lambda: not batches[0].contexts)
    with pytest.raises(RuntimeError, match="outside a batch function"):
        sizes[0]()


def test_each_batch_of_a_list_is_over_when_the_next_begins(flavour: Flavour) -> None:
    """What polls it to stop, a thread of each batch say, stops."""
    kept: list[batched.CurrentBatch] = []
    told = []

    def look(items: list[int]) -> list[int]:
        told.append([(batch.cancelled(), batch.contexts) for batch in kept])
        kept.append(batched.current_batch())
        return items

    fn = flavour.decorate(look, batch_size=4, timeout_ms=0)
    assert flavour.start(fn, list(range(20))).result(PATIENCE_S) == list(range(20))
    assert told == [[(True, [])] * before for before in range(5)]


def test_a_batch_is_shown_with_the_number_of_its_items() -> None:
    """Of one it has one item."""
    fn = batched.dynamically(lambda items: [repr(batched.current_batch())] * len(items), timeout_ms=0)
    assert fn(1) == "<batch of 1 item>"
    assert fn([1, 2]) == ["<batch of 2 items>"] * 2
