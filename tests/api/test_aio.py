"""`batched.aio`: every way to call, and what there is not."""

from __future__ import annotations

import asyncio
import gc
import re
import threading
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import numpy as np
import pytest

from batched import ClosedError, aio
from tests.kit.functions import echo, plain_echo
from tests.kit.gate import PATIENCE_S, Gate, turns_until


@pytest.mark.parametrize("function", [echo, plain_echo])
def test_every_way_to_call(run: Any, function: Any) -> None:
    """A call, `acall`, `amap`, options, and the end."""
    fn = aio.dynamically(function, timeout_ms=0)

    async def main() -> None:
        async with fn as entered:
            assert entered is fn
            assert (await fn(2), await fn([2, 3]), await fn.acall(2), await fn([])) == (2, [2, 3], 2, [])
            assert [y async for y in fn.amap(range(100))] == list(range(100))
            assert await fn.options(deadline_ms=20_000, priority="bulk")([1]) == [1]
        for call in (fn, fn.acall):
            with pytest.raises(ClosedError, match="was shut down"):
                await call(1)
        with pytest.raises(ClosedError):
            await fn([])
        await fn.aclose()

    run(main())


def test_an_amap_may_be_made_where_no_loop_runs() -> None:
    """As any asynchronous iterator."""
    for function in (echo, plain_echo):
        answers = aio.dynamically(function, timeout_ms=0).amap([1, 2])

        async def main(answers: Any = answers) -> list[int]:
            return [answer async for answer in answers]

        assert asyncio.run(main()) == [1, 2]


def test_nothing_is_queued_before_a_call_is_awaited() -> None:
    """A call is a coroutine, whatever it is given."""
    fn = aio.dynamically(echo, timeout_ms=0)
    for call in (fn(1), fn.acall(1), fn(1, 2)):
        assert asyncio.iscoroutine(call)
        call.close()
    assert fn.stats.total_accepted == 0


@pytest.mark.parametrize("name", ["map", "submit", "shutdown", "__enter__"])
def test_nothing_blocks(name: str) -> None:
    """What would is not there."""
    assert not hasattr(aio.dynamically(echo), name)


@pytest.mark.parametrize(
    ("name", "instead"),
    [
        ("submit", "asyncio.create_task(fn(item))"),
        ("map", "async for result in fn.amap(items)"),
        ("stream", "async for piece in fn.astream(item)"),
        ("shutdown", "await fn.aclose()"),
        ("warm_up", "await fn.awarm_up(example)"),
    ],
)
def test_what_blocks_is_told_what_to_write_instead(name: str, instead: str) -> None:
    """Of a function, a view of it and a method; and it is in no list of what there is."""

    class Model:
        echo = aio.dynamically(echo)

    fn = aio.dynamically(echo)
    for each in (fn, fn.options(priority="bulk"), Model().echo):
        with pytest.raises(AttributeError, match=re.escape(instead)):
            getattr(each, name)
        assert name not in dir(each)


@pytest.mark.parametrize("name", ["priority_strategy", "batch_item_cls"])
def test_what_the_old_library_had_is_refused(name: str) -> None:
    """The error names the options there are."""
    with pytest.raises(TypeError, match=f"no option '{name}'.*; it has batch_size, "):
        aio.dynamically(echo, **{name: None})
    with pytest.raises(ValueError, match="batch_size must be at least 1, got 0"):
        aio.dynamically(batch_size=0)


def test_a_plain_function_that_returns_an_awaitable_is_told_to_await_it() -> None:
    """It runs in a thread, where the loop that the awaitable belongs to is not."""
    fn = aio.dynamically(lambda xs: echo(xs), timeout_ms=0, name="look_up")
    with pytest.raises(TypeError, match="look_up returned an awaitable but is not `async def`"):
        asyncio.run(fn(1))


def test_plain_functions_need_nothing_of_the_loops_executor(run: Any) -> None:
    """Callers may hold all its threads, waiting for what only the function can give; the loop is free."""
    gate = Gate(shut=True)
    fn = aio.dynamically(gate, timeout_ms=0)

    async def main() -> None:
        loop = asyncio.get_running_loop()
        loop.set_default_executor(ThreadPoolExecutor(1))
        answered = threading.Event()
        blocked = loop.run_in_executor(None, answered.wait, PATIENCE_S)
        task = asyncio.create_task(fn(1))
        await turns_until(lambda: gate.batches)  # the loop runs while the function blocks
        gate.open()
        assert await task == 1
        answered.set()
        assert await blocked

    run(main())


def test_the_thread_of_a_plain_function_ends_with_its_instance() -> None:
    """It is named after the function, and starts with the first call."""

    class Model:
        @aio.dynamically(timeout_ms=0)
        def embed_all(self, items: list[int]) -> list[int]:
            return [threading.get_ident() for _ in items]

    model = Model()
    assert model.embed_all.stats.queue_size == 0
    names = {thread.name for thread in threading.enumerate()}
    first, second = asyncio.run(model.embed_all(1)), asyncio.run(model.embed_all(2))
    assert first == second != threading.get_ident()
    (thread,) = [thread for thread in threading.enumerate() if thread.name not in names]
    assert thread.name.endswith("Model.embed_all") or thread.name == "batched: Model.embed_all"
    del model
    gc.collect()
    thread.join(PATIENCE_S)
    assert not thread.is_alive()


@pytest.mark.parametrize("kind", ["async", "plain"])
def test_arrays_are_padded_and_cut(run: Any, kind: str) -> None:
    """The array flavour has the same options and the same ways to call."""
    batches: list[Any] = []

    def model(features: dict[str, np.ndarray]) -> np.ndarray:
        batches.append(features["ids"].tolist())
        return features["ids"] * 2

    async def model_async(features: dict[str, np.ndarray]) -> np.ndarray:
        await asyncio.sleep(0)
        return model(features)

    fn = aio.inference.dynamically(
        model_async if kind == "async" else model,
        batch_size=2,
        timeout_ms=60_000,
        pad_tokens={"ids": 9},
        unpad_outputs=True,
    )

    async def main() -> None:
        short, long = await asyncio.gather(fn({"ids": np.array([[1]])}), fn(ids=np.array([[2, 3]])))
        assert (short.tolist(), long.tolist()) == ([[2]], [[4, 6]])
        assert [y.tolist() async for y in fn.amap([{"ids": np.array([[1]])}] * 2)] == [[[2]]] * 2
        assert fn.stats.padding.padded == 6
        await fn.aclose()

    run(main())
    assert batches[0] == [[1, 9], [2, 3]]
