"""How a comparison is made: interleaved samples, the median of the ratios of neighbours, a goal.

Knows nothing of what is compared.
"""

from __future__ import annotations

import gc
import os
import platform
import resource
import signal
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import asdict, dataclass
from importlib.metadata import PackageNotFoundError, version
from operator import sub, truediv
from pathlib import Path
from statistics import median
from time import perf_counter, process_time
from typing import Any, Self

from benchmarks.kit.goals import GOALS, Goal

__all__ = [
    "LIMIT_S",
    "Effort",
    "Row",
    "Samples",
    "Stopwatch",
    "above",
    "environment",
    "interleave",
    "one_core",
    "peak_rss",
    "share",
    "time_limit",
    "times",
]

LIMIT_S = 600.0  # for one workload, and for any wait inside it
Samples = dict[str, list[float]]


@dataclass(frozen=True)
class Effort:
    """How much to measure, and whom to tell what is being measured."""

    quick: bool = False
    announce: Callable[[str], object] = lambda _: None

    def of(self, full: int, quick: int) -> int:
        """Return the number that fits: `quick` ones only show that everything runs."""
        return quick if self.quick else full


@dataclass(frozen=True)
class Row:
    """One line of the table. `ours` and `other` are medians in `unit`: "s", "B", "x" or "/s"."""

    name: str
    what: str
    ours: float | None = None
    against: str = ""
    other: float | None = None
    unit: str = "s"
    figure: float | None = None  # what the goal bounds; not `ours / other`, but the median over the rounds
    figures: tuple[float, ...] = ()  # of each round, sorted
    figure_unit: str = "x"
    note: str = ""  # why there is no figure
    failed: bool = False

    @property
    def middle_half(self) -> tuple[float, float] | None:
        """The quartiles of the rounds: how far the figure can be trusted."""
        if not self.figures:
            return None
        cut = len(self.figures) // 4
        return self.figures[cut], self.figures[-1 - cut]

    @property
    def goal(self) -> Goal | None:
        """What the figure is to reach."""
        return GOALS.get(self.name)

    @property
    def met(self) -> bool | None:
        """Whether the goal is reached; None where there is none. Nothing measured is a goal missed."""
        if self.goal is None:
            return None
        return self.figure is not None and self.goal.met(self.figure)

    def as_dict(self) -> dict[str, Any]:
        """Return what goes into the JSON file."""
        goal = None if self.goal is None else asdict(self.goal)
        return {**asdict(self), "goal": goal, "met": self.met}


class Stopwatch:
    """The wall time and the process's CPU time that a block took, in seconds."""

    def __enter__(self) -> Self:
        self.wall, self.cpu = perf_counter(), process_time()
        return self

    def __exit__(self, *_: object) -> None:
        self.wall, self.cpu = perf_counter() - self.wall, process_time() - self.cpu


def interleave(effort: Effort, rounds: int, **contenders: Callable[[], float]) -> Samples:
    """Measure the contenders in turn, `rounds` times, so that a slow minute slows all of them."""
    samples: Samples = {name: [] for name in contenders}
    for done in range(rounds):
        for name, measure in contenders.items():
            effort.announce(f"{name}, round {done + 1} of {rounds}")
            gc.collect()  # nobody pays for another's garbage
            samples[name].append(measure())
    return samples


def times(name: str, what: str, samples: Samples, against: str, unit: str = "s") -> Row:
    """Compare by how many times the other ours takes."""
    return _compare(name, what, samples, against, unit, truediv, "x")


def share(name: str, what: str, samples: Samples, against: str) -> Row:
    """Compare two throughputs."""
    return _compare(name, what, samples, against, "/s", truediv, "x")


def above(name: str, what: str, samples: Samples, against: str, unit: str = "B") -> Row:
    """Compare two amounts, of memory say, by their difference."""
    return _compare(name, what, samples, against, unit, sub, unit)


def _compare(  # noqa: PLR0913, PLR0917  only the three above call it
    name: str,
    what: str,
    samples: Samples,
    against: str,
    unit: str,
    by: Callable[[float, float], float],
    figure_unit: str,
) -> Row:
    ours, other = samples["ours"], samples[against]
    figures = sorted(map(by, ours, other))
    return Row(
        name=name,
        what=what,
        ours=median(ours),
        against=against,
        other=median(other),
        unit=unit,
        figure=median(figures),
        figures=tuple(figures),
        figure_unit=figure_unit,
    )


@contextmanager
def time_limit(seconds: float) -> Iterator[None]:
    """Raise `TimeoutError` in the main thread, whatever it waits for, and again while it still hangs."""

    def expire(_: int, __: object) -> None:
        raise TimeoutError(f"not done after {seconds:g} s")

    before = signal.signal(signal.SIGALRM, expire)
    signal.setitimer(signal.ITIMER_REAL, seconds, 10.0)
    try:
        yield
    finally:
        signal.setitimer(signal.ITIMER_REAL, 0.0)
        signal.signal(signal.SIGALRM, before)


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


def environment() -> dict[str, str]:
    """Return what the figures depend on besides the code."""
    return {
        "python": f"{platform.python_implementation()} {platform.python_version()}",
        "platform": platform.platform(),
        "cores": str(os.cpu_count()),
        "load": " ".join(f"{load:.2f}" for load in os.getloadavg()),
        "batched": _version("batched"),
        "numpy": _version("numpy"),
        "torch": _version("torch"),
        "rich": _version("rich"),
    }


def _version(distribution: str) -> str:
    try:
        return version(distribution)
    except PackageNotFoundError:
        return "not installed"
