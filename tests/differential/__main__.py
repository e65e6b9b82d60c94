"""`python -m tests.differential --seed N` for one run, `--minutes 30 --jobs 2` for many."""

from __future__ import annotations

import argparse
import faulthandler
import gc
import os
import subprocess
import sys
import time
from collections.abc import Iterator
from itertools import count, islice

from tests.differential.run import LIMIT_S, Failure, run


def main() -> int:
    """Run seeds; return how many have failed."""
    parser = argparse.ArgumentParser(prog="python -m tests.differential", description=__doc__)
    parser.add_argument("--seed", type=int, help="the only one to run")
    parser.add_argument(
        "--times", type=int, default=1, help="how often to run it: a race may not come each time"
    )
    parser.add_argument(
        "--minutes", type=float, default=1.0, help="for how long to run one seed after another"
    )
    parser.add_argument("--jobs", type=int, default=1, help="how many processes")
    parser.add_argument("--first", type=int, default=time.time_ns() % 10**9, help="the first seed")
    parser.add_argument("--step", type=int, default=1, help="from one seed to the next")
    parser.add_argument("--limit", type=float, default=LIMIT_S, help="the seconds after which a run hangs")
    parser.add_argument("--go-on", action="store_true", help="do not end with the first failure")
    parser.add_argument("--verbose", action="store_true", help="say each seed before it runs")
    told = parser.parse_args()
    if told.jobs > 1:
        return _in_processes(told.jobs, told.first)
    faulthandler.enable()
    gc.collect()
    gc.freeze()
    seeds = islice(count(told.first, told.step), None)
    if told.seed is not None:
        seeds = iter([told.seed] * told.times)
    return _run_all(seeds, told)


def _run_all(seeds: Iterator[int], told: argparse.Namespace) -> int:
    end = time.monotonic() + told.minutes * 60 if told.seed is None else float("inf")
    runs = failed = 0
    for seed in seeds:
        if time.monotonic() > end or (failed and not told.go_on):
            break
        runs += 1
        if told.verbose:
            _say(f"seed {seed}")
        try:
            run(seed, told.limit)
        except Failure as failure:
            failed += 1
            _say(str(failure))
    _say(f"{runs} runs, {failed} failed")
    return failed


def _in_processes(jobs: int, first: int) -> int:
    """Run as many processes, each with every so manieth seed; end all when one has failed."""
    command = [sys.executable, "-m", "tests.differential", *sys.argv[1:], "--jobs", "1", "--step", str(jobs)]
    processes = [subprocess.Popen([*command, "--first", str(first + job)]) for job in range(jobs)]
    go_on = "--go-on" in sys.argv
    while any(process.poll() is None for process in processes):
        if not go_on and any(process.poll() for process in processes):
            for process in processes:
                process.terminate()
        time.sleep(0.1)
    for process in processes:
        if process.returncode not in {0, 1}:  # else it has said what it did
            _say(f"{process.args} ended with {process.returncode}: it has not run to its end")
    return sum(bool(process.returncode) for process in processes)


def _say(text: str) -> None:
    sys.stdout.write(text + "\n")
    sys.stdout.flush()


if __name__ == "__main__":
    failures = main()
    sys.stdout.flush()
    os._exit(bool(failures))  # threads that hang must not keep it
