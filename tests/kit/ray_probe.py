"""What tests deploy on Ray, and how they ask it."""

from __future__ import annotations

import asyncio
import os
import threading
from collections.abc import Callable, Iterator
from itertools import islice
from pathlib import Path
from typing import Any

import batched
from tests.kit.gate import PATIENCE_S, Gate, until

STARTUP_S = 200.0  # 30 to 60 are usual


# So that a test knows which calls are in a batch.
WHEN_FULL: Any = {"timeout_ms": 1000 * PATIENCE_S, "adaptive": False}


class Probe:
    """What a replica holds: a batched method behind a gate, another that fails, and one that streams."""

    def __init__(self) -> None:
        self.gate = Gate(lambda items: [2 * item for item in items], shut=True)
        self.over = threading.Event()
        self.sizes: list[int] = []

    @batched.dynamically(batch_size=4, max_queue_size=9)
    def double(self, items: list[int]) -> list[int]:
        return self.gate(items)

    @batched.dynamically(batch_size=4, isolate_errors=True, **WHEN_FULL)
    def invert(self, items: list[int]) -> list[float]:
        self.sizes.append(len(items))
        return [1 / item for item in items]

    @batched.dynamically(timeout_ms=0)
    def count(self, starts: list[int]) -> Iterator[list[str]]:
        """Count, for ever if no caller leaves or finishes."""
        step = 0
        while not self.over.wait(0.01):
            yield [f"{start + step} of {len(starts)}\n" for start in starts]
            step += 1

    @batched.dynamically(batch_size=2, **WHEN_FULL)
    def count_both(self, starts: list[int]) -> Iterator[list[str]]:
        """The same for two at once."""
        yield from self.count.__wrapped__(starts)

    async def ask_double(self, item: int, deadline_ms: float | None = None) -> int:
        return await self.double.options(deadline_ms=deadline_ms).acall(item)

    async def ask_invert(self, item: int) -> float:
        return await self.invert.acall(item)

    async def ask_count(self, start: int, name: str = "count") -> Any:
        async for line in getattr(self, name).astream(start):
            yield line

    async def entered(self) -> None:
        await asyncio.to_thread(self.gate.wait_for_batch)

    async def open(self) -> None:
        self.gate.open()

    async def open_once(self, path: Path) -> None:
        """Do so once that file is there."""
        await asyncio.to_thread(until, path.exists)
        self.gate.open()

    async def batches(self) -> list[list[int]]:
        return self.gate.batches

    async def sizes_of_invert(self) -> list[int]:
        return self.sizes

    async def finish(self) -> None:
        self.over.set()

    async def stats(self, name: str) -> Any:
        return getattr(self, name).stats

    async def pid(self) -> int:
        return os.getpid()

    async def __call__(self, request: Any) -> Any:
        from starlette.responses import StreamingResponse

        if "start" in request.query_params:
            start, name = int(request.query_params["start"]), request.query_params.get("name", "count")
            return StreamingResponse(self.ask_count(start, name), media_type="text/plain")
        return await self.invert.acall(int(request.query_params["item"]))


class Client:
    """A deployed probe, asked by its handle."""

    def __init__(self, name: str, url: str, **options: Any) -> None:
        from ray import serve

        self.name = name
        self.url = f"{url}/{name}"
        deployment = serve.deployment(Probe).options(max_ongoing_requests=100, **options)
        self.handle = serve.run(deployment.bind(), name=name, route_prefix=f"/{name}")

    def send(self, method: str, *args: Any) -> Any:
        return getattr(self.handle, method).remote(*args)

    def ask(self, method: str, *args: Any) -> Any:
        return self.send(method, *args).result(timeout_s=PATIENCE_S)

    def until(self, method: str, condition: Callable[[Any], bool], *args: Any) -> None:
        """Ask until the answer is as it should be."""
        for _ in range(int(PATIENCE_S * 50)):
            if condition(answer := self.ask(method, *args)):
                return
            threading.Event().wait(0.02)
        raise AssertionError(f"{method} never came true: {answer}")

    def read(self, start: int, take: Callable[[str], object], most: int | None = None) -> None:
        """Read a stream that two share over HTTP, and leave after so many lines."""
        import httpx

        query = {"start": start, "name": "count_both"}
        with httpx.stream("GET", self.url, params=query, timeout=PATIENCE_S) as reply:
            for line in islice(reply.iter_lines(), most):
                take(line)

    def delete(self) -> None:
        from ray import serve

        serve.delete(self.name)


def fill(probe: Client, count: int) -> list[Any]:
    """Have one call held at the gate and `count` wait behind it; return their responses."""
    first = probe.send("ask_double", 0)
    probe.ask("entered")
    waiting = [probe.send("ask_double", number) for number in range(1, count + 1)]
    probe.until("stats", lambda stats: stats.queue_size == count, "double")
    return [first, *waiting]


def answers(responses: list[Any]) -> list[Any]:
    """Wait for the answers to calls of a replica."""
    return [response.result(timeout_s=PATIENCE_S) for response in responses]
