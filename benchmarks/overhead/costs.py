"""What a call costs when the batch function costs nothing: time, CPU and memory."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from statistics import median
from timeit import repeat
from typing import Any

from benchmarks.kit.bare import Gate, LoopHandOff, ThreadHandOff, TwoLocks, echo, joined_slices
from benchmarks.kit.callers import (
    Acall,
    Call,
    around_asynchronously,
    around_synchronously,
    backlog,
    closed_tasks,
    closed_threads,
)
from benchmarks.kit.fresh import beside_bare, in_own_process
from benchmarks.kit.measure import (
    Effort,
    Row,
    Samples,
    Stopwatch,
    above,
    interleave,
    one_core,
    share,
    times,
)
from benchmarks.kit.ours import dynamically
from benchmarks.kit.rival import beside_rival

__all__ = [
    "acall_round_trip",
    "idle",
    "list_memory",
    "long_list",
    "method_door",
    "pending_memory",
    "singles_from_tasks",
    "singles_from_threads",
    "sync_round_trip",
    "waiting_singles",
]


def sync_round_trip(effort: Effort) -> Iterator[Row]:
    """One thread that calls and waits, nobody else there."""
    what, trips = "idle sync round trip", effort.of(2_000, 50)
    with one_core():
        samples = _sync_samples(effort, trips)
    yield times("sync / two locks, one core", f"{what}, one core", samples, "locks")
    yield times("sync / executor, one core", f"{what}, one core", samples, "executor")
    # Each in a process of its own: which of several pairs of threads the system leaves on one core, where a
    # switch takes a tenth of what it takes to wake another core, is chance.
    alone_trip = {
        name: partial(in_own_process, "benchmarks.kit.fresh", "round trip", name, 2 * trips)
        for name in ("ours", "locks", "executor", "queue + lock")
    }
    samples = interleave(effort, effort.of(9, 1), **alone_trip)
    yield times("sync / two locks", what, samples, "locks")
    yield times("sync / executor", what, samples, "executor")
    yield times("sync / hand-off", what, samples, "queue + lock")
    yield from beside_rival(effort, effort.of(5, 1), "sync / 0.1.5", what, "round trip", trips, times)


def _sync_samples(effort: Effort, trips: int) -> Samples:
    with (
        dynamically(echo) as fn,
        TwoLocks() as locks,
        ThreadHandOff(echo) as bare,
        ThreadPoolExecutor(1) as pool,
    ):
        contenders: dict[str, Call] = {
            "ours": fn,
            "locks": locks,
            "executor": lambda item: pool.submit(echo, [item]).result()[0],
            "queue + lock": bare,
        }
        trip = {name: partial(around_synchronously, call, trips) for name, call in contenders.items()}
        return interleave(effort, effort.of(25, 2), **trip)


def method_door(effort: Effort) -> Iterator[Row]:
    """What a caller does until its call is queued: through a method, and beside it a function."""
    gates = Gate(), Gate()

    class Model:
        @dynamically
        def echo(self, items: list[Any]) -> list[Any]:
            return gates[0].echo(items)

    model = Model()
    with model.echo, dynamically(gates[1].echo) as fn:
        for held, gate in zip((model.echo, fn), gates, strict=True):
            held.submit(-1)
            asyncio.run(gate.hold())  # the worker is busy, and what comes is only queued
            held._find().collect = _do_not_wait  # type: ignore[method-assign]
        calls, tries = effort.of(200, 20), effort.of(50, 2)
        samples = interleave(
            effort,
            effort.of(15, 2),
            ours=lambda: min(repeat(lambda: model.echo(0), number=calls, repeat=tries)) / calls,
            function=lambda: min(repeat(lambda: fn(0), number=calls, repeat=tries)) / calls,
        )
        for gate in gates:
            gate.open()
    yield times(
        "method / function, at the door", "a call until it is queued, of a method", samples, "function"
    )


def _do_not_wait(call: object) -> None:
    """Stand in for the wait of a caller."""


def acall_round_trip(effort: Effort) -> Iterator[Row]:
    """One task that calls and waits, nobody else there."""
    what, trips = "idle acall round trip", effort.of(2_000, 50)
    with one_core():
        samples = _acall_samples(effort, trips)
    yield times("acall / hand-off, one core", f"{what}, one core", samples, "bare")
    yield times("acall / hand-off", what, _acall_samples(effort, trips), "bare")


def _acall_samples(effort: Effort, trips: int) -> Samples:
    with dynamically(echo) as fn, LoopHandOff(echo) as bare:
        return interleave(
            effort,
            effort.of(25, 2),
            ours=lambda: around_asynchronously(fn.acall, trips),
            bare=lambda: around_asynchronously(bare.acall, trips),
        )


def long_list(effort: Effort) -> Iterator[Row]:
    """One list, answered by a function that does next to nothing."""
    items = list(range(effort.of(1_000_000, 10_000)))
    for batch_size in (1024, 32):
        with dynamically(_increment, batch_size=batch_size) as fn:
            samples = interleave(
                effort,
                effort.of(25, 2),
                ours=_timed_list(fn, items),
                slices=_timed_list(partial(_sliced, batch_size), items),
            )
        name = f"list of 1M, batches of {batch_size}"
        yield times(name, name, samples, "slices")
    size = effort.of(100_000, 10_000)
    what = "list of 100k, batches of 32"
    yield from beside_rival(effort, effort.of(5, 1), "list / 0.1.5", what, "list", size, share)


def _increment(items: list[int]) -> list[int]:
    return [item + 1 for item in items]


def _sliced(batch_size: int, items: list[int]) -> list[int]:
    return joined_slices(_increment, items, batch_size)


def _timed_list(answer: Callable[[list[int]], list[int]], items: list[int]) -> Callable[[], float]:
    expected = _increment(items)

    def measure() -> float:
        with Stopwatch() as spent:
            results = answer(items)
        assert results == expected
        return spent.wall

    return measure


def list_memory(effort: Effort) -> Iterator[Row]:
    """The peak of one list, beyond its results and the copy at the door."""
    samples = beside_bare(effort, "list", "results + copy", effort.of(1_000_000, 10_000))
    yield above("list memory", "peak memory of a list of 1M, each item", samples, "results + copy")


def pending_memory(effort: Effort) -> Iterator[Row]:
    """What a call that waits takes, beyond the task it waits in."""
    samples = beside_bare(effort, "pending", "own future", effort.of(100_000, 1_000))
    yield above("pending memory", "100k pending acalls, each", samples, "own future")


def singles_from_tasks(effort: Effort) -> Iterator[Row]:
    """The CPU of singles, by how many tasks they come from."""
    for tasks, each in ((64, 500), (1, 3_000), (100, 300), (10_000, 5)):
        name = f"CPU, {tasks:,} task{'s' if tasks > 1 else ''}"
        rounds = effort.of(15, 1)
        with dynamically(echo) as fn, LoopHandOff(echo) as bare:
            samples = interleave(
                effort,
                rounds,
                ours=partial(_cpu_of_tasks, fn.acall, tasks, effort.of(each, 2)),
                bare=partial(_cpu_of_tasks, bare.acall, tasks, effort.of(each, 2)),
            )
        yield times(name, f"CPU per single, {name.removeprefix('CPU, ')}", samples, "bare")


def _cpu_of_tasks(acall: Acall, tasks: int, each: int) -> float:
    return closed_tasks(acall, tasks, each).cpu / (tasks * each)


def singles_from_threads(effort: Effort) -> Iterator[Row]:
    """The CPU of singles from threads."""
    threads, each = 64, effort.of(300, 3)
    with dynamically(echo) as fn, ThreadHandOff(echo) as bare:
        samples = interleave(
            effort,
            effort.of(25, 2),
            ours=lambda: closed_threads(fn, threads, each).cpu / (threads * each),
            bare=lambda: closed_threads(bare, threads, each).cpu / (threads * each),
        )
    yield times("CPU, 64 threads", "CPU per single, 64 threads", samples, "bare")


def waiting_singles(effort: Effort) -> Iterator[Row]:
    """The CPU of singles that all wait at once; nothing may cost more because more wait."""
    few, many = 1_000, effort.of(1_000_000, 10_000)
    samples = interleave(
        effort,
        effort.of(3, 1),
        many_ours=lambda: _cpu_of_backlog(_our_backlog, many, 1),
        many_bare=lambda: _cpu_of_backlog(_bare_backlog, many, 1),
        few_ours=lambda: _cpu_of_backlog(_our_backlog, few, effort.of(100, 2)),
        few_bare=lambda: _cpu_of_backlog(_bare_backlog, few, effort.of(100, 2)),
    )
    few_rows = {"ours": samples["few_ours"], "bare": samples["few_bare"]}
    many_rows = {"ours": samples["many_ours"], "bare": samples["many_bare"]}
    yield times("CPU, 1k waiting", "CPU per single, 1k waiting", few_rows, "bare")
    yield times("CPU, 1M waiting", "CPU per single, 1M waiting", many_rows, "bare")
    ratios = {
        "ours": [ours / bare for ours, bare in zip(many_rows["ours"], many_rows["bare"], strict=True)],
        "at 1k": [ours / bare for ours, bare in zip(few_rows["ours"], few_rows["bare"], strict=True)],
    }
    yield times("backlog of 1M / of 1k", "the ratio at 1M waiting, beside that at 1k", ratios, "at 1k", "x")


def _cpu_of_backlog(run: Callable[[int], Stopwatch], waiting: int, repeats: int) -> float:
    return median(run(waiting).cpu / waiting for _ in range(repeats))


def _our_backlog(waiting: int) -> Stopwatch:
    gate = Gate()
    with dynamically(gate.echo) as fn:
        return backlog(fn.acall, gate, waiting)


def _bare_backlog(waiting: int) -> Stopwatch:
    gate = Gate()
    with LoopHandOff(gate.echo) as bare:
        return backlog(bare.acall, gate, waiting)


def idle(effort: Effort) -> Iterator[Row]:
    """The CPU of a whole process that has nothing to do, above that of one that only sleeps."""
    samples = beside_bare(effort, "idle", "sleep", effort.of(10, 1))
    yield above("idle", "CPU of 10 s idle, after use", samples, "sleep", "s")
