"""Errors that end a thread elsewhere, and workers that run out of memory at once."""

from __future__ import annotations

import logging
import threading
from collections.abc import Iterator
from typing import Any

import pytest

import batched
from tests.kit.gate import PATIENCE_S


@pytest.mark.parametrize("kind", [SystemExit, KeyboardInterrupt])
def test_what_is_no_exception_is_not_isolated(kind: type[BaseException]) -> None:
    """It is meant to end the function, not an item."""
    runs = []

    def leave(items: list[int]) -> list[int]:
        runs.append(items)
        raise kind

    fn = batched.dynamically(leave, batch_size=4, timeout_ms=0, isolate_errors=True)
    with pytest.raises(kind):
        fn([1, 2, 3, 4])
    assert len(runs) == 1


def test_several_workers_that_run_out_of_memory_lose_nothing() -> None:
    """All halves come back to the caller in order."""
    both = threading.Barrier(2)
    first = threading.local()

    def function(items: list[int]) -> list[int]:
        if not hasattr(first, "met"):
            first.met = both.wait(PATIENCE_S)
        if len(items) > 4:
            raise MemoryError
        return items

    fn = batched.dynamically(function, batch_size=16, timeout_ms=0, max_concurrent_batches=2)
    assert fn(list(range(64))) == list(range(64))
    assert fn.stats.fits_memory == 4
    fn.shutdown()


class _Fails(logging.Handler):
    """A handler of the log that fails, as one does that calls a batched function in its own worker."""

    def emit(self, record: logging.LogRecord) -> None:
        raise ValueError(record)


@pytest.fixture
def _logs_fail() -> Iterator[None]:
    handler = _Fails()
    logging.getLogger().addHandler(handler)
    yield
    logging.getLogger().removeHandler(handler)


@pytest.mark.usefixtures("_logs_fail")
@pytest.mark.thread_unsafe(reason="the log is that of the process")
@pytest.mark.parametrize(
    "options",
    [dict, lambda: {"workers": batched.Workers(1)}, lambda: {"finish": lambda items: items}],
    ids=["own", "shared", "staged"],
)
def test_a_log_that_fails_ends_no_worker(options: Any) -> None:
    """The log is asked as a callback fails; all other callers are answered, and later ones."""
    gate = threading.Event()

    def echo(items: list[int]) -> list[int]:
        gate.wait(PATIENCE_S)
        return items

    fn = batched.dynamically(echo, timeout_ms=0, **options())
    futures = [fn.submit(item) for item in range(4)]
    futures[1].add_done_callback(lambda _: 1 // 0)
    gate.set()
    assert [future.result(PATIENCE_S) for future in futures] == [0, 1, 2, 3]
    assert fn.submit(4).result(PATIENCE_S) == 4
    fn.shutdown()


@pytest.mark.usefixtures("_logs_fail")
@pytest.mark.thread_unsafe(reason="the log is that of the process")
def test_a_worker_is_made_anew_though_the_log_fails() -> None:
    """Its calls have their answers, and not the error of the log."""
    made: list[str] = []
    broken = [1]

    def echo(items: list[int]) -> list[int]:
        if items == broken:
            broken.clear()
            raise batched.RestartWorker from OSError("lost")
        return items

    with batched.Workers(["a"], initializer=made.append) as workers:
        fn = batched.dynamically(echo, batch_size=1, timeout_ms=0, workers=workers)
        assert [fn.submit(item).result(PATIENCE_S) for item in range(3)] == [0, 1, 2]
        fn.shutdown()
    assert made == ["a", "a"]
