"""Of a list in which several items fail, the first in its own order is raised, whatever was reordered."""

from __future__ import annotations

from threading import Event
from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from tests.kit.effort import times
from tests.kit.errors import OwnError
from tests.kit.flavours import Flavour
from tests.kit.gate import PATIENCE_S, Gate, until

PLACE, LENGTH, KEY, IS_BAD = range(4)
Item = tuple[int, int, int, bool]
REORDERING: dict[str, dict[str, Any]] = {
    "auto": {},
    "length": {"length": lambda item: item[LENGTH]},
    "group_by": {"group_by": lambda item: item[KEY]},
    "both": {"length": lambda item: item[LENGTH], "group_by": lambda item: item[KEY]},
    "budget": {"length": lambda item: item[LENGTH], "max_batch_length": 9},
}
RAISES = st.tuples(st.integers(0, 9), st.integers(0, 2))


def rows(items: list[Item]) -> list[Any]:
    """Return the error of each bad item in its place."""
    return [OwnError(item[PLACE]) if item[IS_BAD] else item for item in items]


def raising(items: list[Item]) -> list[Any]:
    """Raise the error of the first bad item of a batch."""
    for answer in rows(items):
        if isinstance(answer, OwnError):
            raise answer
    return items


def first_bad(asked: list[Item]) -> int | None:
    return next((item[PLACE] for item in asked if item[IS_BAD]), None)


def check(flavour: Flavour, fn: Any, lists: list[list[Item]]) -> None:
    """Each list has its answers, or its own first error, and each item is counted once."""
    futures = [flavour.start(fn, asked) for asked in lists]
    for asked, future in zip(lists, futures, strict=True):
        error = future.exception(PATIENCE_S)
        place = first_bad(asked)
        assert (future.result(0) if place is None else getattr(error, "code", error)) == (
            asked if place is None else place
        )
    size = sum(map(len, lists))
    until(lambda: fn.stats.total_processed + fn.stats.total_cancelled == size)
    assert fn.stats.total_accepted == size
    assert not fn.stats.queue_size
    flavour.close(fn)


def lists_of(bad: st.SearchStrategy[set[int]]) -> st.SearchStrategy[list[list[Item]]]:
    """Return up to three lists, each with its own bad items."""
    described = st.tuples(st.lists(RAISES, max_size=20), bad)
    return st.lists(described, min_size=1, max_size=3).map(
        lambda lists: [
            [(place, *each, place in bad) for place, each in enumerate(items)] for items, bad in lists
        ]
    )


FAILS = {"returned": (rows, 20), "raised": (raising, 2)}
"""How an item fails, and how many of a list do: few that raise, or the search for them is given up."""


# The fixture has no state that one example could leave to the next.
@pytest.mark.parametrize("fails", FAILS)
@pytest.mark.parametrize("reordering", REORDERING)
@settings(max_examples=times(80, 20), suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(data=st.data(), limits=st.tuples(st.integers(1, 8), st.integers(1, 3)))
def test_a_list_raises_the_error_of_its_first_item_that_fails(
    flavour: Flavour, reordering: str, fails: str, data: st.DataObject, limits: tuple[int, int]
) -> None:
    """However many items of it fail, and in however many batches they run."""
    function, most = FAILS[fails]
    batch_size, workers = limits
    lists = data.draw(lists_of(st.sets(st.integers(0, 19), max_size=most)))
    options = {"batch_size": batch_size, "timeout_ms": 0, "max_concurrent_batches": workers}
    check(flavour, flavour.decorate(function, **options, **REORDERING[reordering]), lists)


@pytest.mark.parametrize("layers", [{"cache": {}}, {"cache": {}, **REORDERING["both"]}])
def test_items_that_other_lists_run_keep_their_places(flavour: Flavour, layers: dict[str, Any]) -> None:
    """With a cache, a list may wait for items of another one, which has them in another order."""
    gate = Gate(rows, shut=True)
    fn = flavour.decorate(gate, timeout_ms=0, **{**layers, "cache": {}})
    asked: list[Item] = [(0, 1, 0, True), (1, 1, 0, True)]
    futures = [flavour.start(fn, asked)]
    gate.wait_for_batch()
    futures.append(flavour.start(fn, [*asked[::-1], (2, 1, 0, False)]))
    gate.open()
    assert [getattr(future.exception(PATIENCE_S), "code", None) for future in futures] == [0, 1]


def test_a_list_waits_for_an_earlier_item_that_another_list_runs(flavour: Flavour) -> None:
    """With a cache: as that item may fail, too."""
    may_go_on = Event()

    def held(items: list[str]) -> list[Any]:
        assert "slow" not in items or may_go_on.wait(PATIENCE_S)
        ran.append(items)
        return [OwnError(len(item)) if item != "fine" else item for item in items]

    ran: list[list[str]] = []
    fn = flavour.decorate(held, timeout_ms=0, cache={}, max_concurrent_batches=2, batch_size=1)
    other = flavour.start(fn, ["slow"])
    waiting = flavour.start(fn, ["fine", "slow", "x"])
    until(lambda: ["x"] in ran and fn.stats.running_items == 1)
    assert not waiting.done()
    may_go_on.set()
    assert [getattr(future.exception(PATIENCE_S), "code", None) for future in (other, waiting)] == [4, 4]


def test_what_is_behind_an_error_is_dropped_and_what_is_before_it_runs(flavour: Flavour) -> None:
    """Where a list is sorted by length, and where it is divided by key."""

    def odd_fails(items: list[int]) -> list[Any]:
        return [OwnError(item) if item % 2 and item > 1 else item for item in items]

    gate = Gate(odd_fails)
    fn = flavour.decorate(gate, batch_size=2, timeout_ms=0, length=int)
    with pytest.raises(OwnError, match=r"^code 7\b"):
        flavour.call(fn, [7, 8, 4, 2, 9, 6])
    until(lambda: not fn.stats.running_items)
    assert gate.batches == [[9, 8], [7, 4]]
    assert (fn.stats.total_processed, fn.stats.total_cancelled) == (4, 2)
    gate = Gate(odd_fails)
    fn = flavour.decorate(gate, batch_size=2, timeout_ms=0, group_by=lambda item: item % 2)
    with pytest.raises(OwnError, match=r"^code 3\b"):
        flavour.call(fn, [1, 0, 2, 4, 3, 6, 8])
    until(lambda: not fn.stats.running_items)
    assert gate.batches == [[1, 3], [0, 2], [4]]
    assert (fn.stats.total_processed, fn.stats.total_cancelled) == (5, 2)


def test_a_list_does_not_wait_for_parts_that_are_behind_its_error(flavour: Flavour) -> None:
    """Though they run: it has its error while the batch of another key goes on."""
    may_go_on = Event()

    def held(items: list[int]) -> list[Any]:
        assert items[0] or may_go_on.wait(PATIENCE_S)
        return rows([(item, 0, 0, bool(item)) for item in items])

    fn = flavour.decorate(held, timeout_ms=0, max_concurrent_batches=2, group_by=bool)
    with pytest.raises(OwnError, match=r"^code 1\b"):
        flavour.call(fn, [1, 0])
    may_go_on.set()


def test_of_batches_that_do_not_run_again_the_one_with_the_first_item_counts(flavour: Flavour) -> None:
    """All of its items have its error."""
    gate = Gate(lambda items: raising([(item, 0, 0, item != 2) for item in items]))
    fn = flavour.decorate(gate, batch_size=2, timeout_ms=0, length=int, isolate_errors=False)
    with pytest.raises(OwnError, match=r"^code 1\b"):
        flavour.call(fn, [1, 4, 3, 2])
    assert gate.batches == [[4, 3], [1]]
