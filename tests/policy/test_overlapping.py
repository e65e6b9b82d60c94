"""Cohorts of which several are on their way back at the same time."""

from __future__ import annotations

from random import Random

from hypothesis import given
from hypothesis import strategies as st

from batched._policy.overlapping import OverlappingCohorts

UNIT_S = 0.01
SIZE = 8


def told(
    back_s: tuple[float, float], *, ends: int = 200, every: float = 0.4, rate: float = 0.0
) -> OverlappingCohorts:
    """Return what has seen cohorts end `every` so many units; their callers are back within these seconds.

    Besides, `rate` calls come in a unit.
    """
    random = Random(1)
    ended = [number * every * UNIT_S * random.uniform(0.8, 1.2) for number in range(1, ends)]
    ended.sort()
    calls = [at + random.uniform(*back_s) for at in ended for _ in range(SIZE)]
    now = 0.0
    while rate and now < ended[-1]:
        now += random.expovariate(rate / UNIT_S)
        calls.append(now)
    calls.sort()
    cohorts = OverlappingCohorts()
    for at in ended:
        if calls[0] < at:
            cohorts.arrived([call for call in calls if call < at])
        calls = [call for call in calls if call >= at]
        cohorts.begin(at, SIZE, UNIT_S, others_waited=False)
    return cohorts


def wait(cohorts: OverlappingCohorts, waiting: float = 1.0) -> float:
    """Return for how long, in units, it pays to wait for the last cohort from its answers on."""
    now = cohorts.answered_at
    due = cohorts.due(waiting, 100.0, now, now + UNIT_S, 0.0)
    return (due - now) / UNIT_S if due else 0.0


def test_callers_that_are_back_soon_are_waited_for() -> None:
    """Though three cohorts are under way at once, and other calls come too."""
    assert 0.0 < wait(told((0.0005, 0.001))) <= 0.25
    assert 0.0 < wait(told((0.0005, 0.001), rate=4.0)) <= 0.25


def test_calls_that_come_anyway_are_not() -> None:
    """Nor callers that take much longer to come back than a batch does to run."""
    cohorts = told((10.0, 20.0), rate=20.0)
    assert wait(cohorts) == 0.0
    assert wait(told((0.0, 0.2))) == 0.0


def test_a_call_counts_to_the_cohort_of_which_it_is_likeliest() -> None:
    """So the next one is still waited for, when the callers of an earlier one come late."""
    cohorts = told((0.0005, 0.001))
    missing = cohorts.missing
    at = cohorts.answered_at + 0.5 * UNIT_S
    cohorts.begin(at, SIZE, UNIT_S, others_waited=False)
    cohorts.arrived([at + 0.0007] * SIZE)
    assert cohorts.missing == missing
    assert wait(cohorts) == 0.0


def test_nothing_is_waited_for_after_a_pause_in_which_it_heard_nothing() -> None:
    cohorts = told((0.0005, 0.001))
    cohorts.forget()
    assert (cohorts.missing, wait(cohorts)) == (0, 0.0)


@given(
    st.lists(
        st.tuples(st.floats(-0.01, 0.02), st.integers(0, 5), st.floats(0.0, 0.02), st.integers(0, 3)),
        max_size=60,
    )
)
def test_times_that_make_no_sense_do_no_harm(events: list[tuple[float, int, float, int]]) -> None:
    """Calls told late or out of order, and a cost that changes all the time, or is not known."""
    cohorts = OverlappingCohorts()
    now = 1.0
    for skew, size, unit, calls in events:
        now += abs(skew)
        cohorts.begin(now, size, unit, others_waited=False)
        if calls:
            cohorts.arrived([now + skew] * calls)
        due = cohorts.due(1.0, 4.0, now, now + 0.005, 0.0001)
        assert due == 0.0 or now <= due <= now + 0.005 + 1e-12
        assert cohorts.missing >= 0
