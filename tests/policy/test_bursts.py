"""Bursts, and the waits for the rest of one."""

from __future__ import annotations

from itertools import accumulate
from random import Random

import pytest

from batched._policy.bursts import Bursts
from tests.kit.server import adaptive


@pytest.mark.parametrize("think_s", [0.0, 20e-6, 0.001, 0.02, 3.0])
def test_a_caller_after_bursts_soon_waits_no_more(think_s: float) -> None:
    """Nor after bursts, which have taught it that a call seldom comes alone."""
    server = adaptive()
    random = Random(0)
    for start in accumulate(random.uniform(0.05, 0.15) for _ in range(100)):
        for number in range(16):
            server.call(start + number * 30e-6)
    while server.coming:
        server.run(1)
    assert sum(server.batches[-20:]) / 20 > 12
    before = len(server.held)
    server.call(server.now + 0.1, lambda: think_s)
    server.run(100)
    assert not any(server.held[before + 5 :])


def test_a_burst_that_hits_an_idle_function_is_waited_for() -> None:
    """Once bursts are known, only what is needed to see the end of one is waited."""
    server = adaptive()
    random = Random(3)
    starts = list(accumulate(random.uniform(0.05, 0.15) for _ in range(100)))
    for start in starts:
        for number in range(16):
            server.call(start + number * 30e-6)
    while server.coming:
        server.run(1)
    assert server.batches[-40:] == [16] * 40
    assert max(server.held[-40:]) < 16 * 30e-6 + 4 * 30e-6


def test_bursts_of_long_ago_fade_to_nothing() -> None:
    """Those of a function that took a minute, while its callers were seconds apart, and that is fast now."""
    bursts = Bursts()
    now = 1000.0

    def come(calls: int, gap_s: float, unit: float) -> None:
        nonlocal now
        for _ in range(calls):
            now += gap_s
            bursts.arrived([now], unit)
            if bursts.has_news:
                bursts.learn(unit, 1e-4, 1.0)

    come(200, 1.5, 60.0)
    assert bursts.due(1) > now + 1.0
    come(40_000, 0.05, 0.002)
    assert bursts.due(1) == 0.0
    for _ in range(100):
        come(1, 0.05, 0.002)
        come(9, 30e-6, 0.002)
    assert now < bursts.due(1) < now + 1e-3


def test_gaps_without_a_known_cost_do_no_harm() -> None:
    """They have no time then, and tell nothing of bursts."""
    bursts = Bursts()
    bursts.arrived([1.0 + step * 1e-9 for step in range(64)], 1.0)
    bursts.learn(0.0, 0.0001, 1.0)
    assert not bursts.due(1)
