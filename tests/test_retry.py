"""`isolate_errors`, and batches that do not fit into memory: what fails runs again in halves."""

from __future__ import annotations

import math
import threading
from collections import Counter
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

import batched
import batched.inference
from batched import BatchError
from batched._core.batch import Batch
from batched._core.call import Call
from batched._core.memory_limit import MemoryLimit, is_out_of_memory
from tests.kit.flavours import Flavour
from tests.kit.gate import PATIENCE_S, Gate, until


class Bad(Exception):
    """What a batch with a culprit in it raises."""


def picky(bad: Any) -> Any:
    """Return a batch function that raises if any item is in `bad`."""

    def function(items: list[Any]) -> list[Any]:
        culprits = [item for item in items if item in bad]
        if culprits:
            raise Bad(*culprits)
        return [("ok", item) for item in items]

    return function


# -- isolate_errors -------------------------------------------------------------------------------------


@given(
    bad=st.sets(st.integers(0, 40), max_size=6),
    batch_size=st.integers(1, 41),
    workers=st.integers(1, 3),
)
@settings(max_examples=60)
def test_only_culprits_fail_and_few_calls_find_them(bad: set[int], batch_size: int, workers: int) -> None:
    """For k culprits in a batch of n at most about `2k * log2(n)` calls more."""
    gate = Gate(picky(bad))
    fn = batched.dynamically(
        gate, batch_size=batch_size, timeout_ms=0, isolate_errors=True, max_concurrent_batches=workers
    )
    answers = fn.options(return_exceptions=True)(list(range(41)))
    for item, answer in enumerate(answers):
        if item in bad:
            assert (type(answer), answer.args) == (Bad, (item,))
        else:
            assert answer == ("ok", item)
    batches = math.ceil(41 / batch_size)
    allowed = 2 * len(bad) * math.ceil(math.log2(batch_size)) if batch_size > 1 else 0
    assert len(gate.batches) <= batches + allowed
    assert all(gate.batches)
    until(lambda: not fn.stats.running_items)
    stats = fn.stats
    assert stats.total_accepted == stats.total_processed == 41
    assert stats.total_failed == len(bad)
    assert stats.total_batches == len(gate.batches)
    assert stats.closed.get("retry", 0) == len(gate.batches) - batches
    fn.shutdown()


def test_innocent_neighbours_get_their_results(flavour: Flavour) -> None:
    """Single calls, and lists that share the culprit's batch."""
    gate = Gate(picky({3}))
    fn = flavour.decorate(gate, batch_size=8, timeout_ms=60_000, isolate_errors=True)
    futures = [flavour.start(fn, item) for item in range(5)] + [flavour.start(fn, [5, 6, 7])]
    answers = [future.exception(PATIENCE_S) or future.result() for future in futures]
    assert answers[:3] == [("ok", 0), ("ok", 1), ("ok", 2)]
    assert isinstance(answers[3], Bad)
    assert answers[4:] == [("ok", 4), [("ok", 5), ("ok", 6), ("ok", 7)]]
    assert fn.stats.total_failed == 1


def test_without_it_a_batch_fails_as_one(flavour: Flavour) -> None:
    """It runs once."""
    gate = Gate(picky({1}))
    fn = flavour.decorate(gate, batch_size=4, timeout_ms=60_000)
    futures = [flavour.start(fn, item) for item in range(4)]
    assert all(isinstance(future.exception(PATIENCE_S), Bad) for future in futures)
    assert len(gate.batches) == 1


def test_a_list_with_a_culprit_fails_with_its_error(flavour: Flavour) -> None:
    """The rest of it that is still to run again is left out, and its neighbours are none the worse."""
    gate = Gate(picky({0}))
    fn = flavour.decorate(gate, batch_size=8, timeout_ms=60_000, isolate_errors=True)
    failing = flavour.start(fn, [0, 1, 2, 3, 4, 5])
    neighbours = [flavour.start(fn, item) for item in (6, 7)]
    with pytest.raises(Bad, match="0"):
        failing.result(PATIENCE_S)
    assert [future.result(PATIENCE_S) for future in neighbours] == [("ok", 6), ("ok", 7)]
    assert gate.batches == [[0, 1, 2, 3, 4, 5, 6, 7], [0, 1, 2, 3, 4, 5], [0, 1, 2], [0], [6, 7]]
    stats = fn.stats
    assert stats.total_accepted == stats.total_processed == 8


def test_a_wrong_number_of_results_is_isolated_too(flavour: Flavour) -> None:
    """It is an error of the batch as any other."""
    fn = flavour.decorate(
        lambda items: [item for item in items if item != 2], batch_size=4, timeout_ms=0, isolate_errors=True
    )
    answers = flavour.call(fn.options(return_exceptions=True), [0, 1, 2, 3])
    assert answers[:2] + answers[3:] == [0, 1, 3]
    assert isinstance(answers[2], BatchError)


@pytest.mark.parametrize("kind", [SystemExit, KeyboardInterrupt])
def test_what_is_no_exception_is_not_isolated(kind: type[BaseException]) -> None:
    """Somebody wants to end the function, not an item."""
    runs = []

    def leave(items: list[int]) -> list[int]:
        runs.append(items)
        raise kind

    fn = batched.dynamically(leave, batch_size=4, timeout_ms=0, isolate_errors=True)
    with pytest.raises(kind):
        fn([1, 2, 3, 4])
    assert len(runs) == 1


def test_who_has_left_is_not_run_again(flavour: Flavour) -> None:
    """And no batch is ever empty."""
    if not flavour.cancels:
        pytest.skip("a blocked thread has no cancel")
    gate = Gate(picky({0, 1, 2, 3}), shut=True)
    fn = flavour.decorate(gate, batch_size=4, timeout_ms=60_000, isolate_errors=True)
    for leavers in (1, 3, 4):
        gate.batches.clear()
        futures = [flavour.start(fn, item) for item in range(4)]
        gate.wait_for_batch()
        for future in futures[:leavers]:
            flavour.cancel(future)
        gate.let_through(20)
        for future in futures[leavers:]:
            assert isinstance(future.exception(PATIENCE_S), Bad)
        until(lambda: not fn.stats.running_items)
        again = Counter(item for batch in gate.batches[1:] for item in batch)
        assert all(item >= leavers for item in again)
        assert all(gate.batches)
        while gate._passes.acquire(blocking=False):
            pass
        while gate.entered.acquire(blocking=False):
            pass
    stats = fn.stats
    assert stats.total_accepted == stats.total_processed == 12
    assert stats.wait.count == 12  # whoever left while the others ran again has waited too


def test_who_leaves_before_its_half_runs_again_is_left_out() -> None:
    """What nobody wants never starts."""
    gate = Gate(picky({0, 3}), shut=True)
    fn = batched.dynamically(gate, batch_size=4, timeout_ms=60_000, isolate_errors=True)
    futures = [fn.submit(item) for item in range(4)]
    gate.wait_for_batch()
    gate.let_through()
    gate.wait_for_batch()
    futures[2].cancel()
    futures[3].cancel()
    gate.open()
    assert isinstance(futures[0].exception(PATIENCE_S), Bad)
    assert futures[1].result(PATIENCE_S) == ("ok", 1)
    until(lambda: not fn.stats.running_items)
    assert gate.batches == [[0, 1, 2, 3], [0, 1], [0], [1]]
    assert fn.stats.total_accepted == fn.stats.total_processed == fn.stats.wait.count == 4


def test_what_is_to_run_again_counts_as_running_and_survives_shutdown() -> None:
    """Nobody is forgotten between two halves."""
    gate = Gate(picky({0}), shut=True)
    fn = batched.dynamically(gate, batch_size=4, timeout_ms=60_000, isolate_errors=True)
    futures = [fn.submit(item) for item in range(4)]
    gate.wait_for_batch()
    gate.let_through()
    gate.wait_for_batch()
    assert (fn.stats.running_items, fn.stats.queue_size, fn.stats.total_processed) == (4, 0, 0)
    fn.shutdown(wait=False, cancel_futures=True)
    gate.open()
    fn.shutdown()
    assert isinstance(futures[0].exception(0), Bad)
    assert [future.result(0) for future in futures[1:]] == [("ok", item) for item in range(1, 4)]


def test_isolation_in_lists_of_mixed_keys_and_with_a_cache(flavour: Flavour) -> None:
    """Only culprits fail, and failures are not cached."""
    cache: dict[int, Any] = {}
    bad = {3}
    fn = flavour.decorate(
        picky(bad),
        batch_size=8,
        timeout_ms=0,
        isolate_errors=True,
        cache=cache,
        group_by=lambda item: item % 2,
    )
    answers = flavour.call(fn.options(return_exceptions=True), list(range(8)))
    assert [item for item, answer in enumerate(answers) if isinstance(answer, Bad)] == [3]
    until(lambda: sorted(cache) == [0, 1, 2, 4, 5, 6, 7])
    bad.clear()
    assert flavour.call(fn, 3) == ("ok", 3)


def test_isolation_of_arrays() -> None:
    """A call whose rows are split by a half is joined again."""

    def positive(features: dict[str, Any]) -> Any:
        if (features["x"] < 0).any():
            raise Bad
        return features["x"] * 2

    fn = batched.inference.dynamically(positive, batch_size=8, timeout_ms=60_000, isolate_errors=True)
    good = [fn.submit(x=np.full((3, 2), value)) for value in (1, 2)]
    bad = fn.submit(x=np.array([[1, 1], [-1, 1]]))
    for value, future in zip((1, 2), good, strict=True):
        assert np.array_equal(future.result(PATIENCE_S), np.full((3, 2), value * 2))
    assert isinstance(bad.exception(PATIENCE_S), Bad)


@given(
    sizes=st.lists(st.integers(1, 9), min_size=1, max_size=6),
    gone=st.lists(st.booleans(), min_size=6, max_size=6),
)
def test_halves_have_all_who_are_left_in_order_and_are_never_empty(
    sizes: list[int], gone: list[bool]
) -> None:
    """Two, or one of a single item; as alike as can be without a cut through a call that has company."""
    calls = [Call().begin(list, None, size, True, 0.0) for size in sizes]
    for call, left in zip(calls, gone, strict=False):
        call.missing = 0 if left else call.size
    batch = Batch([(call, 0, call.size) for call in calls], sum(sizes), "full")
    halves = batch.halves()
    live = [(call, at) for call in calls if call.missing for at in range(call.size)]
    found = [(call, at) for half in halves for call, start, stop in half.slices for at in range(start, stop)]
    assert found == live
    assert all(len(half) == sum(stop - start for _, start, stop in half.slices) > 0 for half in halves)
    assert len(halves) == min(len(live), 2)
    sizes_left = [call.size for call in calls if call.missing]
    if len(sizes_left) == 1:
        assert abs(len(halves[0]) - len(halves[-1])) <= 1 or len(halves) == 1
        return
    assert all((start, stop) == (0, call.size) for half in halves for call, start, stop in half.slices)
    uneven = [abs(2 * sum(sizes_left[:at]) - sum(sizes_left)) for at in range(1, len(sizes_left))]
    assert not halves or abs(len(halves[0]) - len(halves[1])) == min(uneven)


# -- out of memory --------------------------------------------------------------------------------------


def limited(most: int, error: Any = MemoryError) -> Gate:
    """Return a batch function that runs out of memory above `most` items."""

    def function(items: list[Any]) -> list[Any]:
        if len(items) > most:
            raise error("out of memory")
        return items

    return Gate(function)


@pytest.mark.parametrize(
    "error", [MemoryError, torch.OutOfMemoryError, torch.cuda.OutOfMemoryError, np.linalg.LinAlgError]
)
def test_what_counts_as_out_of_memory(error: type[Exception]) -> None:
    """Python's own, and whatever is called `OutOfMemoryError`; no import is needed to know."""
    assert is_out_of_memory(error("x")) == (error is not np.linalg.LinAlgError)


@pytest.mark.parametrize("error", [MemoryError, torch.OutOfMemoryError])
def test_out_of_memory_halves_goes_on_and_is_remembered(flavour: Flavour, error: Any) -> None:
    """Without any option; later batches are not too large any more, and `stats` says so."""
    gate = limited(3, error)
    fn = flavour.decorate(gate, batch_size=16, timeout_ms=0)
    assert fn.stats.fits_memory is None
    assert flavour.call(fn, list(range(16))) == list(range(16))
    assert fn.stats.fits_memory == 2
    assert "fits into memory    2 items" in str(fn.stats)
    gate.batches.clear()
    assert flavour.call(fn, list(range(16))) == list(range(16))
    assert [len(batch) for batch in gate.batches] == [2] * 8
    assert fn.stats.total_failed == 0


def test_a_single_item_that_does_not_fit_fails_alone(flavour: Flavour) -> None:
    """Its neighbours are answered."""

    def function(items: list[int]) -> list[int]:
        if 3 in items:
            raise MemoryError
        return items

    fn = flavour.decorate(function, batch_size=4, timeout_ms=0)
    answers = flavour.call(fn.options(return_exceptions=True), [1, 2, 3, 4])
    assert [1, 2, MemoryError, 4] == [row if isinstance(row, int) else type(row) for row in answers]


def test_a_list_that_failed_does_not_fail_its_neighbours_in_the_other_half(flavour: Flavour) -> None:
    """Nothing of it runs again, though it is in both halves."""

    def function(items: list[Any]) -> list[Any]:
        if len(items) > 4:
            raise MemoryError
        if "bad" in items:
            raise Bad
        return items

    fn = flavour.decorate(function, batch_size=8, timeout_ms=60_000)
    failing = flavour.start(fn, ["bad", 1, 2, 3, 4, 5])
    neighbours = [flavour.start(fn, item) for item in (6, 7)]
    assert isinstance(failing.exception(PATIENCE_S), Bad)
    assert [future.result(PATIENCE_S) for future in neighbours] == [6, 7]


def test_more_is_tried_now_and_then(flavour: Flavour) -> None:
    """A quarter at a time; when memory is there again the batches are full again."""
    most = 2
    gate = Gate(lambda items: items if len(items) <= most else (_ for _ in ()).throw(MemoryError()))
    fn = flavour.decorate(gate, batch_size=8, timeout_ms=0)
    flavour.call(fn, list(range(8)))
    assert fn.stats.fits_memory == 2
    most = 8
    for _ in range(10):
        assert flavour.call(fn, list(range(512))) == list(range(512))
    assert fn.stats.fits_memory == 8
    assert len(gate.batches[-1]) == 8


@given(st.integers(1, 200), st.integers(1, 200))
def test_probing_settles_at_what_fits_and_costs_less_and_less(fits: int, batch_size: int) -> None:
    """The limit is never above the batch size, never far below what fits, and failures become rare."""
    capacity = MemoryLimit()
    fits = min(fits, batch_size)
    failures = 0
    late = 0
    for turn in range(20_000):
        size = batch_size if capacity.limit is None else min(batch_size, capacity.limit)
        if size > fits:
            capacity.exceeded(size)
            failures += 1
            late += turn >= 10_000
        else:
            capacity.ran(size, batch_size)
        assert capacity.limit is None or 1 <= capacity.limit <= batch_size
    if capacity.limit is not None:
        assert capacity.limit >= min(fits, batch_size) * 0.75 - 1
    assert late <= 3
    assert failures <= 8 + 10


def test_the_descent_is_no_failed_probe() -> None:
    """However often a size was halved at first, more is tried after 64 batches."""
    capacity = MemoryLimit()
    for size in (64, 32, 16, 8, 4):
        capacity.exceeded(size)
    assert capacity.limit == 2
    for _ in range(64):
        capacity.ran(2, 64)
    assert capacity.limit == 3
    capacity.exceeded(3)
    assert capacity.limit == 2  # what has fitted
    for _ in range(127):
        capacity.ran(2, 64)
    assert capacity.limit == 2
    capacity.ran(2, 64)
    assert capacity.limit == 3


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


def test_a_retry_counts_its_batch_sizes_and_reasons() -> None:
    """Every run is a batch; every item is processed once."""
    fn = batched.dynamically(limited(2), batch_size=8, timeout_ms=0)
    fn(list(range(8)))
    stats = fn.stats
    assert stats.total_batches == 1 + 2 + 4
    assert stats.closed == {"full": 1, "retry": 6}
    assert (stats.total_processed, stats.total_failed, stats.wait.count) == (8, 0, 8)
