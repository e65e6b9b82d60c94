"""The feature that learns which size serves best, without a batcher: what it hears, asks and says."""

from __future__ import annotations

from math import inf
from types import SimpleNamespace
from typing import Any

import pytest

from batched._core.lazy_heap import Deadlines
from batched._core.options import Options, StreamOptions
from batched._features.best_size import BestSizes
from batched._policy.best_size import BestSize
from batched._policy.size_choice import SizeChoice
from tests.kit.calls import single
from tests.kit.river import StandInRiver, run_of

MOST = 16
OPTIONS = Options(batch_size=MOST)
HEARS, TRIES = ("lesson",), ("room", "lesson")


class Lengths:
    """What knows of lengths, as a test says; it notes that the next batch is to be looked at."""

    def __init__(self) -> None:
        self.is_used = False
        self.is_open = False
        self.looks = 0

    def look_soon(self) -> None:
        """Count it."""
        self.looks += 1


class Sizes(BestSize):
    """The rule, which says what a test has it say, and notes what it hears."""

    size: Any = MOST  # type: ignore[assignment]  # no property: a test sets it
    trial: int | None = None

    def __init__(self) -> None:
        super().__init__(MOST)
        self.asked: list[tuple[int, int, float]] = []
        self.heard: list[tuple[int, float, float]] = []
        self.then = dict[str, Any]()
        """What changes with the next batch."""

    def try_size(self, items: int, fits: int, spare_s: float = inf) -> int | None:
        """Return the trial."""
        self.asked.append((items, fits, spare_s))
        return self.trial

    def ran(self, size: int, started: float, now: float) -> None:
        """Note the batch."""
        self.heard.append((size, started, now))
        vars(self).update(self.then)


class Alone:
    """The feature, and what it sees."""

    def __init__(self, options: Options = OPTIONS, *, streams: bool = False, is_used: bool = False) -> None:
        self.lengths = Lengths()
        self.lengths.is_used = is_used
        self.river = StandInRiver()
        self.river.options = StreamOptions(batch_size=MOST) if streams else options
        self.memory: Any = SimpleNamespace(limit=None)
        self.deadlines = Deadlines()
        self.feature = BestSizes(self.lengths, self.memory, self.deadlines, SizeChoice())
        self.feature.begin(self.river, self.river.options)

    def with_rule(self) -> Sizes:
        """Put the rule of a test in the place of its own."""
        self.feature.sizes = sizes = Sizes()
        return sizes


@pytest.mark.parametrize(
    "off",
    [
        {"options": Options(adaptive=False)},
        {"options": Options(max_concurrent_batches=2)},
        {"options": Options(batch_size=1)},
        {"streams": True},
        {"is_used": True},
    ],
    ids=["not adaptive", "several at once", "one item", "streams", "lengths"],
)
def test_where_sizes_are_not_compared_it_has_no_hook_and_no_say(off: dict[str, Any]) -> None:
    alone = Alone(**off)
    feature = alone.feature
    assert (feature.hooks, feature.limit, feature.is_at_rest, alone.river.hooked) == ((), None, True, 0)
    assert feature.lessons() == {"best": None}
    assert feature.room(SimpleNamespace(items=9), 9, 0.0) == 9
    feature.lesson(run_of(4))
    assert feature.sizes is None


def test_at_first_it_hears_of_lessons_and_a_batch_has_as_many_items_as_is_allowed() -> None:
    alone = Alone()
    assert (alone.feature.hooks, alone.feature.limit) == (HEARS, MOST)
    assert alone.feature.lessons() == {"best": None}
    assert not alone.feature.is_at_rest


def test_it_is_asked_for_room_only_while_a_trial_is_due() -> None:
    """Otherwise it is on no path, but for lessons; and the batcher hears of changes alone."""
    alone = Alone()
    sizes = alone.with_rule()
    before = alone.river.hooked
    for is_due, hooks, told in [(False, HEARS, 0), (True, TRIES, 1), (True, TRIES, 1), (False, HEARS, 2)]:
        sizes.then = {"is_due": is_due}
        alone.feature.lesson(run_of(4))
        assert (alone.feature.hooks, alone.river.hooked - before) == (hooks, told)


def test_it_is_at_rest_while_its_rule_is() -> None:
    alone = Alone()
    sizes = alone.with_rule()
    for is_at_rest in (True, False):
        sizes.then = {"is_at_rest": is_at_rest}
        alone.feature.lesson(run_of(4))
        assert alone.feature.is_at_rest is is_at_rest


@pytest.mark.parametrize(("fits", "told"), [(None, MOST), (5, 5)])
@pytest.mark.parametrize(("deadline", "spare_s"), [(None, inf), (13.0, 3.0)])
def test_a_trial_is_asked_for_with_what_waits_what_fits_and_the_time_there_is(
    fits: int | None, told: int, deadline: float | None, spare_s: float
) -> None:
    alone = Alone()
    alone.memory.limit = fits
    call = single()
    if deadline is not None:
        call.deadline = deadline
        alone.deadlines.watch(call, deadline)
    sizes = alone.with_rule()
    alone.feature.room(SimpleNamespace(items=9), 8, 10.0)
    assert sizes.asked == [(9, told, spare_s)]


@pytest.mark.parametrize("trial", [None, 4])
def test_a_batch_has_as_many_items_as_the_trial_or_as_it_would_have(trial: int | None) -> None:
    """Lengths are looked at in trials: in batches of another size they may tell more."""
    alone = Alone()
    alone.with_rule().trial = trial
    assert alone.feature.room(SimpleNamespace(items=9), 8, 10.0) == (trial or 8)
    assert alone.lengths.looks == (trial is not None)


def test_where_one_item_waits_there_is_no_trial() -> None:
    alone = Alone()
    sizes = alone.with_rule()
    sizes.trial = 4
    assert alone.feature.room(SimpleNamespace(items=1), 8, 10.0) == 8
    assert sizes.asked == []


def test_a_size_that_serves_better_is_the_limit_and_the_batcher_is_told() -> None:
    """Once for each change."""
    alone = Alone()
    sizes = alone.with_rule()
    for size, resized, best in [(MOST, 0, None), (4, 1, 4), (4, 1, 4), (8, 2, 8), (MOST, 3, None)]:
        sizes.then = {"size": size}
        alone.feature.lesson(run_of(4, 0.5, started=10.0))
        assert (alone.feature.limit, alone.river.resized) == (size, resized)
        assert alone.feature.lessons() == {"best": best}
    assert sizes.heard == [(4, 10.0, 10.5)] * 5


def test_nothing_is_learned_of_batches_that_failed_nor_while_lengths_may_explain_them() -> None:
    alone = Alone()
    sizes = alone.with_rule()
    alone.feature.lesson(run_of(4, failed=1))
    alone.lengths.is_open = True
    alone.feature.lesson(run_of(4))
    assert sizes.heard == []


@pytest.mark.parametrize("then", [{"size": 4}, {"is_due": True}])
def test_what_was_learned_is_forgotten_once_lengths_are_used(then: dict[str, Any]) -> None:
    """They explain what batches take from then on."""
    alone = Alone()
    sizes = alone.with_rule()
    vars(sizes).update(then)
    alone.lengths.is_used = True
    alone.feature.lesson(run_of(4))
    assert sizes.heard == []
    assert alone.feature.sizes not in {sizes, None}
    assert (alone.feature.limit, alone.feature.hooks) == (MOST, HEARS)
    assert alone.river.resized == ("size" in then)


def test_where_lengths_are_used_and_nothing_was_learned_all_stays() -> None:
    alone = Alone()
    sizes = alone.with_rule()
    alone.lengths.is_used = True
    alone.feature.lesson(run_of(4))
    assert (alone.feature.sizes, sizes.heard) == (sizes, [])


def test_options_begin_anew_only_with_another_size() -> None:
    """Those that end it forget all; and so does a batcher that begins anew."""
    alone = Alone()
    feature, first = alone.feature, alone.feature.sizes
    feature.configure(Options(batch_size=MOST, timeout_ms=1))
    assert feature.sizes is first
    feature.configure(Options(batch_size=8))
    second = feature.sizes
    assert (second is first, feature.limit) == (False, 8)
    feature.configure(Options(batch_size=8, adaptive=False))
    assert (feature.sizes, feature.limit, feature.hooks) == (None, None, ())
    feature.configure(Options(batch_size=8))
    assert feature.sizes not in {None, second}
    third = feature.sizes
    feature.begin(alone.river, Options(batch_size=8))
    assert feature.sizes not in {None, third}
