"""What runs before the queue, alone: parts of batches and asides, in which order, and when."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from batched._core.batch import Batch
from batched._core.first import First
from batched._core.halves import Aside, Half, halves_of
from tests.kit.calls import listed
from tests.kit.river import batch_of

MOST = 4


def part_of(size: int) -> Half:
    """Return a part of so many single items."""
    return Half(batch_of(size).slices, size, None, None)


def aside_of(size: int = 1) -> Aside:
    """Return an aside of so many single items."""
    return Aside(batch_of(size).slices, size, None, None)


class NotHere(Aside):
    """An aside that is for another worker."""

    __slots__ = ()

    def may_start(self) -> bool:
        """Return False."""
        return False


def first_of(*batches: Half) -> First:
    """Return what has these batches."""
    first = First()
    first.extend(batches)
    return first


def found(first: First, *running: Batch, most: int = MOST) -> Half | None:
    """Return what runs next beside some batches."""
    return first.find(running, most, Half.prune)


def taken(first: First, running: dict[Batch, float] | None = None) -> list[Half]:
    """Return what runs, one after another, where no call is due and no batch ends."""
    running = {} if running is None else running
    batches: list[Half] = []
    while (part := first.find(running, MOST, Half.prune)) is not None:
        first.take(part, running, 5.0)
        batches.append(part)
    return batches


def test_nothing_runs_where_there_is_nothing() -> None:
    assert found(First()) is None


def test_batches_run_in_their_order_and_parts_are_noted_among_those_that_run() -> None:
    batches = [part_of(2), aside_of(), part_of(1)]
    running: dict[Batch, float] = {}
    assert taken(first := first_of(*batches), running) == [batches[0], batches[1], batches[2]]
    assert running == {batches[0]: 5.0, batches[2]: 5.0}
    assert not first


def test_a_part_waits_for_the_batch_that_it_is_behind_and_others_go_ahead() -> None:
    ahead, blocked, free = batch_of(1), part_of(1), part_of(2)
    blocked.behind = ahead
    first = first_of(blocked, free)
    assert found(first, ahead) is free
    first.remove(free)
    assert found(first, ahead) is None
    assert found(first) is blocked


def test_an_aside_that_is_for_another_worker_holds_up_no_batch() -> None:
    part = part_of(1)
    first = first_of(NotHere(batch_of(1).slices, 1, None, None), part)
    assert found(first) is part
    first.remove(part)
    assert found(first) is None


def test_calls_that_are_due_go_ahead_of_an_aside_that_follows_another() -> None:
    """Until a batch of the queue has run; a part yields to none, and goes ahead of the aside."""
    one, other, part = aside_of(), aside_of(), part_of(1)
    first = first_of(one, other)
    assert not first.yields(one)
    first.take(one, {}, 5.0)
    assert found(first) is other
    assert first.yields(other)
    first.append(part)
    assert found(first) is part
    assert not first.yields(part)
    first.aside_ran = False  # a batch of the queue has run
    assert found(first) is other
    assert not first.yields(other)


def test_items_that_no_caller_wants_are_left_out_and_a_part_without_any_is_forgotten() -> None:
    left, wanted = part_of(2), part_of(3)
    for call in (*left.calls, wanted.calls[0]):
        call.missing = 0
    first = first_of(left, wanted)
    pruned: list[Half] = []

    def prune(part: Half) -> None:
        pruned.append(part)
        part.prune()

    assert first.find((), MOST, prune) is wanted
    assert pruned == [left, wanted]
    assert [*first] == [wanted]
    assert wanted.size == 2


@given(st.lists(st.integers(1, 40), min_size=1, max_size=5))
def test_a_part_that_is_larger_than_a_batch_may_be_by_now_is_divided_and_loses_no_item(
    sizes: list[int],
) -> None:
    parts = [part_of(size) for size in sizes]
    calls = [call for part in parts for call in part.calls]
    ran = taken(first_of(*parts))
    assert all(0 < part.size <= MOST for part in ran)
    assert [call for part in ran for call in part.calls] == calls


def test_an_aside_runs_as_it_is_however_large_it_is() -> None:
    """It is to show the function a size; and its parts would count as batches."""
    aside = aside_of(MOST + 1)
    aside.calls[0].missing = 0
    assert taken(first_of(aside)) == [aside]
    assert aside.size == len(aside.calls) == MOST + 1


def test_parts_in_the_place_of_another_wait_for_what_that_has_waited_for() -> None:
    ahead, blocked, before, after = batch_of(1), part_of(4), part_of(1), part_of(1)
    blocked.behind = ahead
    first = first_of(before, blocked, after)
    halves = halves_of(blocked, None, None)
    first.replace(blocked, halves)
    assert [*first] == [before, *halves, after]
    assert [half.behind for half in halves] == [ahead, ahead]
    assert taken(first, {ahead: 1.0}) == [before, after]


def test_what_runs_again_comes_first_but_behind_its_other_half() -> None:
    """So a half that works is found early."""
    batch, waiting = Batch([(listed(8), 0, 8)], 8), part_of(1)
    first = first_of(waiting)
    one, other = halves_of(batch, None, None)
    first.put_again(batch, [one, other])
    assert [*first] == [one, other, waiting]
    first.take(one, {}, 5.0)
    first.put_again(one, quarters := halves_of(one, None, None))
    assert [*first] == [other, *quarters, waiting]
    first.take(other, {}, 5.0)
    first.put_again(other, last := halves_of(other, None, None))
    assert [*first] == [*last, *quarters, waiting]
    first.clear()
    first.put_again(one, quarters)  # the other half is gone
    assert [*first] == quarters


def test_asides_are_told_from_parts_which_alone_have_items_that_wait() -> None:
    parts, asides = [part_of(3), part_of(1)], [aside_of(), aside_of()]
    first = first_of(parts[0], *asides, parts[1])
    assert (first.parts, first.asides, first.items) == (parts, asides, 4)
    assert (First().parts, First().asides, First().items) == ([], [], 0)


def test_a_batch_that_was_taken_runs_as_the_first_of_its_parts_and_the_others_come_next() -> None:
    batch, waiting = Batch([(listed(8), 0, 8)], 8), part_of(1)
    first = first_of(waiting)
    one, *others = [part for half in halves_of(batch, None, None) for part in halves_of(half, None, None)]
    first.divide(batch, [one, *others])
    assert (batch.slices, batch.size) == (one.slices, 2)
    assert [*first] == [*others, waiting]
