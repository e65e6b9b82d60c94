"""The learned window where several batches run at once."""

from __future__ import annotations

from random import Random
from typing import Any

import pytest

from batched._core.batch import Batch
from batched._core.options import Options
from batched._policy.adaptive import AdaptiveWindow
from batched._policy.several import SeveralWindow
from batched._policy.window import StartReason
from benchmarks.simulated import scenarios
from benchmarks.simulated.processes import Caller, Traffic, always, closed, exponential
from benchmarks.simulated.scenarios import Scenario
from benchmarks.simulated.several import simulate_several
from benchmarks.simulated.simulation import Outcome, Service
from tests.kit.server import EACH_S, FIXED_S

CALLERS = 10
ANOTHER = Batch([], 5, StartReason.FULL)
ADAPTIVE, NEVER = Options(batch_size=32), Options(batch_size=32, adaptive=False, timeout_ms=0)


def taught(window: AdaptiveWindow) -> float:
    """Teach `window` that callers come back within 1 ms; return when the last cohort was answered."""
    random = Random(0)
    now = 0.0
    for turn in range(40):
        size = CALLERS - turn % 3
        started, now = now, now + FIXED_S + EACH_S * size
        window.done(size, size, size, started, now, True)
        window.came += [now + random.uniform(0.0001, 0.001) for _ in range(size)]
        now += 0.001
    now += FIXED_S
    window.done(CALLERS, CALLERS, CALLERS, now - FIXED_S, now, True)
    return now


def of_two(running: dict[Batch, float], timeout_s: float | None = None) -> SeveralWindow:
    """Return the window of two workers."""
    return SeveralWindow(timeout_s, 32, workers=2, running=running)


def test_it_waits_for_callers_that_come_back_only_in_the_last_worker_that_is_free() -> None:
    """While there is another, the calls that come next find that one."""
    running = {ANOTHER: 0.0}
    window = of_two(running)
    now = taught(window) + 0.0002
    window.came.append(now)
    assert window.start_at(now, 1, now) > now
    assert (window.awaited, window.is_holding) == (CALLERS - 1, True)
    running.clear()
    assert window.start_at(now, 1, now) <= now
    assert not window.is_holding


def held_ms(window: AdaptiveWindow) -> float:
    """Return how long recent batches were held back, on average."""
    learned = window.learned()
    assert learned is not None
    return learned.wait_ms


def test_a_batch_that_fills_up_while_it_is_held_back_ends_that_wait() -> None:
    """No look tells when it starts. The wait went on until a later batch started that was not full."""
    running = {ANOTHER: 0.0}
    window = of_two(running)
    now = taught(window) + 0.0002
    before = held_ms(window)
    window.came.append(now)
    assert window.start_at(now, 1, now) > now
    full = Batch([], 32, StartReason.FULL)
    running[full] = now + 0.0001
    later = now + 10.0
    window.start_at(later, 1, later)
    assert held_ms(window) == pytest.approx(0.9 * before + 0.1 * 0.1)
    del running[full]
    window.done(32, 32, 32, now + 0.0001, later, True)
    assert held_ms(window) == pytest.approx(0.9 * before + 0.1 * 0.1)


def test_full_batches_that_were_not_held_back_count() -> None:
    """One that had waited was told for ever, if all others were full."""
    window = of_two({ANOTHER: 0.0})
    now = taught(window) + 0.0002
    window.came.append(now)
    assert window.start_at(now, 1, now) > now
    window.done(32, 32, 32, now + 0.001, now + 0.002, True)
    assert held_ms(window) > 0.0
    for number in range(60):
        window.done(32, 32, 32, now + number + 1.0, now + number + 1.5, True)
    assert held_ms(window) == 0.0


def test_a_batch_that_runs_while_the_next_one_is_held_back_has_not_waited_for_a_negative_time() -> None:
    """As with `prepare`: one batch is in the function as the next one waits for calls."""
    window = AdaptiveWindow(None, 32)
    now = taught(window) + 0.0002
    window.came.append(now)
    assert window.start_at(now, 1, now) > now
    before = held_ms(window)
    window.done(CALLERS, CALLERS, CALLERS, now - FIXED_S, now + 0.0001, True)
    assert 0.0 <= held_ms(window) <= before


@pytest.mark.parametrize("kind", ["one worker", "two workers"])
def test_the_timeout_counts_from_when_a_worker_was_free(kind: str) -> None:
    """Another function's batch may have run meanwhile; that calls came amid it is not held against them."""
    timeout_s = 0.0004
    window = AdaptiveWindow(timeout_s, 32) if kind == "one worker" else of_two({ANOTHER: 0.0}, timeout_s)
    answered = taught(window)
    came, now = answered + 0.0001, answered + 0.0005
    window.came.append(came)
    assert window.start_at(came, 1, now) <= now
    window.free_at = now
    start = window.start_at(came, 1, now)
    assert now < start <= now + timeout_s


def test_the_timeout_of_several_counts_from_when_the_first_was_free() -> None:
    """Not from the end of the last batch: all the while there was a worker for these calls."""
    running: dict[Batch, float] = {}
    window = of_two(running, 0.0004)
    first_free = taught(window)  # now both are free
    now = first_free + 0.0003
    window.done(CALLERS, CALLERS, CALLERS, now - FIXED_S, now, True)
    window.free_at = 0.0
    came = now + 0.0001
    running[ANOTHER] = came
    window.came.append(came)
    assert came < window.start_at(came, 1, came) <= came + 0.0004
    window = of_two(running, 0.0004)
    running.clear()
    all_busy_until = taught(window)
    running[ANOTHER] = now = all_busy_until + 0.0003
    window.came += [all_busy_until - 0.0001, now]
    assert now < window.start_at(all_busy_until - 0.0001, 2, now) <= all_busy_until + 0.0004


def mean(options: Options, workers: int, scenario: Scenario) -> float:
    """Return the mean latency with so many workers."""
    return simulated(options, workers, scenario).mean


def simulated(options: Options, workers: int, scenario: Scenario) -> Outcome:
    """Return what callers get from so many workers."""
    some = Options(
        batch_size=scenario.batch_size,
        adaptive=options.adaptive,
        timeout_ms=options.timeout_ms,
        max_concurrent_batches=workers,
    )
    return simulate_several(some, scenario.traffic(), scenario.service, calls=4000, skip=500)


@pytest.mark.parametrize("workers", [2, 4])
@pytest.mark.parametrize("load", [0.2, 0.5, 0.8])
def test_independent_calls_are_not_delayed(load: float, workers: int) -> None:
    """The mean is at most that of never waiting, but for 3 %."""
    scenario = scenarios.poisson(16, 32, load * workers)
    assert mean(ADAPTIVE, workers, scenario) < 1.03 * mean(NEVER, workers, scenario)


@pytest.mark.parametrize(("workers", "gain"), [(2, 1.4), (4, 1.15)])
@pytest.mark.parametrize("think", [0.02, 0.05])
def test_groups_of_callers_stay_together(workers: int, gain: float, think: float) -> None:
    """One for each worker, where never waiting has one more: n + 1 over n is the most that can be gained."""
    scenario = scenarios.closed_loops(64, 32, 20 * workers, think)
    before, after = mean(NEVER, workers, scenario), mean(ADAPTIVE, workers, scenario)
    assert (before + scenario.think_s) / (after + scenario.think_s) > gain


def sharing(**others: Any) -> SeveralWindow:
    """Return the window of two workers, of which one runs five items, that knows that callers come back."""
    window = of_two({ANOTHER: 0.0})
    taught(window)
    for name, value in others.items():
        setattr(window, name, value)
    return window


def test_the_last_free_worker_leaves_to_the_next_what_is_more_than_its_share() -> None:
    """Half of what waits and what runs; only where callers come back, one by one."""
    assert sharing().share(15) == 10
    assert sharing().share(16) == 11
    assert sharing(running={}).share(15) is None
    assert sharing(running={ANOTHER: 0.0, Batch([], 1): 0.0}).share(15) is None
    assert sharing(is_suspended=True).share(15) is None
    assert of_two({ANOTHER: 0.0}).share(15) is None


def test_lists_are_not_divided_for_the_sake_of_even_batches() -> None:
    """A list would wait for both batches."""
    window = sharing()
    for _ in range(3):
        window.done(12, 3, 3, 10.0, 10.0 + FIXED_S, True)
    assert window.share(15) is None


@pytest.mark.parametrize("workers", [2, 4])
def test_callers_that_come_back_are_spread_evenly(workers: int) -> None:
    """Where items take as long as the rest of a batch: all they could get is in groups of 16."""
    scenario = scenarios.closed_loops(16, 32, 16 * workers, 0.02)
    least = scenario.service.seconds(16)
    assert mean(ADAPTIVE, workers, scenario) < 1.05 * least < 0.9 * mean(NEVER, workers, scenario)


@pytest.mark.parametrize("workers", [2, 4])
@pytest.mark.parametrize("think_s", [20e-6, 0.001, 0.02])
def test_a_lone_caller_soon_waits_no_more(think_s: float, workers: int) -> None:
    """Whatever it does between its calls."""
    service = Service(FIXED_S, EACH_S)
    some = Options(max_concurrent_batches=workers)
    found = simulate_several(some, Traffic(Caller(always(think_s), "")), service, calls=200)
    assert found.latencies[5:] == pytest.approx([service.seconds(1)] * len(found.latencies[5:]))


@pytest.mark.parametrize("workers", [2, 4])
def test_batches_of_independent_calls_start_at_even_distances(workers: int) -> None:
    """Near the capacity, where without it workers end together, and most calls wait for all of them."""
    scenario = scenarios.poisson(64, 32, 0.9 * workers)
    assert mean(ADAPTIVE, workers, scenario) < 0.95 * mean(NEVER, workers, scenario)


def test_fewer_callers_than_workers_run_at_once() -> None:
    """A wait for each other would gain them nothing."""
    service = Service(FIXED_S, EACH_S)
    traffic = Traffic(*closed(3, exponential(50e-6), ""))
    found = simulate_several(Options(max_concurrent_batches=4), traffic, service, calls=500, skip=100)
    assert found.mean < 1.01 * service.seconds(1)
