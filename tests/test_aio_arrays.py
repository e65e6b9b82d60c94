"""Arrays on event loops. What is true of every flavour is in test_arrays, of loops with lists in test_aio."""

from __future__ import annotations

import asyncio
import contextvars
import gc
import weakref
from collections.abc import AsyncIterator
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import numpy as np
import pytest

from batched import BatchError, QueueFullError, aio, current_batch
from tests.kit.gate import PATIENCE_S, AsyncGate, Gate, turns, until

REQUEST: contextvars.ContextVar[str] = contextvars.ContextVar("request")


def rows(*shape: int, value: float = 1) -> dict[str, Any]:
    """Return a call of rows of that shape."""
    return {"x": np.full(shape, float(value))}


def noted(features: dict[str, Any]) -> Any:
    return features["x"].tolist()


def doubled(features: dict[str, Any]) -> Any:
    return features["x"] * 2


def gated(*, shut: bool = True, **options: Any) -> tuple[AsyncGate, Any]:
    """Return a function that doubles its rows behind a gate, and its batcher."""
    gate = AsyncGate(doubled, shut=shut, note=noted)
    return gate, aio.inference.dynamically(gate, **{"timeout_ms": 0, **options})


async def held(**options: Any) -> tuple[AsyncGate, Any, asyncio.Task[Any]]:
    """Return the same with a first row in its batch, which waits at the gate."""
    gate, fn = gated(**options)
    first = asyncio.create_task(fn(rows(1, 1, value=0)))
    await gate.entered.acquire()
    return gate, fn, first


# -- batches -------------------------------------------------------------------------------------------


def test_who_comes_while_a_batch_awaits_is_padded_into_the_next(run: Any) -> None:
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
    fn = aio.inference.dynamically(AsyncDoubler(), batch_size=4, timeout_ms=0)

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
    assert stats.padding.padded == 120 * 12


class AsyncDoubler:
    async def __call__(self, features: dict[str, Any]) -> Any:
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
    """Not those that wait, nor the rest of a call that is in the middle; what runs harms nobody."""

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
    """Whoever waits, or has some rows in a batch that runs, is free at its deadline."""

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


def test_an_idle_loop_keeps_nobodys_arrays(run: Any) -> None:
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
            with pytest.raises(ValueError, match="as many rows"):
                await model.run(x=x, y=x[:2])
            await turns()
            del x, model, _
            assert [reference() for reference in [*references, *made]] == [None] * (2 + len(made))
        finally:
            gc.enable()

    run(main())


# -- options -------------------------------------------------------------------------------------------


def test_calls_of_other_groups_never_share_a_batch(run: Any) -> None:
    """`group_by` gets the features, as the caller passed them; one that fails fails its call alone."""

    def by_length(features: dict[str, Any]) -> int:
        return 8 // features["x"].shape[1]

    async def main() -> None:
        gate, fn, first = await held(group_by=by_length, name="f")
        tasks = [asyncio.create_task(fn(rows(1, length))) for length in (1, 8, 2, 7, 1, 5)]
        await turns()
        with pytest.raises(BatchError, match="f: group_by failed: ZeroDivisionError"):
            await fn(rows(1, 0))
        gate.opened.set()
        answers = await asyncio.gather(first, *tasks)
        assert [answer.shape[1] for answer in answers[1:]] == [1, 8, 2, 8, 1, 8]
        assert [[len(row) for row in batch] for batch in gate.batches] == [[1], [1, 1], [8, 8, 8], [2]]

    run(main())


def digest(features: dict[str, Any]) -> Any:
    return features["x"].tobytes()


def test_equal_calls_run_once(run: Any) -> None:
    """While one is in flight, and later; each caller has results of its own."""

    async def main() -> None:
        cache: dict[Any, Any] = {}
        gate, fn = gated(cache=cache, cache_key=digest)
        tasks = [asyncio.create_task(fn(rows(2, 2))) for _ in range(3)]
        await gate.entered.acquire()
        tasks.append(asyncio.create_task(fn(rows(2, 2))))
        await turns()
        gate.opened.set()
        answers = await asyncio.gather(*tasks)
        answers.append(await fn(rows(2, 2)))
        for answer in answers:
            assert answer.tolist() == [[2, 2]] * 2
            answer[:] = -1
        assert [y.tolist() async for y in fn.amap([rows(2, 2)] * 2)] == [[[2, 2]] * 2] * 2
        assert len(gate.batches) == len(cache) == 1

    run(main())


class Remote:
    """A cache as a client of some server: every question takes a turn of the loop."""

    def __init__(self, *, broken: bool = False) -> None:
        self.kept: dict[Any, Any] = {}
        self.broken = broken

    async def get(self, key: Any) -> Any:
        await asyncio.sleep(0)
        if self.broken:
            raise OSError("no route")
        return self.kept.get(key)

    async def set(self, key: Any, value: Any) -> None:
        await asyncio.sleep(0)
        if self.broken:
            raise OSError("no route")
        self.kept[key] = value


@pytest.mark.parametrize("kind", ["async", "plain"])
def test_a_cache_may_be_asynchronous(run: Any, kind: str) -> None:
    """Its `get` and `set` are awaited; what it knows is answered without a run, and is nobody else's."""

    async def main() -> None:
        remote = Remote()
        runs: list[Any] = []

        def model(features: dict[str, Any]) -> Any:
            runs.append(noted(features))
            return doubled(features)

        async def model_async(features: dict[str, Any]) -> Any:
            await asyncio.sleep(0)
            return model(features)

        fn = aio.inference.dynamically(
            model_async if kind == "async" else model, timeout_ms=0, cache=remote, cache_key=digest
        )
        for _ in range(3):
            answer = await fn(rows(1, 2))
            assert answer.tolist() == [[2, 2]]
            answer[:] = -1
        assert await fn(rows(1, 2, value=3)) is not None
        assert runs == [[[1, 1]], [[3, 3]]]
        assert {key: value.tolist() for key, value in remote.kept.items()} == {
            digest(rows(1, 2)): [[2, 2]],
            digest(rows(1, 2, value=3)): [[6, 6]],
        }
        assert fn.stats.total_cached == 2
        await fn.aclose()

    run(main())


def test_an_asynchronous_cache_that_fails_is_bypassed(run: Any, caplog: pytest.LogCaptureFixture) -> None:
    """Callers get their answers; the log says why they had to wait."""

    async def main() -> None:
        _, fn = gated(shut=False, cache=Remote(broken=True), cache_key=digest, name="f")
        assert (await fn(rows(1, 1))).tolist() == [[2]]

    run(main())
    assert {record.getMessage() for record in caplog.records if record.name == "batched"} == {
        "f: the cache failed, and is bypassed"
    }


@pytest.mark.parametrize("on_full", ["raise", "wait"])
def test_a_bounded_queue_counts_rows(run: Any, on_full: str) -> None:
    """Whoever does not fit is refused or waits; `amap` never overruns it; what never fits is an error."""

    async def main() -> None:
        gate, fn, first = await held(max_queue_size=3, on_full=on_full, batch_size=2)
        two = asyncio.create_task(fn(rows(2, 1)))
        await turns()
        more = asyncio.create_task(fn(rows(2, 1, value=2)))
        await turns()
        assert fn.stats.queue_size == 2
        assert more.done() is (on_full == "raise")
        with pytest.raises(ValueError, match="a call of 4 items will never fit"):
            await fn(rows(4, 1))
        mapped = asyncio.create_task(answers(fn, [rows(1, 1, value=value) for value in range(20)]))
        await turns()
        assert fn.stats.queue_size <= 3
        gate.opened.set()
        assert ((await first).tolist(), (await two).tolist()) == ([[0]], [[2], [2]])
        if on_full == "raise":
            with pytest.raises(QueueFullError, match="no room for 2 more"):
                await more
            assert fn.stats.total_rejected == 2
        else:
            assert (await more).tolist() == [[4], [4]]
        assert await mapped == [[[2 * value]] for value in range(20)]

    run(main())


async def answers(fn: Any, items: Any) -> list[Any]:
    return [answer.tolist() async for answer in fn.amap(items)]


def test_only_culprits_fail_where_errors_are_isolated(run: Any) -> None:
    """Of calls of any number of rows, divided as halves may be."""

    async def positive(features: dict[str, Any]) -> Any:
        await asyncio.sleep(0)
        if (features["x"] < 0).any():
            raise ValueError("negative")
        return features["x"] * 2

    async def main() -> None:
        fn = aio.inference.dynamically(positive, timeout_ms=0, isolate_errors=True, unpad_outputs=True)
        calls = [rows(1 + number % 3, 1 + number % 2, value=number - 5) for number in range(5, 12)]
        calls[3]["x"][-1] = -1
        got = await asyncio.gather(*map(fn, calls), return_exceptions=True)
        for number, (call, answer) in enumerate(zip(calls, got, strict=True)):
            if number == 3:
                assert isinstance(answer, ValueError)
            else:
                assert np.array_equal(answer, call["x"] * 2)

    run(main())


def test_batches_of_other_callers_run_while_one_awaits(run: Any) -> None:
    """As many as `max_concurrent_batches` says, and no more."""

    async def main() -> None:
        gate, fn = gated(batch_size=2, max_concurrent_batches=2)
        tasks = [asyncio.create_task(fn(rows(2, 1, value=value))) for value in range(3)]
        for _ in range(2):
            await gate.entered.acquire()
        await turns()
        assert (len(gate.batches), fn.stats.running_items, fn.stats.queue_size) == (2, 4, 2)
        gate.opened.set()
        assert [(await task).tolist() for task in tasks] == [[[2 * value]] * 2 for value in range(3)]

    run(main())


def test_configure_changes_the_next_batch(run: Any) -> None:
    """Of rows that wait already, too."""

    async def main() -> None:
        gate, fn, _ = await held(batch_size=8)
        tasks = [asyncio.create_task(fn(rows(1, 1))) for _ in range(4)]
        await turns()
        fn.configure(batch_size=2)
        gate.opened.set()
        await asyncio.gather(*tasks)
        assert [len(batch) for batch in gate.batches] == [1, 2, 2]

    run(main())


# -- amap ----------------------------------------------------------------------------------------------


@pytest.mark.parametrize("asynchronous", [False, True])
def test_the_source_of_an_amap_may_use_its_arrays_again(run: Any, asynchronous: bool) -> None:
    """What it puts in them then is not what the function sees."""
    x = np.zeros((1, 3))

    def source() -> Any:
        for number in range(20):
            x[:] = number
            yield {"x": x}

    async def asource() -> AsyncIterator[Any]:
        for call in source():
            yield call
            await asyncio.sleep(0)

    async def main() -> None:
        gate, fn = gated(shut=False, batch_size=4)
        got = await answers(fn, asource() if asynchronous else source())
        assert got == [[[2 * number] * 3] for number in range(20)]
        assert len(gate.batches) < 20 or asynchronous

    run(main())


def test_a_malformed_element_fails_after_the_answers_before_it(run: Any) -> None:
    """The rest is not read; another caller in the same batch is not touched."""

    async def main() -> None:
        gate, fn, first = await held()
        got: list[Any] = []

        async def consume() -> None:
            async for answer in fn.amap([rows(1, 1), {"x": 3}, rows(1, 1)]):
                got.append(answer.tolist())

        consumer = asyncio.create_task(consume())
        other = asyncio.create_task(fn(rows(1, 1)))
        await turns()
        gate.opened.set()
        with pytest.raises(TypeError, match="'x' must be a numpy array"):
            await consumer
        assert got == [[[2]]]
        assert ((await first).tolist(), (await other).tolist()) == ([[0]], [[2]])

    run(main())


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
