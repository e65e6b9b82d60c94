"""How long calls will wait, and which are refused because of it."""

from __future__ import annotations

from itertools import pairwise

import pytest

from batched import OverloadError, QueueFullError
from batched._core.admission import admits_with_lock
from batched._core.options import Options
from batched._drivers.manual_clock import ManualDriver
from tests.kit.known_service import FULL, FULL_S, Service, cost


@pytest.mark.parametrize("waiting", [0, 5, FULL, 3 * FULL + 7])
@pytest.mark.parametrize("items", [1, 8])
def test_the_expected_wait_is_that_of_the_batches_before_and_of_its_own(waiting: int, items: int) -> None:
    service = Service()
    for _ in range(waiting):
        service.push()
    full, last = divmod(waiting + items - 1, FULL)
    expected = service.driver.batcher.backlog.wait_s(items, service.now)
    assert expected == pytest.approx(full * FULL_S + cost(last + 1), rel=0.05)


def test_what_is_left_of_the_running_batch_counts() -> None:
    service = Service()
    service.push(FULL)
    service.start()
    service.now += 0.020
    expected = service.driver.batcher.backlog.wait_s(1, service.now)
    assert expected == pytest.approx(FULL_S - 0.020 + cost(1), rel=0.05)


def test_a_call_that_what_waits_makes_late_is_refused_at_once() -> None:
    service = Service()
    for _ in range(2 * FULL):
        service.push()
    service.start()
    late = service.push(allowed_s=1.5 * FULL_S)
    in_time = service.push(allowed_s=3 * FULL_S)
    assert isinstance(late.error, OverloadError)
    assert in_time.missing
    stats = service.driver.stats(service.now)
    assert (stats.total_refused, stats.total_expired) == (1, 0)
    assert stats.total_accepted == sum(call.size for call in service.calls) - 1


def test_nothing_is_refused_while_the_cost_is_not_known_nor_after_a_long_rest() -> None:
    driver = ManualDriver(Options())
    assert driver.batcher.backlog.wait_s(1, 0.0) is None
    service = Service()
    hopeless = service.push(allowed_s=1e-9)
    assert isinstance(hopeless.error, OverloadError)
    service.now += 10 * FULL_S
    assert service.push(allowed_s=1e-9).error is None


def test_callers_come_back_one_after_the_other() -> None:
    """As many as the function can answer, beginning when what waits allows."""
    service = Service()
    for _ in range(10 * FULL):
        service.push()
    service.start()
    refused = [service.push(allowed_s=2 * FULL_S).error for _ in range(5)]
    times = [error.retry_after_s for error in refused if isinstance(error, OverloadError)]
    assert times[0] == pytest.approx(9 * FULL_S, rel=0.2)
    steps = [later - earlier for earlier, later in pairwise(times)]
    assert steps == pytest.approx([FULL_S / FULL] * 4, rel=0.05)


def test_a_bound_on_the_delay_is_one_on_the_items_that_take_so_long() -> None:
    """Of two full batches may be waited for, and one more can fill up."""
    service = Service(max_queue_delay_ms=2.5 * FULL_S * 1000)
    assert admits_with_lock(Options(max_queue_delay_ms=1.0))
    calls = service.driver.batcher.calls
    for _ in range(3):
        assert calls.admit(service.call(FULL), wait=False)
    with pytest.raises(QueueFullError, match="max_queue_delay_ms=130, which is 96 items by now") as caught:
        calls.admit(service.call(), wait=False)
    assert caught.value.retry_after_s is not None
    assert 0.0 <= caught.value.retry_after_s < FULL_S
