"""Callers that come back after their answer, and the waits for them."""

from __future__ import annotations

from random import Random

import pytest

from batched._core.call import Call
from batched._policy.adaptive import AdaptiveWindow
from batched._policy.cohorts import Cohorts
from batched._policy.window import Window
from tests.kit.server import EACH_S, FIXED_S, TIMEOUT_S, Server, adaptive, crowd, soon


@pytest.mark.parametrize("think_s", [0.0, 20e-6, 0.001, 0.02, 3.0])
def test_a_caller_left_alone_soon_waits_no_more(think_s: float) -> None:
    """Once a crowd has left it waits in five calls at most."""
    server = adaptive()
    crowd(server, 20)
    server.run(300)
    assert server.batches[-1] == 20
    server.coming.clear()
    server.call(server.now, lambda: think_s)
    server.run(100)
    assert not any(server.held[305:])


def test_returning_callers_are_waited_for() -> None:
    """All of a crowd share every batch, and it starts when the last of them is back."""
    server = adaptive()
    crowd(server, 20)
    server.run(200)
    assert server.batches[-100:] == [20] * 100
    assert max(server.held[-100:]) < 300e-6
    assert server.driver.stats(server.now).closed["callers back"] >= 100


def test_two_callers_find_each_other() -> None:
    """Though each batch of one ends while the other waits already."""
    server = adaptive()
    server.call(0, soon)
    server.call(TIMEOUT_S + 0.001, soon)
    server.run(100)
    assert server.batches[-50:] == [2] * 50


def test_lists_are_waited_for_like_single_items() -> None:
    """Their callers are counted, not their items."""
    server = adaptive()
    random = Random(1)
    for size in (1, 2, 3, 4, 8):
        server.call(random.uniform(0, 1e-4), lambda: random.uniform(5e-5, 3e-4), size)
    server.run(100)
    assert server.batches[-50:] == [18] * 50


def test_calls_that_come_by_the_clock_are_not_waited_for() -> None:
    """Though each comes shortly after an answer, as if it had been waiting for it."""
    means = []
    for patience in (AdaptiveWindow(TIMEOUT_S, 32), Window(0)):
        server = Server(patience)
        random = Random(9)
        for number in range(1200):
            server.call(number * 1.05 * (FIXED_S + EACH_S))
        while server.coming:
            server.slow = random.uniform(0.85, 1.15)
            server.run(1)
        means.append(sum(server.latencies[100:]) / len(server.latencies[100:]))
    assert means[0] < 1.02 * means[1]


def test_a_caller_that_has_left_is_not_waited_for() -> None:
    """A caller that was cancelled while its batch ran is no more expected."""
    server = adaptive()
    crowd(server, 2)
    server.run(50)
    server.let_come(server.now + 1)
    server.take_in()
    server.now += 0.001
    assert server.driver.delay(server.now + 1) == 0.0
    batch = server.driver.pop(server.now)
    stays, leaves = (call for call, _, _ in batch.slices)
    leaves.left = "cancelled"
    server.driver.drop(leaves)
    server.now += FIXED_S
    assert server.driver.finish(batch, server.now) == [stays]
    server.driver.push(Call().begin(id, None, 1, False, server.now + soon()))
    assert server.driver.delay(server.now + soon()) == 0.0


def test_an_eternity_of_calls_overflows_nothing() -> None:
    """Weights that grow with every batch are scaled down in time, so the same is decided as at first."""
    cohorts = Cohorts()
    waits = []
    for number in range(20_000):
        now = 0.005 * number
        cohorts.begin(now, 2, 0.004, others_waited=number % 2 == 1)
        cohorts.arrived([now + 1e-4])
        waits.append(cohorts.due(1, 3, now + 1e-4, now + 0.005, 1e-4) - now)
        cohorts.arrived([now + 0.8e-3])
    assert waits[200:] == pytest.approx([waits[200]] * (20_000 - 200), abs=1e-6)
    assert waits[200] > 0.5e-3
