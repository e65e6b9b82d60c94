"""Each sentence of `explain`, from the numbers that it is made of."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest

from batched._core.counters import Counters
from batched._core.explanation import explain
from batched._core.options import ArrayOptions, Options
from batched._core.stats import Distribution, Padding, Sizes, Stats, Times
from batched._policy.window import Learned

LEARNED = Learned(batch_ms=4.0, item_ms=0.5, wait_ms=0.0, capacity=1600.0)
EMPTY = Counters().snapshot(waiting=0, running=[], again=0, fits=None, best=None, learned=None)


def sizes(**batches: int) -> Distribution:
    """Return how many batches had which size: `sizes(of_20=3)`."""
    seen = Sizes()
    for size, times in batches.items():
        seen.add(int(size.removeprefix("of_")), times)
    return seen.snapshot()


def times(*seconds: float) -> Distribution:
    """Return the distribution of so many seconds."""
    seen = Times()
    seen.add([*seconds])
    return seen.snapshot()


def stats(**changes: Any) -> Stats:
    """Return the figures of 100 batches of about 20 items, with `changes`."""
    usual = replace(
        EMPTY,
        total_batches=100,
        total_processed=2000,
        avg_processing_time=0.0145,
        closed={"full": 10, "no gain": 90},
        learned=LEARNED,
        wait=times(*[0.002] * 100),
        batch_size=sizes(of_19=50, of_21=50),
    )
    return replace(usual, **changes)


def test_before_the_first_batch_there_is_nothing_to_say() -> None:
    """And it says so."""
    assert explain(EMPTY, Options()) == "No batch has run yet, so nothing is known."


USUAL = [
    "A batch costs 4 ms, and each item adds 0.5 ms.",
    (
        "Length has not mattered: batches are too short for that, or items have none that shows. If the "
        "function pads items of another kind, say how long they are: set length to a function."
    ),
    "Batches have 20.0 items on average, of at most 64; 10% started full.",
    "No batch is held back: a wait for more calls would cost more than it saves.",
    "Items wait for 2 ms on average, and one in a hundred for 2 ms.",
]


def test_what_it_says_of_a_usual_function() -> None:
    """One sentence a line."""
    assert explain(stats(), Options()).splitlines() == USUAL


@pytest.mark.parametrize(
    ("changes", "options", "expected"),
    [
        ({"learned": None}, {}, "What a batch and an item cost is not known yet: more batches have to run."),
        ({"learned": None}, {"adaptive": False}, "is not learned: that needs adaptive=True"),
        ({"learned": None}, {}, "waits until its oldest item is 5 ms old"),
        ({"learned": replace(LEARNED, length_ms=0.25)}, {}, "adds 0.5 ms, and 0.25 ms for a unit of length."),
        ({"learned": replace(LEARNED, batch_ms=0.01, capacity=2000)}, {}, "saves next to nothing"),
        ({"learned": replace(LEARNED, wait_ms=1.5)}, {}, "Batches are held back for 1.5 ms"),
        (
            {"chosen": {"arrival": 10, "length": 90}, "padding": Padding(75, 100)},
            {},
            "share batches: 90 batches were chosen so, and 25 % of what the function was given is padding.",
        ),
        ({"chosen": {"arrival": 100}}, {"length": len}, "Length costs so little that the order is that of"),
        ({"padding": Padding(75, 100)}, {}, "Length has been looked at, and was not found to cost time"),
        ({}, {"length": None}, "Lengths are not looked at, because of length=None."),
        (
            {"batch_size": sizes(of_1=90, of_2=10)},
            {},
            "Callers come one at a time: there is nothing to share.",
        ),
        (
            {"batch_size": sizes(of_1=90, of_2=10)},
            {"group_by": len},
            "Callers come one at a time: there is nothing to share.",
        ),
        (
            {"apart_time": 0.12, "processing_time": times(1.0)},
            {"group_by": len},
            (
                "For 12% of the time the function works on batches with room for items that wait, but have "
                "another key of group_by: with fewer keys, these would share a batch."
            ),
        ),
        (
            {"apart_time": 0.12, "processing_time": times(1.0)},
            {},
            "have other columns: with equal ones, these",
        ),
        ({"closed": {"full": 90, "no gain": 10}}, {"batch_size": 4}, "a larger batch_size would share it"),
        ({"fits_memory": 8}, {}, "No more than 8 items fit into memory."),
        ({"best_batch_size": 8}, {}, "Batches of 8 items serve best: none has more, but for rare trials."),
        ({}, {"timeout_ms": 0}, "No batch is held back, because of timeout_ms=0."),
        ({"total_divided": 3}, {}, "3 batches failed and ran again in halves"),
        (
            {"total_divided": 3, "isolation_paused": True},
            {},
            "as in an outage: until something works, batches that fail do not run again",
        ),
        ({"total_failed": 7}, {}, "7 of 2000 items failed."),
        ({"total_expired": 5}, {}, "5 items were late before they could start."),
        ({"total_rejected": 6}, {}, "6 items were refused, as the queue had no room."),
    ],
    ids=lambda value: None if isinstance(value, dict) else str(value)[:30],
)
def test_each_sentence(changes: dict[str, Any], options: dict[str, Any], expected: str) -> None:
    """It is there where its numbers say so, and else not."""
    assert expected in explain(stats(**changes), Options(**options))
    assert expected not in "\n".join(USUAL)


def test_of_arrays_no_length_is_asked_for() -> None:
    """They know theirs."""
    assert "ength" not in explain(stats(), ArrayOptions())


def test_of_arrays_that_share_no_batch_it_says_layouts() -> None:
    """Those are what they are kept apart by; and nothing is said of what takes next to no time."""
    apart = stats(apart_time=0.12, processing_time=times(1.0))
    assert "have arrays of another layout: with fewer layouts, these" in explain(apart, ArrayOptions())
    assert "layout" not in explain(replace(apart, apart_time=0.04), ArrayOptions())


def test_little_is_said_of_few_batches() -> None:
    """No advice before there is something to go by."""
    few = stats(total_batches=2, batch_size=sizes(of_1=2), closed={"window": 2})
    assert "nothing to share" not in explain(few, Options())


def test_where_all_batches_have_one_size_it_is_not_said_what_an_item_adds() -> None:
    """Nothing has told that from what a batch costs, so nothing follows from it."""
    same = stats(batch_size=sizes(of_20=100), closed={"full": 100})
    said = explain(same, Options(batch_size=20))
    assert said.startswith("A batch of 20 costs 14 ms. What an item adds is not known")
    assert "larger batch_size" not in said
    alone = replace(same, batch_size=sizes(of_1=100), learned=replace(LEARNED, capacity=1.0))
    assert "saves next to nothing" not in explain(alone, Options())


def test_batches_that_ran_again_in_halves_count_with_all_their_items() -> None:
    """Callers that share batches of which many fail do not come one at a time."""
    divided = stats(avg_batch_size=1.0, total_divided=50)
    said = explain(divided, Options())
    assert "Batches have 20.0 items on average" in said
    assert "one at a time" not in said


def test_of_a_batch_size_of_1_nothing_is_said_that_needs_company() -> None:
    """Batches of one are always full."""
    said = explain(
        stats(learned=None, batch_size=sizes(of_1=100), closed={"full": 100}), Options(batch_size=1)
    )
    assert [sentence.split()[0] for sentence in said.splitlines()] == ["Batches", "Batches", "Items"]
