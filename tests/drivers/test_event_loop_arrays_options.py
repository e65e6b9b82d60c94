"""Arrays on event loops with options, and in maps."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from typing import Any

import numpy as np
import pytest

from batched import BatchError, QueueFullError, aio
from tests.kit.gate import turns
from tests.kit.loop_arrays import answers, doubled, gated, held, noted, rows

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
    """Its `get` and `set` are awaited; what it knows is answered without a run, and belongs to its caller."""

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
        "f: the cache failed and is bypassed"
    }


@pytest.mark.parametrize("on_full", ["raise", "wait"])
def test_a_bounded_queue_counts_rows(run: Any, on_full: str) -> None:
    """A call that does not fit is refused or waits; `amap` never overruns it; what never fits is an error."""

    async def main() -> None:
        gate, fn, first = await held(max_queue_size=3, on_full=on_full, batch_size=2)
        two = asyncio.create_task(fn(rows(2, 1)))
        await turns()
        more = asyncio.create_task(fn(rows(2, 1, value=2)))
        await turns()
        assert fn.stats.queue_size == 2
        assert more.done() is (on_full == "raise")
        with pytest.raises(ValueError, match="a call of 4 items can never fit"):
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
