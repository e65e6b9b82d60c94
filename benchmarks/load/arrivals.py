"""Random arrivals from a process of their own, so that making calls takes nothing from the server.

Run as a module, this file is that process: it writes the number of each call when the call is due, reads the
numbers of the calls that are answered, and at the end writes how many of them were answered in time.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from threading import Thread
from time import perf_counter, sleep

from benchmarks.kit.bare import device
from benchmarks.kit.callers import poisson
from benchmarks.kit.measure import LIMIT_S, time_limit
from benchmarks.kit.own_process import surroundings

__all__ = ["Arrivals", "arriving"]

_OUT = 1  # standard output, without a buffer
_TRANSPORT = 1.1  # an answer is on time here if it comes in so many times the deadline


class Arrivals:
    """What a server sees of that process."""

    def __init__(self, process: subprocess.Popen[bytes]) -> None:
        assert process.stdin is not None
        assert process.stdout is not None
        self.due = process.stdout
        """A line for each call, and an empty one after the last."""
        self._answers = process.stdin
        self._process = process

    def answer(self, line: bytes) -> None:
        """Answer a call."""
        self._answers.write(line)

    def goodput(self) -> float:
        """Return the calls a second that were answered in time, once all calls have ended."""
        self._answers.close()
        os.set_blocking(self.due.fileno(), True)  # a loop may have read from it
        goodput = float(json.loads(self.due.readline()))
        assert self._process.wait(LIMIT_S) == 0
        return goodput


@contextmanager
def arriving(rate: float, warm_s: float, seconds: float, deadline_s: float) -> Iterator[Arrivals]:
    """Provide `rate` calls a second; those after `warm_s` count, for so many seconds."""
    arguments = json.dumps([rate, warm_s, seconds, deadline_s])
    with subprocess.Popen(  # noqa: S603  our own module
        [sys.executable, "-P", "-m", __name__, arguments],
        env=surroundings(),
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        bufsize=0,
    ) as process:
        try:
            yield Arrivals(process)
        finally:
            process.kill()


def main() -> None:
    """Send calls, and read answers."""
    rate, warm_s, seconds, deadline_s = json.loads(sys.argv[1])
    due = poisson(rate, warm_s + seconds, seed=1)
    answered: dict[int, float] = {}
    device(0, 0)  # so that this thread wakes on time
    begin = perf_counter() + 0.1

    def read() -> None:
        for line in sys.stdin.buffer:
            answered[int(line)] = perf_counter() - begin

    reader = Thread(target=read)
    reader.start()
    for number, at in enumerate(due):
        if (early := begin + at - perf_counter()) > 0:
            sleep(early)
        os.write(_OUT, b"%d\n" % number)
    os.write(_OUT, b"\n")
    reader.join(LIMIT_S)
    in_time = [
        number
        for number, at in enumerate(due)
        if at >= warm_s and answered.get(number, float("inf")) <= at + _TRANSPORT * deadline_s
    ]
    print(json.dumps(len(in_time) / seconds), flush=True)


if __name__ == "__main__":
    with time_limit(LIMIT_S):
        main()
