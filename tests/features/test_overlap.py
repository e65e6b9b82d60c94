"""The feature that decides which batches overlap: when the next is taken, and how many items it has."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from batched._core.halves import Half
from batched._core.hooks import Run
from batched._core.options import Options
from batched._features.overlap import Overlap
from batched._policy.window import StartReason
from tests.kit.river import StandInRiver, batch_of

MOST = 32


class Queue(SimpleNamespace):
    """As much of a queue as is asked for."""

    def lacks(self) -> int:
        """Return how many items it lacks to be full."""
        lacking: int = self.batch_size - self.items
        return max(lacking, 0)


class Alone:
    """The feature, and what it sees: stages that take `fixed + each * n` seconds."""

    def __init__(self, costs: list[tuple[float, float]], *, batches: int = 40) -> None:
        self.river: Any = StandInRiver()
        self.river.queue = Queue(items=0, batch_size=MOST)
        self.costs = costs
        self.feature = Overlap()
        self.feature.begin(self.river, Options(batch_size=MOST, prepare=list, finish=list))
        for turn in range(batches):
            self.ran(1 + turn * 7 % MOST)

    def seconds(self, size: int) -> tuple[float, ...]:
        """Return what a batch spends in each stage."""
        return tuple(fixed + each * size for fixed, each in self.costs)

    def ran(self, size: int) -> None:
        """Have a batch pass all stages."""
        batch = batch_of(size)
        batch.stage_s = self.seconds(size)
        self.feature.ended(Run(batch, 0.0, sum(batch.stage_s), size, None, is_lesson=True))

    def run(self, size: int, now: float = 0.0) -> Any:
        """Have a batch be in the function."""
        batch = batch_of(size)
        self.river.running[batch] = now
        self.feature.begins(batch, now)
        return batch


EVEN = [(0.0, 0.001), (0.0, 0.002), (0.0, 0.001)]  # nothing is shared
SHARED = [(0.001, 0.0), (0.05, 0.0001), (0.001, 0.0)]  # nearly all of the time is, in one stage


def test_a_batch_is_taken_as_late_as_it_will_be_prepared_in_time() -> None:
    alone = Alone(EVEN)
    alone.run(20, now=1.0)
    alone.river.queue.items = 10
    at = alone.feature.look_at(1.0)
    assert at is not None
    ends, needs = 1.0 + 0.04, 0.01
    assert ends - needs - 0.01 < at < ends - needs


def test_nothing_is_taken_ahead_until_it_is_known_how_long_stages_take() -> None:
    alone = Alone(EVEN, batches=0)
    alone.run(20)
    alone.river.queue.items = MOST
    assert alone.feature.look_at(0.0) is None
    for _ in range(3):
        alone.ran(20)
    assert alone.feature.look_at(0.0) is not None


def test_calls_wait_for_the_callers_that_run_where_one_batch_of_all_would_be_faster() -> None:
    alone = Alone(SHARED)
    alone.run(10)
    alone.river.queue.items = 10
    assert alone.feature.look_at(0.0) is None
    assert alone.feature.lacks() == MOST - 20 + 1
    alone.river.queue.items = MOST - 9
    assert alone.feature.look_at(0.0) is not None, "they would not fit into one batch with those that run"


def test_parts_of_a_batch_that_failed_run_at_once() -> None:
    alone = Alone(SHARED, batches=0)
    alone.run(10)
    alone.river.first.append(Half(batch_of(5).slices, 5, None, None))
    assert alone.feature.look_at(7.0) == 7.0


def test_a_part_that_waits_for_the_end_of_a_batch_is_no_reason_to_look_before() -> None:
    alone = Alone(SHARED)
    running = alone.run(10)
    part = Half(batch_of(5).slices, 5, None, None)
    part.behind = running
    alone.river.first.append(part)
    assert alone.feature.look_at(7.0) is None
    alone.river.running.clear()
    assert alone.feature.look_at(7.0) == 7.0


def test_once_the_function_has_ended_the_next_batch_is_taken_at_once() -> None:
    alone = Alone(EVEN)
    alone.run(10)
    alone.river.queue.items = 10
    alone.feature.ends()
    assert alone.feature.look_at(3.0) == 3.0


def test_the_window_has_no_say_where_a_batch_is_taken_ahead() -> None:
    alone = Alone(EVEN)
    alone.river.queue.items = 5
    assert alone.feature.start(9.0, StartReason.WAITED, 0.0) == (9.0, StartReason.WAITED), "nothing runs"
    alone.run(10)
    start, reason = alone.feature.start(9.0, StartReason.WAITED, 0.0)
    assert start < 0.02
    assert reason == StartReason.AHEAD


def test_what_waits_for_an_idle_function_is_divided_if_it_is_answered_sooner() -> None:
    alone = Alone(EVEN)
    alone.river.queue.items = MOST
    assert alone.feature.room(alone.river.queue, MOST, 0.0) == MOST // 4
    shared = Alone(SHARED)
    shared.river.queue.items = MOST
    assert shared.feature.room(shared.river.queue, MOST, 0.0) == MOST


def test_a_long_queue_fills_batches() -> None:
    alone = Alone(EVEN)
    alone.river.queue.items = 4 * MOST
    assert alone.feature.room(alone.river.queue, MOST, 0.0) == MOST


def test_with_adaptive_off_no_batch_is_divided() -> None:
    alone = Alone(EVEN)
    alone.feature.configure(Options(batch_size=MOST, prepare=list, adaptive=False))
    alone.river.queue.items = MOST
    assert alone.feature.room(alone.river.queue, MOST, 0.0) == MOST


def test_where_all_batches_have_one_size_some_have_half_of_it_until_costs_are_known() -> None:
    alone = Alone(EVEN, batches=0)
    for _ in range(3):
        alone.ran(MOST)
    alone.river.queue.items = MOST
    rooms = [alone.feature.room(alone.river.queue, MOST, 0.0) for _ in range(100)]
    assert set(rooms) == {MOST, MOST // 2}
    assert 4 <= rooms.count(MOST // 2) <= 12


@pytest.mark.parametrize(
    ("costs", "slots"),
    [(EVEN, 2.0), ([(0.01, 0.0)] * 3, 3.0), ([(0.0, 0.0), (0.01, 0.001), (0.0, 0.0)], 1.0)],
)
def test_the_others_hear_how_many_batches_run_at_once(costs: list[tuple[float, float]], slots: float) -> None:
    assert Alone(costs).river.slots == pytest.approx(slots, rel=0.05)


def test_failed_batches_teach_nothing() -> None:
    alone = Alone(EVEN, batches=0)
    for _ in range(10):
        batch = batch_of(4)
        batch.stage_s = (0.0, 0.0, 0.0)
        alone.feature.ended(Run(batch, 0.0, 1.0, 4, ValueError(), is_lesson=True))
    alone.run(4)
    alone.river.queue.items = MOST
    assert alone.feature.look_at(0.0) is None


def test_a_batch_that_is_prepared_is_given_up_for_a_call_only_if_that_costs_less() -> None:
    cheap = Alone([(0.0, 0.0001), (0.01, 0.0001), (0.0, 0.0)])
    cheap.run(20, now=0.0)
    assert cheap.feature.gives_up(batch_of(4), 1, 0.005)
    dear = Alone([(0.02, 0.001), (0.01, 0.0001), (0.0, 0.0)])
    dear.run(20, now=0.0)
    assert not dear.feature.gives_up(batch_of(20), 1, 0.005)
    dear.feature.ends()
    assert not dear.feature.gives_up(batch_of(1), 1, 0.0)


@given(
    costs=st.lists(st.tuples(st.floats(0, 0.05), st.floats(0, 0.005)), min_size=3, max_size=3),
    items=st.integers(1, 3 * MOST),
    runs=st.integers(0, MOST),
    batches=st.integers(0, 40),
)
def test_whatever_stages_cost_a_batch_has_an_item_and_no_more_than_there_is_room_for(
    costs: list[tuple[float, float]], items: int, runs: int, batches: int
) -> None:
    alone = Alone(costs, batches=batches)
    if runs:
        alone.run(runs)
    alone.river.queue.items = items
    room = min(items, MOST)
    assert 1 <= alone.feature.room(alone.river.queue, room, 0.1) <= room
    assert alone.feature.lacks() >= 1
    assert alone.river.slots >= 1.0
