"""Batches of which the items run one by one, or in two parts, as batches before them have failed."""

from __future__ import annotations

from typing import Any

import pytest

from batched._core.call import Call
from batched._core.options import Options
from batched._core.queue import Queue
from batched._drivers.manual_clock import ManualDriver
from tests.kit.batcher_rules import COLLATOR
from tests.kit.calls import listed, single


class Apart:
    """A function that works for one call at a time, on a driver whose clock is turned by hand."""

    def __init__(self, run_s: float = 0.01, **options: Any) -> None:
        self.driver = ManualDriver(Options(timeout_ms=0, **options), Queue, COLLATOR)
        self.now = 0.0
        self.run_s = run_s
        self.most: int | None = 1  # calls that work at once; None for any number
        self.down = False
        self.bad: set[Call] = set()
        self.runs: list[int] = []

    def answer(self, calls: list[Call], *, leaves: Call | None = None) -> list[int]:
        """Have `calls` come together; return the sizes of the batches that run."""
        self.runs.clear()
        self.driver.push(*calls)
        while self.driver.delay(self.now) == 0.0:
            batch = self.driver.pop(self.now)
            self.runs.append(len(batch))
            self.now += self.run_s
            if self.down:
                self.driver.fail(batch, RuntimeError("503"), self.now)
            elif (self.most and len(batch.slices) > self.most) or self.bad & {*batch.calls}:
                self.driver.fail(batch, ValueError("unlike"), self.now)
            else:
                self.driver.run(batch, self.now)
            batch.clear()
            if leaves is not None and leaves.missing:
                self.driver.drop(leaves)
                leaves = None
        return [*self.runs]

    @property
    def batch_error(self) -> str | None:
        """What the stats name."""
        return self.driver.stats(self.now).batch_error


def singles(count: int) -> list[Call]:
    return [single() for _ in range(count)]


@pytest.mark.parametrize("after", [0, 1])
def test_a_caller_that_leaves_may_have_had_the_item_that_is_to_blame(after: int) -> None:
    """Then nothing is said of the function, though all other items work."""
    apart = Apart()
    apart.most = None
    calls = singles(2)
    apart.bad = {calls[1]}
    if after == 0:
        apart.driver.push(*calls)
        assert apart.driver.delay(apart.now) == 0.0
        batch = apart.driver.pop(apart.now)
        apart.driver.drop(calls[1])
        apart.driver.fail(batch, ValueError("bad"), apart.now + 0.01)
        apart.now += 0.02
        apart.answer([])
    else:
        apart.answer(calls, leaves=calls[1])
    assert not any(call.missing for call in calls)
    assert apart.batch_error is None
    assert apart.driver.stats(apart.now).total_failed == 0


def test_a_search_goes_on_with_single_items_once_it_shows_that_no_part_works() -> None:
    """It takes few runs more than there are items."""
    apart = Apart()
    for size in (4, 8, 32):
        apart = Apart(batch_size=size)
        runs = apart.answer(singles(size))
        assert runs.count(1) == size
        assert len(runs) <= min(2 * size - 1, size + 10)
        assert apart.batch_error == "ValueError: unlike"


def test_the_next_batches_run_one_by_one_and_at_times_one_is_tried() -> None:
    """Until it works: then batches run as a whole."""
    apart = Apart(batch_size=8)
    apart.answer(singles(8))
    assert [apart.answer(singles(8)) for _ in range(12)] == 4 * [[1] * 8, [1] * 8, [8] + [1] * 8]
    apart.most = None
    assert [apart.answer(singles(8)) for _ in range(4)] == [[1] * 8, [1] * 8, [8], [8]]
    assert apart.batch_error == "ValueError: unlike"
    assert apart.driver.stats(apart.now).total_failed == 0


def test_lists_stay_whole() -> None:
    """Each is answered as one, so it runs as one."""
    apart = Apart(batch_size=16)
    apart.answer([listed(3), *singles(10)])
    assert sorted(apart.answer([listed(3), *singles(10)])) == [1] * 10 + [3]


def test_a_list_with_places_for_errors_runs_item_by_item() -> None:
    """As each may fail on its own."""
    apart = Apart(batch_size=8)

    def call() -> Call:
        call = listed(8)
        call.keep_errors = True
        return call

    driver = apart.driver
    for expected in (15, 8):
        driver.push(call())
        runs = 0
        while driver.delay(apart.now) == 0.0:
            batch = driver.pop(apart.now)
            runs += 1
            if len(batch) > 1:
                driver.fail(batch, ValueError("unlike"), apart.now)
            else:
                driver.run(batch, apart.now)
        assert runs <= expected


def test_an_outage_costs_one_run_while_items_run_one_by_one() -> None:
    """The first item tells, or the first four where that takes no time; then no batch is divided."""
    apart = Apart(batch_size=32, run_s=1.0)
    for _ in range(2):
        apart.answer(singles(32))
    apart.down = True
    calls = singles(32)
    assert len(apart.answer(calls)) <= 5
    assert all(call.error is not None for call in calls)
    assert apart.driver.stats(apart.now).isolation_paused
    for _ in range(4):
        assert len(apart.answer(singles(32))) == 1
    apart.down = False
    for _ in range(8):
        calls = singles(32)
        apart.answer(calls)
    assert not any(call.error for call in calls)


def test_an_item_that_fails_alone_is_found_and_halves_are_tried_again() -> None:
    """It says why its batch has failed, so that this is no sign of more."""
    apart = Apart(batch_size=8)
    apart.answer(singles(8))
    apart.most = None
    for _ in range(2):
        apart.answer(singles(8))
    calls = singles(8)
    apart.bad = {calls[3]}
    assert apart.answer(calls) == [8] + [1] * 8
    assert [call for call in calls if call.error is not None] == [calls[3]]
    calls = singles(8)
    apart.bad = {calls[0]}
    assert apart.answer(calls) == [8, 4, 4, 2, 2, 1, 1]


def test_a_caller_that_leaves_meanwhile_does_not_run() -> None:
    """In a search, or while items run one by one; the counts are right."""
    apart = Apart(batch_size=8)
    for _ in range(3):
        calls = singles(8)
        apart.answer(calls, leaves=calls[5])
        stats = apart.driver.stats(apart.now)
        assert stats.total_accepted == stats.total_processed + stats.total_cancelled
        assert stats.running_items == 0
    assert apart.batch_error == "ValueError: unlike"


def test_items_run_together_where_errors_are_not_isolated_any_more() -> None:
    """The option may change meanwhile."""
    apart = Apart(batch_size=8)
    apart.answer(singles(8))
    apart.driver.batcher.configure(Options(timeout_ms=0, batch_size=8, isolate_errors=False))
    assert apart.answer(singles(8)) == [8]


def test_a_batch_of_as_many_items_as_there_were_wrong_results_runs_in_two_parts() -> None:
    """Once: it shows there whether the number of results follows that of the items."""
    driver = ManualDriver(Options(timeout_ms=0, batch_size=5), Queue, COLLATOR)
    driver.push(*singles(5))
    batch = driver.pop(0.0)
    try:
        driver.finish(batch, 1.0, [0, 0])
    except ValueError as error:
        driver.fail(batch, error, 1.0)
    assert driver.delay(1.0) is None
    for expected in ([1, 1], [2]):
        driver.push(*singles(2))
        runs = []
        while driver.delay(1.0) == 0.0:
            batch = driver.pop(1.0)
            runs.append(len(batch))
            driver.run(batch, 1.0)
        assert runs == expected
