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
from tests.kit.flavours import Flavour
from tests.kit.gate import PATIENCE_S, Gate, turns, turns_until, until


@pytest.mark.parametrize("options", ["group_by", "cache", "both"])
def test_a_batch_knows_that_a_list_has_left(run: Any, options: str) -> None:
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

        layers: dict[str, Any] = {"cache": {}, "group_by": lambda item: item % 2}
        fn = aio.dynamically(
            look, timeout_ms=0, **layers if options == "both" else {options: layers[options]}
        )
        task = asyncio.create_task(fn([1, 2, 3, 4]))
        await entered.wait()
        task.cancel()
        await left.wait()
        await turns()
        assert fn.stats.queue_size + fn.stats.running_items == 0

    run(main())


REQUEST: contextvars.ContextVar[str] = contextvars.ContextVar("request")


def test_the_size_and_each_items_context(flavour: Flavour) -> None:
    """As they were at the call: request ids, trace contexts."""
    seen = []

    def look(items: list[Any]) -> list[Any]:
        batch = batched.current_batch()
        seen.append((batch.size, repr(batch)))
        return [context.get(REQUEST, "none") for context in batch.contexts]

    gate = Gate(look, shut=True)
    fn = flavour.decorate(gate, batch_size=4, timeout_ms=60_000)

    def ask(request: str, items: Any) -> Any:
        REQUEST.set(request)
        return flavour.start(fn, items)

    if flavour.name == "threads":  # a thread begins with an empty context
        futures = [flavour.start(fn, 1), flavour.start(fn, [1, 2]), flavour.start(fn, 1)]
        expected: list[Any] = ["none", ["none"] * 2, "none"]
    else:
        futures = [
            contextvars.copy_context().run(ask, "a", 1),
            contextvars.copy_context().run(ask, "b", [1, 2]),
        ]
        futures.append(flavour.start(fn, 1))
        expected = ["a", ["b", "b"], "none"]
    gate.open()
    assert [future.result(PATIENCE_S) for future in futures] == expected
    assert seen == [(4, "<batch of 4 items>")]


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


def options_of_lists() -> list[dict[str, Any]]:
    return [
        {},
        {"group_by": lambda item: item % 2},
        {"cache": {}},
        {"cache": {}, "group_by": lambda item: item % 2},
    ]


@pytest.mark.parametrize("which", range(4), ids=["plain", "group_by", "cache", "both"])
def test_items_have_their_callers_context_whatever_runs_in_its_place(flavour: Flavour, which: int) -> None:
    """A list that was divided, or looked up, runs as other calls; elements of a `map` run as chunks."""
    if flavour.name == "threads":
        pytest.skip("a thread begins with an empty context")

    def look(items: list[int]) -> list[str]:
        return [context.get(REQUEST, "none") for context in batched.current_batch().contexts]

    fn = flavour.decorate(look, batch_size=4, timeout_ms=0, **options_of_lists()[which])

    def ask(request: str, items: Any) -> Any:
        REQUEST.set(request)
        return flavour.start(fn, items)

    futures = [
        contextvars.copy_context().run(ask, request, items)
        for request, items in [("a", 1), ("b", [2, 3, 4, 5, 6, 7]), ("c", 8)]
    ]
    futures.append(flavour.start(fn, 9))
    assert [future.result(PATIENCE_S) for future in futures] == ["a", ["b"] * 6, "c", "none"]

    def elements(request: str) -> list[str]:
        REQUEST.set(request)
        return flavour.map(fn, range(10, 20))

    assert contextvars.copy_context().run(elements, "d") == ["d"] * 10


def test_a_worker_that_is_faster_than_the_caller_knows_its_context() -> None:
    """The batch runs before the task, which has called, waits."""
    seen: list[str] = []
    done = threading.Event()

    def look(items: list[int]) -> list[int]:
        seen.extend(context.get(REQUEST, "none") for context in batched.current_batch().contexts)
        done.set()
        return items

    fn = batched.dynamically(look, timeout_ms=0)

    def ask() -> Any:
        REQUEST.set("a")
        asking = fn.acall(1)
        asking.send(None)  # as a task does, that then takes its time
        return asking

    async def main() -> None:
        asking = contextvars.copy_context().run(ask)
        assert done.wait(PATIENCE_S)
        asking.close()

    asyncio.run(main())
    assert seen == ["a"]


def test_a_context_that_is_looked_at_stays_its_callers(flavour: Flavour) -> None:
    """What the function sets in one, its caller does not see, nor the next who looks."""

    def change(items: list[int]) -> list[str]:
        for context in batched.current_batch().contexts:
            context.run(REQUEST.set, "the function's")
        return [context.get(REQUEST, "none") for context in batched.current_batch().contexts]

    fn = flavour.decorate(change, timeout_ms=0)
    assert flavour.call(fn, 1) == "none"

    async def main() -> tuple[str, str]:
        REQUEST.set("a")
        return await fn.acall(1), REQUEST.get()

    if hasattr(fn, "acall"):
        assert asyncio.run(main()) == ("a", "a")


@pytest.mark.parametrize("which", range(4), ids=["plain", "group_by", "cache", "both"])
def test_contexts_of_all_items_can_be_entered_at_once(flavour: Flavour, which: int) -> None:
    """Though one caller has brought several: what is set for one item is not seen by another."""

    def enter(contexts: list[contextvars.Context]) -> list[str]:
        if not contexts:
            return []
        first, *rest = contexts
        return first.run(lambda: (REQUEST.set(str(len(rest))), [*enter(rest), REQUEST.get()])[1])

    def look(items: list[int]) -> list[str]:
        contexts = batched.current_batch().contexts
        enter(contexts)
        return [context[REQUEST] for context in reversed(contexts)]

    fn = flavour.decorate(look, batch_size=4, timeout_ms=0, **options_of_lists()[which])
    assert flavour.call(fn, [2, 4, 6, 8]) == ["0", "1", "2", "3"]


@pytest.mark.parametrize("which", range(4), ids=["plain", "group_by", "cache", "both"])
def test_a_list_that_was_cancelled_is_so_in_all_its_batches(flavour: Flavour, which: int) -> None:
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
    fn = flavour.decorate(gate, batch_size=4, timeout_ms=0, **options_of_lists()[which])
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
    """Who polls it to stop, a thread of each batch say, stops."""
    kept: list[batched.CurrentBatch] = []
    told = []

    def look(items: list[int]) -> list[int]:
        told.append([(batch.cancelled(), batch.contexts) for batch in kept])
        kept.append(batched.current_batch())
        return items

    fn = flavour.decorate(look, batch_size=4, timeout_ms=0)
    assert flavour.start(fn, list(range(20))).result(PATIENCE_S) == list(range(20))
    assert told == [[(True, [])] * before for before in range(5)]


def test_a_worker_does_not_see_what_is_set_in_the_context_of_a_task_after_its_call(run: Any) -> None:
    """Also of a task whose context was empty at its call."""
    gate = Gate(lambda _: [context.get(REQUEST) for context in batched.current_batch().contexts], shut=True)
    fn = batched.dynamically(gate, timeout_ms=0)

    async def main() -> None:
        context = contextvars.Context()
        task = asyncio.create_task(fn.acall("empty"), context=context)
        await asyncio.to_thread(gate.wait_for_batch)
        context.run(REQUEST.set, "too late")
        gate.open()
        assert await task is None

    run(main())
    fn.shutdown()
