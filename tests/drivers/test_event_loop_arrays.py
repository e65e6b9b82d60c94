"""Arrays on event loops: batches of several callers, callers that leave, and several loops."""

from __future__ import annotations

import asyncio
import contextvars
import gc
import weakref
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import numpy as np
import pytest

from batched import aio, current_batch
from tests.kit.gate import PATIENCE_S, Gate, turns, until
from tests.kit.loop_arrays import doubled, gated, held, noted, rows

REQUEST: contextvars.ContextVar[str] = contextvars.ContextVar("request")


# -- batches -------------------------------------------------------------------------------------------


def test_calls_that_come_while_a_batch_awaits_are_padded_into_the_next(run: Any) -> None:
    """And `stats.padding` counts what was padded, once it has run."""

    async def main() -> None:
        gate, fn, first = await held(unpad_outputs=True, pad_token=7)
        short, long = (asyncio.create_task(fn(x)) for x in (rows(2, 1), {"x": [np.ones(3)]}))
        await turns()
        assert fn.stats.queue_size == 3
        gate.opened.set()
        answers = await asyncio.gather(first, short, long)
        assert [answer.tolist() for answer in answers] == [[[0]], [[2], [2]], [[2, 2, 2]]]
        assert gate.batches == [[[0]], [[1, 7, 7], [1, 7, 7], [1, 1, 1]]]
        assert (fn.stats.padding.real, fn.stats.padding.padded) == (1 + 5, 1 + 9)

    run(main())


def test_loops_batch_their_own_callers_and_count_together(run: Any) -> None:
    """Two at once, in two threads, and one after the other."""
    double = AsyncDoubler()
    fn = aio.inference.dynamically(double, batch_size=4, timeout_ms=0)

    async def main(number: int) -> None:
        for length in range(1, 11):
            calls = [
                rows(2, length, value=number),
                {"x": [np.full(n, float(number)) for n in (length - 1, 12)]},
            ]
            even, ragged = await asyncio.gather(*map(fn, calls))
            assert even[:, :length].tolist() == [[2 * number] * length] * 2
            assert ragged[1].tolist() == [2 * number] * 12

    with ThreadPoolExecutor(2) as pool:
        for caller in [pool.submit(run, main(number)) for number in (1, 2)]:
            caller.result(PATIENCE_S)
    run(main(3))
    stats = fn.stats
    assert (stats.total_accepted, stats.total_processed) == (120, 120)
    assert stats.padding.real == 3 * sum(2 * length + (length - 1) + 12 for length in range(1, 11))
    assert stats.padding.padded == sum(double.sizes) <= 120 * 12


class AsyncDoubler:
    def __init__(self) -> None:
        self.sizes: list[int] = []

    async def __call__(self, features: dict[str, Any]) -> Any:
        self.sizes.append(features["x"].size)
        await asyncio.sleep(0)
        return features["x"] * 2


def test_calls_of_no_rows_run_alone(run: Any) -> None:
    """Among others, in an `amap`, and where the function can do nothing with them."""

    async def largest(features: dict[str, Any]) -> Any:
        await asyncio.sleep(0)
        return features["x"] - features["x"].max()

    async def main() -> None:
        gate, fn = gated(shut=False)
        empty, full = await asyncio.gather(fn(rows(0, 3)), fn(rows(2, 3)))
        assert (empty.shape, full.shape) == ((0, 3), (2, 3))
        assert sorted(map(len, gate.batches)) == [0, 2]
        assert [len(y) async for y in fn.amap([rows(1, 2), rows(0, 2), rows(2, 2)])] == [1, 0, 2]
        failing = aio.inference.dynamically(largest, timeout_ms=0)
        error, answer = await asyncio.gather(failing(rows(0, 3)), failing(rows(2, 3)), return_exceptions=True)
        assert "zero-size array" in str(error)
        assert answer.tolist() == [[0] * 3] * 2

    run(main())


@pytest.mark.parametrize("concurrent", [1, 3])
def test_rows_of_several_batches_are_joined_in_order(run: Any, concurrent: int) -> None:
    """Also if the last batch ends first."""

    async def main() -> None:
        ended = []
        gates: dict[int, asyncio.Event] = {}
        entered = asyncio.Semaphore(0)

        @aio.inference.dynamically(
            batch_size=2, timeout_ms=0, max_concurrent_batches=concurrent, unpad_outputs=True
        )
        async def fn(features: dict[str, Any]) -> Any:
            first = int(features["x"][0, 0])
            gates[first] = asyncio.Event()
            entered.release()
            if concurrent > 1:
                await gates[first].wait()
            ended.append(first)
            return {"tokens": features["x"] * 2, "lengths": (features["x"] > 0).sum(1)}

        call = asyncio.create_task(fn({"x": [np.full(number, number) for number in range(1, 7)]}))
        for _ in range(3):
            await entered.acquire()
        for first in (5, 3, 1):
            gates[first].set()
            await turns()
        answer = await call
        assert [row.tolist() for row in answer["tokens"]] == [[2 * n] * n for n in range(1, 7)]
        assert answer["lengths"].tolist() == [1, 2, 3, 4, 5, 6]
        assert ended == ([5, 3, 1] if concurrent > 1 else [1, 3, 5])

    run(main())


def test_a_function_knows_how_many_rows_it_has_and_whose(run: Any) -> None:
    """`current_batch` counts rows; each has the context of its caller."""

    async def main() -> None:
        seen: list[Any] = []

        async def look(features: dict[str, Any]) -> Any:
            await asyncio.sleep(0)
            batch = current_batch()
            seen.append((batch.size, [context.get(REQUEST) for context in batch.contexts]))
            return features["x"]

        fn = aio.inference.dynamically(look, timeout_ms=0)

        async def ask(request: str, count: int) -> None:
            REQUEST.set(request)
            await fn(rows(count, 2))

        await asyncio.gather(ask("a", 1), ask("b", 2))
        assert seen == [(3, ["a", "b", "b"])]

    run(main())


# -- leaving and being late ----------------------------------------------------------------------------


def test_the_rows_of_a_cancelled_call_never_run(run: Any) -> None:
    """Not those that wait, nor the rest of a call that is in the middle; what runs harms no other call."""

    async def main() -> None:
        gate, fn = gated(batch_size=2)
        large = asyncio.create_task(fn({"x": np.arange(6.0)[:, None]}))
        await gate.entered.acquire()
        gone, stays = (asyncio.create_task(fn(rows(1, 1, value=value))) for value in (8, 9))
        await turns()
        for task in (large, gone):
            task.cancel()
        await turns()
        assert large.cancelled()
        assert gone.cancelled()
        gate.opened.set()
        assert (await stays).tolist() == [[18]]
        assert gate.batches == [[[0], [1]], [[9]]]
        stats = fn.stats
        assert (stats.total_cancelled, stats.total_processed, stats.queue_size) == (5, 3, 0)

    run(main())


def test_the_rows_of_a_late_call_never_run(run: Any) -> None:
    """A caller that waits, or has some rows in a batch that runs, is free at its deadline."""

    async def main() -> None:
        gate, fn = gated(batch_size=2, name="f")
        timely = fn.options(deadline_ms=500)
        large = asyncio.create_task(timely({"x": np.arange(6.0)[:, None]}))
        await gate.entered.acquire()
        late = asyncio.create_task(timely(rows(1, 1, value=8)))
        for task in (large, late):
            with pytest.raises(TimeoutError, match="f did not answer within deadline_ms=500"):
                await task
        gate.opened.set()
        assert (await fn(rows(1, 1, value=9))).tolist() == [[18]]
        assert gate.batches == [[[0], [1]], [[9]]]
        assert fn.stats.total_expired == 5

    run(main())


def test_an_idle_loop_keeps_no_arrays(run: Any) -> None:
    """Not the features, not the batch, not the results, not the instance; without the collector."""

    class Model:
        @aio.inference.dynamically(batch_size=2, timeout_ms=0)
        async def run(self, features: dict[str, Any]) -> Any:
            made.append(weakref.ref(features["x"]))
            return features["x"]

    made: list[weakref.ref[Any]] = []

    async def main() -> None:
        gc.disable()
        try:
            model = Model()
            x = np.ones((5, 4))
            references = [weakref.ref(x), weakref.ref(model)]
            await model.run(x=x)
            await model.run.options(deadline_ms=60_000)(x=x)
            async for _ in model.run.amap([{"x": x}]):
                pass
            with pytest.raises(ValueError, match="the same number of rows"):
                await model.run(x=x, y=x[:2])
            await turns()
            del x, model, _
            assert [reference() for reference in [*references, *made]] == [None] * (2 + len(made))
        finally:
            gc.enable()

    run(main())


# -- amap ----------------------------------------------------------------------------------------------


def test_a_plain_function_serves_several_loops(run: Any) -> None:
    """In one thread, which pads and joins the rows of all."""
    gate = Gate(doubled, shut=True, note=noted)
    fn = aio.inference.dynamically(gate, timeout_ms=0, unpad_outputs=True)

    async def main(length: int) -> Any:
        return (await fn(rows(1, length))).tolist()

    with ThreadPoolExecutor(3) as pool:
        callers = [pool.submit(run, main(1))]
        gate.wait_for_batch()
        callers += [pool.submit(run, main(length)) for length in (2, 3)]
        until(lambda: fn.stats.queue_size == 2)
        gate.open()
        got = [caller.result(PATIENCE_S) for caller in callers]
    assert got == [[[2] * length] for length in (1, 2, 3)]
    assert sorted(gate.batches[1]) == [[1, 1, 0], [1, 1, 1]]
