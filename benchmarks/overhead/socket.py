"""A function of another process, beside bare unix sockets and the same function in this process.

The idle call is beside a process that answers a byte with a byte. *A core each*: all threads of the client
are on one core, and all of the server on another, in both rows. *One core*: all of both are on the same. On
which core a woken process runs is worth a factor of five, and otherwise chance.
"""

from __future__ import annotations

import asyncio
import os
import sys
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from functools import partial
from time import perf_counter
from typing import Any

import numpy as np

from benchmarks.kit.callers import around_asynchronously, around_synchronously, closed_loop
from benchmarks.kit.measure import Effort, Stopwatch
from benchmarks.kit.processes import BarePeer, Clients, Served, bare, on_cores, served
from benchmarks.kit.row import SHARE, Goal, Row
from benchmarks.kit.turns import Contender, Measure, Turns, using
from benchmarks.overhead import socket_functions
from benchmarks.overhead.socket_functions import BIG_BYTES, FLOATS

_TRIPS = (3_000, 50)
_TASKS = 64
_EACH = (1_000, 2)
_EACH_OF_CLIENTS = (500, 2)
_ARRAYS = (25, 1)
_WARM_UP = 5
_MB = 1e6
_TEXT = "a teacher in the old city reads one letter and slowly opens it " * 2
_MODULE = socket_functions.__name__


def _cores(*, each: bool) -> tuple[set[int], set[int]]:
    """Return the cores of the client, and those of the server."""
    if sys.platform != "linux":
        return set(), set()
    cores = os.sched_getaffinity(0)
    return {min(cores)}, {max(cores) if each else min(cores)}


# -- an idle call -----------------------------------------------------------------------------------


def _idle(*, each: bool) -> Turns:
    client, server = _cores(each=each)
    ours = partial(served, _MODULE, "echo", server)
    return Turns(
        {
            "ours": using(ours, lambda one, effort: _trips(one, effort, around_synchronously)),
            "bare": using(partial(bare, "byte", server), _bare_trips),
            "ours, acall": using(ours, lambda one, effort: _trips(one, effort, around_asynchronously)),
        },
        rounds=15,
        inside=partial(on_cores, client),
    )


def _trips(one: Served, effort: Effort, around: Callable[[Any, int], float]) -> float:
    return around(one.function if around is around_synchronously else one.function.acall, effort.of(*_TRIPS))


def _bare_trips(peer: BarePeer, effort: Effort) -> float:
    return around_synchronously(peer, effort.of(*_TRIPS))


# -- CPU of many calls ------------------------------------------------------------------------------


def _many(acall: Any, each: int, seems_right: Callable[[Any], bool]) -> Stopwatch:
    """Return what it took that each of the tasks makes `each` calls, one after another."""

    async def caller() -> Any:
        for _ in range(each - 1):
            await acall(_TEXT)
        return await acall(_TEXT)

    async def all_of_them() -> Stopwatch:
        await asyncio.gather(*[acall(_TEXT) for _ in range(_TASKS)])
        with Stopwatch() as spent:
            found = await asyncio.gather(*[caller() for _ in range(_TASKS)])
        assert all(map(seems_right, found))
        return spent

    return asyncio.run(all_of_them())


def _cpu(name: str, what: str, seems_right: Callable[[Any], bool]) -> list[Row]:
    def apart(one: Served, effort: Effort) -> Mapping[str, float]:
        each = effort.of(*_EACH)
        before = one.cpu_s()
        spent = _many(one.function.acall, each, seems_right)
        calls = _TASKS * each
        return {"server": (one.cpu_s() - before) / calls, "client": spent.cpu / calls}

    @contextmanager
    def in_process(effort: Effort) -> Iterator[Measure]:
        function, each = getattr(socket_functions, name), effort.of(*_EACH)
        yield lambda: _many(function.acall, each, seems_right).cpu / (_TASKS * each)

    turns = Turns(
        {"ours": using(partial(served, _MODULE, name, set()), apart), "in process": in_process}, rounds=9
    )
    return [
        Row(
            f"socket CPU, {what}", f"CPU of the server per call, {_TASKS} tasks, {what}", turns, "in process",
            goal=Goal(1.5), ours="ours server",
        ),
        Row(
            f"socket CPU of client, {what}", f"CPU of the client per call, {_TASKS} tasks, {what}", turns,
            "in process", ours="ours client",
        ),
    ]  # fmt: skip


# -- calls a second ---------------------------------------------------------------------------------


def _clients(processes: int) -> Contender:
    @contextmanager
    def contender(effort: Effort) -> Iterator[Measure]:
        with (
            served(_MODULE, "echo", set()) as server,
            Clients(server, "echo", processes, _TASKS) as clients,
        ):
            yield lambda: clients.rate(effort.of(*_EACH_OF_CLIENTS))

    return contender


@contextmanager
def _in_process(effort: Effort) -> Iterator[Measure]:
    each = effort.of(*_EACH_OF_CLIENTS)
    acall = socket_functions.echo.acall
    yield lambda: _TASKS * each / asyncio.run(closed_loop(acall, _TASKS, each)).wall


# -- big arrays -------------------------------------------------------------------------------------


def _arrays(name: str) -> Turns:
    """Return the turns of MB a second: to the server, or from it."""
    big = np.ones(BIG_BYTES // 4, np.float32)
    sent, answered = (big, BIG_BYTES) if name == "measured" else (None, big.nbytes)

    def ours(one: Served, effort: Effort) -> float:
        def once() -> None:
            found = one.function(sent)
            assert (found if name == "measured" else found.nbytes) == BIG_BYTES

        return _mb_a_second(once, effort)

    def bare_bytes(peer: BarePeer, effort: Effort) -> float:
        memory = memoryview(b"") if sent is None else sent.data.cast("B")
        wanted = 1 if sent is not None else answered
        return _mb_a_second(lambda: peer.exchange(memory, wanted), effort)

    return Turns(
        {
            "ours": using(partial(served, _MODULE, name, set()), ours),
            "bare": using(partial(bare, "sizes", set()), bare_bytes),
        },
        rounds=9,
    )


def _mb_a_second(once: Callable[[], object], effort: Effort) -> float:
    many = effort.of(*_ARRAYS)
    for _ in range(effort.of(_WARM_UP, 1)):
        once()
    started = perf_counter()
    for _ in range(many):
        once()
    return many * BIG_BYTES / _MB / (perf_counter() - started)


_EACH_CORE, _SAME_CORE = _idle(each=True), _idle(each=False)
_RATES = Turns({"ours": _clients(1), "ours, two": _clients(2), "in process": _in_process}, rounds=9)
_GOAL = Goal(3.0)
_CALL, _ACALL = "idle call of another process", "idle acall of another process"

ROWS = (
    Row("socket call / byte", f"{_CALL}, a core each", _EACH_CORE, "bare", goal=_GOAL),
    Row("socket acall / byte", f"{_ACALL}, a core each", _EACH_CORE, "bare", goal=_GOAL, ours="ours, acall"),
    Row("socket call / byte, one core", f"{_CALL}, one core", _SAME_CORE, "bare"),
    Row("socket acall / byte, one core", f"{_ACALL}, one core", _SAME_CORE, "bare", ours="ours, acall"),
    *_cpu("echo", "strings", lambda found: found == _TEXT),
    *_cpu("floats", f"{FLOATS} floats", lambda found: found.shape == (FLOATS,)),
    *_cpu("list_of_floats", f"a list of {FLOATS} floats", lambda found: len(found) == FLOATS),
    Row("socket calls", "calls a second, one client process", _RATES, "in process", SHARE),
    Row(
        "socket calls, two clients", "calls a second, two client processes", _RATES, "ours", SHARE,
        ours="ours, two",
    ),
    Row("socket array to server", "MB/s of an array to the server", _arrays("measured"), "bare", SHARE),
    Row("socket array to client", "MB/s of an array to the client", _arrays("on_demand"), "bare", SHARE),
)  # fmt: skip
