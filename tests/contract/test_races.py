"""What holds when threads meet at every step: the interpreter changes threads as often as it can."""

from __future__ import annotations

import asyncio
import random
import sys
import threading
from collections.abc import Callable, Iterator
from typing import Any

import pytest

import batched
from batched import aio
from batched._core.batch import Batch
from batched._core.batcher import Batcher
from batched._core.calls import Calls
from batched._core.keyed_queues import KeyedQueues
from batched._core.next_batch import NextBatch
from batched._core.queue import Queue
from batched._core.running import Running
from tests.kit.flavours import Flavour
from tests.kit.gate import PATIENCE_S, Gate, until
from tests.kit.kept import driver_of


@pytest.fixture(autouse=True)
def _restless() -> Iterator[None]:
    before = sys.getswitchinterval()
    sys.setswitchinterval(1e-6)
    yield
    sys.setswitchinterval(before)


# What needs no lock: making a batcher, and what callers ask of it.
FREE = {"__init__", "begin", "follow", "resize"}


def together(callers: int, work: Callable[[int], None]) -> None:
    """Run `work` in so many threads at once; raise the first error of any."""
    errors: list[BaseException] = []

    def run(number: int) -> None:
        try:
            work(number)
        except BaseException as error:
            errors.append(error)

    threads = [threading.Thread(target=run, args=(number,), daemon=True) for number in range(callers)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(PATIENCE_S * 2)
    assert not any(thread.is_alive() for thread in threads), "a caller hangs"
    if errors:
        raise errors[0]


def check_sums(fn: Any) -> None:
    """Check that every item is counted once, when all calls are answered."""
    until(lambda: fn.stats.queue_size == fn.stats.running_items == 0)
    stats = fn.stats
    ended = stats.total_processed + stats.total_cancelled + stats.total_expired
    assert stats.total_accepted == ended


@pytest.mark.parametrize(
    "options", [{}, {"group_by": str}, {"length": len}], ids=["plain", "keys", "lengths"]
)
def test_the_queue_is_used_with_the_lock_only(
    flavour: Flavour, monkeypatch: pytest.MonkeyPatch, options: dict[str, Any]
) -> None:
    """Deciding takes several looks at the queue, and no other thread may change it between two of them."""
    outside: list[str] = []
    locks: list[Any] = []

    def watch(cls: type, name: str) -> None:
        right = getattr(cls, name)

        def watched(self: Any, *args: Any, **named: Any) -> Any:
            thread = threading.current_thread().name
            is_other = thread.startswith("batched") and not thread.endswith(": watched")  # of an earlier test
            if locks and not locks[0].locked() and not is_other:
                outside.append(f"{cls.__name__}.{name} in {thread}")
            return right(self, *args, **named)

        monkeypatch.setattr(cls, name, watched)

    for cls in (Queue, KeyedQueues, Batcher, Calls, NextBatch, Running):
        for name in {name for name, value in vars(cls).items() if callable(value)} - FREE:
            watch(cls, name)
    for name in ("answer", "step", "end", "fail", "prune", "halves"):
        watch(Batch, name)

    def answer(items: list[str]) -> list[str]:
        if "bad" in items:
            raise ValueError("bad")
        return items

    gate = Gate(answer, shut=True)
    fn = flavour.decorate(
        gate,
        name="watched",
        batch_size=4,
        timeout_ms=1,
        adaptive=False,
        max_queue_size=100,
        on_full="wait",
        isolate_errors=True,
        **options,
    )
    gate.let_through()
    flavour.call(fn, "the first, for which all is made")
    batcher = driver_of(fn)
    locks.append(batcher.lock)
    futures = [flavour.start(fn, item) for item in ("a", "bad", ["c"] * 9, "d")]
    gate.wait_for_batch()
    fn.configure(batch_size=3)
    futures.append(flavour.start(fn.options(deadline_ms=1), "late"))
    gate.open()
    for future in futures:
        future.exception(PATIENCE_S)
    check_sums(fn)
    flavour.close(fn)
    assert outside == []


def test_callers_add_keys_while_the_worker_plans() -> None:
    """Every call of every thread is answered, and the counters are never lost."""
    fn = batched.dynamically(list, group_by=lambda item: item % 7, timeout_ms=0.2, adaptive=False)

    def work(number: int) -> None:
        for turn in range(1500):
            assert fn(number + turn) == number + turn

    together(6, work)
    assert fn.stats.total_accepted == 9000
    check_sums(fn)


def test_lists_that_run_again_in_parts_and_fail_on_several_workers() -> None:
    """A list fails with its first part, while other workers have others in hand or are about to take them."""

    def fail(items: list[int]) -> list[int]:
        raise ValueError(items)

    fn = batched.dynamically(
        fail, batch_size=4, timeout_ms=0.05, adaptive=False, isolate_errors=True, max_concurrent_batches=4
    )

    def work(number: int) -> None:
        for _ in range(200):
            with pytest.raises(ValueError, match=r"\["):
                fn([number] * 16)

    together(6, work)
    check_sums(fn)
    fn.shutdown()


def test_options_change_while_an_event_loop_asks_whether_its_queue_is_full() -> None:
    """No call is lost, and none fails, whatever other threads configure."""

    async def double(items: list[str]) -> list[str]:
        return [item * 2 for item in items]

    fn = aio.dynamically(double, batch_size=4, timeout_ms=0, length=len, max_batch_length=8)
    done = threading.Event()

    def configure() -> None:
        chance = random.Random(0)
        while not done.is_set():
            fn.configure(batch_size=chance.randint(2, 9), max_batch_length=chance.randint(4, 20))

    async def main() -> None:
        for _ in range(200):
            calls = [fn("ab" * (turn % 4 + 1)) for turn in range(20)]
            await asyncio.wait_for(asyncio.gather(*calls, fn(["abc"] * 9)), PATIENCE_S)

    thread = threading.Thread(target=configure, daemon=True)
    thread.start()
    try:
        asyncio.run(main())
    finally:
        done.set()
        thread.join(PATIENCE_S)
    check_sums(fn)
