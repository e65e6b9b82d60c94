"""`max_queue_size` and `on_full`: how many items wait, and which calls are refused."""

from __future__ import annotations

import pytest

from batched import QueueFullError
from tests.kit.flavours import Flavour
from tests.kit.full import hold
from tests.kit.gate import PATIENCE_S, Gate, until


def test_what_waits_is_bounded_and_the_rest_refused_at_once(flavour: Flavour) -> None:
    """The error says how many items wait, without those that run; a refused call costs nothing."""
    gate, fn, first = hold(flavour)
    futures = [flavour.start(fn, item) for item in range(3)]
    for _ in range(5):
        with pytest.raises(
            QueueFullError, match="embed has no room for . more: 3 items in the queue, max_queue_size=3"
        ):
            flavour.call(fn, "refused")
    stats = fn.stats
    assert (stats.queue_size, stats.total_accepted, stats.total_rejected) == (3, 4, 5)
    gate.open()
    assert [future.result(PATIENCE_S) for future in (first, *futures)] == ["first", 0, 1, 2]
    assert flavour.call(fn, "again") == "again"
    assert ["refused"] not in gate.batches


def test_a_list_is_admitted_whole_or_not_at_all(flavour: Flavour) -> None:
    """By items, as single calls are."""
    gate, fn, _ = hold(flavour)
    one = flavour.start(fn, 1)
    with pytest.raises(QueueFullError, match="no room for 3 more"):
        flavour.call(fn, [2, 3, 4])
    two = flavour.start(fn, [5, 6])
    assert (fn.stats.queue_size, fn.stats.total_rejected) == (3, 3)
    gate.open()
    assert (one.result(PATIENCE_S), two.result(PATIENCE_S)) == (1, [5, 6])


@pytest.mark.parametrize("on_full", ["raise", "wait"])
def test_a_list_larger_than_the_bound_is_an_error_that_says_so(flavour: Flavour, on_full: str) -> None:
    """However empty the queue is."""
    fn = flavour.decorate(Gate(), timeout_ms=0, max_queue_size=3, on_full=on_full, name="embed")
    with pytest.raises(ValueError, match="embed has max_queue_size=3: a call of 4 items can never fit"):
        flavour.call(fn, [1, 2, 3, 4])
    assert flavour.call(fn, [1, 2, 3]) == [1, 2, 3]


def test_map_never_overruns_the_bound(flavour: Flavour) -> None:
    """It waits for room even where others are refused."""
    most = []
    fn = flavour.decorate(
        lambda items: (most.append(fn.stats.queue_size + len(items)), items)[1],
        batch_size=4, timeout_ms=0, max_queue_size=5,
    )  # fmt: skip
    assert flavour.map(fn, range(200)) == list(range(200))
    assert max(most) <= 5 + 4
    until(lambda: not fn.stats.running_items)
    assert fn.stats.total_rejected == 0


def test_map_through_a_queue_of_one_comes_to_its_end(flavour: Flavour) -> None:
    """Each element is a call of its own there."""
    fn = flavour.decorate(lambda items: items, batch_size=4, timeout_ms=0, max_queue_size=1)
    assert flavour.map(fn, range(20)) == list(range(20))


def test_a_bound_set_live_counts_what_came_before(flavour: Flavour) -> None:
    """As from the start."""
    gate, fn, _ = hold(flavour, max_queue_size=None)
    futures = [flavour.start(fn, item) for item in range(3)]
    fn.configure(max_queue_size=3)
    with pytest.raises(QueueFullError):
        flavour.call(fn, 4)
    gate.open()
    assert [future.result(PATIENCE_S) for future in futures] == [0, 1, 2]


def test_a_list_of_mixed_keys_is_admitted_whole(flavour: Flavour) -> None:
    """Its groups count together."""
    gate, fn, _ = hold(flavour, group_by=lambda item: str(item))
    flavour.start(fn, 1)
    with pytest.raises(QueueFullError):
        flavour.call(fn, [2, 3, 4])
    both = flavour.start(fn, [5, 6])
    gate.open()
    assert both.result(PATIENCE_S) == [5, 6]


def test_a_refused_call_does_not_keep_others_from_a_full_batch(flavour: Flavour) -> None:
    """Calls that wait in the window are counted on, whichever calls are turned away meanwhile."""
    gate = Gate()
    fn = flavour.decorate(gate, batch_size=4, timeout_ms=60_000, adaptive=False, max_queue_size=10)
    futures = [flavour.start(fn, item) for item in range(3)]
    with pytest.raises(ValueError, match="max_queue_size=10"):
        flavour.call(fn, list(range(11)))
    futures.append(flavour.start(fn, 3))
    assert [future.result(PATIENCE_S) for future in futures] == [0, 1, 2, 3]
    assert gate.batches == [[0, 1, 2, 3]]


def test_a_bound_counts_the_items_of_lists_that_came_before_it(flavour: Flavour) -> None:
    """All of them, though they have not been looked at yet."""
    gate, fn, first = hold(flavour, max_queue_size=None)
    many = flavour.start(fn, list(range(10)))
    fn.configure(max_queue_size=5)
    with pytest.raises(QueueFullError, match="10 items in the queue"):
        flavour.call(fn, "more")
    gate.open()
    assert first.result(PATIENCE_S) == "first"
    assert many.result(PATIENCE_S) == list(range(10))
