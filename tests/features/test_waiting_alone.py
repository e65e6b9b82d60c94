"""The feature that has a window learn, without a batcher: what the window hears, when it holds batches."""

from __future__ import annotations

from dataclasses import replace
from functools import partial
from types import SimpleNamespace
from typing import Any

import pytest

from batched._core.batch import Batch
from batched._core.hooks import Run
from batched._core.options import Options
from batched._features.waiting import Waiting, new_window
from batched._policy.adaptive import AdaptiveWindow
from batched._policy.length_cost import LengthCost
from batched._policy.several import SeveralWindow
from batched._policy.window import AtOnce, StartReason, Window
from tests.kit.calls import listed, single
from tests.kit.figures import LEARNED
from tests.kit.river import StandInRiver, batch_of, run_of, run_of_list

OPTIONS = Options(timeout_ms=4.0, batch_size=16)
PLAIN = Options(adaptive=False)
HEARS_ALL = ("queued", "answered")
SUSPENDED = ("lesson",)


class Heard:
    """What stands for a window: it writes down what it hears, and is suspended as a test says."""

    timeout_s = 0.004
    learns = True
    large_limit: int | None = None
    cohorts = 3

    def __init__(self, *, is_suspended: bool = False) -> None:
        self.is_suspended = is_suspended
        self.came: list[float] = []
        self.said: list[tuple[Any, ...]] = []
        self.turns = False
        """Whether it is suspended, or no longer, with the next batch."""
        self.learned = lambda: LEARNED

    def __getattr__(self, name: str) -> Any:
        if name.startswith("_"):
            raise AttributeError(name)

        def hear(*args: Any, **named: Any) -> str:
            self.said.append((name, *args, *named.values()))
            if self.turns and name in {"done", "ran_suspended"}:
                self.is_suspended = not self.is_suspended
            return f"{name} of it"

        return hear

    def heard(self, name: str) -> list[tuple[Any, ...]]:
        """Return what it was told by this method."""
        return [tuple(said) for which, *said in self.said if which == name]


def alone(options: Options = OPTIONS, window: Any = None) -> tuple[Waiting, StandInRiver]:
    """Return the feature, and what it sees."""
    feature, river = Waiting(), StandInRiver()
    feature.begin(river, options)
    if window is not None:
        feature.use(window)
    return feature, river


@pytest.mark.parametrize("options", [PLAIN, Options(batch_size=1)])
def test_a_window_that_learns_nothing_is_used_and_told_nothing(options: Options) -> None:
    feature, river = alone(options)
    assert type(feature.window) is Window
    assert (feature.hooks, river.windows) == ((), [feature.window])
    assert feature.lessons() == {"cohorts": 0, "learned": None}


def test_a_window_that_learns_is_used_and_told_of_calls_and_batches() -> None:
    feature, river = alone()
    assert type(feature.window) is AdaptiveWindow
    assert (feature.hooks, river.windows) == (HEARS_ALL, [feature.window])


def test_with_several_batches_at_once_the_window_sees_which_run() -> None:
    feature, river = alone(Options(max_concurrent_batches=2))
    window = feature.window
    assert (type(window), feature.hooks, river.windows) == (SeveralWindow, (*HEARS_ALL, "room"), [window])
    assert (window.workers, window.running) == (2, river.running)


@pytest.mark.parametrize(
    ("options", "asked"),
    [
        (Options(max_concurrent_batches=2), True),
        (Options(), False),
        (Options(max_concurrent_batches=2, adaptive=False), False),
        (Options(max_concurrent_batches=2, batch_sizes=(1, 8), batch_size=8), False),
    ],
)
def test_a_share_is_asked_for_only_where_several_batches_of_any_size_may_run_and_it_is_learned(
    options: Options,
    asked: bool,
) -> None:
    """From the beginning, and when options change."""
    for before in (options, Options(), Options(max_concurrent_batches=2)):
        feature, _ = alone(before)
        feature.configure(options)
        assert ("room" in feature.hooks) == asked


@pytest.mark.parametrize(("share", "found"), [(None, 8), (3, 3), (8, 8), (9, 8)])
def test_a_batch_has_the_share_of_one_worker_at_most(share: int | None, found: int) -> None:
    """No more than it has room for."""
    feature, river = alone(Options(max_concurrent_batches=2))
    feature.window.share = lambda _: share
    assert feature.room(river.queue, 8, 0.0) == found


def test_the_capacity_counts_batches_that_run_at_once() -> None:
    """Such as those in stages, as far as these overlap; an unknown one stays unknown."""
    feature, river = alone()
    river.slots = 2.5
    for capacity, found in ((None, None), (100.0, 250.0)):
        feature.window = SimpleNamespace(cohorts=1, learned=partial(replace, LEARNED, capacity=capacity))
        assert feature.lessons() == {"cohorts": 1, "learned": replace(LEARNED, capacity=found)}


def test_with_more_or_fewer_batches_at_once_what_was_learned_stays() -> None:
    """But not where one becomes several, or several become one: these learn in ways of their own."""
    feature, _ = alone(Options(max_concurrent_batches=2))
    two = feature.window
    feature.configure(Options(max_concurrent_batches=4))
    assert (feature.window, two.workers) == (two, 4)
    feature.configure(OPTIONS)
    assert type(feature.window) is AdaptiveWindow
    feature.configure(Options(max_concurrent_batches=2))
    assert type(feature.window) is SeveralWindow
    assert feature.window is not two


@pytest.mark.parametrize("options", [{}, {"adaptive": False}, {"max_concurrent_batches": 2}])
def test_the_window_knows_whether_a_timeout_is_set(options: dict[str, Any]) -> None:
    """Also if it is the one that holds where none is, and while calls wait."""
    feature, river = alone(Options(**options))
    assert (feature.window.is_auto, feature.window.timeout_s) == (True, 0.005)
    for timeout_ms, found in ((5, (False, 0.005)), (9, (False, 0.009)), ("auto", (True, 0.005))):
        changed = Options(timeout_ms=timeout_ms, **options)
        feature.configure(changed)
        feature.resized(changed, 16)
        assert (feature.window.is_auto, feature.window.timeout_s) == found
    assert river.windows[-1] is feature.window


@pytest.mark.parametrize(
    ("options", "window", "reason"),
    [
        (Options(timeout_ms=0), None, StartReason.WINDOW),
        (OPTIONS, Heard(is_suspended=True), StartReason.NO_GAIN),
    ],
)
def test_where_no_batch_is_held_back_the_batcher_need_not_ask_the_window(
    options: Options, window: Any, reason: StartReason
) -> None:
    """Batches start at once, and say why."""
    _, river = alone(options, window)
    assert (type(river.windows[-1]), river.windows[-1].reason) == (AtOnce, reason)


def test_the_window_finds_when_calls_came() -> None:
    """In their order, and each once."""
    feature, _ = alone(window=(window := Heard()))
    feature.queued([listed(2, 1.0), listed(1, 2.0)])
    feature.queued([listed(1, 3.0)])
    assert window.came == [1.0, 2.0, 3.0]


@pytest.mark.parametrize(("failed", "has_worked"), [(0, True), (2, True), (3, False)])
def test_the_window_hears_of_a_run_and_whether_an_item_has_worked(failed: int, has_worked: bool) -> None:
    feature, _ = alone(window=(window := Heard()))
    feature.answered(run_of(3, 0.5, failed=failed))
    assert window.heard("done") == [(3, 3, 3, 10.0, 10.5, has_worked)]


@pytest.mark.parametrize("size", [2, 0])
def test_of_a_run_that_is_divided_the_window_hears_when_it_started(size: int) -> None:
    """Also if no caller wants any of its items any more."""
    feature, _ = alone(window=(window := Heard()))
    feature.answered(Run(batch_of(size), 10.0, 10.5, 0, ValueError(), is_divided=True))
    assert window.said == [("let_go", 10.0)]


def test_the_queue_knows_the_limit_on_large_calls_that_the_window_has_learned() -> None:
    feature, river = alone(window=(window := Heard()))
    for limit in (5, None):
        window.large_limit = limit
        feature.answered(run_of(3))
        assert river.queue.large_limit == limit


def test_a_window_that_is_suspended_hears_of_lessons_alone() -> None:
    """From the run on with which that is so; what had come, and was not looked at, is forgotten."""
    feature, river = alone(window=(window := Heard()))
    feature.answered(run_of(3))
    assert (feature.hooks, river.windows[-1]) == (HEARS_ALL, window)
    window.turns = True
    feature.queued([single()])
    feature.answered(run_of(3))
    assert (feature.hooks, type(river.windows[-1])) == (SUSPENDED, AtOnce)
    assert window.came == []


def test_a_window_that_goes_on_holds_batches_and_hears_of_all_again() -> None:
    feature, river = alone(window=(window := Heard(is_suspended=True)))
    before = len(river.windows), river.hooked
    feature.lesson(run_of(3))
    assert (len(river.windows), river.hooked, feature.hooks) == (*before, SUSPENDED)
    window.turns = True
    feature.lesson(run_of(3))
    assert (feature.hooks, river.windows[-1]) == (HEARS_ALL, window)


@pytest.mark.parametrize(
    ("run", "has_company"),
    [
        (Run(Batch([(listed(1, 11.0), 0, 1)] * 2, 2), 10.0, 10.5, 2, None), True),
        (run_of_list(0, 3, arrived=9.0), True),
        (run_of_list(0, 3, arrived=11.0), False),
        (run_of_list(3, 5, arrived=9.0), False),
    ],
    ids=["several calls", "a list that came amid a run", "one that came later", "the rest of a list"],
)
def test_a_suspended_window_hears_of_a_run_and_whether_its_call_has_company(
    run: Any, has_company: bool
) -> None:
    """Of others in its batch, or in the one that ran as it came: that ended at 10.5."""
    feature, _ = alone(window=(window := Heard(is_suspended=True)))
    feature.lesson(run_of(1))
    feature.lesson(run)
    assert window.heard("ran_suspended") == [(1, 0.5, False), (run.batch.size, 0.5, has_company)]


def test_a_suspended_window_hears_nothing_of_a_run_of_which_no_item_worked() -> None:
    """But the call that came amid it has company."""
    feature, _ = alone(window=(window := Heard(is_suspended=True)))
    feature.lesson(run_of(2, failed=2))
    feature.lesson(run_of_list(0, 3, arrived=9.0))
    assert window.heard("ran_suspended") == [(3, 0.5, True)]


def test_a_run_before_the_window_was_suspended_is_company_too() -> None:
    feature, _ = alone(window=(window := Heard()))
    window.turns = True
    feature.answered(run_of(3))
    feature.lesson(run_of_list(0, 3, arrived=9.0))
    assert window.heard("ran_suspended") == [(3, 0.5, True)]


def test_options_keep_what_the_window_has_learned_as_long_as_one_that_learns_fits() -> None:
    feature, river = alone()
    first = feature.window
    feature.configure(Options(timeout_ms=9.0, batch_size=8))
    assert (feature.window, feature.window.timeout_s) == (first, 0.009)
    feature.configure(PLAIN)
    assert (type(feature.window), feature.hooks) == (Window, ())
    feature.configure(OPTIONS)
    assert (type(feature.window), feature.hooks) == (AdaptiveWindow, HEARS_ALL)
    assert feature.window is not first
    assert river.windows[-1] is feature.window


def test_the_window_knows_how_many_items_fill_a_batch() -> None:
    """Fewer than options allow, where fewer serve better."""
    feature, _ = alone(window=(window := Heard()))
    feature.resized(OPTIONS, 7)
    assert window.heard("configure") == [(0.004, 7)]


def test_costs_that_are_learned_elsewhere_are_those_of_each_new_window(monkeypatch: Any) -> None:
    """Until they are learned here again, or the batcher begins anew."""
    told: list[LengthCost | None] = []
    monkeypatch.setattr(AdaptiveWindow, "follow", lambda _, cost: told.append(cost))
    feature, river = alone()
    assert told == [None]
    feature.follow_cost(cost := LengthCost())
    for options in (PLAIN, OPTIONS):
        feature.configure(options)
    assert told == [None, cost, cost]
    feature.begin(river, OPTIONS)
    for options in (PLAIN, OPTIONS):
        feature.configure(options)
    assert told[3:] == [None, None]


def test_what_it_has_learned_is_what_the_window_has() -> None:
    feature, _ = alone(window=Heard())
    assert feature.lessons() == {"cohorts": 3, "learned": LEARNED}


def test_a_batcher_that_begins_anew_has_a_new_window() -> None:
    """Which does not know when calls came before."""
    feature, river = alone()
    first = feature.window
    feature.queued([single()])
    feature.begin(river, OPTIONS)
    assert feature.window is not first
    assert feature.window.came == []


@pytest.mark.parametrize(("old", "stays"), [(AdaptiveWindow(0.1, 4), True), (Window(0.1), False)])
def test_a_window_stays_if_it_is_of_the_kind_that_options_ask_for(old: Window, stays: bool) -> None:
    window = new_window(OPTIONS, old=old)
    assert (window is old, type(window), window.timeout_s) == (stays, AdaptiveWindow, 0.004)
