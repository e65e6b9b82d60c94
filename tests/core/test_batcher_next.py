"""When the next batch starts, how large it is, and what is learned from it."""

from __future__ import annotations

import math
import random
from functools import partial
from typing import Any

import pytest

import batched
from batched._core.call import Call
from batched._core.halves import Half
from batched._core.length_queue import LengthQueue
from batched._core.options import Options
from batched._core.queue import Queue
from batched._drivers.manual_clock import ManualDriver
from batched._features.waiting import Waiting
from batched._policy.adaptive import AdaptiveWindow
from batched._policy.lengths import Lengths
from batched.testing import manual_clock
from tests.kit.batcher_rules import COLLATOR, echo
from tests.kit.calls import single
from tests.kit.lengths import call_of, known


@pytest.mark.parametrize("reorders", [True, False])
def test_what_was_learned_is_told(reorders: bool) -> None:
    """The three costs; with a budget alone too, or nothing would ever be waited for."""
    lengths = Lengths(reorders=reorders, padded=False)
    options = Options(batch_size=8, timeout_ms=1)
    driver = ManualDriver(options, partial(LengthQueue, lengths=lengths), COLLATOR)
    source = random.Random(4)
    now = 0.0
    for _ in range(200):
        for _ in range(source.randint(1, 8)):
            call = call_of([source.randint(1, 100)])
            call.arrived = now
            driver.push(call)
        while driver.delay(now) is not None:
            now += driver.delay(now) or 0.0
            batch = driver.pop(now)
            items = COLLATOR.collate(batch)
            now += 0.005 + len(items) * 0.0005 + len(items) * max(items) * 0.0001
            driver.finish(batch, now, items)
    learned = driver.stats(now).learned
    assert learned is not None
    assert learned.batch_ms == pytest.approx(5, rel=0.1)
    assert learned.length_ms == pytest.approx(0.1, rel=0.1)
    each_ms = learned.item_ms + learned.length_ms * learned.mean_length
    assert learned.capacity == pytest.approx(8000 / (learned.batch_ms + 8 * each_ms))
    assert "ms per item and unit of length" in str(learned)
    assert ("length" in driver.stats(now).chosen) == reorders


@pytest.mark.parametrize("queue", [Queue, partial(LengthQueue, lengths=known(1.0, 1e-9))])
def test_a_list_beside_single_calls_goes_in_chunks(queue: Any) -> None:
    """As long as they come: calls that come meanwhile need not wait for a full batch of it."""
    driver = ManualDriver(Options(batch_size=32, timeout_ms=0), queue, COLLATOR)
    window = AdaptiveWindow(0.0, 32)
    window.large_limit = 5  # as it is learned of a costly function
    driver.batcher.feature(Waiting).use(window)
    driver.push(call_of([1] * 4000))
    sizes = []
    for number in range(120):
        if number in {1, 2}:
            driver.push(call_of([1, 1]))
        assert driver.delay(0.0) == 0.0
        batch = driver.pop(0.0)
        sizes.append(batch.size)
        driver.run(batch, 0.0)
    assert sizes[:5] == [32, 7, 7, 5, 5]
    assert sizes[-1] == 32


def test_the_capacity_is_that_of_batches_which_fit_into_memory() -> None:
    """Also where lengths are known, so that no best size is learned."""

    def fits_two(texts: list[str]) -> list[str]:
        if len(texts) > 2:
            raise MemoryError
        return texts

    clock = manual_clock(batched.dynamically(fits_two, batch_size=8, timeout_ms=1, length=len), takes_ms=10)
    for _ in range(60):
        for _ in range(5):
            clock.call("x" * 9)
        while clock.step() is not None:
            pass
    stats = clock.stats
    assert stats.learned is not None
    assert stats.fits_memory == 2
    assert stats.learned.capacity == pytest.approx(2 / 0.01, rel=0.1)


def test_the_window_is_told_of_workers_that_other_functions_use_too() -> None:
    """When one became free, and how many there are for this function."""
    driver = ManualDriver(Options(max_concurrent_batches=3))
    batcher = driver.batcher
    assert batcher.window.free_at == -math.inf
    batcher.worker_freed(3.5, 2)
    assert (batcher.window.free_at, batcher.window.workers) == (3.5, 2)
    driver.push(single())
    batcher.drain()
    assert driver.delay(0.0) == 0.0
    driver.pop(0.0)
    batcher.worker_freed(4.0, 1)
    assert batcher.window.workers == 2


def test_what_cannot_run_yet_gives_a_function_no_turn_at_workers_that_it_shares() -> None:
    """Of what is due, the oldest call counts: not one of a part that waits for the end of another batch."""
    driver = ManualDriver(Options(timeout_ms=0), Queue, COLLATOR)
    driver.push(single())
    assert driver.delay(0.0) == 0.0
    running = driver.pop(0.0)
    part = Half([(single(), 0, 1)], 1, None, None)
    part.behind = running
    driver.batcher.first.append(part)
    waiting = Call().begin(echo, 1, 1, False, 3.0)
    driver.push(waiting)
    assert driver.delay(5.0) == 0.0
    assert driver.batcher.standing(5.0) == (3.0, math.inf, False)
    assert driver.pop(5.0).calls == [waiting]
    driver.finish(running, 6.0, [1])
    assert driver.delay(6.0) == 0.0
    assert driver.batcher.standing(6.0) == (0.0, math.inf, False)
