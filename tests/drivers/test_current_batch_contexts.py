"""The contexts of its items' callers, as a batch function sees them."""

from __future__ import annotations

import asyncio
import contextvars
import threading
from typing import Any

import pytest

import batched
from tests.kit.divided import LAYERS, options_of_lists
from tests.kit.flavours import Flavour
from tests.kit.gate import PATIENCE_S, Gate

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


@pytest.mark.parametrize("layers", LAYERS)
def test_items_have_their_callers_context_whatever_runs_in_its_place(flavour: Flavour, layers: str) -> None:
    """A list that was divided, or looked up, runs as other calls; elements of a `map` run as chunks."""
    if flavour.name == "threads":
        pytest.skip("a thread begins with an empty context")

    def look(items: list[int]) -> list[str]:
        return [context.get(REQUEST, "none") for context in batched.current_batch().contexts]

    fn = flavour.decorate(look, batch_size=4, timeout_ms=0, **options_of_lists(layers))

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
    """What the function sets in one, its caller does not see, nor the next look."""

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


@pytest.mark.parametrize("layers", LAYERS)
def test_contexts_of_all_items_can_be_entered_at_once(flavour: Flavour, layers: str) -> None:
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

    fn = flavour.decorate(look, batch_size=4, timeout_ms=0, **options_of_lists(layers))
    assert flavour.call(fn, [2, 4, 6, 8]) == ["0", "1", "2", "3"]


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
