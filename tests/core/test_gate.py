"""Which batches are lessons."""

from __future__ import annotations

from batched._core.batch import Batch
from batched._core.gate import SHORT_S as SHORTER_THAN_S
from batched._core.gate import Gate
from tests.kit.calls import single

SHORT_S = 1e-5
LONG_S = 0.01


class Clocked:
    """A gate, and a clock that goes on from batch to batch."""

    def __init__(self, *, at_rest: bool) -> None:
        self.gate = Gate()
        self.at_rest = at_rest
        self.now = 10.0

    def opens(self, seconds: float, calls: int = 1, *, was_waiting: bool = False) -> bool:
        """Return whether a batch is a lesson that takes so long, of calls that came before it or earlier."""
        slices = [(single(), 0, 1) for _ in range(calls)]
        for call, _, _ in slices:
            call.arrived = self.now - 1.0 if was_waiting else self.now
        batch = Batch(list(slices), calls)
        started, self.now = self.now, self.now + seconds
        if seconds < SHORTER_THAN_S and self.gate.short_passes:  # as the batcher does
            self.gate.short_passes -= 1
            self.gate.ended = self.now
            return False
        opens = self.gate.opens(batch, started, self.now)
        if opens:
            self.gate.taught(seconds, at_rest=self.at_rest)
        return opens


def test_of_batches_that_are_short_one_in_64_is_a_lesson() -> None:
    """Whatever calls they have."""
    clocked = Clocked(at_rest=True)
    assert [clocked.opens(SHORT_S, calls) for calls in (1, 3) * 64] == ([True] + [False] * 63) * 2


def test_of_a_lone_callers_short_batches_one_in_eight_is_a_lesson_where_there_is_more_to_learn() -> None:
    """As of its longer ones."""
    clocked = Clocked(at_rest=False)
    assert [clocked.opens(SHORT_S) for _ in range(8 + 16)] == [True] * 8 + ([False] * 7 + [True]) * 2


def test_a_batch_that_is_not_short_is_a_lesson_among_those_that_are() -> None:
    """At once, though 63 of them would not be; and these have no lesson more for it."""
    clocked = Clocked(at_rest=True)
    assert [clocked.opens(SHORT_S, 3) for _ in range(12)] == [True] + [False] * 11
    assert clocked.opens(LONG_S, 3)
    assert [clocked.opens(SHORT_S, 3) for _ in range(64)] == [False] * 52 + [True] + [False] * 11


def test_once_a_feature_has_more_to_learn_short_batches_are_lessons_again() -> None:
    """From the next lesson on, which a longer batch may be."""
    clocked = Clocked(at_rest=True)
    assert clocked.opens(SHORT_S, 3)
    clocked.at_rest = False
    assert clocked.opens(LONG_S, 3)
    assert clocked.opens(SHORT_S, 3, was_waiting=True)


def rested() -> Clocked:
    """Return a gate that knows a lone caller."""
    clocked = Clocked(at_rest=False)
    assert [clocked.opens(LONG_S) for _ in range(8 + 16)] == [True] * 8 + ([False] * 7 + [True]) * 2
    return clocked


def test_of_a_lone_callers_batches_one_in_eight_is_a_lesson() -> None:
    """As long as they take no longer than they did, and have as many items."""
    clocked = rested()
    assert not clocked.opens(LONG_S)
    assert clocked.opens(3 * LONG_S)
    assert not clocked.opens(3 * LONG_S)
    assert not clocked.opens(LONG_S)


def test_a_batch_in_company_is_a_lesson() -> None:
    """Of several calls, or of one that came while another ran."""
    clocked = rested()
    assert all(clocked.opens(LONG_S, calls=2) for _ in range(10))
    clocked = rested()
    assert all(clocked.opens(LONG_S, was_waiting=True) for _ in range(10))


def test_all_are_lessons_while_a_feature_has_much_to_learn() -> None:
    """For all features."""
    clocked = Clocked(at_rest=False)
    assert all(clocked.opens(SHORT_S, was_waiting=True) for _ in range(20))
