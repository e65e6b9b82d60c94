"""What `explain` does not say, as its numbers do not tell it."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest

from batched._core.explanation import explain
from batched._core.options import ArrayOptions, Options, StreamOptions
from batched._core.stats import Padding
from tests.kit.figures import (
    ALL_FULL,
    ALONE,
    EMPTY,
    LEARNED,
    LEFT,
    ONE_SIZE,
    OUTAGE,
    UNKNOWN,
    sizes,
    stats,
    times,
)


def test_of_arrays_no_length_is_asked_for() -> None:
    """They know theirs."""
    assert "set length" not in explain(stats(), ArrayOptions())


def test_of_streams_it_says_nothing_of_lengths_that_are_not_looked_at() -> None:
    """A stream takes as long as it has pieces; what a budget does with lengths is said."""
    assert "ength" not in explain(stats(), StreamOptions())
    chosen = stats(chosen={"arrival": 100})
    assert "max_batch_length" in explain(chosen, StreamOptions(max_batch_length=4))


def test_nothing_is_said_of_keys_that_take_next_to_no_time() -> None:
    """Batches that have room for items of another key are rare."""
    apart = stats(apart_time=0.04, processing_time=times(1.0))
    assert "group_by" not in explain(apart, Options(group_by=len))


def test_little_is_said_of_few_batches() -> None:
    """No advice before there is something to go by."""
    few = stats(total_batches=2, batch_size=sizes(of_1=2), closed={"window": 2})
    assert "one at a time" not in explain(few, Options())
    assert "set length" not in explain(few, Options())


@pytest.mark.parametrize("timeout_ms", [5, 1000])
@pytest.mark.parametrize(("wait_ms", "waits"), [(0, False), (0.0009, False), (0.003, True), (0.4, True)])
def test_it_says_that_batches_wait_where_the_stats_do(wait_ms: float, waits: bool, timeout_ms: float) -> None:
    """Whatever the longest wait is."""
    learned = replace(LEARNED, wait_ms=wait_ms)
    assert ("no wait for more calls" in str(learned)) == (not waits)
    said = explain(stats(learned=learned), Options(timeout_ms=timeout_ms))
    assert ("do not wait for more calls" in said) == (not waits)


def test_where_sizes_did_not_tell_what_an_item_adds_nothing_follows_from_it() -> None:
    """How the costs divide would be a guess."""
    for learned in (ONE_SIZE, UNKNOWN):
        said = explain(stats(learned=learned, batch_size=sizes(of_1=100)), Options(length=len))
        assert "A batch costs" not in said
        assert "saves almost nothing" not in said
        full = stats(**LEFT | {"learned": learned, "batch_size": sizes(of_20=100)})
        assert "larger batch_size" not in explain(full, Options(batch_size=20))


def test_where_lengths_did_not_differ_an_item_adds_what_one_of_that_length_does() -> None:
    """What a unit of length costs would be a guess."""
    same = stats(learned=replace(LEARNED, uses_lengths=True), padding=Padding(100, 100))
    assert explain(same, Options(length=len)).startswith("A batch costs 4 ms, and each item adds 0.5 ms.\n")


def test_sharing_that_saves_half_is_not_next_to_nothing() -> None:
    """As where an item costs as much as a batch: alone it takes twice as long as in company."""
    even = stats(learned=replace(LEARNED, batch_ms=0.5))
    assert "saves almost nothing" not in explain(even, Options())
    low = stats(learned=replace(LEARNED, batch_ms=0.04))  # two share it: each saves half of 7 %
    assert "saves almost nothing" in explain(low, Options(batch_size=2))
    assert "saves almost nothing" not in explain(low, Options(batch_size=64))


def test_what_copies_cost_is_not_taken_for_the_cost_of_items() -> None:
    """A batch of ten items that is filled up to 64 takes as long as one of 64."""
    low = {"learned": replace(LEARNED, batch_ms=0.01)}
    sized = Options(batch_sizes=(1, 8, 64))
    assert "saves almost nothing" not in explain(stats(**low, total_copies=1000), sized)
    assert "saves almost nothing" in explain(stats(**low, total_copies=10), sized)


@pytest.mark.parametrize(
    ("changes", "options"),
    [
        ({"closed": {"full": 90, "retry": 10}, "fits_memory": 1}, {}),
        ({"closed": {"full": 100}}, {"max_batch_length": 4}),
        ({"closed": {"window": 100}}, {"max_concurrent_batches": 4, "timeout_ms": 0}),
    ],
    ids=["memory", "budget", "workers"],
)
def test_batches_of_one_are_no_lone_caller_where_a_limit_makes_them(
    changes: dict[str, Any], options: dict[str, Any]
) -> None:
    """Memory or a budget, behind which items wait, or workers that each take one."""
    said = explain(stats(**ALONE | changes), Options(**options))
    assert "one at a time" not in said


@pytest.mark.parametrize(
    "kept_away",
    ["total_cached", "total_rejected", "total_refused", "total_expired", "total_cancelled"],
)
def test_batches_of_one_are_no_lone_caller_where_other_items_have_come(kept_away: str) -> None:
    """A cache has answered them, a full queue or a deadline has refused them, or their callers left."""
    assert "one at a time" in explain(stats(**ALONE | {kept_away: 4}), Options())
    assert "one at a time" not in explain(stats(**ALONE | {kept_away: 6}), Options())


def test_a_larger_batch_size_is_no_advice_where_something_else_limits_batches() -> None:
    """Memory, a budget on lengths, the queue, a deadline; or no item would be there to fill it."""
    full = stats(**LEFT)  # of 24 items, which take 16 ms; one of 48 would take 28 ms
    assert "larger batch_size" in explain(full, Options(batch_size=24))
    for changes in (
        {"fits_memory": 24},
        {"total_expired": 1},
        {"total_refused": 1},
        {"total_late": 1},
        {"closed": ALL_FULL | {"deadline": 1}},
        {"wait": times(*[0.007] * 100)},
        {"best_batch_size": 16},
    ):
        assert "larger batch_size" not in explain(replace(full, **changes), Options(batch_size=24))
    for options in (
        {"max_batch_length": 99},
        {"max_queue_size": 47},
        {"default_deadline_ms": 55},
    ):
        assert "larger batch_size" not in explain(full, Options(batch_size=24, **options))
    assert "larger batch_size" not in explain(full, StreamOptions(batch_size=24))
    free = Options(batch_size=24, max_queue_size=48, default_deadline_ms=60)
    assert "larger batch_size" in explain(full, free)


def test_what_came_before_options_were_changed_is_not_said_of_them() -> None:
    """Neither sizes, nor how batches started, nor how long items waited; what was lost is said of all."""
    before = stats(**LEFT | {"total_refused": 3})
    changed = stats(
        total_batches=120,
        batch_size=sizes(of_1=20, of_10=50, of_30=50),
        closed=ALL_FULL | {"callers back": 20},
        wait=times(*[0.02] * 100, *[0.0] * 20),
        learned=None,
        total_refused=3,
        configured=before,
    )
    said = explain(changed, Options(batch_size=4))
    assert "Batches have 1.0 items on average, out of a possible 4; 0% started full." in said
    assert "Calls have come one at a time" in said
    assert "larger batch_size" not in said
    assert "Items have waited 0 ms on average" in said
    assert "3 items were refused" in said


def test_a_batch_that_takes_fewer_items_than_wait_does_not_start_full() -> None:
    """Though it started as enough items waited: more would have been late, or not fit into memory."""
    said = explain(stats(closed=ALL_FULL, total_refused=9), Options(batch_size=64))
    assert "out of a possible 64; 0% started full." in said
    some = stats(closed=ALL_FULL, batch_size=sizes(of_12=97, of_64=3))
    assert "out of a possible 64; 3% started full." in explain(some, Options(batch_size=64))


def test_nothing_follows_from_lengths_of_batches_of_one() -> None:
    """They have no padding."""
    alone = stats(**ALONE | {"padding": Padding(100, 100)})
    assert "ength" not in explain(alone, Options())


def test_batches_that_ran_again_in_halves_count_with_all_their_items() -> None:
    """Callers that share batches of which many fail do not come one at a time."""
    divided = stats(avg_batch_size=1.0, total_divided=50)
    said = explain(divided, Options())
    assert "Batches have 20.0 items on average" in said
    assert "one at a time" not in said


def test_where_no_item_has_worked_no_option_is_advised() -> None:
    """Nothing has told what lengths cost."""
    assert "set length" not in explain(stats(**OUTAGE), Options())


def test_no_option_is_advised_that_is_set_already() -> None:
    """Nor is said what retries wait for where nothing is retried. Both stay in `stats` after `configure`."""
    failed = stats(batch_error="ValueError: rows differ", isolation_paused=True)
    said = explain(failed, Options(batch_size=1, isolate_errors=False))
    assert "rows differ" in said
    assert "batch_size=1" not in said
    assert "until something succeeds" not in said


def test_what_was_refused_or_cached_is_said_before_the_first_batch() -> None:
    """Perhaps all that was asked for."""
    said = explain(replace(EMPTY, total_refused=2, total_cached=3), Options(cache={}))
    assert [sentence.split(",")[0] for sentence in said.splitlines()] == [
        "No batch has run yet",
        "The cache or an equal item in flight has answered 3 of 3 items.",
        "2 items were refused on arrival",
    ]


def test_of_a_batch_size_of_1_nothing_is_said_that_needs_company() -> None:
    """Batches of one are always full."""
    said = explain(
        stats(learned=None, batch_size=sizes(of_1=100), closed={"full": 100}), Options(batch_size=1)
    )
    assert [sentence.split()[0] for sentence in said.splitlines()] == ["The", "Batches", "Items"]


def test_of_steps_nothing_is_said_that_only_whole_batches_know() -> None:
    """Neither windows nor full batches; and of empty places only where calls waited for many of them."""
    steps: dict[str, Any] = {"closed": {"full": 1, "step": 99}, "batch_size": sizes(of_14=100)}
    refilled = Options(continuous=True)
    said = explain(stats(**steps, occupancy=0.95), refilled)
    assert "incomplete batch" not in said
    assert "started full" not in said
    assert "Others" not in said
    assert "Others" not in explain(stats(**{**steps, "total_batches": 2}, occupancy=0.5), refilled)
    assert "places" not in explain(stats(**steps), refilled)
