"""Whether length costs time, as it is told or found out, with callers that come back at once."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from random import Random

import pytest

from batched._core.call import Call
from batched._core.length_queue import LengthQueue
from batched._core.options import Options
from batched._drivers.manual_clock import ManualDriver
from batched._policy.auto_lengths import AutoLengths
from batched._policy.lengths import Lengths
from tests.kit.batcher_rules import echo
from tests.kit.effort import few, times

CALLERS = 32
Cost = Callable[[int, int], float]
Draw = Callable[[Random], int]


def two_kinds(rng: Random) -> int:
    return rng.choice((5, 5, 5, 100))


def three_kinds(rng: Random) -> int:
    return rng.choice((10, 20, 200))


def even(rng: Random) -> int:
    return rng.randint(1, 50)


def by_number(size: int, longest: int) -> float:
    return 1e-3 + 1e-3 * size


def hardly_by_number(size: int, longest: int) -> float:
    return 5e-3 + 0.2e-3 * size


def padded(size: int, longest: int) -> float:
    return 1e-3 + 4e-6 * size * longest


def found_out() -> AutoLengths:
    return AutoLengths(lambda call, _: call.lengths)


def told() -> Lengths:
    return Lengths(reorders=True, padded=False)


class Loop:
    """A batcher with callers that come back at once, and a clock that is turned by hand."""

    def __init__(self, lengths: Lengths, draw: Draw, batch_size: int = 64, seed: int = 0) -> None:
        self.lengths, self.now, self.used = lengths, 0.0, 0
        queue = partial(LengthQueue, lengths=lengths)
        self.driver = ManualDriver(Options(batch_size=batch_size, timeout_ms=0), queue)
        self._draw, self._rng, self._noise = draw, Random(seed), Random(seed)

    def run(self, batches: int, cost: Cost, noise: float = 0.0, slower_s: float = 0.0) -> float:
        """Run so many batches; return the calls a second."""
        begun, answered = self.now, 0
        for _ in range(batches):
            for _ in range(CALLERS - self.driver.queue.items):
                call = Call().begin(echo, None, 1, False, self.now)
                call.lengths = self._draw(self._rng)
                self.driver.push(call)
            self.driver.delay(self.now)
            batch = self.driver.pop(self.now)
            longest = max(call.lengths for call in batch.calls)
            self.now += cost(batch.size, longest) * self._noise.lognormvariate(0, noise) + slower_s
            answered += len(self.driver.finish(batch, self.now))
            self.used += self.lengths.is_used
        return answered / (self.now - begun)


@pytest.mark.parametrize("noise", [0.0, 0.02, 0.2])
@pytest.mark.parametrize("draw", [two_kinds, even])
@pytest.mark.parametrize("cost", [by_number, hardly_by_number])
def test_chance_hardly_ever_has_lengths_used_that_cost_nothing(cost: Cost, draw: Draw, noise: float) -> None:
    """Also where the longest item is nearly always the same, so a time may be that of length or number."""
    seeds = times(20)
    misled = 0
    for seed in range(seeds):
        loop = Loop(found_out(), draw, seed=seed)
        loop.run(100, cost, noise)
        misled += loop.used > 0
    assert misled <= seeds // 20


@pytest.mark.parametrize("noise", [0.0, 0.05, 0.2])
@pytest.mark.parametrize("batch_size", [16, 64])
def test_length_that_costs_is_found_out_where_all_batches_have_the_same_longest_item(
    batch_size: int, noise: float
) -> None:
    """After as many batches as elsewhere: a few are put in order of length, and tell."""
    for seed in range(times(10)):
        loop = Loop(found_out(), three_kinds, batch_size, seed)
        loop.run(32, padded, noise)
        assert loop.lengths.is_used


@pytest.mark.parametrize("slow", [(), (0.1, 0.1, 0.05, 0.02)])
@pytest.mark.parametrize("batch_size", [16, 32, 64])
def test_to_tell_lengths_is_no_slower_than_to_have_them_found_out(
    batch_size: int, slow: tuple[float, ...]
) -> None:
    """Whatever the first batches take, which compile something."""
    for seed in range(times(5)):
        rates = []
        for lengths in (told(), found_out()):
            loop = Loop(lengths, three_kinds, batch_size, seed)
            for seconds in slow:
                loop.run(1, padded, slower_s=seconds)
            loop.run(300, padded, 0.05)
            rates.append(loop.run(100, padded, 0.05))
        assert rates[0] > 0.95 * rates[1]


def test_lengths_that_are_told_and_cost_nothing_take_no_time() -> None:
    """Though batches are put in order of length now and then, lest it costs something by now."""
    for draw in few((two_kinds, three_kinds, even), 2):
        rates = [Loop(lengths, draw).run(1000, hardly_by_number, 0.05) for lengths in (told(), found_out())]
        assert rates[0] > 0.98 * rates[1]


def test_length_that_begins_to_cost_is_noticed_where_it_is_told() -> None:
    """Though batches all have the same longest item, as long as the order is that of arrival."""
    loop = Loop(told(), three_kinds, 32)
    loop.run(300, hardly_by_number, 0.05)
    before = loop.driver.stats(loop.now).chosen["length"]
    loop.run(300, padded, 0.05)
    assert loop.driver.stats(loop.now).chosen["length"] > before + 50
