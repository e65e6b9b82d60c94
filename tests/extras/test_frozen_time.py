"""Tests of users that stop the clock, or set it to another day: batches and deadlines keep to true time."""

from __future__ import annotations

import asyncio
import subprocess
import sys
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager
from typing import Any

import pytest

import batched
from batched import aio
from tests.kit.flavours import Flavour
from tests.kit.gate import PATIENCE_S, AsyncGate, Gate
from tests.kit.script import ROOT
from tests.kit.serving import served

pytestmark = pytest.mark.libraries

DAY = "2024-02-29 12:00"


def freeze_time(*day: str, **options: Any) -> AbstractContextManager[Any]:
    """Replace the clock by freezegun's; where that is not installed, these tests are only collected."""
    from freezegun import freeze_time

    return freeze_time(*day, **options)


def travel(day: str, *, tick: bool) -> AbstractContextManager[Any]:
    """Replace the clock by that of time_machine."""
    from time_machine import travel

    return travel(day, tick=tick)


CLOCKS: dict[str, Callable[[], AbstractContextManager[Any]]] = {
    "frozen": lambda: freeze_time(DAY),
    "frozen, ticks": lambda: freeze_time(DAY, tick=True),
    "frozen, ticks by itself": lambda: freeze_time(DAY, auto_tick_seconds=60),
    "frozen, real asyncio": lambda: freeze_time(DAY, real_asyncio=True),
    "frozen, long ago": lambda: freeze_time("1970-01-01"),
    "travelled": lambda: travel(DAY, tick=False),
    "travelled, ticks": lambda: travel(DAY, tick=True),
}
Frozen = Callable[[], AbstractContextManager[Any]]


@pytest.fixture(params=CLOCKS.values(), ids=CLOCKS)
def frozen(request: pytest.FixtureRequest) -> Frozen:
    """Each way to replace the clock; entered by the test, which runs in it or across its borders."""
    replaced: Frozen = request.param
    return replaced


@contextmanager
def first_of_two(frozen: Frozen) -> Iterator[None]:
    """Replace the clock, and once more inside."""
    with frozen(), frozen():
        yield


def plain(items: list[int]) -> list[int]:
    return [2 * item for item in items]


def test_a_batcher_that_is_made_there(flavour: Flavour, frozen: Frozen) -> None:
    """Its first call waits for company as elsewhere, further calls and lists are answered."""
    with frozen():
        function = flavour.decorate(plain, adaptive=False)
        assert [flavour.call(function, item) for item in range(3)] == [0, 2, 4]
        assert flavour.call(function, [1, 2]) == [2, 4]
        assert flavour.map(function, range(100)) == [2 * item for item in range(100)]
        flavour.close(function)


def test_a_batcher_that_was_made_before(flavour: Flavour, frozen: Frozen) -> None:
    """And lives on: it is called before, inside, and after, twice."""
    function = flavour.decorate(plain, adaptive=False)
    assert flavour.call(function, 1) == 2
    for _ in range(2):
        with first_of_two(frozen):
            assert flavour.call(function, 2) == 4
        assert flavour.call(function, 3) == 6
    assert function.stats.total_processed == 5
    flavour.close(function)


def test_a_call_across_the_borders(flavour: Flavour, frozen: Frozen) -> None:
    """It waits for company when the clock is replaced, or when that ends."""
    if frozen is CLOCKS["frozen, long ago"] and not flavour.blocks:
        pytest.skip("a loop that has gone back to 1970 comes to its timers when it is back")
    function = flavour.decorate(plain, adaptive=False, timeout_ms=20)
    entering = flavour.start(function, 1)
    with frozen():
        assert entering.result(PATIENCE_S) == 2
        leaving = flavour.start(function, 2)
    assert leaving.result(PATIENCE_S) == 4
    flavour.close(function)


def test_deadlines(flavour: Flavour, frozen: Frozen) -> None:
    """Calls that wait behind a batch that is held are late in true time; those with time left are not."""
    gate = Gate(plain, shut=True)
    function = flavour.decorate(gate, timeout_ms=0, batch_size=1)
    with frozen():
        first = flavour.start(function, 1)
        gate.wait_for_batch()
        late = flavour.start(function.options(deadline_ms=5), 2)
        early = flavour.start(function.options(deadline_ms=60_000), 3)
        assert isinstance(late.exception(PATIENCE_S), TimeoutError)
        gate.open()
        assert (first.result(PATIENCE_S), early.result(PATIENCE_S)) == (2, 6)
    flavour.close(function)


def test_streams(streaming: Flavour, frozen: Frozen) -> None:
    """Pieces come, and a stream ends at its deadline."""
    gate = Gate(list, shut=True)

    def pieces(items: list[int]) -> Iterator[list[int]]:
        yield items
        gate(items)
        yield items

    function = streaming.decorate(pieces, timeout_ms=0)
    with frozen():
        stream = streaming.stream(function.options(deadline_ms=60_000), 1)
        assert next(stream) == 1
        with pytest.raises(TimeoutError):  # it waits behind that one, which is held
            next(streaming.stream(function.options(deadline_ms=5), 2))
        gate.open()
        assert list(stream) == [1]
        assert list(streaming.stream(function, 2)) == [2, 2]
    streaming.close(function)


def test_a_loop_of_its_own(frozen: Frozen) -> None:
    """Made and ended where the clock is another, with a deadline and a cache that is too slow."""

    class Slow:
        async def get(self, key: object) -> object:
            await asyncio.Event().wait()

        async def set(self, key: object, value: object) -> None:
            """Keep nothing."""

    async def main() -> None:
        gate = AsyncGate(shut=True)
        function = aio.dynamically(gate, adaptive=False)
        held = asyncio.create_task(function(1))
        await gate.entered.acquire()
        with pytest.raises(TimeoutError):
            await function.options(deadline_ms=5)(2)
        gate.opened.set()
        assert await held == 1
        assert await asyncio.gather(*map(function, range(100))) == list(range(100))

        slow = aio.dynamically(gate, cache=Slow())
        with pytest.raises(TimeoutError):
            await slow.options(deadline_ms=5)(1)
        await function.aclose()
        await slow.aclose()

    with frozen():
        asyncio.run(main())


def test_a_server_of_this_process(frozen: Frozen) -> None:
    """It answers a call across each border, and ends inside."""
    gate = Gate(plain, shut=True)
    function = batched.dynamically(gate, timeout_ms=0, name="function")
    with served(function) as server:
        client = server.connect().function
        entering = client.submit(1)
        gate.wait_for_batch()
        with frozen():
            gate.let_through()
            assert entering.result(PATIENCE_S) == 2
            leaving = client.submit(2)
            gate.wait_for_batch()
        gate.open()
        assert leaving.result(PATIENCE_S) == 4
        with frozen():
            assert client.options(deadline_ms=60_000)(3) == 6
            server.end()
    function.shutdown()


def test_the_import_where_the_clock_is_another() -> None:
    """It finds the true clock, and keeps it when that comes back."""
    script = """if True:
        import asyncio, time
        import freezegun

        with freezegun.freeze_time("2024-01-01"):
            import batched
            from batched._clock import is_replaced, monotonic
            double = batched.dynamically(lambda items: [2 * item for item in items], adaptive=False)
            alone = batched.aio.dynamically(lambda items: items, adaptive=False)
            assert double(1) == 2
            assert asyncio.run(alone(1)) == 1
            assert is_replaced()
        assert double(2) == 4
        assert asyncio.run(alone(2)) == 2
        assert abs(monotonic() - time.monotonic()) < 60
        assert not is_replaced()
    """
    subprocess.run([sys.executable, "-c", script], cwd=ROOT, timeout=60, check=True)


def test_the_clock_that_is_moved_by_hand() -> None:
    """An hour that a test lets pass is no hour for a call: its deadline is true time."""
    gate = Gate(plain, shut=True)
    function = batched.dynamically(gate, timeout_ms=0)
    with freeze_time(DAY) as clock:
        future = function.options(deadline_ms=60_000).submit(1)
        gate.wait_for_batch()
        clock.tick(3600)
        gate.open()
        assert future.result(PATIENCE_S) == 2
        assert function.stats.processing_time.sum < 60
    function.shutdown()
