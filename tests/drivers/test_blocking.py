"""A call that blocks a running event loop warns, once for each batcher."""

from __future__ import annotations

import asyncio
import sys
import threading
import types
import warnings
from collections.abc import Callable, Iterator
from typing import Any

import numpy as np
import pytest

import batched
from batched import BlockingCallWarning, inference
from tests.kit.gate import PATIENCE_S, Gate, until
from tests.kit.kept import driver_of


def on_loop(work: Callable[[], Any]) -> list[warnings.WarningMessage]:
    """Return the warnings of `work`, called by a task of an event loop."""

    async def main() -> None:
        work()

    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        asyncio.run(main())
    assert all(warning.category is BlockingCallWarning for warning in caught)
    return caught


def echo(items: list[Any]) -> list[Any]:
    return items


class Embedder:
    @batched.dynamically(timeout_ms=0)
    def embed(self, items: list[int]) -> list[int]:
        return items


def stream_that_is_held_until_it_warns() -> Any:
    told = threading.Event()

    def generate(items: list[int]) -> Iterator[list[int]]:
        assert told.wait(PATIENCE_S)
        yield items
        yield items

    fn = batched.dynamically(generate, timeout_ms=0)
    warn_on_loop = driver_of(fn).warn_on_loop
    threading.Thread(
        target=lambda: (until(lambda: not warn_on_loop.may_warn), told.set()), daemon=True
    ).start()
    return fn


@pytest.mark.parametrize(
    ("make", "call", "says"),
    [
        (lambda: batched.dynamically(echo, timeout_ms=0), lambda fn: fn(1), "await fn.acall(x)"),
        (lambda: batched.dynamically(echo, timeout_ms=0), lambda fn: fn([1, 2]), "await fn.acall(x)"),
        (lambda: Embedder().embed, lambda fn: fn(1), "await fn.acall(x)"),
        (lambda: Embedder(), lambda model: Embedder.embed(model, 1), "await fn.acall(x)"),
        (
            lambda: batched.dynamically(echo, timeout_ms=0),
            lambda fn: fn.options(deadline_ms=1000 * PATIENCE_S)(1),
            "await fn.acall(x)",
        ),
        (
            lambda: inference.dynamically(lambda features: features["x"], timeout_ms=0),
            lambda fn: fn(x=np.ones((1, 2))),
            "await fn.acall(x)",
        ),
        (
            lambda: batched.dynamically(echo, timeout_ms=0),
            lambda fn: list(fn.map([1, 2])),
            "async for y in fn.amap(xs)",
        ),
        (
            stream_that_is_held_until_it_warns,
            lambda fn: list(fn.stream(1)),
            "async for piece in fn.astream(x)",
        ),
    ],
    ids=["one", "list", "method", "through the class", "options", "arrays", "map", "stream"],
)
def test_whatever_blocks_warns_once_at_the_users_line(make: Any, call: Any, says: str) -> None:
    """And says what to write instead; each batcher warns for itself."""
    for fn in (make(), make()):

        def work(fn: Any = fn) -> None:
            call(fn)
            call(fn)

        [warning] = on_loop(work)
        assert says in str(warning.message)
        assert warning.filename == __file__
        assert warning.lineno == call.__code__.co_firstlineno
        assert on_loop(work) == []


def test_a_submit_that_waits_for_room_blocks() -> None:
    """One that does not wait does not."""
    gate = Gate(shut=True)
    fn = batched.dynamically(gate, batch_size=1, timeout_ms=0, max_queue_size=1, on_full="wait")
    futures = [fn.submit(0)]
    gate.wait_for_batch()
    assert on_loop(lambda: futures.append(fn.submit(1))) == []
    warn_on_loop = driver_of(fn).warn_on_loop
    opener = threading.Thread(target=lambda: (until(lambda: not warn_on_loop.may_warn), gate.open()))
    opener.start()
    [warning] = on_loop(lambda: futures.append(fn.submit(2)))
    opener.join(PATIENCE_S)
    assert "await fn.acall(x)" in str(warning.message)
    assert [future.result(PATIENCE_S) for future in futures] == [0, 1, 2]


def test_nothing_else_warns() -> None:
    """Neither `acall` and its like, nor other threads, nor what needs no wait, nor a loop that has ended."""
    fn = batched.dynamically(echo, timeout_ms=0, cache={1: 1})

    async def main() -> None:
        assert await fn.acall(2) == 2
        assert [item async for item in fn.amap([3, 4])] == [3, 4]
        assert await asyncio.to_thread(fn, 5) == 5
        assert await asyncio.to_thread(list, fn.map([6, 7])) == [6, 7]
        assert await asyncio.wrap_future(fn.submit(8)) == 8
        assert (fn([]), fn(1)) == ([], 1)

    asyncio.run(main())
    assert fn(9) == 9
    assert [*on_loop(lambda: fn(10))]


def test_as_an_error_it_is_raised_before_anything_is_queued() -> None:
    """So that nothing runs for no caller."""
    gate = Gate()
    fn = batched.dynamically(gate, timeout_ms=0)

    async def main() -> None:
        with pytest.raises(BlockingCallWarning):
            fn(1)

    asyncio.run(main())
    assert fn(2) == 2
    assert gate.batches == [[2]]


@pytest.mark.parametrize(("shell", "warned"), [(object(), 0), (None, 1)], ids=["running", "only imported"])
def test_not_in_ipython(monkeypatch: pytest.MonkeyPatch, shell: object, warned: int) -> None:
    """Whose loop runs around every cell of a notebook."""
    ipython: Any = types.ModuleType("IPython")
    ipython.get_ipython = lambda: shell
    monkeypatch.setitem(sys.modules, "IPython", ipython)
    fn = batched.dynamically(echo, timeout_ms=0)
    assert len(on_loop(lambda: fn(1))) == warned
