"""The errors of popular libraries reach each caller as they were."""

from __future__ import annotations

import asyncio
import io
import json
import urllib.error
import urllib.request
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

import batched
from tests.kit.gate import PATIENCE_S, Gate

pytestmark = pytest.mark.libraries
CLOSED = "http://127.0.0.1:1/"


def of_numpy() -> Any:
    import numpy as np

    np.sum(np.zeros(3), axis=4)


def of_pydantic() -> Any:
    import pydantic

    pydantic.TypeAdapter(int).validate_python("x")


def of_torch() -> Any:
    import torch

    raise torch.cuda.OutOfMemoryError("out of memory")


def of_httpx() -> Any:
    import httpx

    httpx.Response(503, request=httpx.Request("GET", CLOSED)).raise_for_status()


def of_httpx_connection() -> Any:
    import httpx

    httpx.get(CLOSED, trust_env=False)


def of_requests() -> Any:
    import requests

    response = requests.Response()
    response.status_code = 404
    response.raise_for_status()


def of_requests_json() -> Any:
    import requests

    response = requests.Response()
    response.raw = io.BytesIO(b"{")
    response.json()


def of_openai() -> Any:
    import httpx
    import openai

    response = httpx.Response(429, request=httpx.Request("GET", CLOSED))
    raise openai.RateLimitError("slower", response=response, body={"code": "rate"})


def of_redis() -> Any:
    import redis

    redis.Redis(host="127.0.0.1", port=1).ping()


def of_psycopg2() -> Any:
    import psycopg2

    psycopg2.connect("host=127.0.0.1 port=1")


def of_sqlalchemy() -> Any:
    import sqlalchemy

    with sqlalchemy.create_engine("sqlite://").connect() as connection:
        connection.execute(sqlalchemy.text("select x"))


def of_aiohttp() -> Any:
    import aiohttp

    async def ask() -> None:
        async with aiohttp.ClientSession() as session:
            await session.get(CLOSED)

    asyncio.run(ask())


def of_jsonschema() -> Any:
    import jsonschema

    jsonschema.validate(1, {"type": "string"})


def of_botocore() -> Any:
    from botocore.exceptions import ClientError

    raise ClientError({"Error": {"Code": "404", "Message": "no such key"}}, "GetObject")


def of_grpc() -> Any:
    import grpc

    with grpc.insecure_channel("127.0.0.1:1") as channel:
        channel.unary_unary("/service/method")(b"", timeout=PATIENCE_S)


def of_json() -> Any:
    json.loads("{")


def of_unicode() -> Any:
    b"\xff".decode()


def of_files() -> Any:
    Path("/no/such/file").read_bytes()


def of_urllib() -> Any:
    raise urllib.error.URLError("no route")


def of_groups() -> Any:
    raise ExceptionGroup("two", [ValueError(1), KeyError(2)])


def of_dicts() -> Any:
    return {}["missing"]


MAKERS = [value for name, value in list(globals().items()) if name.startswith("of_") and callable(value)]


def attributes(error: BaseException) -> dict[str, Any]:
    """Return what can be read of an error, other than its notes. The errors of a group are copies too."""
    names = [name for name in dir(error) if not name.startswith("__") and name != "diag"]
    found = {name: value for name in names if not callable(value := getattr(error, name, None))}
    return {name: repr(value) if name == "exceptions" else value for name, value in found.items()}


@pytest.mark.parametrize("make", MAKERS, ids=lambda make: make.__name__)
@pytest.mark.parametrize("callers", [1, 2])
def test_an_error_of_a_library_comes_as_it_was(make: Callable[[], Any], callers: int) -> None:
    """Its type, message, arguments, attributes and notes, for each caller an object of its own."""
    raised: list[Any] = []

    def function(items: list[Any]) -> list[Any]:
        try:
            make()
        except Exception as error:
            error.add_note("note")
            raised.append(error)
            raise
        return items

    gate = Gate(function, shut=True)
    fn = batched.dynamically(gate, batch_size=callers, timeout_ms=60_000, isolate_errors=False)
    futures = [fn.submit(item) for item in range(callers)]
    gate.open()
    errors: list[Any] = [future.exception(PATIENCE_S) for future in futures]
    assert len({*map(id, errors), id(raised[0])}) == callers + 1
    for error in errors:
        assert (type(error), str(error)) == (type(raised[0]), str(raised[0]))
        assert (error.args, error.__notes__) == (raised[0].args, ["note"])
        assert error.__cause__ is raised[0].__cause__
        assert attributes(error) == attributes(raised[0])
