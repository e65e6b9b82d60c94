"""Elements of a map through a socket, of which some are refused."""

from __future__ import annotations

import asyncio
import socket
import threading
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pytest

import batched
from batched import aio
from tests.kit.gate import PATIENCE_S, Gate, until
from tests.kit.remote_server import serving
from tests.kit.serving import served

needs_unix = pytest.mark.skipif(not hasattr(socket, "AF_UNIX"), reason="needs unix sockets")


def keyed(item: Any) -> Any:
    """Return a key; not of each item."""
    return item["key"]


def test_an_element_that_is_refused_fails_alone() -> None:
    """At its place, from threads and tasks; with a cache, too."""
    known: dict[Any, Any] = {}
    cached: dict[str, Any] = {"cache": known, "cache_key": keyed}
    for options in ({"group_by": keyed}, cached):
        fn = batched.dynamically(list, timeout_ms=0, name="list", batch_size=4, **options)
        items: list[Any] = [{"key": at} for at in range(10)]
        items[3] = items[7] = {}
        with served(fn) as server, server.connect() as client:
            kept = client.list.options(return_exceptions=True)

            async def main(kept: Any = kept, items: list[Any] = items) -> list[Any]:
                return [answer async for answer in kept.amap(items)]

            for _ in range(2):
                for answers in (list(kept.map(items)), asyncio.run(main())):
                    failed = [at for at, answer in enumerate(answers) if isinstance(answer, Exception)]
                    assert failed == [3, 7]
                    assert [answer for answer in answers if not isinstance(answer, Exception)] == [
                        item for item in items if item
                    ]


class Slow:
    """A cache that callers await, as they do where the function is `async def`."""

    def __init__(self) -> None:
        self.known: dict[Any, Any] = {}

    async def get(self, key: Any) -> Any:
        """Return what is known."""
        return self.known.get(key)

    async def set(self, key: Any, value: Any) -> None:
        """Note it."""
        self.known[key] = value


@pytest.mark.parametrize("bad", [[], [{}]], ids=["all good", "one bad"])
def test_a_map_waits_for_room_behind_a_cache_that_callers_await(bad: list[Any]) -> None:
    """Also where each element is a call of its own, as one of them has no key."""
    gate = Gate(shut=True)

    @aio.dynamically(batch_size=4, max_queue_size=4, timeout_ms=0, cache=Slow(), cache_key=keyed)
    async def fn(items: list[Any]) -> list[Any]:
        return await asyncio.to_thread(gate, items)

    items: list[Any] = [{"key": at} for at in range(20)]
    items[2:2] = bad
    with served(fn) as server, server.connect() as client, ThreadPoolExecutor(1) as pool:
        assert client.fn.stats.queue_size == 0  # now the client knows how large batches are
        answers = pool.submit(list, client.fn.options(return_exceptions=True).map(items))
        try:
            until(lambda: client.fn.stats.queue_size)
        finally:
            gate.open()
        found = answers.result(PATIENCE_S)
        failed = [at for at, answer in enumerate(found) if isinstance(answer, Exception)]
        assert failed == [at for at, item in enumerate(items) if not item]
        assert client.fn.stats.total_rejected == 0


def check_reads_ahead(fn: Any, items: int, gate: Gate) -> None:
    """Check that a map has so many items in the server while the gate is shut; `fn` has answered one."""
    with ThreadPoolExecutor(1) as pool:
        answers = pool.submit(list, fn.map(range(100)))
        try:
            until(lambda: fn.stats.total_accepted == 1 + items)
        finally:
            gate.open()
        assert answers.result(PATIENCE_S) == [*range(100)]


@needs_unix
def test_a_map_has_a_batch_for_each_worker_of_the_server(tmp_path: Path) -> None:
    """And one that is next, and one for its consumer, so that no worker is idle while elements are left."""
    gate = Gate(shut=True)
    function = batched.dynamically(gate, timeout_ms=0, batch_size=4, workers=batched.Workers(5))
    bind = f"unix:{tmp_path}/s"
    with serving(bind, functions={"f": function}), batched.connect(bind) as client:
        first = client.f.submit(0)
        gate.wait_for_batch()
        gate.let_through()
        assert first.result(PATIENCE_S) == 0  # now the client knows how many workers there are
        check_reads_ahead(client.f, 7 * 4, gate)


@needs_unix
def test_clients_follow_what_is_configured_while_they_are_connected(tmp_path: Path) -> None:
    """A map reads ahead what the server can run by now."""
    gate = Gate(shut=True)
    function = batched.dynamically(gate, timeout_ms=0, batch_size=2)
    bind = f"unix:{tmp_path}/s"
    with serving(bind, functions={"f": function}), batched.connect(bind) as client:
        first = client.f.submit(0)
        gate.wait_for_batch()
        gate.let_through()
        assert first.result(PATIENCE_S) == 0  # now the client knows the options
        function.configure(batch_size=4, max_concurrent_batches=5)
        assert client.f.stats.total_accepted == 1  # the news come before this answer
        check_reads_ahead(client.f, 7 * 4, gate)


@needs_unix
def test_elements_that_are_too_long_together_are_sent_one_by_one(tmp_path: Path) -> None:
    """As they fit alone; one that does not fails at its place."""
    function = batched.dynamically(lambda items: [item[:1] for item in items], timeout_ms=0, batch_size=8)
    bind = f"unix:{tmp_path}/s"
    with serving(bind, functions={"f": function}, max_frame_bytes=5000), batched.connect(bind) as client:
        assert client.f(b"x") == b"x"  # from here on the client knows what the server takes
        items = [bytes([at]) * 3000 for at in range(20)]
        assert list(client.f.map(items)) == [item[:1] for item in items]
        items[7] = bytes(6000)
        found = list(client.f.options(return_exceptions=True).map(items))
        assert [at for at, answer in enumerate(found) if answer != items[at][:1]] == [7]
        with pytest.raises(ValueError, match="6[0-9]{3} bytes, and the server takes 5000") as raised:
            list(client.f.map(items))
        assert raised.value.__notes__ == ["item 8 of a map of f"]


class Turns:
    """Counts what happens in each turn of an event loop."""

    def __init__(self) -> None:
        self.most = self._count = 0

    def note(self) -> None:
        """Count something."""
        self._count += 1
        self.most = max(self.most, self._count)

    def follow(self, loop: asyncio.AbstractEventLoop) -> None:
        """Begin anew in each turn from here on."""
        self._count = 0
        loop.call_soon(self.follow, loop)


@needs_unix
def test_a_map_that_is_refused_leaves_turns_to_others(tmp_path: Path) -> None:
    """Of thousands of elements few are queued in a turn of the server's loop; none is left out."""
    turns = Turns()

    def key(item: Any) -> Any:
        turns.note()
        return item["key"]

    function = batched.dynamically(list, timeout_ms=0, batch_size=4000, group_by=key)
    items: list[Any] = [{"key": at} if at % 20 else {} for at in range(2000)]
    bind = f"unix:{tmp_path}/s"
    with serving(bind, functions={"f": function}) as server, batched.connect(bind) as client:
        assert client.f({"key": 1}) == {"key": 1}  # from here on the client knows how large batches are
        server.on_loop(lambda: turns.follow(asyncio.get_running_loop()))
        with batched.deadline(1000 * PATIENCE_S):
            answers = list(client.f.options(return_exceptions=True).map(items))
        failed = [at for at, answer in enumerate(answers) if isinstance(answer, batched.BatchError)]
        assert failed == list(range(0, 2000, 20))
        assert [answer for answer in answers if isinstance(answer, dict)] == [item for item in items if item]
        assert 1 < turns.most <= 300  # a map is three calls of hundreds of elements, which come together


@needs_unix
def test_elements_that_wait_for_a_turn_are_dropped_with_their_map(tmp_path: Path) -> None:
    """The client leaves before all are queued: the others never are."""
    asked: list[Any] = []
    left = threading.Event()

    def key(item: Any) -> Any:
        asked.append(item)
        if len(asked) == 5:
            assert left.wait(PATIENCE_S)
        return item["key"]

    function = batched.dynamically(list, timeout_ms=0, batch_size=4000, group_by=key)
    bind = f"unix:{tmp_path}/s"
    with serving(bind, functions={"f": function}) as server:
        client = batched.connect(bind)
        assert client.f({"key": 1}) == {"key": 1}
        answers = client.f.map([{}] + [{"key": 1}] * 2000)
        with ThreadPoolExecutor(1) as pool:
            first = pool.submit(next, answers)
            until(lambda: len(asked) == 5)
            client.close()
            left.set()
            assert isinstance(first.exception(PATIENCE_S), batched.DisconnectedError)
        until(lambda: not server.sessions())
        server.on_loop(lambda: None)  # a turn that was due would have come
        assert len(asked) < 1500


@needs_unix
def test_elements_of_a_map_that_was_left_are_not_answered_at_their_deadline(tmp_path: Path) -> None:
    """They have run when it comes, for a caller that is gone: the server's event loop has nothing to say."""
    gate = Gate()
    function = batched.dynamically(gate, timeout_ms=0, batch_size=4, group_by=keyed)
    bind = f"unix:{tmp_path}/s"
    said: list[Any] = []
    with serving(bind, functions={"f": function}) as server:
        client = batched.connect(bind)
        note = lambda _, told: said.append(told)  # noqa: E731
        server.on_loop(lambda: asyncio.get_running_loop().set_exception_handler(note))
        assert client.f({"key": 1}) == {"key": 1}
        gate.close()

        async def ask() -> list[Any]:
            with batched.deadline(200):
                return [each async for each in client.f.amap([{"key": 1}, {"key": 1}, {}])]

        async def main() -> None:
            asking = asyncio.create_task(ask())
            await asyncio.to_thread(until, lambda: client.f.stats.running_items)
            asking.cancel()
            await asyncio.wait([asking])

        asyncio.run(main())
        until(lambda: not any(session.unanswered for session in list(server.server.sessions)))
        gate.open()
        until(lambda: not client.f.stats.running_items)
        gate.close()
        with batched.deadline(400), pytest.raises(TimeoutError):  # by then, that of the map has passed
            client.f({"key": 1})
        gate.open()
        client.close()
    assert said == []
