"""Ray Serve, with a batcher in every replica: its tutorials on batching, an adder and a text generator.

Ray starts the replicas, spreads the requests over them and speaks HTTP; `batched` makes batches of what has
come to a replica. Nine numbers are sent at once, by HTTP and by a deployment handle; then prompts, whose
texts are streamed to their callers as they are written: a prompt joins where a text has ended.
"""

from __future__ import annotations

import argparse
import asyncio
import os
import sys
import time
from collections.abc import AsyncIterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import aclosing
from typing import NamedTuple

import batched

os.environ.setdefault("RAY_USAGE_STATS_ENABLED", "0")  # read when Ray is imported
os.environ.setdefault("RAY_ACCEL_ENV_VAR_OVERRIDE_ON_ZERO", "0")  # as Ray asks where there is no GPU

import httpx
import numpy as np
import ray
import torch
from generate_text import Writer
from ray import serve
from ray.serve.handle import DeploymentHandle
from starlette.requests import Request
from starlette.responses import JSONResponse, PlainTextResponse, Response, StreamingResponse

NUMBERS = list(range(9))
LIMIT = 10**18  # what fits into 64 bits, roughly
PROMPTS = ["the quick", "a lazy", "the fox", "a model", "callers", "the batch"]  # places are for four
CHARACTERS = 40  # of a text, at most
TIME_LIMIT_S = 60

# Ray lets 5 requests into a replica unless it is told more. The others wait at the router, where no batch can
# take them. It takes a few batches' worth for the next batch to be full by the time the function is free.
ADMITTED = 64


class Sum(NamedTuple):
    """The answer to one number."""

    value: int
    batch_size: int  # of the batch that it was in
    replica: str  # whose batch that was


@serve.deployment(num_replicas=2, max_ongoing_requests=ADMITTED, ray_actor_options={"num_cpus": 0.1})
class Adder:
    """Adds one to all the numbers of a batch at once."""

    def __init__(self) -> None:
        self.replica = serve.get_replica_context().replica_id.unique_id

    @batched.dynamically(batch_size=4)  # a number too large is its own caller's error
    def add_one(self, numbers: list[int]) -> list[Sum]:
        """Return the sums: in a thread of its own, so that the replica's event loop stays free."""
        time.sleep(0.2)  # as if it were a model
        sums = np.array(numbers, dtype=np.int64) + 1
        return [Sum(value, len(numbers), self.replica) for value in sums.tolist()]

    async def add(self, number: int | list[int]) -> Sum | list[Sum]:
        """Answer a deployment handle: one number, or many in one request.

        It is there because Ray calls what is no `async def`, `add_one` itself for instance, one at a time.
        """
        return await self.add_one.acall(number)

    async def __call__(self, request: Request) -> Response:
        """Answer `GET /add?number=1`."""
        number = request.query_params.get("number", "")
        try:
            asked = int(number)
        except ValueError:
            return PlainTextResponse(f"number must be an integer, got {number[:40]!r}\n", status_code=400)
        if abs(asked) >= LIMIT:
            return PlainTextResponse(f"number must be below {LIMIT:,}, got {number[:40]}\n", status_code=400)
        return JSONResponse((await self.add_one.acall(asked))._asdict())


@serve.deployment(max_ongoing_requests=ADMITTED, ray_actor_options={"num_cpus": 0.1})
class Generator:
    """Continues prompts, several at once, and streams each text to its caller."""

    def __init__(self) -> None:
        torch.set_num_threads(1)
        self.writer = Writer(CHARACTERS)

    async def stream(self, prompt: str) -> AsyncIterator[str]:
        """Yield the text piece by piece; if its caller leaves, its place is free at the next step."""
        async with aclosing(self.writer.write_refilled.astream(prompt)) as pieces:
            async for piece in pieces:
                yield piece

    async def write(self, prompts: list[str]) -> list[str]:
        """Answer a batch of prompts with their whole texts."""
        return await asyncio.gather(*map(self._whole, prompts))

    async def _whole(self, prompt: str) -> str:
        return "".join([piece async for piece in self.stream(prompt)])

    async def counts(self) -> tuple[int, int]:
        """Return how many prompts have been continued, and how many of them joined a batch that ran."""
        stats = self.writer.write_refilled.stats
        return stats.total_processed, stats.total_joined

    async def __call__(self, request: Request) -> Response:
        """Answer `GET /write?prompt=the+fox`."""
        prompt = request.query_params.get("prompt", "")
        if not prompt.strip():
            return PlainTextResponse("prompt must be some text, such as ?prompt=the+fox\n", status_code=400)
        return StreamingResponse(self.stream(prompt), media_type="text/plain")


def start(port: int) -> tuple[DeploymentHandle, DeploymentHandle]:
    """Start Ray on this machine, and return handles of the adder and the generator."""
    ray.init(
        "local",
        num_cpus=2,
        include_dashboard=False,
        log_to_driver=False,
        logging_level="warning",
        object_store_memory=100 * 2**20,
    )
    serve.start(http_options={"port": port}, logging_config={"log_level": "WARNING"})
    adder = serve.run(Adder.bind(), name="adder", route_prefix="/add")
    return adder, serve.run(Generator.bind(), name="generator", route_prefix="/write")


def add_over_http(url: str, numbers: Sequence[int]) -> list[Sum]:
    """Send all numbers at once, each in a request of its own."""
    with (
        httpx.Client(base_url=url, timeout=TIME_LIMIT_S) as client,
        ThreadPoolExecutor(len(numbers)) as callers,
    ):
        answers = callers.map(lambda number: client.get("/add", params={"number": number}), numbers)
        return [Sum(**answer.raise_for_status().json()) for answer in answers]


def add_by_handle(adder: DeploymentHandle, numbers: Sequence[int]) -> list[Sum]:
    """The same through a deployment handle, as other deployments do."""
    waiting = [adder.add.remote(number) for number in numbers]
    return [answer.result(timeout_s=TIME_LIMIT_S) for answer in waiting]


async def read(client: httpx.AsyncClient, prompt: str) -> list[str]:
    """Return the text of a prompt in the pieces in which it comes."""
    async with client.stream("GET", "/write", params={"prompt": prompt}) as answer:
        return [piece async for piece in answer.raise_for_status().aiter_text()]


async def read_all(url: str, prompts: Sequence[str]) -> list[list[str]]:
    """Stream all texts at once, each to a caller of its own."""
    async with httpx.AsyncClient(base_url=url, timeout=TIME_LIMIT_S) as client:
        return await asyncio.gather(*(read(client, prompt) for prompt in prompts))


def show_sums(way: str, sums: list[Sum]) -> bool:
    """Print the sums and their batches; return whether they are right, and in order."""
    print(f"{way}: {', '.join(str(total.value) for total in sums)}")
    for replica in sorted({total.replica for total in sums}):
        sizes = [total.batch_size for total in sums if total.replica == replica]
        print(f"  replica {replica}: batches of {', '.join(str(size) for size in sizes_of_batches(sizes))}")
    return [total.value for total in sums] == [number + 1 for number in NUMBERS]


def sizes_of_batches(sizes: list[int]) -> list[int]:
    """Return the size of each batch once, from the size that each of its items was told."""
    return [size for size in sorted(set(sizes), reverse=True) for _ in range(sizes.count(size) // size)]


def show_texts(url: str, generator: DeploymentHandle) -> bool:
    """Print the texts; return whether each caller got what it would have got alone."""
    streamed = asyncio.run(read_all(url, PROMPTS))
    count, joined = generator.counts.remote().result(timeout_s=TIME_LIMIT_S)
    print(f"{count} prompts over HTTP, {joined} joined a batch that ran")
    for prompt, pieces in zip(PROMPTS, streamed, strict=True):
        print(f"{prompt:>10} | {''.join(pieces)}  (in {len(pieces)} pieces)")
    texts = ["".join(pieces) for pieces in streamed]
    together = generator.write.remote(PROMPTS).result(timeout_s=TIME_LIMIT_S)
    alone = [generator.write.remote([prompt]).result(timeout_s=TIME_LIMIT_S)[0] for prompt in PROMPTS]
    return texts == together == alone


def main() -> int:
    """Serve, ask, print, verify, and return the exit status."""
    parser = argparse.ArgumentParser(description="Serve an adder and a text generator on a local Ray.")
    parser.add_argument("--port", type=int, default=8000, metavar="N", help="of HTTP (default 8000)")
    parser.add_argument("--stay", action="store_true", help="serve until interrupted, for curl")
    arguments = parser.parse_args()
    url = f"http://127.0.0.1:{arguments.port}"

    try:
        adder, generator = start(arguments.port)
        right = show_sums("nine numbers over HTTP", add_over_http(url, NUMBERS))
        right &= show_sums("nine numbers by handle", add_by_handle(adder, NUMBERS))
        right &= show_sums("one list by handle", adder.add.remote(NUMBERS).result(timeout_s=TIME_LIMIT_S))
        right &= show_texts(url, generator)
        print("All answers verified: in order, and the same as alone." if right else "An answer is wrong.")
        if arguments.stay:
            print(f"curl '{url}/add?number=1'\ncurl --no-buffer '{url}/write?prompt=the+fox'", flush=True)
            wait_for_interrupt()
    finally:
        serve.shutdown()
        ray.shutdown()
    return 0 if right else 1


def wait_for_interrupt() -> None:
    """Sleep until Ctrl-C."""
    try:
        while True:
            time.sleep(3600)
    except KeyboardInterrupt:
        print("Stopped.")


if __name__ == "__main__":
    sys.exit(main())
