"""The feature that divides batches which fail, without a batcher: what runs again, and what is given up."""

from __future__ import annotations

from typing import Any

import pytest

from batched._core.batch import Batch
from batched._core.halves import Half
from batched._core.hooks import Run
from batched._core.options import Options
from batched._features.isolation import Isolation
from batched._policy.search import Search
from batched._policy.size_choice import SizeChoice
from tests.kit.calls import listed, single
from tests.kit.river import StandInRiver, batch_of

OPTIONS = Options()
AT_REST, WATCHES = ("failed",), ("took", "failed", "ended")
BEGAN = 10.0
LONG_S = 5.0


class Alone:
    """The feature, and what it sees; batches run as a test says."""

    def __init__(self, options: Options = OPTIONS) -> None:
        self.river: Any = StandInRiver()
        self.feature = Isolation(SizeChoice(), "f")
        self.feature.begin(self.river, options)

    def fail(self, batch: Batch, error: BaseException | None = None, seconds: float = 0.001) -> bool:
        """Have a batch raise an error; return whether its items run again."""
        error = error or ValueError("bad")
        again = self.feature.failed(batch, error, BEGAN, BEGAN + seconds)
        batch.failed = 0 if again else batch.size
        self._end(batch, seconds, error)
        return again

    def work(self, batch: Batch, seconds: float = 0.001) -> None:
        """Have a batch work."""
        self._end(batch, seconds, None)

    def _end(self, batch: Batch, seconds: float, error: BaseException | None) -> None:
        if "ended" in self.feature.hooks:
            self.feature.ended(Run(batch, BEGAN, BEGAN + seconds, batch.size, error))

    def start(self, batch: Batch) -> Batch:
        """Have a batch be about to run; return it."""
        if "took" in self.feature.hooks:
            self.feature.took(batch, BEGAN)
        return batch

    def part(self) -> Half:
        """Return the next part that is to run."""
        return self.river.first.popleft()

    def all_parts_work(self) -> None:
        """Have each part work that is to run."""
        while self.river.first:
            self.work(self.part())

    def fail_together(self, size: int) -> None:
        """Have a batch fail of which each item works alone, if all is divided to the end."""
        self.fail(batch_of(size))
        while self.river.first:
            part = self.part()
            if part.size > 1:
                self.fail(part)
            else:
                self.work(part)

    def pause(self) -> None:
        """Have a search find nothing."""
        self.fail(batch_of(8))
        self.fail(self.part(), seconds=LONG_S)
        assert self.feature.is_paused

    @property
    def sizes(self) -> list[int]:
        """The sizes of the parts that are to run."""
        return [part.size for part in self.river.first]


def test_at_rest_it_is_asked_of_failures_alone() -> None:
    """It does not tell the batcher: that asks for the hooks once it has begun."""
    alone = Alone()
    assert (alone.feature.hooks, alone.river.hooked, alone.feature.limit) == (AT_REST, 0, None)
    assert alone.feature.figures() == {"isolation_paused": False}


def test_from_a_failure_on_it_watches_until_the_search_has_ended() -> None:
    """The batcher is told of each change, once."""
    alone = Alone()
    told = []
    for step in (
        lambda: alone.fail(batch_of(4)),
        lambda: alone.fail(alone.part()),
        lambda: alone.fail(alone.part()),
        lambda: alone.work(alone.part()),
        lambda: alone.work(alone.part()),
    ):
        step()
        told.append((alone.feature.hooks, alone.river.hooked))
    assert told == [(WATCHES, 1)] * 4 + [(AT_REST, 2)]


@pytest.mark.parametrize("where", ["first", "running"])
def test_it_watches_as_long_as_a_part_of_any_search_is_to_run_or_runs(where: str) -> None:
    alone = Alone()
    other = Half([(single(), 0, 1)], 1, None, Search(2, 0.0))
    alone.fail(batch_of(1))
    if where == "first":
        alone.river.first.append(other)
    else:
        alone.river.running[other] = BEGAN
    alone.work(batch_of(1))
    assert alone.feature.hooks == WATCHES
    other.search = None
    alone.work(batch_of(1))
    assert alone.feature.hooks == AT_REST


def test_a_batch_that_fails_runs_again_in_halves() -> None:
    """Each knows what it has met."""
    alone = Alone()
    batch, error = batch_of(5), ValueError("bad")
    calls = batch.calls
    assert alone.fail(batch, error)
    [(again, parts)] = alone.river.again
    assert again is batch
    assert [part.calls for part in parts] == [calls[:2], calls[2:]]
    assert [part.error for part in parts] == [error, error]
    assert parts[0].search is parts[1].search is not None


def misanswered(size: int, returned: int | None) -> Batch:
    """Return a batch of so many single items, of which the function has returned so many results."""
    batch = batch_of(size)
    batch.returned = returned
    return batch


def list_of(size: int, *, keep_errors: bool = False) -> Batch:
    """Return a batch of one list."""
    call = listed(size)
    call.keep_errors = keep_errors
    return Batch([(call, 0, size)], size)


@pytest.mark.parametrize(
    ("batch", "error", "isolates"),
    [
        (batch_of(4), ValueError(), False),
        (batch_of(1), ValueError(), True),
        (batch_of(4), KeyboardInterrupt(), True),
        (batch_of(4), ConnectionResetError(), True),
        (misanswered(4, 7), ValueError(), True),
        (misanswered(4, None), ValueError(), True),
        (list_of(4), ValueError(), True),
    ],
    ids=["not wanted", "one item", "no Exception", "a connection", "7 results", "no results", "a list"],
)
def test_where_no_item_can_be_to_blame_a_batch_fails_as_a_whole(
    batch: Batch, error: BaseException, isolates: bool
) -> None:
    alone = Alone(Options(isolate_errors=isolates))
    assert not alone.fail(batch, error)
    assert (alone.river.again, alone.sizes) == ([], [])
    assert not alone.feature.is_paused


def test_a_list_of_which_each_item_has_a_place_for_its_error_is_divided() -> None:
    alone = Alone()
    assert alone.fail(list_of(4, keep_errors=True))
    assert alone.sizes == [2, 2]


def test_items_that_a_run_may_use_up_run_once() -> None:
    alone = Alone()
    alone.river.can_repeat = lambda _: False
    assert not alone.fail(batch_of(4))
    assert alone.river.again == []


def test_what_no_caller_wants_does_not_run_again() -> None:
    alone = Alone()
    batch = batch_of(4)
    batch.calls[0].missing = batch.calls[1].missing = 0
    wanted = batch.calls[2:]
    assert alone.fail(batch)
    assert [part.calls for part in alone.river.first] == [wanted[:1], wanted[1:]]


def test_where_no_caller_wants_any_of_it_there_are_no_parts_and_it_is_not_a_failure() -> None:
    alone = Alone()
    batch = batch_of(2)
    for call in batch.calls:
        call.missing = 0
    assert alone.fail(batch)
    assert alone.river.again == [(batch, [])]


def test_an_error_that_passed_without_an_item_to_blame_is_reported_once() -> None:
    """The one that the batch has raised, once all of its items have worked, each alone."""
    alone = Alone()
    error = ValueError("together")
    alone.fail(batch_of(2), error)
    alone.work(alone.part())
    assert alone.river.afterward == []
    alone.work(alone.part())
    (report,) = alone.river.afterward
    report()
    assert alone.river.counters.batch_error == "ValueError: together"


def test_an_error_is_not_reported_where_an_item_that_has_left_may_be_to_blame() -> None:
    alone = Alone()
    batch = batch_of(3)
    batch.calls[0].missing = 0
    alone.fail(batch)
    alone.all_parts_work()
    assert alone.river.afterward == []


def test_an_error_is_not_reported_where_an_item_fails_alone() -> None:
    alone = Alone()
    alone.fail(batch_of(2))
    alone.fail(alone.part())
    alone.work(alone.part())
    assert alone.river.afterward == []


def test_a_failure_of_several_that_work_in_parts_is_reported_if_it_comes_again() -> None:
    """Once may be chance: an error that passes."""
    alone = Alone()
    for reported in (0, 1):
        alone.fail(batch_of(4))
        alone.all_parts_work()
        assert len(alone.river.afterward) == reported


# -- a search that is given up, and the pause after it ------------------------------------------------------


def test_a_search_that_costs_too_much_is_given_up_and_its_parts_get_what_they_have_met() -> None:
    """Only its own: another search goes on."""
    alone = Alone()
    other = Half([(single(), 0, 1)], 1, None, Search(2, 0.0))
    first = ValueError("first")
    alone.fail(batch_of(8), first)
    part, rest = alone.part(), alone.river.first[0]
    alone.river.first.append(other)
    assert not alone.fail(part, ValueError("later"), LONG_S)
    assert alone.river.ended == [(rest, first)]
    assert [*alone.river.first] == [other]


def test_parts_that_have_met_no_error_get_the_one_that_ended_the_search() -> None:
    alone = Alone()
    search, last = Search(2, 0.0), ValueError("last")
    ahead, other = (Half([(single(), 0, 1)], 1, None, search) for _ in range(2))
    alone.river.first.append(other)
    alone.fail(ahead, last, LONG_S)
    assert alone.river.ended == [(other, last)]


def test_after_a_search_that_found_nothing_no_batch_is_divided_until_something_works() -> None:
    alone = Alone()
    alone.pause()
    assert alone.feature.figures() == {"isolation_paused": True}
    assert not alone.fail(batch_of(8))
    assert alone.feature.is_paused
    alone.work(batch_of(1))
    assert not alone.feature.is_paused
    assert alone.fail(batch_of(8))


def test_a_search_that_is_given_up_after_an_item_has_worked_is_no_reason_for_a_pause() -> None:
    alone = Alone()
    alone.fail(batch_of(4))
    alone.work(alone.part())
    alone.fail(alone.part(), seconds=LONG_S)
    assert alone.sizes == []
    assert not alone.feature.is_paused


def ahead_of_some(alone: Alone) -> tuple[Batch, Half]:
    """Return a batch of which one call runs ahead, during a pause, and the others."""
    for _ in range(50):
        batch = alone.start(batch_of(4))
        if batch.size < 4:
            return batch, alone.river.first[0]
    raise AssertionError("no call has run ahead")


def test_in_a_pause_one_call_of_some_batches_runs_ahead_of_the_others() -> None:
    """Of the other batches all runs at once: an outage is to cost no run more."""
    alone = Alone()
    alone.pause()
    wholes = tries = 0
    for _ in range(50):
        batch = batch_of(4)
        calls = {*batch.calls}
        alone.start(batch)
        if batch.size == 4:
            wholes += 1
            assert batch.search is None
        else:
            tries += 1
            rest = alone.part()
            assert (batch.size, rest.size) == (1, 3)
            assert {*batch.calls, *rest.calls} == calls
            assert batch.search is rest.search is not None
            assert batch.search.is_try
        assert alone.sizes == []
    assert wholes
    assert tries


@pytest.mark.parametrize(
    ("calls", "sizes"),
    [([(4, True)], [1]), ([(5, False), (5, False)], [5]), ([(2, True), (3, True)], [2, 3])],
)
def test_what_runs_ahead_is_a_call_or_an_item_of_the_only_list_at_any_place(
    calls: list[tuple[int, bool]], sizes: list[int]
) -> None:
    alone = Alone()
    alone.pause()
    ahead = set()
    for _ in range(100):
        slices = []
        for size, keep_errors in calls:
            (piece,) = list_of(size, keep_errors=keep_errors).slices
            slices.append(piece)
        given = [*slices]
        batch = alone.start(Batch(slices, sum(size for size, _ in calls)))
        if alone.sizes:
            assert batch.size in sizes
            [(call, start, _)] = batch.slices
            ahead.add((next(at for at, piece in enumerate(given) if piece[0] is call), start))
            alone.river.first.clear()
    assert len(ahead) == (calls[0][0] if len(calls) == 1 else len(calls))


def test_of_one_call_none_runs_ahead_and_no_part_of_another_search_is_divided() -> None:
    alone = Alone()
    alone.pause()
    half = Half(batch_of(4).slices, 4, None, Search(8, 0.0))
    for _ in range(50):
        assert alone.start(batch_of(1)).size == 1
        assert alone.start(half).size == 4
    assert alone.sizes == []


def test_if_the_call_that_ran_ahead_fails_the_others_fail_with_it() -> None:
    alone = Alone()
    alone.pause()
    batch, rest = ahead_of_some(alone)
    alone.river.ended.clear()
    error = ValueError("still")
    assert not alone.fail(batch, error)
    assert alone.river.ended == [(rest, error)]
    assert alone.sizes == []


@pytest.mark.parametrize("why", ["memory", "it has left", "no pause"])
def test_the_others_run_if_it_is_no_outage_that_made_it_fail(why: str) -> None:
    alone = Alone()
    alone.pause()
    batch, rest = ahead_of_some(alone)
    alone.river.ended.clear()
    if why == "it has left":
        batch.calls[0].left = "cancelled"
    if why == "no pause":
        alone.work(batch_of(1))
    assert not alone.fail(batch, MemoryError() if why == "memory" else ValueError())
    assert alone.river.ended == []
    assert ([*alone.river.first], rest.search) == ([rest], None)


def test_if_the_call_that_ran_ahead_works_the_pause_is_over_and_the_others_are_of_no_search() -> None:
    """Those that run by now, on another slot, too. What another search is for stays in that."""
    alone = Alone()
    alone.pause()
    batch, rest = ahead_of_some(alone)
    runs = Half([(single(), 0, 1)], 1, None, batch.search)
    other = Half([(single(), 0, 1)], 1, None, search := Search(2, 0.0))
    alone.river.running |= {runs: BEGAN, other: BEGAN}
    alone.work(batch)
    assert (rest.search, runs.search, other.search) == (None, None, search)
    assert not alone.feature.is_paused
    assert alone.river.ended[1:] == []


def test_after_a_pause_a_search_begins_with_a_single_item_until_a_whole_batch_works() -> None:
    """A part that works ends the pause, not the caution: it goes on watching for such a batch."""
    alone = Alone()
    alone.pause()
    alone.work(Half([(single(), 0, 1)], 1, None, Search(2, 0.0)))
    assert (alone.feature.is_paused, alone.feature.hooks) == (False, WATCHES)
    alone.fail(batch_of(8))
    assert alone.sizes == [1, 1, 2, 4]
    alone.river.first.clear()
    alone.work(batch_of(8))
    alone.fail(batch_of(8))
    assert alone.sizes == [4, 4]


def test_after_two_parts_that_fail_and_none_that_works_a_single_item_is_next() -> None:
    alone = Alone()
    alone.fail(batch_of(16))
    for sizes in ([8, 8], [4, 4, 8], [1, 1, 2, 4, 8]):
        assert alone.sizes == sizes
        alone.fail(alone.part())


def test_where_items_work_alone_and_never_together_the_rest_runs_one_by_one() -> None:
    alone = Alone()
    search = Search(32, 0.001, 32, ValueError())
    for _ in range(4):
        search.worked(0.001, 1, is_single=True)
    alone.fail(Half(batch_of(6).slices, 6, None, search))
    assert alone.sizes == [1] * 6


# -- one by one ---------------------------------------------------------------------------------------------


def fails_for_several() -> Alone:
    """Return the feature after two batches that failed, though each of their items works alone."""
    alone = Alone()
    alone.fail_together(2)
    alone.fail_together(2)
    return alone


def test_where_the_function_fails_for_several_items_at_once_they_run_one_by_one() -> None:
    """It watches meanwhile, though no search goes on."""
    alone = fails_for_several()
    assert alone.feature.hooks == WATCHES
    batch = batch_of(4)
    calls = batch.calls
    alone.start(batch)
    assert [batch.calls, *(part.calls for part in alone.river.first)] == [[call] for call in calls]
    assert batch.search is alone.river.first[0].search


@pytest.mark.parametrize("batch", [batch_of(1), list_of(4), Half(batch_of(4).slices, 4, None, None)])
def test_what_is_a_part_or_is_answered_as_a_whole_runs_as_it_is(batch: Batch) -> None:
    alone = fails_for_several()
    before = batch.size
    assert alone.start(batch).size == before
    assert alone.sizes == []


def test_one_failure_may_be_chance() -> None:
    alone = Alone()
    alone.fail_together(2)
    assert alone.start(batch_of(4)).size == 4


def test_a_batch_is_tried_as_a_whole_after_sixteen_items_that_ran_alone() -> None:
    """If it works, that is over, and nothing is watched; else it is divided into single items at once."""
    for works in (True, False):
        alone = fails_for_several()
        alone.start(first := batch_of(16))
        alone.work(first)
        alone.all_parts_work()
        whole = alone.start(batch_of(16))
        assert whole.size == 16
        if works:
            alone.work(whole)
            assert alone.feature.hooks == AT_REST
        else:
            alone.fail(whole)
            assert alone.sizes == [1] * 16


def test_an_item_that_fails_alone_is_to_blame_and_batches_run_as_a_whole_again() -> None:
    alone = fails_for_several()
    alone.fail(batch_of(2))
    alone.fail(alone.part())
    alone.work(alone.part())
    assert alone.start(batch_of(4)).size == 4
    assert alone.feature.hooks == AT_REST


def test_a_part_of_several_that_fails_does_not_end_it() -> None:
    """No item is to blame by that."""
    alone = fails_for_several()
    alone.fail(Half(batch_of(4).slices, 4, None, Search(8, 0.001, 8, ValueError())))
    alone.river.first.clear()
    assert alone.start(batch_of(4)).size == 1


# -- a number of results that may be right by chance --------------------------------------------------------


def test_a_batch_of_as_many_items_as_there_were_wrong_results_runs_in_two_parts() -> None:
    """Others run as they are; and once one of another size was right, all do."""
    alone = Alone()
    alone.fail(misanswered(4, 2))
    assert alone.feature.hooks == WATCHES
    batch, larger = alone.start(batch_of(2)), alone.start(batch_of(3))
    assert (batch.size, alone.sizes, larger.size) == (1, [1], 3)
    alone.river.first.clear()
    alone.work(larger)
    assert alone.feature.hooks == AT_REST
    assert alone.start(batch_of(2)).size == 2


def test_a_right_number_that_may_be_chance_ends_no_doubt() -> None:
    alone = Alone()
    alone.fail(misanswered(4, 2))
    alone.work(batch_of(2))
    assert (alone.start(batch_of(2)).size, alone.feature.hooks) == (1, WATCHES)


def test_a_part_of_a_doubted_size_is_divided_too_and_stays_in_its_search() -> None:
    alone = Alone()
    alone.fail(misanswered(4, 2))
    error, search = ValueError(), Search(4, 0.0)
    half = alone.start(Half(batch_of(2).slices, 2, error, search))
    rest = alone.part()
    assert (half.size, half.search, rest.search, rest.error) == (1, search, search, error)


@pytest.mark.parametrize("returned", [None, 1])
def test_no_results_or_one_are_no_number_to_doubt(returned: int | None) -> None:
    alone = Alone()
    alone.fail(misanswered(4, returned))
    alone.start(batch_of(1))
    assert alone.sizes == []


# -- options, and a new queue -------------------------------------------------------------------------------


def test_options_say_whether_failed_batches_are_divided_from_then_on() -> None:
    alone = Alone(Options(isolate_errors=False))
    alone.feature.configure(OPTIONS)
    assert alone.fail(batch_of(4))
    alone.feature.configure(Options(isolate_errors=False))
    assert not alone.fail(batch_of(4))


def test_where_it_is_not_wanted_nothing_runs_ahead_nor_one_by_one() -> None:
    for alone in (fails_for_several(), Alone()):
        if alone.feature.hooks == AT_REST:
            alone.pause()
        alone.feature.configure(Options(isolate_errors=False))
        assert [alone.start(batch_of(4)).size for _ in range(20)] == [4] * 20


def test_a_batcher_that_begins_anew_keeps_what_is_known_and_the_hooks() -> None:
    alone = Alone()
    alone.pause()
    alone.feature.begin(StandInRiver(), OPTIONS)
    assert (alone.feature.is_paused, alone.feature.hooks) == (True, WATCHES)


def test_a_new_queue_is_the_one_that_it_has_parts_run_in() -> None:
    alone = Alone()
    alone.river = StandInRiver()
    alone.feature.begin(alone.river, OPTIONS)
    alone.fail(batch_of(4))
    assert alone.sizes == [2, 2]


def test_a_run_that_failed_ends_no_pause_and_no_doubt() -> None:
    alone = Alone()
    alone.fail(misanswered(4, 2))
    alone.fail(batch_of(1))
    assert alone.start(batch_of(2)).size == 1
    alone = Alone()
    alone.pause()
    alone.fail(batch_of(1))
    assert alone.feature.is_paused
