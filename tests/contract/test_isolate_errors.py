"""`isolate_errors`: a batch that fails runs again in halves, until only the culprits fail."""

from __future__ import annotations

import math
from collections import Counter
from typing import Any

import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from tests.kit.culprits import Bad, picky
from tests.kit.effort import times
from tests.kit.flavours import Flavour
from tests.kit.gate import PATIENCE_S, Gate, until


# The fixture has no state that one example could leave to the next.
@settings(max_examples=times(120), suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(
    bad=st.sets(st.integers(0, 40), max_size=2),
    batch_size=st.integers(4, 41),
    workers=st.integers(1, 3),
)
def test_only_culprits_fail_and_few_calls_find_them(
    flavour: Flavour, bad: set[int], batch_size: int, workers: int
) -> None:
    """For k culprits in a batch of n at most about `(2k + 1) * log2(n)` calls more."""
    gate = Gate(picky(bad))
    fn = flavour.decorate(
        gate, batch_size=batch_size, timeout_ms=0, isolate_errors=True, max_concurrent_batches=workers
    )
    answers = flavour.call(fn.options(return_exceptions=True), list(range(41)))
    for item, answer in enumerate(answers):
        if item in bad:
            assert (type(answer), answer.args) == (Bad, (item,))
        else:
            assert answer == ("ok", item)
    batches = math.ceil(41 / batch_size)
    allowed = (2 * len(bad) + 1) * math.ceil(math.log2(batch_size)) if bad else 0
    assert len(gate.batches) <= batches + allowed
    assert all(gate.batches)
    until(lambda: not fn.stats.running_items)
    stats = fn.stats
    assert stats.total_accepted == stats.total_processed == 41
    assert stats.total_failed == len(bad)
    assert stats.total_batches == len(gate.batches)
    assert stats.closed.get("retry", 0) == len(gate.batches) - batches
    flavour.close(fn)


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


def test_one_poisoned_item_fails_none_of_31_strangers_without_any_option(flavour: Flavour) -> None:
    """Lists and arrays, whichever of the items it is."""
    for at in (0, 17, 31):
        gate = Gate(picky({at}), shut=True)
        fn = flavour.decorate(gate)
        futures = [flavour.start(fn, item) for item in range(32)]
        gate.wait_for_batch()
        gate.open()
        failed = [item for item, future in enumerate(futures) if future.exception(PATIENCE_S)]
        assert failed == [at]
        flavour.close(fn)

    def positive(features: dict[str, Any]) -> Any:
        if (features["x"] < 0).any():
            raise Bad
        return features["x"]

    arrays = flavour.decorate_arrays(positive)
    futures = [flavour.start(arrays, x=np.full((1, 2), -1 if item == 9 else item)) for item in range(32)]
    assert [item for item, future in enumerate(futures) if future.exception(PATIENCE_S)] == [9]
    flavour.close(arrays)


def test_without_it_a_batch_fails_as_one(flavour: Flavour) -> None:
    """It runs once."""
    gate = Gate(picky({1}))
    fn = flavour.decorate(gate, batch_size=4, timeout_ms=60_000, isolate_errors=False)
    futures = [flavour.start(fn, item) for item in range(4)]
    assert all(isinstance(future.exception(PATIENCE_S), Bad) for future in futures)
    assert len(gate.batches) == 1


def test_a_list_with_a_culprit_fails_with_its_error(flavour: Flavour) -> None:
    """Which of its items fails makes no difference to anyone, and its neighbours are none the worse."""
    gate = Gate(picky({0}))
    fn = flavour.decorate(gate, batch_size=8, timeout_ms=60_000, isolate_errors=True)
    failing = flavour.start(fn, [0, 1, 2, 3, 4, 5])
    neighbours = [flavour.start(fn, item) for item in (6, 7)]
    with pytest.raises(Bad, match="0"):
        failing.result(PATIENCE_S)
    assert [future.result(PATIENCE_S) for future in neighbours] == [("ok", 6), ("ok", 7)]
    assert gate.batches == [[0, 1, 2, 3, 4, 5, 6, 7], [0, 1, 2, 3, 4, 5], [6, 7]]
    stats = fn.stats
    assert stats.total_accepted == stats.total_processed == 8


def test_an_item_whose_caller_has_left_is_not_run_again(flavour: Flavour) -> None:
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
        gate.shut_again()
    stats = fn.stats
    assert stats.total_accepted == stats.total_processed == 12
    assert stats.wait.count == 12  # callers that left while the others ran again have waited too


def test_a_batch_of_which_every_caller_has_left_is_not_counted_as_retried(flavour: Flavour) -> None:
    """Nor does `explain` say that it was."""
    if not flavour.cancels:
        pytest.skip("a blocked thread has no cancel")
    gate = Gate(picky({0}), shut=True)
    fn = flavour.decorate(gate, batch_size=2, timeout_ms=60_000, isolate_errors=True)
    futures = [flavour.start(fn, item) for item in range(2)]
    gate.wait_for_batch()
    for future in futures:
        flavour.cancel(future)
    gate.open()
    until(lambda: fn.stats.total_processed == 2)
    assert (gate.batches, fn.stats.total_divided) == ([[0, 1]], 0)
    assert "retried" not in fn.explain()


def test_a_caller_that_leaves_before_its_half_runs_again_is_left_out(flavour: Flavour) -> None:
    """An item whose caller has left never starts."""
    if not flavour.cancels:
        pytest.skip("a blocked thread has no cancel")
    gate = Gate(picky({0, 3}), shut=True)
    fn = flavour.decorate(gate, batch_size=4, timeout_ms=60_000, isolate_errors=True)
    futures = [flavour.start(fn, item) for item in range(4)]
    gate.wait_for_batch()
    gate.let_through()
    gate.wait_for_batch()
    flavour.cancel(futures[2])
    flavour.cancel(futures[3])
    gate.open()
    assert isinstance(futures[0].exception(PATIENCE_S), Bad)
    assert futures[1].result(PATIENCE_S) == ("ok", 1)
    until(lambda: not fn.stats.running_items)
    assert gate.batches == [[0, 1, 2, 3], [0, 1], [0], [1]]
    assert fn.stats.total_accepted == fn.stats.total_processed == fn.stats.wait.count == 4


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


def test_isolation_of_arrays(flavour: Flavour) -> None:
    """A call whose rows are split by a half is joined again."""

    def positive(features: dict[str, Any]) -> Any:
        if (features["x"] < 0).any():
            raise Bad
        return features["x"] * 2

    fn = flavour.decorate_arrays(positive, batch_size=8, timeout_ms=60_000, isolate_errors=True)
    good = [flavour.start(fn, x=np.full((3, 2), value)) for value in (1, 2)]
    bad = flavour.start(fn, x=np.array([[1, 1], [-1, 1]]))
    for value, future in zip((1, 2), good, strict=True):
        assert np.array_equal(future.result(PATIENCE_S), np.full((3, 2), value * 2))
    assert isinstance(bad.exception(PATIENCE_S), Bad)
