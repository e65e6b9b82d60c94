"""A server that is down is asked once for each batch, whatever library asks it."""

from __future__ import annotations

import asyncio
import socket
import urllib.request
from collections.abc import Callable, Iterator
from typing import Any

import pytest

import batched
from batched import aio

pytestmark = pytest.mark.libraries
SOON_S = 0.2


@pytest.fixture(params=["silent", "closed"])
def port(request: pytest.FixtureRequest) -> Iterator[int]:
    """A port that accepts and never answers, or that none listens on."""
    with socket.socket() as server:
        server.bind(("127.0.0.1", 0))
        if request.param == "silent":
            server.listen(100)
            yield server.getsockname()[1]
            return
        number = server.getsockname()[1]
    yield number


def ask_httpx(port: int) -> Any:
    import httpx

    return httpx.get(f"http://127.0.0.1:{port}/", timeout=SOON_S, trust_env=False)


def ask_requests(port: int) -> Any:
    import requests

    return requests.get(f"http://127.0.0.1:{port}/", timeout=SOON_S)


def ask_openai(port: int) -> Any:
    import openai

    url = f"http://127.0.0.1:{port}/"
    with openai.OpenAI(api_key="key", base_url=url, timeout=SOON_S, max_retries=0) as client:
        return client.embeddings.create(model="model", input=["text"])


def ask_redis(port: int) -> Any:
    import redis

    with redis.Redis(port=port, socket_timeout=SOON_S, socket_connect_timeout=SOON_S, retry=None) as client:
        return client.ping()


def ask_urllib(port: int) -> Any:
    return urllib.request.urlopen(f"http://127.0.0.1:{port}/", timeout=SOON_S)


@pytest.mark.parametrize("ask", [ask_httpx, ask_requests, ask_openai, ask_redis, ask_urllib])
@pytest.mark.parametrize("on_loop", [False, True])
def test_a_server_that_is_down_is_asked_once(ask: Callable[[int], Any], port: int, on_loop: bool) -> None:
    """And all callers of the batch get the library's error."""
    runs: list[int] = []

    def function(items: list[int]) -> list[int]:
        runs.append(len(items))
        ask(port)
        return items

    async def gathered(call: Callable[[int], Any]) -> list[Any]:
        return await asyncio.gather(*map(call, range(8)), return_exceptions=True)

    options: dict[str, Any] = {"batch_size": 8, "timeout_ms": 60_000}
    if on_loop:
        errors = asyncio.run(gathered(aio.dynamically(function, **options)))
    else:
        fn = batched.dynamically(function, **options)
        errors = [future.exception(30) for future in [fn.submit(item) for item in range(8)]]
        fn.shutdown()
    assert runs == [8]
    assert len({type(error) for error in errors}) == 1
    assert isinstance(errors[0], Exception)
