"""The published `batched` 0.1.5, which has our import name, in a process of its own.

Run as a module, this file measures whichever `batched` it finds first, so that both versions run the very
same lines; `path` decides which that is.
"""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from time import perf_counter

from benchmarks.bare import device, echo
from benchmarks.callers import (
    around_synchronously,
    closed_tasks,
    closed_threads,
    mean_latency,
    poisson,
    run_precisely,
)
from benchmarks.fresh import in_own_process
from benchmarks.measure import LIMIT_S, Effort, Row, Samples, interleave, time_limit

__all__ = ["RIVAL", "beside_rival", "home"]

RIVAL = "0.1.5"
_CACHE = Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache")
_HOME = _CACHE / "batched-benchmarks" / RIVAL

Compare = Callable[[str, str, Samples, str], Row]


def beside_rival(  # noqa: PLR0913, PLR0917  a row and how to measure it
    effort: Effort, rounds: int, name: str, what: str, job: str, size: int, compare: Compare
) -> Iterator[Row]:
    """Measure `job` with both versions, each time in a fresh process; say so if there is no rival."""
    try:
        path = home(effort)
    except (OSError, subprocess.SubprocessError):
        yield Row(name, what, note=f"batched {RIVAL}: pip cannot install it here")
        return
    contenders = {
        "ours": lambda: in_own_process(__name__, job, size),
        RIVAL: lambda: in_own_process(__name__, job, size, path=path),
    }
    yield compare(name, what, interleave(effort, rounds, **contenders), RIVAL)


def home(effort: Effort) -> Path:
    """Return where the rival is; once, have pip put it there, where nothing else is looked for."""
    if _HOME.exists():
        return _HOME
    effort.announce(f"installing batched {RIVAL}")
    unfinished = _HOME.with_name(f"{RIVAL}-{os.getpid()}")
    command = [
        sys.executable,
        "-m",
        "pip",
        "install",
        "--quiet",
        "--target",
        str(unfinished),
        f"batched=={RIVAL}",
    ]
    subprocess.run(command, timeout=LIMIT_S, check=True, capture_output=True)  # noqa: S603  no user's input
    unfinished.rename(_HOME)
    return _HOME


# -- inside that process ------------------------------------------------------------------------------


def round_trip(trips: int) -> float:
    """Return the median idle round trip in seconds."""
    from batched import dynamically  # noqa: PLC0415  whichever is found first

    return around_synchronously(dynamically(echo, batch_size=32, timeout_ms=0), trips)


def one_list(size: int) -> float:
    """Return the items a second of one list."""
    from batched import dynamically  # noqa: PLC0415  as above

    def increment(items: list[int]) -> list[int]:
        return [item + 1 for item in items]

    fn = dynamically(increment, batch_size=32, timeout_ms=0)
    assert fn([1]) == [2]
    items = list(range(size))
    started = perf_counter()
    results = fn(items)
    seconds = perf_counter() - started
    assert results == list(range(1, size + 1))
    return size / seconds


def tasks(each: int) -> float:
    """Return the items a second of 1,000 tasks whose calls take time."""
    from batched import dynamically  # noqa: PLC0415  as above

    fn = dynamically(device(2, 0.05), batch_size=32, timeout_ms=0)
    return 1000 * each / closed_tasks(fn.acall, 1000, each).wall


def threads(each: int) -> float:
    """Return the items a second of 64 threads whose calls take time."""
    from batched import dynamically  # noqa: PLC0415  as above

    fn = dynamically(device(2, 0.05), batch_size=32, timeout_ms=0)
    return 64 * each / closed_threads(fn, 64, each).wall


def latency(timeout_ms: int, rate: int, seconds: int) -> float:
    """Return the mean latency of random arrivals, after a second of them."""
    from batched import dynamically  # noqa: PLC0415  as above

    fn = dynamically(device(4, 0.1), batch_size=32, timeout_ms=timeout_ms)
    run_precisely(mean_latency(fn.acall, poisson(rate, 1, 1000)))
    return run_precisely(mean_latency(fn.acall, poisson(rate, seconds, 0)))


def main() -> None:
    """Print the figure that the arguments ask for."""
    sys.modules["torch"] = None  # type: ignore[assignment]  # 0.1.5 would import it, for seconds, unasked
    job, *numbers = sys.argv[1:]
    jobs: dict[str, Callable[..., float]] = {
        "round trip": round_trip,
        "list": one_list,
        "tasks": tasks,
        "threads": threads,
        "latency": latency,
    }
    with time_limit(LIMIT_S):
        print(jobs[job](*map(int, numbers)), flush=True)
    os._exit(0)  # a worker of 0.1.5 never ends


if __name__ == "__main__":
    main()
