"""What judges overload: the most calls on time in hindsight, and the server that has deadlines."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable
from functools import cache
from itertools import combinations
from random import Random

import pytest

from batched._core.options import Options
from batched.errors import OverloadError
from benchmarks.simulated.deadlines import Client, End, Fate, Server
from benchmarks.simulated.hindsight import most_on_time
from benchmarks.simulated.overload_runs import DEADLINES, draw, judge
from benchmarks.simulated.processes import Stream, Traffic, always
from tests.kit.effort import pairs


def best_of_all(arrivals: list[int], deadline: int, seconds: Callable[[int], int], batch_size: int) -> int:
    """Return the most on time: of all sets of calls in a batch, and all whole starts."""

    @cache
    def best(now: int, left: tuple[int, ...]) -> int:
        if now > max(arrivals) + deadline:
            return 0
        most = best(now + 1, left)
        come = [call for call in left if arrivals[call] <= now]
        for size in range(1, min(batch_size, len(come)) + 1):
            end = now + seconds(size)
            for batch in combinations(come, size):
                if all(arrivals[call] + deadline >= end for call in batch):
                    rest = tuple(call for call in left if call not in batch)
                    most = max(most, size + best(end, rest))
        return most

    return best(0, tuple(range(len(arrivals))))


def linear(fixed: float, each: float) -> Callable[[float], float]:
    return lambda size: fixed + each * size


def drawn(seed: int) -> tuple[list[int], int, Callable[[float], float], int]:
    """Return arrivals, a deadline, a function and a size, all small and whole."""
    random = Random(seed)
    arrivals = sorted(random.randint(0, 14) for _ in range(random.randint(1, 7)))
    cost = linear(random.randint(0, 5), random.randint(1, 3))
    return arrivals, random.randint(1, 14), cost, random.randint(1, 4)


def test_the_bound_is_the_most_of_all_schedules() -> None:
    for seed in range(60):
        arrivals, deadline, cost, size = drawn(seed)
        exact = best_of_all(arrivals, deadline, lambda n, cost=cost: round(cost(n)), size)
        bound = most_on_time([float(at) for at in arrivals], deadline, cost, size, round(cost(size)))
        assert bound == exact, f"{seed}"


def test_on_a_coarse_grid_the_bound_is_never_less() -> None:
    for seed in range(60):
        arrivals, deadline, cost, size = drawn(seed)
        fine = round(cost(size))
        coarse = max(size, fine // 2)  # no batch may take less than a step
        if cost(1) < cost(size) / coarse:
            continue
        times = [float(at) for at in arrivals]
        assert most_on_time(times, deadline, cost, size, coarse) >= most_on_time(
            times, deadline, cost, size, fine
        )


def test_the_bound_says_which_grid_is_too_coarse() -> None:
    with pytest.raises(ValueError, match="less than a step"):
        most_on_time([0.0], 4.0, linear(0, 1), 4, steps=2)


def test_the_bound_of_no_call_is_none() -> None:
    assert most_on_time([], 1.0, linear(1, 1), 4) == 0


def served(
    arrivals: Iterable[float], deadline_s: float | None, *, tells: bool = True, cost_s: float = 1.0
) -> list[Fate]:
    """Return what became of calls to a function that takes `cost_s`, whatever the batch."""
    traffic = Traffic(Stream(iter([*arrivals, math.inf])))
    server = Server(
        Options(batch_size=2, timeout_ms=0), traffic, lambda *_: cost_s, lambda _: deadline_s, tells=tells
    )
    server.run()
    return sorted(server.fates, key=lambda fate: fate.arrived)


def test_each_call_has_one_end() -> None:
    # Of five calls at once two start; no deadline but that of the first batch can be met.
    ends = [fate.end for fate in served([0.0] * 5, 1.5)]
    assert len(ends) == 5
    assert ends[:2] == [End.ON_TIME, End.ON_TIME]
    assert End.ON_TIME not in ends[2:]
    assert {fate.end for fate in served([0.0] * 5, 0.5)} <= {End.LATE, End.DROPPED, End.REFUSED}
    assert {fate.end for fate in served([0.0] * 5, None)} == {End.ON_TIME}


def test_a_batcher_that_is_told_no_deadline_runs_all_calls() -> None:
    ends = [fate.end for fate in served([0.0] * 5, 1.5, tells=False)]
    assert ends == [End.ON_TIME] * 2 + [End.LATE] * 3


def test_latencies_are_counted_from_the_arrival() -> None:
    first, second = served([0.0, 0.25], None)
    assert first.latency == pytest.approx(1.0)
    assert second.latency == pytest.approx(1.75)


def test_a_client_comes_back_when_it_is_told_and_else_thinks() -> None:
    client = Client(always(1.0), "client")
    assert (client.back(), client.is_returning) == (1.0, False)
    error = OverloadError("later")
    error.retry_after_s = 0.25
    client.told(error)
    assert (client.back(), client.is_returning) == (0.25, True)
    client.told(None)
    assert (client.back(), client.is_returning) == (1.0, False)


def test_under_overload_calls_are_given_up_and_none_that_runs_is_late() -> None:
    found = judge(draw(1, "4", 2.0), 30)
    assert found.dropped + found.refused >= 0.4 * found.offered
    assert found.late <= 0.01 * found.on_time
    assert found.on_time >= 0.9 * found.bound


def test_the_expected_wait_of_each_call_is_noted() -> None:
    traffic = Traffic(Stream(iter([*(0.5 * at for at in range(40)), math.inf])))
    options = Options(batch_size=2, timeout_ms=0)
    server = Server(options, traffic, lambda *_: 0.4, lambda _: None, asks=True)
    server.run()
    assert [fate.expected_s for fate in server.fates[20:]] == pytest.approx([0.4] * 20)


@pytest.mark.parametrize(("deadlines", "load"), pairs(DEADLINES, [0.9, 2.0]))
def test_ours_is_never_above_the_bound_and_no_call_is_lost(deadlines: str, load: float) -> None:
    found = judge(draw(1, deadlines, load), 10)
    assert found.is_exact
    assert found.on_time + found.late + found.dropped + found.refused == found.offered
    assert found.on_time <= found.bound <= found.offered
    assert found.on_time_without <= found.bound


def test_noise_is_known_for_no_bound() -> None:
    assert not judge(draw(5, "2", 1.2), 2).is_exact
