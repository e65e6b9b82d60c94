"""`max_queue_size` beside calls that wait for room: what is refused, and what is not."""

from __future__ import annotations

import threading
from typing import Any

import pytest

from batched import QueueFullError
from tests.kit.flavours import Flavour
from tests.kit.full import begin, hold
from tests.kit.gate import PATIENCE_S, Gate, until
from tests.kit.kept import blocked, outside
from tests.kit.stats import check_sums


def begin_map(flavour: Flavour, fn: Any, elements: int) -> list[Any]:
    """Begin a map in a thread of its own; return the list that gets its answers."""
    answers: list[Any] = []
    threading.Thread(target=lambda: answers.extend(flavour.map(fn, range(elements))), daemon=True).start()
    until(lambda: outside(fn))
    return answers


def test_small_calls_are_not_turned_away_for_a_map_that_waits_for_room(flavour: Flavour) -> None:
    """A map fills half of the queue; the other half is for others, and full is full for them only then."""
    gate, fn, first = hold(flavour, batch_size=4, max_queue_size=8)
    answers = begin_map(flavour, fn, 100)
    assert fn.stats.queue_size == 4
    singles = [flavour.start(fn, f"single {number}") for number in range(4)]
    with pytest.raises(QueueFullError, match="embed has no room for 1 more: 8 items in the queue, max_q"):
        flavour.call(fn, "too many")
    gate.open()
    assert [single.result(PATIENCE_S) for single in singles] == [f"single {number}" for number in range(4)]
    until(lambda: len(answers) == 100)
    assert answers == list(range(100))
    assert first.result(PATIENCE_S) == ["first"] * 4 or first.result(PATIENCE_S) == "first"
    assert fn.stats.total_rejected == 1


@pytest.mark.parametrize("tenants", [1, 2])
def test_small_calls_are_not_turned_away_for_a_map_of_a_tenant(flavour: Flavour, tenants: int) -> None:
    """Of their own tenant, or of another."""
    fair_by = (lambda _: None) if tenants == 1 else (lambda item: isinstance(item, int))
    gate, fn, _ = hold(flavour, batch_size=4, max_queue_size=8, fair_by=fair_by)
    answers = begin_map(flavour, fn, 100)
    assert fn.stats.queue_size == 4
    singles = [flavour.start(fn, f"single {number}") for number in range(4)]
    gate.open()
    assert [single.result(PATIENCE_S) for single in singles] == [f"single {number}" for number in range(4)]
    until(lambda: len(answers) == 100)
    assert answers == list(range(100))
    assert fn.stats.total_rejected == 0


def test_two_maps_leave_half_of_the_room_to_others(flavour: Flavour) -> None:
    """Together: as many maps as there are have one half."""
    gate, fn, _ = hold(flavour, batch_size=4, max_queue_size=8)
    maps = [begin_map(flavour, fn, 30), begin_map(flavour, fn, 30)]
    assert fn.stats.queue_size == 4
    four = flavour.start(fn, ["a", "b", "c", "d"])
    gate.open()
    assert four.result(PATIENCE_S) == ["a", "b", "c", "d"]
    until(lambda: all(len(answers) == 30 for answers in maps))
    assert fn.stats.total_rejected == 0


def test_a_large_list_finds_the_half_that_maps_leave(flavour: Flavour) -> None:
    """Though a map waits for room."""
    gate, fn, _ = hold(flavour, batch_size=4, max_queue_size=8, small_batch_threshold=1)
    answers = begin_map(flavour, fn, 30)
    large = flavour.start(fn, ["a", "b", "c"])
    assert fn.stats.queue_size == 7
    gate.open()
    assert large.result(PATIENCE_S) == ["a", "b", "c"]
    until(lambda: len(answers) == 30)


def test_a_map_comes_to_its_end_beside_callers_that_keep_the_queue_full(flavour: Flavour) -> None:
    """Small calls go ahead of it, but not for ever: here one comes for each that is answered."""
    fn = flavour.decorate(Gate(), batch_size=1, timeout_ms=0, max_queue_size=4, name="embed")
    stop = threading.Event()

    def call_again_and_again() -> None:
        while not stop.is_set():
            try:
                flavour.call(fn, "single")
            except QueueFullError:
                continue

    threads = [threading.Thread(target=call_again_and_again, daemon=True) for _ in range(8)]
    for thread in threads:
        thread.start()
    try:
        assert flavour.map(fn, range(20)) == list(range(20))
    finally:
        stop.set()
    for thread in threads:
        thread.join(PATIENCE_S)


def test_a_call_is_refused_only_behind_what_was_promised_to_calls_before_it(flavour: Flavour) -> None:
    """A list waits for room; then calls are refused from now on: those that fit behind it are let in."""
    gate, fn, _ = hold(flavour, on_full="wait", max_queue_size=6)
    one = flavour.start(fn, 1)
    large = begin(flavour, fn, ["large"] * 6)
    fn.configure(on_full="raise")
    with pytest.raises(QueueFullError, match="1 item in the queue and 6 more waiting for room ahead of this"):
        flavour.call(fn, "refused")
    fn.configure(max_queue_size=8)  # now the list has room, and one more
    later = flavour.start(fn, "later")
    gate.open()
    assert (one.result(PATIENCE_S), later.result(PATIENCE_S)) == (1, "later")
    assert large.result(PATIENCE_S) == ["large"] * 6
    assert not outside(fn)
    assert not blocked(fn)


@pytest.mark.parametrize("options", [{}, {"group_by": lambda _: 0}])
def test_what_other_callers_wait_for_stays_outside_when_its_caller_leaves(
    flavour: Flavour, options: dict[str, Any]
) -> None:
    """The queue stays bounded, and they are let in when there is room."""
    if not flavour.in_tasks:
        pytest.skip("a thread that waits for room is blocked")
    gate, fn, _ = hold(flavour, on_full="wait", max_queue_size=1, cache={}, **options)
    flavour.start(fn, "one")
    followers = []
    for number in range(5):
        leader = flavour.start(fn, number)
        hits = fn.stats.total_cached
        followers.append(flavour.start(fn, number))
        until(lambda: fn.stats.total_cached > hits)
        flavour.cancel(leader)
        until(lambda: fn.stats.queue_size == 1)
    assert len(outside(fn)) == 5
    flavour.cancel(followers.pop())
    until(
        lambda: fn.stats.queue_size and len(outside(fn)) == 4
    )  # the stats take note of callers that have left
    gate.open()
    assert [each.result(PATIENCE_S) for each in followers] == list(range(4))
    assert not outside(fn)
    check_sums(fn)
