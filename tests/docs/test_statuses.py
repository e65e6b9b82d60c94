"""The services of all pages turn the same errors into the same statuses."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import NamedTuple

import pytest

from tests.kit.page import Page
from tests.kit.script import ROOT


class Service(NamedTuple):
    """A service on a page: its file, its application there, and a question to it."""

    page: str
    path: str
    body: dict[str, str] | None = None
    file: str = "app"
    app: str = "app"
    is_wsgi: bool = False
    is_remote: bool = False
    """Whether its function is in another process."""


TEXT = {"text": "a text"}
SERVICES = [
    Service("tutorial", "/embed?text=a", file="app_3"),
    Service("how-to/fastapi", "/embed", TEXT),
    Service("how-to/kubernetes", "/embed?text=a"),
    Service("how-to/litestar", "/embed", TEXT),
    Service("how-to/litestar", "/embed_from_thread", TEXT),
    Service("how-to/openai-api", "/v1/embeddings", {"input": "a text", "model": "a model"}),
    Service("how-to/starlette", "/embed", TEXT),
    Service("how-to/quart", "/embed", TEXT),
    Service("how-to/flask", "/embed", TEXT, is_wsgi=True),
    Service("how-to/django", "/embed", TEXT, app="wsgi", is_wsgi=True),
    Service("how-to/django", "/embed_from_loop", TEXT, app="asgi"),
    Service("how-to/web-workers", "/embed?text=a", is_remote=True),
]
ASK = """
import asyncio, json, sys
from importlib import import_module

import batched
import httpx

_, path, body, file, app, is_wsgi, is_remote = json.loads(sys.argv[1])
module = import_module(file)
method = "POST" if body else "GET"
address = f"http://localhost{path}"


class Failing:
    def __call__(self, *_):
        raise self.error

    async def acall(self, *_):
        raise self.error

    def options(self, **_):
        return self


async def ask():
    async with httpx.AsyncClient(transport=httpx.ASGITransport(getattr(module, app))) as client:
        return await client.request(method, address, json=body)


def ask_wsgi():
    with httpx.Client(transport=httpx.WSGITransport(getattr(module, app))) as client:
        return client.request(method, address, json=body)


found = []
module.embed = Failing()
failures = [
    (batched.QueueFullError, 1.2),
    (batched.QueueFullError, None),
    (batched.OverloadError, 0.3),
    (TimeoutError, None),
]
if is_remote:
    failures.append((batched.DisconnectedError, None))
for kind, retry_after_s in failures:
    module.embed.error = kind("the message")
    if retry_after_s is not None:
        module.embed.error.retry_after_s = retry_after_s
    answer = ask_wsgi() if is_wsgi else asyncio.run(ask())
    found.append([answer.status_code, answer.headers.get("retry-after")])
print(json.dumps(found))
"""


@pytest.mark.pages
@pytest.mark.timeout(200)
@pytest.mark.parametrize("service", SERVICES, ids=lambda service: f"{service.page}{service.path}")
def test_a_service_says_which_error_it_was_and_when_to_come_back(service: Service, tmp_path: Path) -> None:
    """As `docs/explanation/overload.md` has it in a table."""
    Page(ROOT / "docs" / f"{service.page}.md").write_files(tmp_path)
    environment = {**os.environ, "PYTHONPATH": f"{tmp_path}{os.pathsep}{ROOT}", "HF_HUB_OFFLINE": "1"}
    asked = subprocess.run(
        [sys.executable, "-c", ASK, json.dumps(service)],
        capture_output=True,
        check=False,
        encoding="utf-8",
        env=environment,
        timeout=150,
    )
    assert asked.returncode == 0, asked.stderr
    statuses = json.loads(asked.stdout.splitlines()[-1])
    disconnected = [[503, None]] if service.is_remote else []
    assert statuses == [[429, "2"], [429, None], [503, "1"], [504, None], *disconnected]


LEAVE = """
import asyncio, json, sys, threading
from importlib import import_module

import batched

_, path, body, file, app, _, _ = json.loads(sys.argv[1])
module = import_module(file)
path, _, query = path.partition("?")
opened, ran = threading.Event(), []


@batched.dynamically(batch_size=1, timeout_ms=0)
def wait(texts):
    opened.wait()
    ran.extend(texts)
    return [[1.0] for _ in texts]


class Client:
    def __init__(self, **headers):
        headers = {"content-type": "application/json", "host": "localhost", **headers}
        self.scope = {
            "type": "http", "asgi": {"version": "3.0", "spec_version": "2.4"}, "http_version": "1.1",
            "method": "POST" if body else "GET", "scheme": "http", "path": path, "raw_path": path.encode(),
            "root_path": "", "query_string": query.encode(), "server": ("localhost", 80),
            "client": ("localhost", 1), "headers": [(k.encode(), v.encode()) for k, v in headers.items()],
        }
        self.messages = [{"type": "http.request", "body": json.dumps(body).encode() if body else b""}]
        self.left = asyncio.Event()
        self.status = None

    async def receive(self):
        if self.messages:
            return self.messages.pop()
        await self.left.wait()
        return {"type": "http.disconnect"}

    async def send(self, message):
        self.status = self.status or message["status"]

    async def ask(self):
        await getattr(module, app)(self.scope, self.receive, self.send)


async def main():
    first = asyncio.ensure_future(wait.acall("first"))
    clients = [Client() for _ in range(8)]
    asked = [asyncio.ensure_future(each.ask()) for each in clients]
    while wait.stats.queue_size + wait.stats.running_items < 9:
        await asyncio.sleep(0.01)
    for each in clients:
        each.left.set()
    await asyncio.gather(*asked)
    hurried = Client(**{"x-deadline-ms": "20"})
    await hurried.ask()
    opened.set()
    await first
    await wait.aclose()
    print(json.dumps([ran, hurried.status]))


module.embed = wait
asyncio.run(main())
"""


@pytest.mark.pages
@pytest.mark.timeout(200)
@pytest.mark.parametrize("framework", ["fastapi", "litestar", "quart", "starlette"])
def test_nothing_runs_for_clients_that_have_left(framework: str, tmp_path: Path) -> None:
    """Of eight that leave while their calls are queued; and a header gives a request its deadline."""
    (service, *_) = (each for each in SERVICES if each.page == f"how-to/{framework}")
    Page(ROOT / "docs" / f"{service.page}.md").write_files(tmp_path)
    environment = {**os.environ, "PYTHONPATH": f"{tmp_path}{os.pathsep}{ROOT}", "HF_HUB_OFFLINE": "1"}
    asked = subprocess.run(
        [sys.executable, "-c", LEAVE, json.dumps(service)],
        capture_output=True,
        check=False,
        encoding="utf-8",
        env=environment,
        timeout=150,
    )
    assert asked.returncode == 0, asked.stderr
    assert json.loads(asked.stdout.splitlines()[-1]) == [["first"], 504]
