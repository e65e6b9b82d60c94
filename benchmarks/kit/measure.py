"""How long a benchmark measures, and what it reads: clocks, memory, cores."""

from __future__ import annotations

import os
import resource
import signal
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from time import perf_counter, process_time
from typing import Self, TypeVar

__all__ = ["LIMIT_S", "Effort", "Stopwatch", "one_core", "peak_rss", "time_limit"]

N = TypeVar("N", int, float)

LIMIT_S = 600.0  # for the turns of some contenders, and for any wait inside them


@dataclass(frozen=True)
class Effort:
    """How much to measure, and what is called with a word on what is being measured."""

    quick: bool = False
    announce: Callable[[str], object] = lambda _: None

    def of(self, full: N, quick: N) -> N:
        """Return the number that fits: `quick` ones only show that everything runs."""
        return quick if self.quick else full


class Stopwatch:
    """The wall time and the process's CPU time that a block took, in seconds."""

    def __enter__(self) -> Self:
        self.wall, self.cpu = perf_counter(), process_time()
        return self

    def __exit__(self, *_: object) -> None:
        self.wall, self.cpu = perf_counter() - self.wall, process_time() - self.cpu


@contextmanager
def time_limit(seconds: float) -> Iterator[None]:
    """Raise `TimeoutError` in the main thread, whatever it waits for, and again while it still hangs."""

    def expire(_: int, __: object) -> None:
        raise TimeoutError(f"not done after {seconds:g} s")

    handler = signal.signal(signal.SIGALRM, expire)
    before = signal.setitimer(signal.ITIMER_REAL, seconds, 10.0)
    try:
        yield
    finally:
        signal.setitimer(signal.ITIMER_REAL, 0.0)
        signal.signal(signal.SIGALRM, handler)
        signal.setitimer(signal.ITIMER_REAL, *before)  # of the caller, if it has a limit of its own


@contextmanager
def one_core() -> Iterator[None]:
    """Keep this thread, and those it starts inside, on one core, where the system can.

    On several, a woken thread may be put on an idle core, which takes tens of microseconds to get up. Whether
    it is depends on how soon its waker goes to sleep: a microsecond more decides about thirty.
    """
    if sys.platform != "linux":
        yield
        return
    cores = os.sched_getaffinity(0)
    os.sched_setaffinity(0, {min(cores)})
    try:
        yield
    finally:
        os.sched_setaffinity(0, cores)


def peak_rss() -> int:
    """Return the most memory that this process has held so far, in bytes."""
    if sys.platform == "linux":
        # Not `ru_maxrss`: there a process starts with the peak of the one that started it.
        status = Path("/proc/self/status").read_text()
        return int(status.partition("VmHWM:")[2].split()[0]) * 1024
    peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    return peak if sys.platform == "darwin" else peak * 1024
