"""Which calls share a batch, and in which order; the answer of each call is its own."""

from __future__ import annotations

import random
from typing import Any

import pytest

from tests.kit.errors import OwnError
from tests.kit.flavours import Flavour
from tests.kit.gate import PATIENCE_S, Gate, until
from tests.kit.held import hold


def test_callers_share_a_batch_that_is_bound_late(flavour: Flavour) -> None:
    """Calls that come while a batch runs are together in the next, and a full batch needs no window."""
    gate, fn, first = hold(flavour, batch_size=4, timeout_ms=1)
    futures = [flavour.start(fn, index) for index in range(6)]
    gate.open()
    assert [future.result(PATIENCE_S) for future in futures] == list(range(6))
    assert first.result(PATIENCE_S) == ["first"] * 4
    assert gate.batches[1:] == [[0, 1, 2, 3], [4, 5]]


def test_a_full_batch_starts_before_its_window_ends(flavour: Flavour) -> None:
    """With a window of a minute, four items at `batch_size=4` are answered all the same."""
    fn = flavour.decorate(Gate(), batch_size=4, timeout_ms=60_000)
    futures = [flavour.start(fn, index) for index in range(4)]
    assert [future.result(PATIENCE_S) for future in futures] == [0, 1, 2, 3]
    assert flavour.call(fn, [1, 2, 3, 4]) == [1, 2, 3, 4]
    assert fn.stats.total_batches == 2


def test_small_calls_go_ahead_of_large_ones(flavour: Flavour) -> None:
    """A small call that comes while a long list runs is in the very next batch."""
    gate, fn, _ = hold(flavour, batch_size=4, timeout_ms=0, small_batch_threshold=2)
    large = flavour.start(fn, list(range(12)))
    gate.let_through()
    gate.wait_for_batch()
    small = flavour.start(fn, "small")
    gate.let_through(2)
    assert small.result(PATIENCE_S) == "small"
    gate.open()
    assert large.result(PATIENCE_S) == list(range(12))
    assert gate.batches[1:] == [[0, 1, 2, 3], ["small", 4, 5, 6], [7, 8, 9, 10], [11]]


def test_priority_overrules_the_size(flavour: Flavour) -> None:
    """`interactive` lists go ahead of `bulk` singles."""
    gate, fn, _ = hold(flavour, batch_size=2, timeout_ms=0, small_batch_threshold=1)
    flavour.start(fn.options(priority="bulk"), "bulk")
    flavour.start(fn, "single")
    last = flavour.start(fn.options(priority="interactive"), [1, 2])
    gate.open()
    last.result(PATIENCE_S)
    until(lambda: len(gate.batches) == 3)
    assert gate.batches[1:] == [["single", 1], [2, "bulk"]]


def test_an_eighth_is_kept_for_large_calls(flavour: Flavour) -> None:
    """While small calls alone would fill every batch, a large one still gets on."""
    gate, fn, _ = hold(flavour, batch_size=8, timeout_ms=0, small_batch_threshold=1)
    large = flavour.start(fn, ["x", "y"])
    small = [flavour.start(fn, index) for index in range(30)]
    gate.open()
    large.result(PATIENCE_S)
    for future in small:
        future.result(PATIENCE_S)
    assert gate.batches[1:3] == [["x", *range(7)], ["y", *range(7, 14)]]


def test_everyone_gets_their_own_answer(flavour: Flavour) -> None:
    """A random mix of singles, lists and failing items, from many callers at once."""

    def answer(items: list[int]) -> list[Any]:
        return [OwnError(item) if item % 17 == 0 else item * 3 for item in items]

    fn = flavour.decorate(answer, batch_size=5, timeout_ms=0.1)
    rng = random.Random(2)
    asked = [rng.randrange(1000) if rng.random() < 0.7 else rng.sample(range(1000), 9) for _ in range(200)]
    futures = [flavour.start(fn.options(return_exceptions=True), items) for items in asked]
    for items, future in zip(asked, futures, strict=True):
        rows = future.result(PATIENCE_S)
        pairs = [(items, rows)] if isinstance(items, int) else zip(items, rows, strict=True)
        for item, row in pairs:
            assert row.code == item if item % 17 == 0 else row == item * 3
    stats = fn.stats
    assert (
        stats.total_accepted
        == stats.total_processed
        == sum(1 if isinstance(items, int) else len(items) for items in asked)
    )
    assert stats.avg_batch_size == stats.total_processed / stats.total_batches
    assert stats.avg_processing_time > 0


def test_options_of_a_view_add_to_those_it_was_made_of(flavour: Flavour) -> None:
    """Until they are given again: None takes a deadline back."""
    gate = Gate(shut=True)
    fn = flavour.decorate(gate, batch_size=1, timeout_ms=0, small_batch_threshold=1)
    first = flavour.start(fn, 0)
    gate.wait_for_batch()
    late = fn.options(deadline_ms=1, return_exceptions=True)
    futures = [
        flavour.start(view, item)
        for item, view in enumerate(
            [
                late.options(priority="bulk").options(deadline_ms=None),
                late.options(priority="bulk", deadline_ms=None).options(priority="interactive"),
                late.options(priority="bulk").options(),
            ],
            1,
        )
    ]
    until(lambda: fn.stats.total_accepted == 4)
    with pytest.raises(TimeoutError):
        futures[2].result(PATIENCE_S)
    gate.open()
    assert first.result(PATIENCE_S) == 0
    assert [future.result(PATIENCE_S) for future in futures[:2]] == [1, 2]
    assert gate.batches == [[0], [2], [1]]
