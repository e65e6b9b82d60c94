"""What others have published, each in a process of its own: `batched` 0.1.5 has our very import name.

Run as a module, this file measures whichever `batched` it finds first, so that both versions run the very
same lines; `path` decides which that is.
"""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from statistics import median
from time import perf_counter

from benchmarks.kit.bare import device, echo
from benchmarks.kit.callers import (
    around_synchronously,
    closed_tasks,
    closed_threads,
    mean_latency,
    poisson,
    run_precisely,
)
from benchmarks.kit.fresh import in_own_process
from benchmarks.kit.measure import LIMIT_S, Effort, Row, Samples, interleave, time_limit

__all__ = ["RIVAL", "beside_rival", "home"]

RIVAL = "0.1.5"
_REQUIREMENTS = {
    RIVAL: f"batched=={RIVAL}",
    "aiodataloader": "aiodataloader==0.4.3",
    "async-batcher": "async-batcher==0.2.2",
}
_CACHE = Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache") / "batched-benchmarks"

Compare = Callable[[str, str, Samples, str], Row]


def beside_rival(  # noqa: PLR0913, PLR0917  a row and how to measure it
    effort: Effort,
    rounds: int,
    name: str,
    what: str,
    job: str,
    size: int,
    compare: Compare,
    rival: str = RIVAL,
    module: str = __name__,
) -> Iterator[Row]:
    """Have `module` measure `job` for both, each time in a fresh process; say so if there is no rival."""
    try:
        path = home(effort, rival)
    except (OSError, subprocess.SubprocessError):
        yield Row(name, what, note=f"{_REQUIREMENTS[rival]}: pip cannot install it here")
        return
    contenders = {
        "ours": lambda: in_own_process(module, job, "ours", size),
        rival: lambda: in_own_process(module, job, rival, size, path=path),
    }
    yield compare(name, what, interleave(effort, rounds, **contenders), rival)


def home(effort: Effort, rival: str = RIVAL) -> Path:
    """Return where a rival is; once, have pip put it there, where nothing else is looked for."""
    effort.announce(f"installing {_REQUIREMENTS[rival]}")
    home = _CACHE / rival
    if home.exists():
        return home
    unfinished = home.with_name(f"{rival}-{os.getpid()}")
    command = [
        sys.executable,
        "-m",
        "pip",
        "install",
        "--quiet",
        "--target",
        str(unfinished),
        _REQUIREMENTS[rival],
    ]
    subprocess.run(command, timeout=LIMIT_S, check=True, capture_output=True)  # noqa: S603  no user's input
    unfinished.rename(home)
    return home


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


def ragged_rows(each: int) -> float:
    """Return the CPU seconds per row of 256 tasks whose rows differ in length."""
    from batched import inference  # noqa: PLC0415  as above
    from benchmarks.overhead.features import BATCH, CALLERS, rows, sums  # noqa: PLC0415  numpy is for arrays only

    fn = inference.dynamically(sums, batch_size=BATCH, timeout_ms=0)
    passed = rows(CALLERS * each)

    def spent() -> float:
        return closed_tasks(lambda item: fn.acall(passed[item]), CALLERS, each).cpu / (CALLERS * each)

    spent()  # the first rows pay for memory that later ones find mapped
    return median(spent() for _ in range(3))


def equal_rows(count: int) -> float:
    """Return the rows a second of one call of many."""
    from batched import inference  # noqa: PLC0415  as above
    from benchmarks.overhead.features import block, doubled  # noqa: PLC0415  as above

    fn = inference.dynamically(doubled, batch_size=1024, timeout_ms=0)
    assert fn(block(1))[0, 1] == 2  # noqa: PLR2004  1, doubled
    features = block(count)
    started = perf_counter()
    results = fn(features)
    seconds = perf_counter() - started
    assert (results == doubled(features)).all()
    return count / seconds


def latency(timeout_ms: int, rate: int, seconds: int) -> float:
    """Return the mean latency of random arrivals, after a second of them."""
    from batched import dynamically  # noqa: PLC0415  as above

    fn = dynamically(device(4, 0.1), batch_size=32, timeout_ms=timeout_ms)
    run_precisely(mean_latency(fn.acall, poisson(rate, 1, 1000)))
    return run_precisely(mean_latency(fn.acall, poisson(rate, seconds, 0)))


def main() -> None:
    """Print the figure that the arguments ask for."""
    sys.modules["torch"] = None  # type: ignore[assignment]  # 0.1.5 would import it, for seconds, unasked
    job, *numbers = (argument for argument in sys.argv[1:] if argument not in {"ours", RIVAL})
    jobs: dict[str, Callable[..., float]] = {
        "round trip": round_trip,
        "list": one_list,
        "tasks": tasks,
        "threads": threads,
        "ragged rows": ragged_rows,
        "equal rows": equal_rows,
        "latency": latency,
    }
    with time_limit(LIMIT_S):
        print(jobs[job](*map(int, numbers)), flush=True)
    os._exit(0)  # a worker of 0.1.5 never ends


if __name__ == "__main__":
    main()
