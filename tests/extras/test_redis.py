"""Caches on a real Redis, which `redis-server` is started for: its clients are caches as they are."""

from __future__ import annotations

import asyncio
import logging
import os
import pickle
import shutil
import signal
import socket
import subprocess
from collections.abc import Iterator
from contextlib import closing
from pathlib import Path
from typing import Any

import pytest

import batched
from batched import aio
from tests.kit.flavours import as_async
from tests.kit.gate import PATIENCE_S, until
from tests.kit.ports import free_port

pytestmark = pytest.mark.redis


class Server:
    """A Redis that keeps nothing on disk."""

    def __init__(self, folder: Path) -> None:
        self.port = free_port()
        options = {"--bind": "127.0.0.1", "--port": f"{self.port}", "--save": "", "--appendonly": "no"}
        self.process = subprocess.Popen(
            ["redis-server", *sum(options.items(), ())], cwd=folder, stdout=subprocess.DEVNULL
        )
        until(self._answers)

    def _answers(self) -> bool:
        with closing(socket.socket()) as caller:
            return caller.connect_ex(("127.0.0.1", self.port)) == 0

    def client(self) -> Any:
        """Return a client for threads."""
        import redis

        return redis.Redis(host="127.0.0.1", port=self.port)

    def async_client(self) -> Any:
        """Return a client for event loops, which shares a few connections: by default more is an error."""
        import redis.asyncio

        pool = redis.asyncio.BlockingConnectionPool(
            host="127.0.0.1", port=self.port, max_connections=10, timeout=PATIENCE_S
        )
        return redis.asyncio.Redis.from_pool(pool)

    def end(self) -> None:
        """Kill it."""
        self.process.kill()
        self.process.wait(PATIENCE_S)


@pytest.fixture
def server(tmp_path: Path) -> Iterator[Server]:
    """A server for this test only."""
    if shutil.which("redis-server") is None:
        pytest.skip("there is no redis-server: apt-get install redis-server")
    pytest.importorskip("redis")
    server = Server(tmp_path)
    yield server
    server.process.send_signal(signal.SIGCONT)
    server.end()


class Model:
    """A batch function that notes what it runs."""

    def __init__(self) -> None:
        self.ran: list[str] = []

    def __call__(self, items: list[str]) -> list[Any]:
        """Note the items; one of them has a result that Redis does not take."""
        self.ran += items
        return [{"a": "dict"} if item == "dict" else item.upper().encode() for item in items]


class Pickled:
    """Any result, in Redis."""

    def __init__(self, client: Any) -> None:
        self.client = client

    async def get(self, key: str) -> Any:
        found = await self.client.get(key)
        return None if found is None else pickle.loads(found)

    async def set(self, key: str, result: Any) -> None:
        await self.client.set(key, pickle.dumps(result), ex=60)


@pytest.mark.parametrize("kind", ["async", "plain"])
def test_an_asynchronous_client_is_a_cache(server: Server, run: Any, kind: str) -> None:
    """What it knows does not run, on any loop; what ran is there when the caller has the answer."""
    model = Model()

    async def main() -> None:
        async with server.async_client() as client:
            function = as_async(model) if kind == "async" else model
            fn = aio.dynamically(function, timeout_ms=0, cache=client)
            assert await fn(["a", "b", "a"]) == [b"A", b"B", b"A"]
            assert await client.get("b") == b"B"
            assert await fn(["c", "a"]) == [b"C", b"A"]
            assert [answer async for answer in fn.amap(["a", "d", "b"])] == [b"A", b"D", b"B"]
            assert await asyncio.gather(*(fn(item) for item in "abcd" * 50)) == [b"A", b"B", b"C", b"D"] * 50
            assert sorted(model.ran) == ["a", "b", "c", "d"]
            assert fn.stats.total_cached == 1 + 1 + 2 + 200
            await fn.aclose()

    run(main())
    run(main_again(server, model))


async def main_again(server: Server, model: Model) -> None:
    async with server.async_client() as client, aio.dynamically(as_async(model), cache=client) as fn:
        assert await fn(["a", "b"]) == [b"A", b"B"]
        assert sorted(model.ran) == ["a", "b", "c", "d"]


def test_a_wrapper_keeps_any_result(server: Server, run: Any) -> None:
    """As README shows it."""

    async def main() -> None:
        async with server.async_client() as client:
            model = Model()
            fn = aio.dynamically(
                as_async(model), timeout_ms=0, cache=Pickled(client), cache_key="k:{}".format
            )
            for _ in range(2):
                assert await fn(["dict", "a"]) == [{"a": "dict"}, b"A"]
            assert model.ran == ["dict", "a"]
            assert sorted(await client.keys()) == [b"k:a", b"k:dict"]

    run(main())


def test_a_result_that_redis_does_not_take_concerns_no_other(
    server: Server, run: Any, caplog: pytest.LogCaptureFixture
) -> None:
    """It takes bytes, strings and numbers; no tuple is a key either."""

    async def main() -> None:
        async with server.async_client() as client:
            fn = aio.dynamically(as_async(Model()), timeout_ms=0, cache=client, name="f")
            assert await fn(["a", "dict", "b"]) == [b"A", {"a": "dict"}, b"B"]
            assert sorted(await client.keys()) == [b"a", b"b"]

    run(main())
    assert [record.getMessage() for record in caplog.records if record.name == "batched"] == [
        "f: the cache failed for 1 result(s), which were not stored"
    ]


def test_a_synchronous_client_is_a_cache_for_threads(server: Server) -> None:
    """By its `get` and `set`, though it has `[]` too; an asynchronous one is refused by the first call."""
    model = Model()
    with server.client() as client:
        fn = batched.dynamically(model, timeout_ms=0, cache=client)
        assert fn(["a", "b", "a"]) == [b"A", b"B", b"A"]
        assert fn("b") == b"B"
        assert list(fn.map(["a", "c"])) == [b"A", b"C"]
        assert fn.submit("c").result(PATIENCE_S) == b"C"
        assert sorted(model.ran) == ["a", "b", "c"]
        fn.shutdown()
    with pytest.raises(TypeError, match="asynchronous get and set needs batched.aio"):
        batched.dynamically(model, cache=server.async_client())("a")


def test_a_server_that_has_died_is_logged_and_bypassed(
    server: Server, run: Any, caplog: pytest.LogCaptureFixture
) -> None:
    """Once for asking and once for telling, however many items; when another has come it is used again."""

    async def main() -> None:
        async with server.async_client() as client:
            model = Model()
            fn = aio.dynamically(as_async(model), timeout_ms=0, cache=client, name="f")
            assert await fn("a") == b"A"
            server.end()
            with caplog.at_level(logging.ERROR, "batched"):
                assert await fn(["a", "b", "c"]) == [b"A", b"B", b"C"]
            assert model.ran == ["a", "a", "b", "c"]

    run(main())
    assert [record.getMessage() for record in caplog.records if record.name == "batched"] == [
        "f: the cache failed and is bypassed",
        "f: the cache failed and is bypassed",
    ]


@pytest.mark.parametrize("known", [True, False])
def test_a_server_that_hangs_holds_no_caller_beyond_its_deadline(
    server: Server, run: Any, known: bool
) -> None:
    """Neither asked nor told; when it goes on, so do its callers."""

    async def main() -> None:
        async with server.async_client() as client:
            model = Model()
            fn = aio.dynamically(as_async(model), timeout_ms=0, cache=client)
            assert await fn("a") == b"A"
            os.kill(server.process.pid, signal.SIGSTOP)
            with pytest.raises(TimeoutError):
                await fn.options(deadline_ms=200)("a" if known else "b")
            patient = asyncio.create_task(fn(["a", "b"]))
            await asyncio.sleep(0)
            os.kill(server.process.pid, signal.SIGCONT)
            assert await patient == [b"A", b"B"]
            assert await fn("a") == b"A"
            assert model.ran == ["a", "b"]

    run(main())
