"""Streams on event loops."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Iterator
from contextlib import aclosing
from typing import Any

import pytest

from batched import DONE, ClosedError, aio


async def asyncio_echo(items: list[Any]) -> list[Any]:
    return items


class Steps:
    """Yields each item with the number of the step, as often as the item says."""

    def __init__(self, *, plain: bool) -> None:
        self.batches: list[list[int]] = []
        self.closed = 0
        steps = self.plainly if plain else self.asynchronously
        self.fn = aio.dynamically(steps, batch_size=3, timeout_ms=0, name="f")

    def plainly(self, items: list[int]) -> Iterator[list[Any]]:
        self.batches.append(list(items))
        try:
            for step in range(max(map(abs, items)) + 1):
                if -1 in items and step:
                    raise OSError("mid stream")
                yield [(item, step) if step < abs(item) else DONE for item in items]
        finally:
            self.closed += 1

    async def asynchronously(self, items: list[int]) -> AsyncIterator[list[Any]]:
        for pieces in self.plainly(items):
            await asyncio.sleep(0)
            yield pieces


async def read(stream: Any) -> list[Any]:
    return [piece async for piece in stream]


@pytest.mark.parametrize("plain", [False, True])
def test_streams_share_a_batch_and_each_has_its_own_pieces(run: Any, plain: bool) -> None:
    """In order, to its own end; the next batch is another."""

    async def main() -> None:
        steps = Steps(plain=plain)
        streams = [steps.fn.astream(item) for item in (0, 3, 1, 2)]
        assert await asyncio.gather(*map(read, streams)) == [[(n, k) for k in range(n)] for n in (0, 3, 1, 2)]
        assert sum(steps.batches, []) == [0, 3, 1, 2]
        await steps.fn.aclose()
        assert steps.closed == len(steps.batches)
        assert steps.fn.stats.total_processed == 4
        with pytest.raises(ClosedError):
            steps.fn.astream(1)

    run(main())


@pytest.mark.parametrize("plain", [False, True])
def test_a_stream_that_fails_or_is_left_harms_no_other(run: Any, plain: bool) -> None:
    """The pieces before an error are there; when no caller is left the generator is closed."""

    async def main() -> None:
        steps = Steps(plain=plain)
        failing = steps.fn.astream(-1)
        assert await anext(failing) == (-1, 0)
        with pytest.raises(OSError, match="mid stream"):
            await read(failing)
        async with aclosing(steps.fn.astream(1_000_000)) as endless:
            async for piece in endless:
                if piece[1] == 2:
                    break
        await steps.fn.aclose()  # which would else wait for a million steps
        assert steps.closed == len(steps.batches) == 2

    run(main())


@pytest.mark.parametrize("plain", [False, True])
def test_a_plain_call_has_all_pieces(run: Any, plain: bool) -> None:
    """And what does not stream has no streams."""

    async def main() -> None:
        fn = Steps(plain=plain).fn
        pieces = [piece async for piece in fn.astream(1)]
        assert await fn(1) == await fn.acall(1) == pieces
        with pytest.raises(TypeError, match="f does not stream"):
            aio.dynamically(asyncio_echo, name="f").astream(1)

    run(main())
