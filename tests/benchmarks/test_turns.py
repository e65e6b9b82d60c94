"""Contenders take turns, and rows compare what they gave round by round."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

from benchmarks.kit.measure import Effort
from benchmarks.kit.row import BYTES, Goal, Row, compared, middle_half
from benchmarks.kit.turns import Contender, Measure, Samples, Turns, interleave


class Log:
    """What contenders were asked, in order."""

    def __init__(self) -> None:
        self.entries: list[str] = []

    def contender(self, name: str) -> Contender:
        @contextmanager
        def contender(_: Effort) -> Iterator[Measure]:
            self.entries.append(f"open {name}")
            yield lambda: self.note(name)
            self.entries.append(f"close {name}")

        return contender

    def note(self, name: str) -> float:
        self.entries.append(name)
        return float(len(self.entries))


def test_each_contender_is_opened_once_and_measured_once_in_each_round():
    log = Log()
    turns = Turns({"ours": log.contender("ours"), "bare": log.contender("bare")}, rounds=2)
    samples = turns.samples(Effort())
    assert log.entries == [
        *("open ours", "open bare"),
        *("ours", "bare", "ours", "bare"),
        *("close bare", "close ours"),
    ]
    assert samples == {"ours": [3.0, 5.0], "bare": [4.0, 6.0]}


def test_a_quick_effort_has_its_own_rounds():
    log = Log()
    Turns({"ours": log.contender("ours")}, rounds=9, quick_rounds=1).samples(Effort(quick=True))
    assert log.entries == ["open ours", "ours", "close ours"]


def test_ours_alone_opens_no_other_contender():
    log = Log()
    turns = Turns({name: log.contender(name) for name in ("ours at 1M", "bare at 1M", "ours at 1k")})
    assert list(turns.ours(Effort(), rounds=1)) == ["ours at 1M", "ours at 1k"]
    assert "open bare at 1M" not in log.entries


def test_a_contender_with_several_figures_has_samples_of_each():
    samples = interleave(Effort(), 2, {"ours": lambda: {"p99": 1.0, "throughput": 2.0}, "bare": lambda: 3.0})
    assert samples == {"ours p99": [1.0, 1.0], "ours throughput": [2.0, 2.0], "bare": [3.0, 3.0]}


def test_no_round_begins_once_it_took_long_enough():
    assert interleave(Effort(), 3, {"ours": lambda: 1.0}, enough_s=0.0) == {"ours": [1.0]}


def test_derived_samples_are_made_of_those_that_were_measured():
    def doubled(samples: Samples) -> Samples:
        return {"twice": [2 * sample for sample in samples["ours"]]}

    turns = Turns({"ours": Log().contender("ours")}, rounds=1, derive=doubled)
    assert turns.samples(Effort()) == {"ours": [2.0], "twice": [4.0]}


def test_the_figure_is_the_median_of_the_ratios_of_neighbours():
    result = compared("a", "a", {"ours": [1.0, 4.0, 30.0], "bare": [1.0, 2.0, 10.0]}, "bare", goal=Goal(2.0))
    assert result.figures == (1.0, 2.0, 3.0)
    assert (result.ours, result.other, result.figure) == (4.0, 2.0, 2.0)
    assert result.met is True


def test_amounts_are_compared_by_their_difference():
    result = compared("a", "a", {"ours": [10.0], "bare": [7.0]}, "bare", BYTES, Goal(2.0))
    assert (result.figure, result.met) == (3.0, False)


def test_a_goal_may_be_a_least_and_says_how_much_of_it_is_used_up():
    most, least = Goal(2.0), Goal(0.8, at_least=True)
    assert (most.met(2.0), most.met(2.1), least.met(0.8), least.met(0.7)) == (True, False, True, False)
    assert (most.strain(1.0), least.strain(1.6)) == (0.5, 0.5)
    assert least.strain(0.0) == float("inf")


def test_half_of_the_rounds_lie_in_the_middle_half():
    assert middle_half((1.0, 2.0, 3.0, 4.0, 5.0, 6.0, 7.0, 8.0)) == (3.0, 6.0)
    assert middle_half((5.0,)) == (5.0, 5.0)
    assert middle_half(()) is None


def test_a_row_measures_its_own_turns():
    turns = Turns({"ours": Log().contender("ours"), "bare": Log().contender("bare")}, rounds=2)
    assert Row("a", "what a is", turns, "bare").run(Effort()).figures == (1.0, 1.0)
