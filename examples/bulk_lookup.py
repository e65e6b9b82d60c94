"""Many handlers, each asking a database for one row: one query per batch of them, against one query each.

SQLite comes with Python, and `aiosqlite` runs it for event loops. Both ways use one connection and ask for
the same rows. A server across a network is another matter: there every query also pays for the way.
"""

from __future__ import annotations

import argparse
import asyncio
import random
import sys
import tempfile
from collections.abc import Awaitable, Callable
from pathlib import Path
from statistics import median
from time import perf_counter
from typing import NamedTuple

import aiosqlite
from rich import box
from rich.console import Console
from rich.table import Table

from batched import aio

ROWS = 100_000
ROUNDS = 5

Fetch = Callable[[int], Awaitable[str | None]]


class People:
    """A table of people, looked up by id."""

    def __init__(self, connection: aiosqlite.Connection) -> None:
        self.connection = connection

    async def name(self, key: int) -> str | None:
        """Return the name of one person with a query of its own."""
        async with self.connection.execute("SELECT name FROM people WHERE id = ?", (key,)) as cursor:
            row = await cursor.fetchone()
        return None if row is None else row[0]

    @aio.dynamically(batch_size=500, timeout_ms=0)
    async def name_batched(self, keys: list[int]) -> list[str | None]:
        """Return the names of many people with one query; None for a key that has none."""
        marks = ",".join("?" * len(keys))
        query = f"SELECT id, name FROM people WHERE id IN ({marks})"  # noqa: S608  question marks only
        async with self.connection.execute(query, keys) as cursor:
            names: dict[int, str] = dict(await cursor.fetchall())
        return [names.get(key) for key in keys]


class Outcome(NamedTuple):
    """What a way to look up gave, and how long it took."""

    names: list[str | None]
    seconds: float


async def fill(connection: aiosqlite.Connection) -> None:
    """Make the table."""
    await connection.execute("CREATE TABLE people (id INTEGER PRIMARY KEY, name TEXT)")
    people = ((key, f"person {key}") for key in range(ROWS))
    await connection.executemany("INSERT INTO people VALUES (?, ?)", people)
    await connection.commit()


async def serve(fetch: Fetch, keys: list[int], handlers: int) -> Outcome:
    """Answer one request per key, `handlers` of them at a time."""
    names: list[str | None] = [None] * len(keys)
    requests = iter(enumerate(keys))

    async def handle() -> None:
        for request, key in requests:
            names[request] = await fetch(key)

    started = perf_counter()
    await asyncio.gather(*(handle() for _ in range(handlers)))
    return Outcome(names, perf_counter() - started)


async def compare(requests: int, handlers: int, console: Console) -> bool:
    """Serve the same requests both ways, print how fast, and return whether the answers are the same."""
    source = random.Random(0)  # noqa: S311  not a secret
    keys = [source.randrange(ROWS + 10) for _ in range(requests)]  # some have no name
    alone, together = [], []
    with tempfile.TemporaryDirectory() as folder:
        async with aiosqlite.connect(Path(folder) / "people.db") as connection:
            await fill(connection)
            people = People(connection)
            for _ in range(ROUNDS):  # in turns, so that a slow moment slows both
                alone.append(await serve(people.name, keys, handlers))
                together.append(await serve(people.name_batched, keys, handlers))
            stats = people.name_batched.stats
    table = Table(f"{handlers} handlers, one row each", box=box.SIMPLE)
    table.add_column("rows/s", justify="right")
    table.add_column("queries", justify="right")
    seconds = [median(outcome.seconds for outcome in outcomes) for outcomes in (alone, together)]
    queries = [requests, round(stats.total_batches / ROUNDS)]
    for way, second, count in zip(("one query each", "one query per batch"), seconds, queries, strict=True):
        table.add_row(way, f"{requests / second:,.0f}", f"{count:,}")
    console.print(table)
    console.print(
        f"{seconds[0] / seconds[1]:.1f} times as fast, in batches of {stats.avg_batch_size:.0f} on average."
    )
    same = all(a.names == b.names for a, b in zip(alone, together, strict=True))
    if same:
        console.print(f"All {requests} answers are the same.")
    return same


def main() -> int:
    """Measure, print, and return the exit status."""
    parser = argparse.ArgumentParser(description="Look up rows for many handlers.")
    parser.add_argument("--requests", type=int, default=20_000, metavar="N", help="how many (default 20,000)")
    parser.add_argument("--handlers", type=int, default=200, metavar="N", help="at a time (default 200)")
    arguments = parser.parse_args()
    for name, value in vars(arguments).items():
        if value < 1:
            parser.error(f"--{name} must be at least 1, got {value}")
    console = Console(highlight=False)
    return 0 if asyncio.run(compare(arguments.requests, arguments.handlers, console)) else 1


if __name__ == "__main__":
    sys.exit(main())
