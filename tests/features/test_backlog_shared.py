"""How long calls wait for workers that other functions use too."""

from __future__ import annotations

from statistics import fmean

import pytest

from batched import OverloadError
from batched._features.backlog import Backlog
from tests.kit.known_service import FULL, FULL_S, Service, cost
from tests.kit.simulated_callers import Callers


class Workers:
    """What knows the workers: free from `free` on, after batches of others that take `lag_s` each time."""

    def __init__(self) -> None:
        self.lag_s = 0.0
        self.free = 0.0

    def free_at(self, now: float) -> float:
        """Return when a worker will be free."""
        return max(self.free, now)


@pytest.fixture
def workers() -> Workers:
    """Workers that are free."""
    return Workers()


def wait_s(service: Service, items: int = 1) -> float:
    """Return the wait that a call is told."""
    found = service.driver.batcher.feature(Backlog).wait_s(items, service.now)
    assert found is not None
    return found


def test_the_batch_of_another_function_is_waited_for(workers: Workers) -> None:
    """As far as it has time to go."""
    service = Service(workers=workers)
    assert wait_s(service) == pytest.approx(cost(1), rel=0.05)
    workers.free = service.now + 1.0
    assert wait_s(service) == pytest.approx(1.0 + cost(1), rel=0.05)


@pytest.mark.parametrize("items", [1, 40])
def test_batches_of_others_run_between_its_own(workers: Workers, items: int) -> None:
    """For each of its batches that goes ahead, the time that they have taken of late."""
    service = Service(workers=workers, small_batch_threshold=FULL)
    for _ in range(3 * FULL):
        service.push()
    alone = wait_s(service, items)
    workers.lag_s = 0.3
    batches = (3 * FULL + items - 1) // FULL
    assert wait_s(service, items) == pytest.approx(alone + batches * 0.3, rel=0.01)


def test_so_they_do_before_the_batches_of_a_large_call(workers: Workers) -> None:
    """It runs batch by batch."""
    service = Service(workers=workers, small_batch_threshold=1)
    service.now += 1e6  # single calls have stopped coming
    alone = wait_s(service, 10 * FULL)
    workers.lag_s = 0.3
    assert wait_s(service, 10 * FULL) == pytest.approx(alone + 9 * 0.3, rel=0.01)


@pytest.mark.parametrize("load", [0.2, 0.35, 0.45])
def test_single_calls_come_while_others_run(workers: Workers, load: float) -> None:
    """A list beside busy single calls was told a third of its wait, as if batches were its alone."""
    callers = Callers(load, workers=workers)
    workers.lag_s = FULL_S  # half of the time is left
    callers.poisson(0.3, 40)
    callers.run(80.0)
    assert 0.7 < callers.ratio(40) < 1.3


@pytest.mark.parametrize("size", [1, 20])
@pytest.mark.parametrize("lag", [0.5, 1.0, 4.0])
def test_most_that_come_back_to_a_full_queue_find_room(workers: Workers, lag: float, size: int) -> None:
    """They came back as if the workers ran no other function."""
    callers = Callers(0.0, workers=workers, max_queue_size=4 * FULL)
    workers.lag_s = lag * FULL_S
    for second in range(0, 100, 10):
        for _ in range(6 * FULL // size):
            callers.at(callers.service.now + second, lambda: callers.enter(size))
    callers.run(120.0)
    assert len(callers.back) > 10
    assert fmean(callers.back) > 0.9


def test_a_call_that_others_make_late_is_refused_at_once(workers: Workers) -> None:
    """Though nothing of its own function waits or runs; and told when to come back."""
    service = Service(workers=workers)
    assert service.push(allowed_s=0.2).error is None
    service.run()
    workers.free = service.now + 1.0
    late = service.push(allowed_s=0.2)
    assert isinstance(late.error, OverloadError)
    assert late.error.retry_after_s is not None
    assert late.error.retry_after_s > 0.5
    assert service.push(allowed_s=2.0).error is None


def test_one_item_runs_only_where_no_other_function_does(workers: Workers) -> None:
    """What was learned may be wrong; but then the others would have to be wrong, too."""
    service = Service(workers=workers)
    assert service.push(allowed_s=1e-9).error is None
    service.start()
    service = Service(workers=workers)
    workers.free = service.now + FULL_S
    assert isinstance(service.push(allowed_s=1e-9).error, OverloadError)
