"""Parts of a batch that run in its place."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from batched._core.batch import Batch
from batched._core.call import Call
from batched._core.halves import halves_of


@given(sizes=st.lists(st.integers(1, 9), max_size=6))
def test_halves_have_all_items_in_order_and_are_never_empty(sizes: list[int]) -> None:
    """Two, or one of a single item; as alike as can be without a cut through a call that has company."""
    calls = [Call().begin(list, None, size, True, 0.0) for size in sizes]
    batch = Batch([(call, 0, call.size) for call in calls], sum(sizes), "full")
    halves = halves_of(batch, ValueError(), None)
    items = [(call, at) for call in calls for at in range(call.size)]
    found = [(call, at) for half in halves for call, start, stop in half.slices for at in range(start, stop)]
    assert found == items
    assert all(len(half) == sum(stop - start for _, start, stop in half.slices) > 0 for half in halves)
    assert len(halves) == min(len(items), 2)
    if len(sizes) == 1:
        assert abs(len(halves[0]) - len(halves[-1])) <= 1 or len(halves) == 1
        return
    assert all((start, stop) == (0, call.size) for half in halves for call, start, stop in half.slices)
    uneven = [abs(2 * sum(sizes[:at]) - sum(sizes)) for at in range(1, len(sizes))]
    assert not halves or abs(len(halves[0]) - len(halves[1])) == min(uneven)


def test_a_half_that_is_divided_before_it_has_run_is_padded_as_the_whole_was() -> None:
    """Parts of one call that are padded to different lengths could not be joined."""
    call = Call().begin(list, None, 8, False, 0.0)
    batch = Batch([(call, 0, 8)], 8, "full")
    batch.shapes = [(7,)]
    for half in halves_of(batch, MemoryError(), None):
        assert [quarter.least_shapes for quarter in halves_of(half, None, None)] == [[(7,)], [(7,)]]
