"""Whether there is room for a call, without a batcher: a test says what waits in the queue."""

from __future__ import annotations

from typing import Any

import pytest

from batched._core.admission import Admission, admits_with_lock
from batched._core.call import Call, MapFlow
from batched._core.options import Options
from batched._core.tenants import Tenants
from batched.errors import QueueFullError
from tests.kit.calls import listed

BOUND = 8
PASSED = 8


class Times:
    """What knows when there will be room; it notes what it is asked."""

    def __init__(self, after_s: float | None = 1.5) -> None:
        self.after_s = after_s
        self.asked: list[tuple[int, int, int, float]] = []

    def retry_after_s(self, items: int, too_many: int, most: int, now: float) -> float | None:
        """Return what a test says."""
        self.asked.append((items, too_many, most, now))
        return self.after_s


class Alone:
    """The admission, and how many items the queue has."""

    def __init__(self, bound: int | None = BOUND, *, time: Any = None, tenants: Any = None) -> None:
        self.admission = Admission("f", Options(max_queue_size=bound), tenants)
        self.admission.retry_after_s = None if time is None else time.retry_after_s
        self.queued = 0
        self.flow = MapFlow()

    def come(self, call: Call, *, wait: bool = True, large: bool = False, of_map: bool = False) -> bool:
        """Have a call come; return whether it is let in. It is in the queue then."""
        is_let_in = self.admission.admit(call, [call], self.queued, large=large, wait=wait, of_map=of_map)
        self.queued += call.size if is_let_in else 0
        return is_let_in

    def come_of_map(self, size: int, flow: MapFlow | None = None) -> Call | None:
        """Have a call of a map come; return it if it waits for room."""
        call = listed(size)
        call.flow = flow or self.flow
        return None if self.come(call, of_map=True) else call

    def small_that_waits(self) -> Call:
        """Have a call of one item come to the full queue; return it."""
        self.queued = BOUND
        call = listed(1)
        assert not self.come(call)
        return call

    def let_in(self) -> list[Call]:
        """Let in what has room by now; return these calls."""
        found = []
        while (following := self.admission.next(self.queued)) is not None:
            call, parts = following
            assert self.admission.end_wait(call) == parts
            self.queued += sum(part.size for part in parts)
            found.append(call)
        return found


def test_without_a_bound_there_is_always_room() -> None:
    alone = Alone(None)
    alone.queued = 1000
    assert alone.come(listed(1000), wait=False)
    assert alone.admission.awaiting_room == {}


@pytest.mark.parametrize("size", [0, 3])
def test_a_call_has_room_if_it_fits_beside_what_waits_and_what_is_on_its_way(size: int) -> None:
    """A call of nothing fits in any case, though more wait than may: the bound may have been lowered."""
    alone = Alone()
    alone.queued, alone.admission.arriving = 4, 1
    assert alone.come(listed(size), wait=False)
    alone.queued, alone.admission.arriving = 7, 2
    assert alone.come(listed(size)) is (size == 0)


@pytest.mark.parametrize(("of_map", "wait"), [(False, False), (False, True), (True, True)])
def test_a_call_that_will_never_fit_is_refused_unless_it_is_of_a_map(of_map: bool, wait: bool) -> None:
    """The bound may have been lowered since a map has read its elements: it has room where none waits."""
    alone = Alone()
    call = listed(BOUND + 1)
    call.flow = alone.flow
    if of_map:
        assert alone.come(call, of_map=True)
        return
    with pytest.raises(ValueError, match="f has max_queue_size=8: a call of 9 items can never fit, so"):
        alone.come(call, wait=wait)
    assert alone.admission.awaiting_room == {}


# -- a call that cannot wait --------------------------------------------------------------------------------


@pytest.mark.parametrize("after_s", [None, 1.5])
def test_the_error_of_a_full_queue_says_what_waits_and_when_to_come_back(after_s: float | None) -> None:
    """If that is known: it depends on how many items are too many, and when the call came."""
    alone = Alone(time=(time := Times(after_s)))
    alone.queued, alone.admission.arriving = 6, 1
    with pytest.raises(QueueFullError) as caught:
        alone.come(listed(3, arrived=7.0), wait=False)
    assert str(caught.value) == "f has no room for 3 more: 7 items in the queue, max_queue_size=8"
    assert caught.value.retry_after_s == after_s
    assert time.asked == [(3, 2, BOUND, 7.0)]
    assert alone.admission.awaiting_room == {}


def test_where_nothing_tells_how_long_items_wait_the_error_does_not_either() -> None:
    alone = Alone()
    alone.queued = BOUND
    with pytest.raises(QueueFullError) as caught:
        alone.come(listed(1), wait=False)
    assert caught.value.retry_after_s is None


def test_the_error_names_the_calls_that_wait_for_room_before() -> None:
    alone = Alone(time=(time := Times()))
    alone.queued = 6
    assert not alone.come(listed(4))
    with pytest.raises(QueueFullError, match="6 items in the queue and 4 more waiting for room ahead"):
        alone.come(listed(2), wait=False)
    assert [asked[:2] for asked in time.asked] == [(2, 4)]


def test_a_call_that_was_let_in_and_makes_room_is_told_for_whom() -> None:
    alone = Alone(time=(time := Times()))
    alone.queued, alone.admission.arriving = 6, 1
    error = alone.admission.refused(3, alone.queued)
    assert "f has no room left (max_queue_size=8), so this call of 3 items, the newest" in str(error)
    assert "removed to make room for another tenant" in str(error)
    assert (error.retry_after_s, time.asked) == (1.5, [(3, 2, BOUND, 0.0)])


# -- calls that wait for room -------------------------------------------------------------------------------


def test_calls_wait_for_room_and_are_let_in_oldest_first() -> None:
    """None overtakes: not one that comes and would fit, nor one that waits and would."""
    alone = Alone()
    alone.queued = 6
    first, second, third = calls = listed(4), listed(1), listed(2)
    assert [alone.come(call) for call in calls] == [False] * 3
    assert alone.admission.waiting_calls() == [first, second, third]
    alone.queued = 5
    assert alone.let_in() == []
    alone.queued = 3
    assert alone.let_in() == [first, second]
    alone.queued = 6
    assert alone.let_in() == [third]
    assert (alone.admission.awaiting_room, alone.let_in()) == ({}, [])


def test_room_that_is_promised_to_a_call_is_no_others_until_it_leaves() -> None:
    alone = Alone()
    alone.queued = 6
    waits = listed(4)
    assert not alone.come(waits)
    alone.queued = 3
    with pytest.raises(QueueFullError):
        alone.come(listed(2), wait=False)
    assert alone.admission.end_wait(waits) == [waits]
    assert alone.come(listed(2), wait=False)
    assert alone.admission.end_wait(waits) == []


def test_room_is_promised_in_an_empty_queue_too() -> None:
    alone = Alone()
    alone.queued = BOUND
    assert not alone.come(listed(4))
    alone.queued = 0
    with pytest.raises(QueueFullError):
        alone.come(listed(5), wait=False)
    assert alone.come(listed(4), wait=False)


def test_items_on_their_way_count_where_a_call_waits_for_room() -> None:
    alone = Alone()
    alone.queued = 6
    assert not alone.come(listed(4))
    alone.queued, alone.admission.arriving = 4, 1
    assert alone.let_in() == []


def test_a_call_that_is_alone_is_let_in_though_the_bound_was_lowered() -> None:
    alone = Alone()
    alone.queued = BOUND
    call = listed(6)
    assert not alone.come(call)
    alone.admission.configure(Options(max_queue_size=4))
    alone.queued = 1
    assert alone.let_in() == []
    alone.queued = 0
    assert alone.let_in() == [call]


@pytest.mark.parametrize("bound", [None, 10])
def test_a_bound_that_is_raised_or_lifted_makes_room(bound: int | None) -> None:
    alone = Alone()
    alone.queued = BOUND
    call = listed(2)
    assert not alone.come(call)
    alone.admission.configure(Options(max_queue_size=bound))
    assert alone.let_in() == [call]


def test_the_parts_of_a_call_are_what_waits_and_what_is_queued() -> None:
    alone = Alone()
    alone.queued = 6
    call, parts = listed(3), [listed(1), listed(2)]
    assert not alone.admission.admit(call, parts, alone.queued, large=False, wait=True)
    assert alone.admission.waiting_calls() == parts
    assert alone.admission.next(5) == (call, parts)
    assert alone.admission.next(6) is None


def test_another_call_may_wait_in_the_place_of_one_with_its_parts() -> None:
    alone = Alone()
    alone.queued = BOUND
    first, second, other = listed(1), listed(2), listed(1)
    assert [alone.come(first), alone.come(second)] == [False, False]
    alone.admission.hand_over(first, other)
    assert list(alone.admission.awaiting_room.items()) == [(other, [first]), (second, [second])]
    alone.queued = 5
    assert alone.let_in() == [other, second]


def test_all_that_wait_can_be_forgotten_at_once() -> None:
    """Then nothing is promised any more."""
    alone = Alone()
    alone.queued = BOUND
    call, of_map = listed(2), listed(1)
    of_map.flow = alone.flow
    assert not alone.come(call)
    assert not alone.come(of_map, of_map=True)
    assert alone.admission.clear() == [call, of_map]
    alone.queued = 0
    assert alone.come(listed(BOUND), large=True, wait=False)


# -- maps ---------------------------------------------------------------------------------------------------


def test_maps_together_fill_half_of_the_queue_and_others_find_room() -> None:
    """Also where it is empty but for them."""
    alone = Alone()
    assert alone.come_of_map(3) is None
    assert alone.come_of_map(1, MapFlow()) is None
    waits = alone.come_of_map(1)
    assert waits is not None
    assert alone.let_in() == []
    assert alone.come(listed(4), wait=False)


def test_a_map_goes_on_as_its_items_start() -> None:
    """What was let in counts in its half."""
    alone = Alone()
    first = listed(4)
    first.flow = alone.flow
    assert alone.come(first, of_map=True)
    waits = alone.come_of_map(2)
    first.waiting, alone.queued = 3, 3
    assert alone.let_in() == []
    first.waiting, alone.queued = 2, 2
    assert alone.let_in() == [waits]
    assert alone.come_of_map(1) is not None


def test_one_call_of_a_map_may_be_larger_than_half_where_no_map_waits() -> None:
    alone = Alone()
    assert alone.come_of_map(BOUND) is None


def test_half_of_the_smallest_bound_is_one_item() -> None:
    alone = Alone(1)
    assert alone.come_of_map(1) is None
    alone.queued = 0
    assert alone.come_of_map(1) is not None


def test_without_a_bound_maps_have_no_half() -> None:
    alone = Alone()
    assert alone.come_of_map(4) is None
    waits = alone.come_of_map(4)
    alone.admission.configure(Options())
    assert alone.let_in() == [waits]


def test_small_calls_go_ahead_of_a_map_that_waits_for_room_and_large_ones_do_not() -> None:
    """Of what large ones leave it has as much as is lacking to its half."""
    alone = Alone()
    alone.queued = BOUND
    assert alone.come_of_map(4) is not None
    alone.queued = 5
    with pytest.raises(QueueFullError, match="and 4 more waiting for room"):
        alone.come(listed(3), large=True, wait=False)
    assert alone.come(listed(3), wait=False)


def test_a_small_call_that_waits_too_is_let_in_before_a_map_for_which_there_is_no_room() -> None:
    alone = Alone()
    alone.queued = BOUND
    of_map, small = alone.come_of_map(4), listed(2)
    assert not alone.come(small)
    alone.queued = 5
    assert alone.let_in() == [small]
    alone.queued = 4
    assert alone.let_in() == [of_map]


def test_small_calls_do_not_go_ahead_of_a_map_for_ever() -> None:
    """After a few times neither those that wait nor those that come do, until it has been let in."""
    alone = Alone()
    alone.queued = BOUND
    of_map = alone.come_of_map(4)
    for _ in range(PASSED):
        small = alone.small_that_waits()
        assert alone.admission.next(7) == (small, [small])
        alone.admission.end_wait(small)
    alone.queued = 4
    assert alone.come(listed(1), wait=False)
    small = alone.small_that_waits()
    assert alone.admission.next(7) is None
    alone.queued = 4
    with pytest.raises(QueueFullError):
        alone.come(listed(1), wait=False)
    assert alone.let_in() == [of_map]
    alone.queued = 7
    assert alone.let_in() == [small]
    alone.queued = BOUND
    assert alone.come_of_map(2) is not None
    small = alone.small_that_waits()
    assert alone.admission.next(7) == (small, [small])


def test_a_map_that_has_its_half_is_not_passed_over() -> None:
    """It waits for itself: others go ahead as long as they fit."""
    alone = Alone()
    assert alone.come_of_map(4) is None
    assert alone.come_of_map(1) is not None
    for _ in range(2 * PASSED):
        small = alone.small_that_waits()
        alone.queued = 7
        assert alone.let_in() == [small]


def test_a_map_that_leaves_takes_its_promise_along_and_a_call_in_its_place_is_of_a_map() -> None:
    alone = Alone()
    alone.queued = BOUND
    of_map, other = alone.come_of_map(4), listed(4)
    assert of_map is not None
    assert alone.come_of_map(1) is not None
    alone.admission.hand_over(of_map, other)
    alone.queued = 5
    with pytest.raises(QueueFullError):
        alone.come(listed(2), large=True, wait=False)
    assert alone.admission.end_wait(other) == [of_map]
    with pytest.raises(QueueFullError, match="and 1 more waiting for room"):
        alone.come(listed(3), large=True, wait=False)
    assert alone.come(listed(2), large=True, wait=False)


def test_a_map_does_not_go_ahead_of_another_that_waits_for_room() -> None:
    alone = Alone()
    alone.queued = BOUND
    assert alone.come_of_map(4) is not None
    alone.queued = 4
    assert alone.come_of_map(1, MapFlow()) is not None


# -- tenants ------------------------------------------------------------------------------------------------


def of_tenant(tenant: str, size: int) -> Call:
    """Return a call of a tenant."""
    call = listed(size)
    call.tenant = tenant
    return call


def with_tenants(**items: int) -> tuple[Alone, Tenants, dict[str, Call]]:
    """Return the admission, and tenants of which so many items wait, each in a call."""
    tenants = Tenants()
    alone = Alone(tenants=tenants)
    calls = {tenant: of_tenant(tenant, size) for tenant, size in items.items()}
    for call in calls.values():
        tenants.came([call])
        alone.queued += call.size
    return alone, tenants, calls


def test_a_tenant_with_less_than_its_share_gets_in_and_calls_of_the_one_with_most_are_in_the_way() -> None:
    """Of a call that can wait, none is: it waits."""
    alone, _, calls = with_tenants(many=8)
    assert alone.come(of_tenant("few", 2), wait=False)
    assert alone.admission.in_the_way == [calls["many"]]
    alone.admission.in_the_way = []
    alone.queued = BOUND
    assert not alone.come(of_tenant("few", 2))
    assert alone.admission.in_the_way == []


def test_a_tenant_with_more_than_its_share_is_refused() -> None:
    alone, _, _ = with_tenants(many=6, few=2)
    with pytest.raises(QueueFullError):
        alone.come(of_tenant("many", 1), wait=False)
    assert alone.admission.in_the_way == []


def test_a_tenant_within_its_share_need_not_wait_behind_others_that_do() -> None:
    alone, _, _ = with_tenants(many=7)
    assert not alone.come(of_tenant("many", 2))
    assert alone.come(of_tenant("few", 1), wait=False)
    assert alone.admission.in_the_way == []


def test_a_tenant_with_less_than_its_share_is_refused_too_where_no_call_can_make_room() -> None:
    """A call that has begun cannot."""
    alone, _, calls = with_tenants(many=8)
    calls["many"].size += 1
    with pytest.raises(QueueFullError):
        alone.come(of_tenant("few", 2), wait=False)


def test_a_call_that_waits_for_room_belongs_to_the_tenant_of_its_first_part() -> None:
    """One that does not wait is no tenant's there."""
    alone, _, _ = with_tenants(many=8)
    call, part = listed(1), of_tenant("few", 1)
    assert not alone.admission.admit(call, [part], alone.queued, large=False, wait=True)
    assert call.tenant == "few"
    assert alone.admission.end_wait(call) == [part]
    assert alone.admission.end_wait(call) == []


def test_of_calls_that_wait_for_room_that_of_the_tenant_with_least_comes_first() -> None:
    """Another call in the place of one has its tenant."""
    alone, tenants, _ = with_tenants(many=6, few=2)
    first, second, other = of_tenant("many", 1), of_tenant("few", 4), listed(4)
    assert [alone.come(first), alone.come(second)] == [False, False]
    alone.admission.hand_over(second, other)
    assert other.tenant == "few"
    assert alone.admission.next(4) == (other, [second])
    alone.admission.end_wait(other)
    assert alone.admission.next(4) == (first, [first])
    assert len(tenants) == 2


# -- at the door --------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("options", "with_lock"),
    [
        ({}, False),
        ({"on_full": "wait", "default_deadline_ms": 9.0, "length": len}, False),
        ({"max_queue_size": 1}, True),
        ({"group_by": len}, True),
        ({"cache": {}}, True),
        ({"fair_by": len}, True),
    ],
)
def test_calls_are_admitted_with_the_lock_only_where_they_are_counted_or_divided(
    options: dict[str, Any], with_lock: bool
) -> None:
    assert admits_with_lock(Options(**options)) is with_lock
