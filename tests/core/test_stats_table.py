"""The figures of a batcher, made by hand: what has changed since options were, and the table."""

from __future__ import annotations

from dataclasses import FrozenInstanceError, fields, replace
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from batched._core.stats import Distribution, Padding, Stats
from batched._policy.window import Learned

NO_VALUES = Distribution((), (), 1.0, 0.0, 0.0, 0.0)
NOTHING = Stats(
    queue_size=0,
    running_items=0,
    running=(),
    total_accepted=0,
    total_processed=0,
    total_failed=0,
    total_cancelled=0,
    total_expired=0,
    total_rejected=0,
    total_refused=0,
    total_cached=0,
    total_batches=0,
    total_divided=0,
    avg_batch_size=0.0,
    avg_processing_time=0.0,
    closed={},
    chosen={},
    learned=None,
    wait=NO_VALUES,
    processing_time=NO_VALUES,
    batch_size=NO_VALUES,
    apart_time=0.0,
    padding=Padding(0, 0),
    isolation_paused=False,
    fits_memory=None,
    best_batch_size=None,
)
"""The figures of a batcher that has done nothing."""

COUNTED = (*(each.name for each in fields(Stats) if each.name.startswith("total_")), "apart_time")
"""What is counted anew as options change."""
SPREAD = ("wait", "processing_time", "batch_size")
LEARNED = Learned(batch_ms=4.0, item_ms=0.5, wait_ms=0.0, capacity=1600.0)


def all_at(value: float, times: int) -> Distribution:
    """Return so many values that are all the same."""
    return Distribution((value,), (times,), 1.0, times * value, value, value)


def table(stats: Stats) -> dict[str, str]:
    """Return what is printed, by the names of the rows."""
    rows = [line.split("  ", 1) for line in str(stats).splitlines()]
    return {name: value.strip() for name, value in rows}


def test_a_snapshot_does_not_change() -> None:
    """Neither it nor what it has of values and of padding."""
    snapshots: list[Any] = [NOTHING, NOTHING.wait, NOTHING.padding]
    for snapshot in snapshots:
        with pytest.raises(FrozenInstanceError):
            setattr(snapshot, fields(snapshot)[0].name, 1)


def test_where_options_have_not_changed_all_figures_are_of_all_time() -> None:
    assert NOTHING.since_configured() is NOTHING


@pytest.mark.parametrize("name", COUNTED)
@given(st.integers(0, 100), st.integers(0, 100))
def test_what_is_counted_since_options_changed_is_the_difference(name: str, before: int, more: int) -> None:
    changed: dict[str, Any] = {name: before}
    now: dict[str, Any] = {name: before + more}
    then = replace(NOTHING, **changed)
    assert getattr(replace(NOTHING, configured=then, **now).since_configured(), name) == more


@pytest.mark.parametrize("name", SPREAD)
def test_values_since_options_changed_are_those_that_came(name: str) -> None:
    before: dict[str, Any] = {name: all_at(8.0, 3)}
    now: dict[str, Any] = {name: all_at(8.0, 5)}
    stats = replace(NOTHING, configured=replace(NOTHING, **before), **now)
    assert getattr(stats.since_configured(), name) == all_at(8.0, 2)


def test_reasons_since_options_changed_are_those_for_which_a_batch_has_started() -> None:
    then = replace(NOTHING, closed={"full": 3, "window": 2})
    stats = replace(NOTHING, closed={"full": 7, "window": 2, "trial": 1}, configured=then)
    assert stats.since_configured().closed == {"full": 4, "trial": 1}


def test_the_share_of_places_since_options_changed_is_of_steps_that_came() -> None:
    then = replace(NOTHING, occupancy=0.25, total_places=100)
    stats = replace(NOTHING, occupancy=0.5, total_places=200, configured=then)
    assert (stats.since_configured().occupancy, stats.since_configured().total_places) == (0.75, 100)
    assert replace(then, configured=then).since_configured().occupancy is None


def test_means_since_options_changed_are_of_the_batches_that_came() -> None:
    """Runs of one batch in halves make its items fewer per run, as they do in all figures."""
    then = replace(NOTHING, total_processed=8, total_batches=1, avg_batch_size=8.0)
    then = replace(then, batch_size=all_at(8.0, 1), processing_time=all_at(2.0, 1), avg_processing_time=2.0)
    now: dict[str, Any] = {"total_processed": 16, "avg_batch_size": 4.0, "avg_processing_time": 1.25}
    times = Distribution((1.0, 2.0), (3, 4), 1.0, 5.0, 1.0, 2.0)
    now |= {"total_batches": 4, "batch_size": all_at(8.0, 4), "processing_time": times}
    since = replace(NOTHING, configured=then, **now).since_configured()
    assert (since.avg_batch_size, since.avg_processing_time) == (8 / 3, 1.0)
    as_steps = replace(NOTHING, configured=then, **{**now, "avg_batch_size": 8.0}).since_configured()
    assert as_steps.avg_batch_size == 8.0


def test_what_is_of_this_moment_is_not_counted_anew() -> None:
    """What waits and runs, what is learned; and what is known of lengths, which options do not change."""
    kept: dict[str, Any] = {
        "queue_size": 3,
        "running": (0.5,),
        "running_items": 2,
        "chosen": {"length": 2},
        "padding": Padding(75, 100, 24),
        "learned": LEARNED,
        "fits_memory": 8,
        "best_batch_size": 4,
    }
    stats = replace(NOTHING, **kept)
    since = replace(stats, configured=stats).since_configured()
    assert since == stats
    assert since.since_configured() is since


ALWAYS = {
    "queued": "3",
    "running": "4 in 2 batches, for 0.5 s, 2 s",
    "accepted": "99",
    "processed": "60, 7 failed",
    "cancelled, expired": "20, 12",
    "rejected, refused": "8 (queue full), 9 (too late)",
    "cached": "11",
    "batches": "6 (4 full, 2 window)",
    "items per batch": "mean 10, p50 10, p90 10, p99 10, max 10",
    "wait": "mean 2, p50 2, p90 2, p99 2, max 2 ms",
    "processing": "mean 14, p50 14, p90 14, p99 14, max 14 ms",
}
BUSY = replace(
    NOTHING,
    queue_size=3,
    running_items=4,
    running=(0.5, 2.0),
    total_accepted=99,
    total_processed=60,
    total_failed=7,
    total_cancelled=20,
    total_expired=12,
    total_rejected=8,
    total_refused=9,
    total_cached=11,
    total_batches=6,
    closed={"full": 4, "window": 2},
    batch_size=all_at(10, 6),
    wait=all_at(0.002, 60),
    processing_time=all_at(0.014, 6),
)


def test_the_table_has_a_row_for_each_figure_of_any_batcher() -> None:
    """In columns, and seconds as milliseconds."""
    assert table(BUSY) == ALWAYS
    assert {line[18:20] for line in str(BUSY).splitlines()} == {"  "}


def test_a_batcher_that_has_done_nothing_says_so() -> None:
    rows = table(NOTHING)
    assert rows.keys() == ALWAYS.keys()
    assert rows["running"] == "0"
    assert rows["batches"] == "0"
    assert rows["wait"] == "mean 0, p50 0, p90 0, p99 0, max 0 ms"


@pytest.mark.parametrize(
    ("changes", "row", "text"),
    [
        ({"total_late": 2}, "processed", "60, 7 failed, 2 late"),
        ({"apart_time": 0.042}, "kept apart by key", "0.042 s of 0.084 s"),
        ({"padding": Padding(75, 100)}, "padding", "25.0% of 100 elements"),
        ({"chosen": {"arrival": 4, "length": 2}}, "chosen by", "4 arrival, 2 length"),
        ({"total_divided": 3}, "retried in halves", "3 failed batches"),
        (
            {"total_divided": 3, "isolation_paused": True},
            "retried in halves",
            "3 failed batches; paused until something succeeds",
        ),
        ({"batch_error": "E: odd"}, "fails only batched", "E: odd"),
        ({"fits_memory": 8}, "fits in memory", "8 items"),
        ({"best_batch_size": 4}, "best batch size", "4"),
        ({"learned": LEARNED}, "learned", str(LEARNED)),
    ],
)
def test_a_row_that_few_batchers_have_is_there_if_there_is_something_to_say(
    changes: dict[str, Any], row: str, text: str
) -> None:
    assert table(replace(BUSY, **changes)) == {**ALWAYS, row: text}


@given(st.integers(0, 100), st.integers(0, 100))
def test_waste_is_the_share_of_padding_in_what_the_function_was_given(real: int, padding: int) -> None:
    """Nothing, where it was given nothing."""
    waste = Padding(real, real + padding).waste_percent
    assert waste == pytest.approx(100 * padding / (real + padding) if padding else 0.0)


def test_notebooks_show_the_same_table() -> None:
    """As HTML, in which names of the user's cannot do harm."""
    shown = NOTHING._repr_html_()
    assert all(line.split("  ", 1)[0] in shown for line in str(NOTHING).splitlines())
    assert shown.startswith("<table><tr><td")
    assert "<script" not in replace(NOTHING, batch_error="<script>")._repr_html_()
