"""The feature that knows which size fits into memory, without a batcher: what runs again, and how large."""

from __future__ import annotations

from typing import Any

import pytest

from batched._core.batch import Batch
from batched._core.halves import Half
from batched._core.hooks import Run
from batched._core.options import Options, StreamOptions
from batched._features.memory import FitsMemory
from batched._policy.search import Search
from batched._policy.size_choice import SizeChoice
from tests.kit.river import StandInRiver, batch_of, run_of

MOST = 16
AT_REST, LIMITED = ("failed",), ("failed", "ended")
PROBE_AFTER = 64


class Alone:
    """The feature, and what it sees."""

    def __init__(self, most: int = MOST, *, streams: bool = False, sizes: tuple[int, ...] = ()) -> None:
        self.river: Any = StandInRiver()
        kind = StreamOptions if streams else Options
        self.river.options = kind(batch_size=most)
        self.feature = FitsMemory(SizeChoice(sizes))
        self.feature.begin(self.river, self.river.options)

    def fail(self, batch: Batch, error: BaseException | None = None) -> bool:
        """Have a batch raise an error, of memory by default; return whether its items run again."""
        return self.feature.failed(batch, error or MemoryError(), 10.0, 10.5)

    def fit(self, size: int, times: int = PROBE_AFTER) -> None:
        """Have batches of a size work."""
        for _ in range(times):
            self.feature.ended(run_of(size))


def test_as_long_as_all_fits_it_is_asked_of_failures_alone_and_has_no_say() -> None:
    alone = Alone()
    assert (alone.feature.hooks, alone.feature.limit, alone.river.resized) == (AT_REST, None, 0)
    assert alone.feature.lessons() == {"fits": None}


def test_a_batch_that_did_not_fit_runs_again_in_halves_and_later_ones_have_no_more_items() -> None:
    """The batcher is told of the limit, and of the hooks."""
    alone = Alone()
    batch, error, hooked = batch_of(8), MemoryError(), alone.river.hooked
    calls = batch.calls
    assert alone.fail(batch, error)
    [(again, parts)] = alone.river.again
    assert again is batch
    assert [part.calls for part in parts] == [calls[:4], calls[4:]]
    assert [part.error for part in parts] == [error, error]
    assert (alone.feature.limit, alone.feature.lessons()) == (4, {"fits": 4})
    assert (alone.feature.hooks, alone.river.hooked - hooked, alone.river.resized) == (LIMITED, 1, 1)


@pytest.mark.parametrize(("sizes", "limit"), [((1, 2, 4), 2), ((2, 3, 4), 2), ((3, 4), 3)])
def test_the_limit_is_a_size_that_batches_may_have(sizes: tuple[int, ...], limit: int) -> None:
    """The smallest one, if half of what did not fit is less."""
    alone = Alone(4, sizes=sizes)
    alone.fail(batch_of(4))
    assert alone.feature.limit == limit


def test_a_stream_that_has_begun_does_not_run_again_and_no_larger_batch_is_tried() -> None:
    """It would cost all of the batch their pieces."""
    alone = Alone(streams=True)
    batch = batch_of(8)
    batch.begun = True
    assert not alone.fail(batch)
    assert (alone.river.again, alone.feature.limit, alone.river.resized) == ([], 4, 1)
    assert alone.feature.hooks == AT_REST


def test_a_half_that_does_not_fit_lowers_the_limit_and_stays_in_its_search() -> None:
    alone = Alone()
    alone.fail(batch_of(8))
    half, search = alone.river.first.popleft(), Search(8, 0.0)
    half.search = search
    assert alone.fail(half)
    assert (alone.feature.limit, alone.river.resized) == (2, 2)
    _, parts = alone.river.again[-1]
    assert [(part.size, part.search) for part in parts] == [(2, search), (2, search)]


def misanswered() -> Batch:
    """Return a batch of which the function has returned something else than one result for each item."""
    batch = batch_of(8)
    batch.returned = None
    return batch


@pytest.mark.parametrize(
    ("batch", "error"),
    [(batch_of(8), ValueError()), (batch_of(1), MemoryError()), (misanswered(), MemoryError())],
    ids=["another error", "one item", "wrong results"],
)
def test_where_memory_or_the_size_is_not_to_blame_nothing_runs_again_and_nothing_is_learned(
    batch: Batch, error: BaseException
) -> None:
    alone = Alone()
    assert not alone.fail(batch, error)
    assert (alone.river.again, alone.feature.limit, alone.river.resized) == ([], None, 0)
    assert alone.feature.hooks == AT_REST


def test_items_that_a_run_may_use_up_run_once_but_the_limit_is_learned() -> None:
    alone = Alone()
    alone.river.can_repeat = lambda _: False
    assert not alone.fail(batch_of(8))
    assert (alone.river.again, alone.feature.limit, alone.river.resized) == ([], 4, 1)


def test_what_no_caller_wants_does_not_run_again() -> None:
    """Though it counts in what did not fit."""
    alone = Alone()
    batch = batch_of(8)
    wanted = batch.calls[4:]
    for call in batch.calls[:4]:
        call.missing = 0
    assert alone.fail(batch)
    assert [part.calls for part in alone.river.first] == [wanted[:2], wanted[2:]]
    assert alone.feature.limit == 4


def test_where_no_caller_wants_any_of_it_there_are_no_parts() -> None:
    alone = Alone()
    batch = batch_of(4)
    for call in batch.calls:
        call.missing = 0
    assert alone.fail(batch)
    assert alone.river.again == [(batch, [])]


def test_after_many_batches_that_fit_a_larger_one_is_tried() -> None:
    """The batcher is told once; a batch of that size which does not fit returns to the one that did."""
    alone = Alone()
    alone.fail(batch_of(8))
    alone.fit(4, PROBE_AFTER - 1)
    assert (alone.feature.limit, alone.river.resized) == (4, 1)
    hooked = alone.river.hooked
    alone.fit(4, 1)
    assert (alone.feature.limit, alone.river.resized, alone.river.hooked) == (5, 2, hooked)
    assert alone.feature.lessons() == {"fits": 4}  # as far as is known
    alone.fail(batch_of(5))
    assert (alone.feature.limit, alone.river.resized) == (4, 3)


@pytest.mark.parametrize(
    "run",
    [run_of(3), run_of(4, failed=1), Run(batch_of(4), 10.0, 10.5, 0, ValueError())],
    ids=["smaller", "an item failed", "it failed"],
)
def test_batches_that_are_smaller_or_fail_do_not_show_that_more_fits(run: Run) -> None:
    alone = Alone()
    alone.fail(batch_of(8))
    for _ in range(2 * PROBE_AFTER):
        alone.feature.ended(run)
    assert (alone.feature.limit, alone.river.resized) == (4, 1)


def test_no_more_is_tried_than_options_allow() -> None:
    """As they are at that time."""
    alone = Alone(most=4)
    alone.fail(batch_of(8))
    alone.fit(4)
    assert alone.feature.limit == 4
    alone.feature.configure(Options(batch_size=MOST))
    alone.fit(4, 1)
    assert alone.feature.limit == 5


def test_a_batcher_that_begins_anew_keeps_what_is_known_with_its_own_options() -> None:
    alone = Alone()
    alone.fail(batch_of(8))
    alone.river = StandInRiver()
    alone.feature.begin(alone.river, Options(batch_size=4))
    assert (alone.feature.limit, alone.feature.hooks, alone.feature.lessons()) == (4, LIMITED, {"fits": 4})
    alone.fit(4)
    assert (alone.feature.limit, alone.river.resized) == (4, 0)
    half = Half(batch_of(4).slices, 4, None, None)
    alone.fail(half)
    assert (alone.feature.limit, alone.river.resized, len(alone.river.again)) == (2, 1, 1)
