"""What only a process of its own can tell: the memory of a call, the cost of idling, two threads left alone.

`in_own_process` starts one; run as a module, this file is what the process does, and prints one figure.
"""

from __future__ import annotations

import asyncio
import os
import subprocess
import sys
from collections.abc import Callable, Coroutine
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack
from functools import partial
from pathlib import Path
from time import process_time, sleep
from typing import Any

from benchmarks.kit.bare import Gate, ThreadHandOff, TwoLocks, echo
from benchmarks.kit.callers import around_synchronously
from benchmarks.kit.measure import LIMIT_S, Effort, Samples, interleave, peak_rss, time_limit

__all__ = ["beside_bare", "in_own_process"]

_CHECKOUT = Path(__file__).parents[2]


def in_own_process(module: str, *arguments: object, path: Path | None = None) -> float:
    """Run `module` in a fresh process that looks for packages in `path` first; return what it prints."""
    places = [str(place) for place in (path, _CHECKOUT) if place is not None]
    done = subprocess.run(  # noqa: S603  our own module
        [sys.executable, "-P", "-m", module, *map(str, arguments)],
        env={**os.environ, "PYTHONPATH": os.pathsep.join(places)},
        timeout=LIMIT_S,
        stdout=subprocess.PIPE,
        check=True,
    )
    return float(done.stdout)


def beside_bare(effort: Effort, job: str, against: str, size: int) -> Samples:
    """Have fresh processes do one of the jobs below, with a batcher and, called `against`, without."""
    return interleave(
        effort,
        effort.of(3, 1),
        **{name: partial(in_own_process, __name__, job, name, size) for name in ("ours", against)},
    )


def list_growth(contender: str, size: int) -> float:
    """Return the bytes per item by which one list makes the process grow, its results included."""
    import batched  # noqa: PLC0415  not for the bare process

    items = list(range(size))
    fn = batched.dynamically(_increment, batch_size=32, timeout_ms=0)
    assert fn([1]) == [2]  # the thread and its stack are not the list's
    before = peak_rss()
    results = fn(items) if contender == "ours" else _copied_and_incremented(items)
    grown = peak_rss() - before
    assert results == list(range(1, size + 1))
    return grown / size


def _increment(items: list[int]) -> list[int]:
    return [item + 1 for item in items]


def _copied_and_incremented(items: list[int]) -> list[int]:
    """Make what no batcher can leave out: a copy at the door, and results in a list of the right size."""
    items = items.copy()
    results = [0] * len(items)
    for index, item in enumerate(items):
        results[index] = item + 1
    return results


def pending_growth(contender: str, size: int) -> float:
    """Return the bytes that each of `size` tasks takes while it waits for its answer."""
    import batched  # noqa: PLC0415  as above

    gate = Gate()
    fn = batched.dynamically(gate.echo, timeout_ms=0)

    async def ours() -> float:
        first = asyncio.create_task(fn.acall(-1))
        await gate.hold()
        grown = await _grown(fn.acall, size, gate.open)
        assert await first == -1
        return grown

    return asyncio.run(ours() if contender == "ours" else _own_futures(size))


async def _own_futures(size: int) -> float:
    futures: list[Any] = [None] * size  # before anything is measured: a bare task keeps no list

    async def wait(item: int) -> Any:
        futures[item] = future = asyncio.get_running_loop().create_future()
        return await future

    def release() -> None:
        for item, future in enumerate(futures):
            future.set_result(item)

    return await _grown(wait, size, release)


async def _grown(
    acall: Callable[[Any], Coroutine[Any, Any, Any]], size: int, release: Callable[[], None]
) -> float:
    before = peak_rss()
    tasks = [asyncio.create_task(acall(item)) for item in range(size)]
    await asyncio.sleep(0)  # every task runs up to its wait
    grown = peak_rss() - before
    release()
    assert await asyncio.gather(*tasks) == list(range(size))
    return grown / size


def idle_cpu(contender: str, seconds: int) -> float:
    """Return the CPU seconds that the whole process takes while a batcher that was used has nothing to do."""
    import batched  # noqa: PLC0415  as above

    fn = batched.dynamically(echo, timeout_ms=0)

    async def use() -> None:
        assert await asyncio.gather(*map(fn.acall, range(1000))) == list(range(1000))

    if contender == "ours":
        asyncio.run(use())
        assert [fn(item) for item in range(1000)] == list(range(1000))
    before = process_time()
    sleep(seconds)
    return process_time() - before


def idle_loop_cpu(contender: str, seconds: int) -> float:
    """The same while an event loop runs that has used the batcher."""
    from batched import aio  # noqa: PLC0415  as above

    @aio.dynamically(timeout_ms=0)
    async def fn(items: list[Any]) -> list[Any]:
        return items

    async def use() -> float:
        if contender == "ours":
            assert await asyncio.gather(*map(fn, range(1000))) == list(range(1000))
        await asyncio.sleep(0.1)
        before = process_time()
        await asyncio.sleep(seconds)
        return process_time() - before

    return asyncio.run(use())


def round_trip(contender: str, trips: int) -> float:
    """Return the median idle round trip in seconds."""
    import batched  # noqa: PLC0415  as above

    with ExitStack() as opened:
        if contender == "executor":
            pool = opened.enter_context(ThreadPoolExecutor(1))
            return around_synchronously(lambda item: pool.submit(echo, [item]).result()[0], trips)
        contenders: dict[str, Any] = {
            "ours": lambda: batched.dynamically(echo, batch_size=32, timeout_ms=0),
            "locks": TwoLocks,
            "queue + lock": lambda: ThreadHandOff(echo),
        }
        return around_synchronously(opened.enter_context(contenders[contender]()), trips)


def main() -> None:
    """Print the figure that the arguments ask for."""
    job, contender, size = sys.argv[1:]
    jobs = {
        "list": list_growth,
        "pending": pending_growth,
        "idle": idle_cpu,
        "idle loop": idle_loop_cpu,
        "round trip": round_trip,
    }
    with time_limit(LIMIT_S):
        print(jobs[job](contender, int(size)))


if __name__ == "__main__":
    main()
