"""`batched.deadline`: all calls of a block share what is left of one deadline."""

from __future__ import annotations

import asyncio
import contextvars
import gc
import inspect
from collections.abc import AsyncIterator, Iterator
from typing import Any

import pytest

import batched
from batched import aio
from batched._api.deadline import Block
from tests.kit.gate import PATIENCE_S, AsyncGate, Gate, turns
from tests.kit.held import held

ENDLESS_MS = 60_000


def test_calls_inside_are_late_together() -> None:
    """However they are called; and calls after the block have no deadline."""
    gate = Gate(shut=True)
    fn = batched.dynamically(gate, batch_size=1, timeout_ms=0)
    with batched.deadline(150):
        first = fn.submit(1)
        gate.wait_for_batch()
        with pytest.raises(TimeoutError):
            fn(2)
        with pytest.raises(TimeoutError):
            fn.options(deadline_ms=ENDLESS_MS)(3)
        with pytest.raises(TimeoutError):
            list(fn.map([4, 5]))
        with pytest.raises(TimeoutError):
            fn.submit(6).result()
    gate.open()
    assert fn(7) == 7
    assert first.done()
    fn.shutdown()
    assert gate.batches == [[1], [7]]


def test_the_sooner_deadline_counts() -> None:
    """That of an inner block, of an outer one, or of the call."""
    gate, fn, _ = held(batch_size=1)
    with batched.deadline(ENDLESS_MS), batched.deadline(10), pytest.raises(TimeoutError):
        fn(1)
    with batched.deadline(10), batched.deadline(ENDLESS_MS), pytest.raises(TimeoutError):
        fn(2)
    with batched.deadline(ENDLESS_MS), pytest.raises(TimeoutError):
        fn.options(deadline_ms=10)(3)
    gate.open()
    fn.shutdown()
    assert gate.batches == [["first"]]


def test_tasks_and_threads_that_start_inside_have_it() -> None:
    """On both flavours; tasks beside it have none."""
    gate = Gate(shut=True)
    fn = batched.dynamically(gate, batch_size=1, timeout_ms=0)

    async def main() -> None:
        shut = AsyncGate()
        on_loop = aio.dynamically(shut, batch_size=1, timeout_ms=0)
        beside = [asyncio.ensure_future(each) for each in (on_loop(0), fn.acall(0))]
        await asyncio.to_thread(gate.wait_for_batch)
        await shut.entered.acquire()
        with batched.deadline(20):
            inside: list[Any] = [
                asyncio.ensure_future(each) for each in (on_loop(1), fn.acall(1), asyncio.to_thread(fn, 2))
            ]
        found = await asyncio.gather(*inside, return_exceptions=True)
        assert [isinstance(each, TimeoutError) for each in found] == [True] * 3
        gate.open()
        shut.opened.set()
        assert await asyncio.gather(*beside) == [0, 0]

    asyncio.run(main())
    fn.shutdown()


@pytest.mark.parametrize("decorate", [batched.dynamically, aio.dynamically])
def test_maps_of_tasks_have_it_too(decorate: Any) -> None:
    """Each item that is late is so at its place."""

    async def main() -> list[Any]:
        shut = AsyncGate()
        fn = decorate(shut if decorate is aio.dynamically else gate, batch_size=1, timeout_ms=0)
        with batched.deadline(20):
            kept = fn.options(return_exceptions=True)
            found = [answer async for answer in kept.amap([1, 2])]
        gate.open()
        shut.opened.set()
        return found

    gate = Gate(shut=True)
    assert [type(each) for each in asyncio.run(main())] == [TimeoutError, TimeoutError]


def test_the_time_of_an_asynchronous_cache_counts() -> None:
    """Of a `get` that never answers, and of a `set`: the answer is there before it, and is given in time."""

    class Held:
        async def get(self, key: str) -> str | None:
            if key == "get":
                await asyncio.get_running_loop().create_future()
            return None

        async def set(self, key: str, result: str) -> None:
            await asyncio.get_running_loop().create_future()

    async def main() -> list[Any]:
        fn = aio.dynamically(AsyncGate(), timeout_ms=0, cache=Held())
        fn.__wrapped__.opened.set()
        with batched.deadline(300):
            calls = [fn("get"), fn.options(request_cache={})(["a", "get"]), fn("set")]
            return await asyncio.wait_for(asyncio.gather(*calls, return_exceptions=True), PATIENCE_S)

    found = asyncio.run(main())
    assert [type(each) for each in found] == [TimeoutError, TimeoutError, str]
    assert "did not answer within" in str(found[0])


def test_each_element_of_a_map_has_an_answer_of_its_own() -> None:
    """Elements that travel as one call are late one by one; a generator may end its block elsewhere."""
    gate = Gate(shut=True)
    fn = batched.dynamically(gate, batch_size=8, timeout_ms=0)
    with batched.deadline(20):
        found = list(fn.options(return_exceptions=True).map(range(5)))
    assert [type(each) for each in found] == [TimeoutError] * 5
    gate.open()
    fn.shutdown()

    def dependency() -> Any:
        with batched.deadline(ENDLESS_MS):
            yield

    begun = dependency()
    contextvars.Context().run(next, begun)
    begun.close()


def with_little_time() -> Iterator[None]:
    """Have a block that is over as soon as it has begun."""
    with batched.deadline(0.001):
        yield


def test_a_generator_that_ends_elsewhere_leaves_its_consumer_no_deadline() -> None:
    """A task that leaves an asynchronous one is such a consumer, as the loop ends that in another task."""
    fn = batched.dynamically(list, timeout_ms=0)

    async def pieces() -> AsyncIterator[None]:
        with batched.deadline(0.001):
            yield

    async def main() -> None:
        for _ in range(3):
            async for _ in pieces():
                break
            await turns()
            assert await fn.acall(1) == 1

    asyncio.run(main())
    begun = with_little_time()
    next(begun)
    with pytest.raises(TimeoutError):
        fn(1)
    contextvars.Context().run(begun.close)
    assert fn(1) == 1
    fn.shutdown()


def test_blocks_may_end_in_another_order() -> None:
    """Each ends its own deadline, and no other."""
    fn = batched.dynamically(list, timeout_ms=0)

    def check() -> None:
        begun = with_little_time()
        next(begun)
        with batched.deadline(0.001):
            begun.close()
            with pytest.raises(TimeoutError):
                fn(1)
        assert fn(1) == 1

    contextvars.copy_context().run(check)
    fn.shutdown()


def test_what_generators_have_left_behind_is_not_kept() -> None:
    """A consumer may leave any number of them."""

    def kept_after(number: int) -> int:
        for _ in range(number):
            begun = with_little_time()
            next(begun)
            contextvars.Context().run(begun.close)
        return sum(isinstance(each, Block) for each in gc.get_objects())

    context = contextvars.copy_context()
    assert context.run(kept_after, 2) == context.run(kept_after, 20)


def test_a_call_of_a_block_that_is_late_has_no_time() -> None:
    """Its error says 0 ms, not fewer; and of what, as no caller has set that."""
    fn = batched.dynamically(list, timeout_ms=0)
    with batched.deadline(0.001):
        asyncio.run(asyncio.sleep(0))
        with pytest.raises(TimeoutError, match="within the 0 ms that its `batched.deadline` had left$"):
            fn(1)
    fn.shutdown()


def test_a_late_call_of_a_block_names_the_block() -> None:
    """Not a `deadline_ms` that no caller has set; that of the call is named where it is the sooner one."""
    gate = Gate(shut=True)
    fn = batched.dynamically(gate, timeout_ms=0)
    of_block = r"within the \d+(\.\d)? ms that its `batched.deadline` had left$"
    with batched.deadline(30):
        with pytest.raises(TimeoutError, match=of_block):
            fn([1, 2])
        with pytest.raises(TimeoutError, match=of_block):
            fn.options(deadline_ms=ENDLESS_MS)(1)
    with batched.deadline(ENDLESS_MS), pytest.raises(TimeoutError, match="within deadline_ms=20$"):
        fn.options(deadline_ms=20)(1)
    gate.open()
    fn.shutdown()


def test_a_decorator_without_milliseconds_is_told_what_to_write() -> None:
    with pytest.raises(TypeError, match=r"before it decorates .*handler: write `@batched.deadline\(200\)`$"):

        @batched.deadline  # type: ignore[arg-type]
        def handler() -> None:
            """Do nothing."""


@pytest.mark.parametrize("ms", [0, -1, float("nan")])
def test_a_deadline_is_above_zero(ms: float) -> None:
    """Others are refused at the door."""
    with pytest.raises(ValueError, match="batched.deadline must be more than 0, got "), batched.deadline(ms):
        pass


def test_a_decorated_function_is_a_block_at_each_call() -> None:
    """Also one that is `async def`, of which most runs after it has been called, and a method."""
    gate, fn, _ = held(batch_size=1)

    class Service:
        @batched.deadline(20)
        def ask(self, number: int) -> int:
            """Ask for one."""
            return fn(number)

        @batched.deadline(20)
        async def ask_later(self, number: int) -> int:
            return await asyncio.wait_for(fn.acall(number), PATIENCE_S)

    for _ in range(2):
        with pytest.raises(TimeoutError, match="its `batched.deadline` had left"):
            Service().ask(1)
        with pytest.raises(TimeoutError, match="its `batched.deadline` had left"):
            asyncio.run(Service().ask_later(number=2))
    assert inspect.iscoroutinefunction(Service.ask_later)
    assert Service.ask.__doc__ == "Ask for one."
    gate.open()
    assert batched.deadline(PATIENCE_S * 1000)(fn.__call__)(3) == 3
    fn.shutdown()


def test_an_object_that_is_called_is_decorated_as_its_method_is() -> None:
    """One that is awaited ran outside of the block, without a deadline."""
    gate, fn, _ = held(batch_size=1)

    class Asks:
        async def __call__(self, number: int) -> int:
            return await asyncio.wait_for(fn.acall(number), PATIENCE_S)

    class Yields:
        def __call__(self) -> Iterator[int]:
            yield 1

    with pytest.raises(TimeoutError, match="its `batched.deadline` had left"):
        asyncio.run(batched.deadline(20)(Asks())(1))
    with pytest.raises(TypeError, match=r"write `with batched.deadline\(20\):`"):
        batched.deadline(20)(Yields())
    gate.open()
    fn.shutdown()


def test_no_generator_function_is_decorated() -> None:
    """Its body would run outside of the block, without a deadline."""

    def pieces() -> Iterator[int]:
        yield 1

    async def later() -> AsyncIterator[int]:
        yield 1

    for function in (pieces, later):
        with pytest.raises(TypeError, match=r"write `with batched.deadline\(20\):`"):
            batched.deadline(20)(function)


class Asks:
    """Has methods of the kinds that only a function inside of them can be decorated of."""

    name = property(lambda self: "asks")
    at_class = classmethod(lambda cls: cls)
    at_none = staticmethod(lambda: None)


@pytest.mark.parametrize(
    ("function", "why"),
    [
        (Asks, r"Asks, a class: write `@batched.deadline\(20\)` above its methods$"),
        (vars(Asks)["name"], r"a property: write `@batched.deadline\(20\)` below `@property`"),
        (vars(Asks)["at_class"], r"a classmethod: write `@batched.deadline\(20\)` below `@classmethod`"),
        (vars(Asks)["at_none"], r"a staticmethod: write `@batched.deadline\(20\)` below `@staticmethod`"),
        (batched.dynamically(list), r"list, which is batched: use its option `default_deadline_ms`"),
        ("handler", "'handler', which cannot be called$"),
    ],
)
def test_what_is_no_function_is_not_decorated(function: Any, why: str) -> None:
    """It became a function, which is neither a class nor bound, or fails when it is called."""
    with pytest.raises(TypeError, match=f"^batched.deadline cannot decorate .*{why}"):
        batched.deadline(20)(function)


def test_an_asynchronous_block_is_told_what_to_write() -> None:
    """In an `async def` function, too, it is `with`."""

    async def main() -> None:
        limit: Any = batched.deadline(20)
        async with limit:
            pass

    with pytest.raises(TypeError, match=r"^write `with batched.deadline\(20\):`, without `async`"):
        asyncio.run(main())


def test_each_block_has_an_object_of_its_own() -> None:
    """One that was made elsewhere, once for all, says what to write."""
    limit = batched.deadline(ENDLESS_MS)
    with limit, pytest.raises(RuntimeError, match=r"write `with batched.deadline\(60000\):` for each"), limit:
        pass
    with pytest.raises(RuntimeError, match=r"write `with batched.deadline\(60000\):` for each"), limit:
        pass
