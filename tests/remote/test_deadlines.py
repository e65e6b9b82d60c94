"""A deadline for a block of code holds for calls of another process, too."""

from __future__ import annotations

import asyncio
import socket
import threading
from pathlib import Path

import pytest

import batched
from tests.kit.gate import PATIENCE_S, Gate, until
from tests.kit.remote_server import serving

pytestmark = pytest.mark.skipif(not hasattr(socket, "AF_UNIX"), reason="needs unix sockets")


def test_calls_of_another_process_share_the_deadline_of_their_block(tmp_path: Path) -> None:
    """From threads, from tasks, of futures and maps; a sooner deadline of their own stays."""
    gate = Gate(shut=True)

    @batched.dynamically(timeout_ms=0)
    def held(items: list[int]) -> list[int]:
        gate(items)
        return items

    bind = f"unix:{tmp_path}/s"
    with serving(bind, functions={"held": held}):
        client = batched.connect(bind)

        first = client.held.submit(0)
        gate.wait_for_batch()

        async def call() -> None:
            with batched.deadline(50):
                await client.held.acall(1)

        with batched.deadline(50), pytest.raises(TimeoutError):
            client.held(1)
        with batched.deadline(50), pytest.raises(TimeoutError):
            list(client.held.map([1]))
        with batched.deadline(50):
            future = client.held.submit(1)
        assert isinstance(future.exception(PATIENCE_S), TimeoutError)
        with pytest.raises(TimeoutError):
            asyncio.run(asyncio.wait_for(call(), PATIENCE_S))
        with batched.deadline(1000 * PATIENCE_S), pytest.raises(TimeoutError, match="deadline_ms=50"):
            client.held.options(deadline_ms=50)(1)
        gate.open()
        assert first.result(PATIENCE_S) == 0
        with batched.deadline(1000 * PATIENCE_S):
            assert client.held(2) == 2
        client.close()


def test_the_deadline_of_the_function_holds_in_a_block_that_has_more_time(tmp_path: Path) -> None:
    """As in one process, where the sooner one holds; from threads, tasks, maps, and for futures."""
    gate = Gate(shut=True)

    @batched.dynamically(timeout_ms=0, batch_size=1, default_deadline_ms=50)
    def held(items: list[int]) -> list[int]:
        gate(items)
        return items

    bind = f"unix:{tmp_path}/s"
    with serving(bind, functions={"held": held}), batched.connect(bind) as client:
        first = client.held.options(deadline_ms=None).submit(0)
        gate.wait_for_batch()

        async def call() -> None:
            with batched.deadline(1000 * PATIENCE_S):
                await client.held.acall(1)

        with batched.deadline(1000 * PATIENCE_S):
            with pytest.raises(TimeoutError, match="deadline_ms=50"):
                client.held(1)
            with pytest.raises(TimeoutError, match="deadline_ms=50"):
                list(client.held.map([1]))
            assert "deadline_ms=50" in str(client.held.submit(1).exception(PATIENCE_S))
        with pytest.raises(TimeoutError, match="deadline_ms=50"):
            asyncio.run(asyncio.wait_for(call(), PATIENCE_S))
        gate.open()
        assert first.result(PATIENCE_S) == 0
        with batched.deadline(1000 * PATIENCE_S):
            assert client.held.options(deadline_ms=None)(2) == 2


def test_the_deadline_of_the_function_holds_while_its_server_stands_still(tmp_path: Path) -> None:
    """As the server has said what it is: the client does not wait for it to say that a call is late."""
    stands, goes_on = threading.Event(), threading.Event()

    def stand_still() -> None:
        stands.set()
        goes_on.wait(PATIENCE_S)

    @batched.dynamically(timeout_ms=0, default_deadline_ms=300)
    def same(items: list[int]) -> list[int]:
        return items

    async def main() -> None:
        still = asyncio.ensure_future(asyncio.to_thread(server.on_loop, stand_still))
        await asyncio.to_thread(stands.wait, PATIENCE_S)
        kept = client.same.options(return_exceptions=True)
        of_threads = [asyncio.to_thread(client.same, 1), asyncio.to_thread(list, kept.map(range(2)))]
        calls = asyncio.gather(client.same.acall(1), *of_threads, return_exceptions=True)
        *found, mapped = await asyncio.wait_for(calls, PATIENCE_S)
        assert {type(each) for each in [*found, *mapped]} == {TimeoutError}
        goes_on.set()
        await still
        assert await unbound.acall(2) == 2

    bind = f"unix:{tmp_path}/s"
    with serving(bind, functions={"same": same}) as server, batched.connect(bind) as client:
        unbound = client.same.options(deadline_ms=None)
        assert unbound(1) == 1
        asyncio.run(main())


def test_items_that_are_late_as_they_run_are_counted_in_the_server(tmp_path: Path) -> None:
    """Of threads, of tasks and of maps, as soon as it has heard that they are late."""
    gate = Gate(shut=True)

    @batched.dynamically(timeout_ms=0, batch_size=1)
    def held(items: list[int]) -> list[int]:
        gate(items)
        return items

    @batched.dynamically(timeout_ms=0)
    def same(items: list[int]) -> list[int]:
        return items

    bind = f"unix:{tmp_path}/s"
    with serving(bind, functions={"held": held, "same": same}), batched.connect(bind) as client:
        hasty = client.held.options(deadline_ms=100)

        def be_late_in_thread() -> None:
            with pytest.raises(TimeoutError):
                hasty(1)
            assert client.same(2) == 2  # the server has read what was sent before on this connection

        def be_late_in_map() -> None:
            with pytest.raises(TimeoutError):
                list(hasty.map([1]))
            assert client.same(2) == 2

        async def be_late_in_task() -> None:
            with pytest.raises(TimeoutError):
                await hasty.acall(1)
            assert await client.same.acall(2) == 2

        ways = (be_late_in_thread, be_late_in_map, lambda: asyncio.run(be_late_in_task()))
        for late, way in enumerate(ways, 1):
            while len(gate.batches) < late:  # on a busy machine it may be late before it runs
                way()
            gate.let_through()
            until(lambda processed=late: held.stats.total_processed == processed)
            assert held.stats.total_late == late
