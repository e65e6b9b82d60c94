"""What a server does under the load of `wrk`: closed loops on some connections, over 127.0.0.1."""

from __future__ import annotations

import json
import math
import shutil
import subprocess
from dataclasses import dataclass
from pathlib import Path
from random import Random
from statistics import NormalDist

from benchmarks.http.servers import Kind, Server

__all__ = ["Cell", "find_wrk", "measure", "warm_up", "write_bodies", "wrk"]

_SCRIPT = Path(__file__).with_name("requests.lua")
_TEXTS = 251  # a prime, so that no batch size divides it and no batch comes again
_MEAN_WORDS, _SIGMA = 24, 0.8
_WORDS = (
    "a",
    "teacher",
    "in",
    "the",
    "old",
    "city",
    "reads",
    "one",
    "letter",
    "and",
    "slowly",
    "opens",
    "it",
)


@dataclass(frozen=True)
class Cell:
    """One server at one number of connections, in one round."""

    model: str
    server: str
    connections: int
    rate: float  # requests a second
    p50_s: float
    p99_s: float
    errors: int
    cpu_s: float  # per request, of all the server's processes
    batch: float  # its mean size


def find_wrk() -> str:
    """Return where wrk is."""
    found = shutil.which("wrk")
    if found is None:
        raise SystemExit("wrk is not there: install it (Debian and Ubuntu: apt-get install wrk)")
    return found


def write_bodies(kind: Kind, file: Path) -> Path:
    """Write the requests, one a line: texts with as many words as a log-normal has at its quantiles."""
    random = Random(0)  # noqa: S311  no secret
    mu = math.log(_MEAN_WORDS) - _SIGMA**2 / 2
    spread = NormalDist(mu, _SIGMA)
    lengths = [max(1, round(math.exp(spread.inv_cdf((at + 0.5) / _TEXTS)))) for at in range(_TEXTS)]
    random.shuffle(lengths)
    texts = (" ".join(random.choices(_WORDS, k=length)) for length in lengths)
    file.write_bytes(b"".join(kind.body(text) + b"\n" for text in texts))
    return file


def warm_up(server: Server, bodies: Path, connections: int, seconds: float) -> None:
    """Load the server, and wait until it has done with it."""
    wrk(server.url, bodies, connections, seconds)
    server.settle()


def measure(server: Server, model: str, bodies: Path, connections: int, seconds: float) -> Cell:
    """Load the server for so long."""
    cpu = server.cpu_s()
    batches, items = server.counts.read()
    found = wrk(server.url, bodies, connections, seconds)
    batches, items = (
        now - before for now, before in zip(server.counts.read(), (batches, items), strict=True)
    )
    cpu = server.cpu_s() - cpu
    server.settle()
    return Cell(
        model=model,
        server=server.kind.name,
        connections=connections,
        # Where nothing was answered: less than one request, and longer than the cell.
        rate=max(found["requests"], 1) / found["seconds"],
        p50_s=found["p50_s"] or seconds,
        p99_s=found["p99_s"] or seconds,
        errors=int(found["errors"]),
        cpu_s=cpu / max(found["requests"], 1),
        batch=items / max(batches, 1),
    )


def wrk(url: str, requests: Path, connections: int, seconds: float) -> dict[str, float]:
    """Send the lines of a file, one request after another on each connection; return what came of it."""
    done = subprocess.run(  # noqa: S603  our own words
        [
            find_wrk(),
            "--threads=1",
            f"--connections={connections}",
            f"--duration={max(round(seconds), 1)}s",
            "--timeout=60s",
            f"--script={_SCRIPT}",
            url,
            "--",
            str(requests),
        ],
        stdout=subprocess.PIPE,
        check=True,
        timeout=seconds + 120,
    )
    found: dict[str, float] = json.loads(done.stdout.splitlines()[-1])
    return found
