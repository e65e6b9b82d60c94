"""Memory and files: what a call has taken is given back, on both sides."""

from __future__ import annotations

import asyncio
import os
import socket
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest

import batched
from tests.kit.gate import until
from tests.kit.remote_server import ProcessServer, process_serving
from tests.kit.script import PROLOGUE, ROOT, run_script

pytestmark = [
    pytest.mark.skipif(not hasattr(socket, "AF_UNIX"), reason="needs unix sockets"),
    pytest.mark.skipif(not Path("/proc/self/statm").exists(), reason="needs /proc"),
]
CALLS = 8_000
MANY = 1_000_000
MOST = 6_000_000
"""Bytes that a process may grow by: what an allocator keeps, and no more for a million calls."""

SCRIPT = """
import gc
client = batched.connect({bind!r})

def size():
    gc.collect()
    with open("/proc/self/statm") as file:
        return int(file.read().split()[1]) * os.sysconf("SC_PAGE_SIZE")

def files():
    return len(os.listdir("/proc/self/fd"))

async def tasks(number):
    async def task():
        for _ in range(number // 64):
            assert await client.double.acall("x") == "xx"
    await asyncio.gather(*[task() for _ in range(64)])

def threads(number):
    def thread():
        for _ in range(number // 8):
            assert client.double("x") == "xx"
    found = [threading.Thread(target=thread) for _ in range(8)]
    for each in found:
        each.start()
    for each in found:
        each.join()

def futures(number):
    for _ in range(number // 50):
        given = [client.double.submit("x") for _ in range(50)]
        for at, each in enumerate(given):
            if at % 10 == 0:
                each.cancel()
            else:
                assert each.result(20) == "xx"

async def late(number):
    fn = client.double.options(deadline_ms=60_000)
    for _ in range(number // 100):
        found = [asyncio.ensure_future(fn.acall("x")) for _ in range(100)]
        await asyncio.sleep(0)
        for each in found[::10]:
            each.cancel()
        await asyncio.gather(*found, return_exceptions=True)

def all_ways(number):
    asyncio.run(tasks(number))
    asyncio.run(late(number // 4))
    threads(number // 4)
    futures(number // 4)

all_ways({warm})
print(size(), files(), flush=True)
input()
all_ways({calls})
print(size(), files(), flush=True)
input()
"""


def size_of(server: ProcessServer) -> int:
    """Return the bytes of memory of the process of a server."""
    pages = Path(f"/proc/{server.process.pid}/statm").read_text().split()[1]
    return int(pages) * os.sysconf("SC_PAGE_SIZE")


def files_of(server: ProcessServer) -> int:
    """Return how many files a server has open."""
    return len(list(Path(f"/proc/{server.process.pid}/fd").iterdir()))


@contextmanager
def client(bind: str, calls: int, warm: int) -> Iterator[Any]:
    """Run the script in a process."""
    process = subprocess.Popen(
        [sys.executable, "-c", PROLOGUE + SCRIPT.format(bind=bind, calls=calls, warm=warm)],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
        env={**os.environ, "PYTHONPATH": str(ROOT)},
    )
    try:
        yield process
    finally:
        process.kill()
        process.communicate(timeout=60)


def check_flat(folder: Path, calls: int) -> tuple[int, int]:
    """Check that neither side grows with so many calls; return by how much they have grown."""
    with process_serving(folder, "double") as server, client(server.bind, calls, CALLS) as process:
        pipe_in, pipe_out = process.stdin, process.stdout
        before = [int(each) for each in pipe_out.readline().split()]
        server_before, files_before = size_of(server), files_of(server)
        pipe_in.write("\n")
        pipe_in.flush()
        after = [int(each) for each in pipe_out.readline().split()]
        server_after = size_of(server)
        until(lambda: files_of(server) <= files_before)
        grown = after[0] - before[0], server_after - server_before
        assert after[1] <= before[1], "the client has more files open"
        assert max(grown) < MOST, grown
        return grown


def test_memory_is_flat(tmp_path: Path) -> None:
    """On both sides, over calls of tasks, threads and futures, some of them cancelled or with deadlines."""
    check_flat(tmp_path, CALLS)


@pytest.mark.soak
@pytest.mark.timeout(900)
def test_memory_is_flat_over_a_million_calls(tmp_path: Path) -> None:
    """The same, for long."""
    check_flat(tmp_path, MANY)


def test_large_arrays_are_given_back(tmp_path: Path) -> None:
    """Forty of them take no more memory than a few."""
    pytest.importorskip("numpy")
    with process_serving(tmp_path, "double") as server:
        script = f"""
            import numpy
            client = batched.connect({server.bind!r})
            def size():
                with open("/proc/self/statm") as file:
                    return int(file.read().split()[1]) * os.sysconf("SC_PAGE_SIZE")
            array = numpy.zeros(1_000_000)
            for _ in range(5):
                client.double(array), client.double.submit(array).result()
            before = size()
            for _ in range(20):
                client.double(array), client.double.submit(array).result()
            assert size() - before < 50_000_000, size() - before
        """
        before = size_of(server)
        run_script(script)
        assert size_of(server) - before < 100_000_000


def test_connections_are_given_back(tmp_path: Path) -> None:
    """Clients that come and go, with loops and threads of their own, leave nothing in the server."""
    with process_serving(tmp_path, "double") as server:
        for turn in range(30):
            with batched.connect(server.bind) as each:
                assert each.double(turn) == 2 * turn
                assert asyncio.run(each.double.acall(turn)) == 2 * turn
            if turn == 2:
                until(lambda: files_of(server) <= 20)
                before = files_of(server)
        until(lambda: files_of(server) <= before)
