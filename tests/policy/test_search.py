"""Whether a batch that failed is worth running again in parts."""

from __future__ import annotations

import socket
from math import ceil, log2

import pytest
from hypothesis import given
from hypothesis import strategies as st

from batched._policy.search import Pause, Search
from batched._policy.surroundings import is_of_surroundings

ERROR = ValueError()


@given(
    size=st.integers(2, 4096), own_s=st.integers(1, 999).map(lambda n: n / 16), failures=st.integers(1, 20)
)
def test_it_is_given_up_after_failures_in_a_row_or_once_they_cost_four_times_its_time(
    size: int, own_s: float, failures: int
) -> None:
    """Whatever comes first."""
    search = Search(size, own_s)
    for _ in range(failures):
        search.failed(ERROR, own_s)
    in_a_row = ceil(log2(size)) + 3
    assert search.is_given_up is (failures >= min(4, in_a_row))
    assert search.found_nothing is search.is_given_up


@given(size=st.integers(2, 4096), own_s=st.floats(0.0, 1000.0), each=st.floats(0.0, 1.0))
def test_one_item_that_fails_is_always_found(size: int, own_s: float, each: float) -> None:
    """Though each half takes as long as the whole batch: halves that work pay for those that fail."""
    search = Search(size, own_s)
    left = size
    while left > 1:
        search.failed(ERROR, own_s * each)
        assert not search.is_given_up
        search.worked(own_s * each)
        left -= left // 2
    assert not search.found_nothing


def test_four_items_that_fail_alone_are_enough_where_none_has_worked() -> None:
    """However fast they failed: a server that answers 429 does so at once."""
    search = Search(4, 0.0)
    for failures in range(1, 5):
        search.failed(ERROR, 0.0, is_single=True)
        assert search.found_nothing is (failures == 4)
    assert not search.is_given_up


def test_during_a_pause_any_call_of_every_other_batch_runs_ahead() -> None:
    """By chance: calls that fail may come in some order."""
    pause = Pause()
    assert {pause.ahead(4) for _ in range(100)} == {None}
    pause.found_nothing()
    places = [pause.ahead(4) for _ in range(4000)]
    assert 1800 < places.count(None) < 2200
    assert all(400 < places.count(place) < 600 for place in range(4))
    pause.worked(is_part=True)
    assert {pause.ahead(4) for _ in range(100)} == {None}


def test_after_a_pause_parts_are_small_until_a_whole_batch_has_worked() -> None:
    """A part that works ends the pause, but says little about the next batch."""
    pause = Pause()
    pause.worked(is_part=True)
    assert (pause.is_on, pause.is_wary) == (False, False)
    pause.found_nothing()
    assert (pause.is_on, pause.is_wary) == (True, True)
    pause.worked(is_part=True)
    assert (pause.is_on, pause.is_wary) == (False, True)
    pause.worked(is_part=False)
    assert (pause.is_on, pause.is_wary) == (False, False)


def test_times_too_short_to_be_told_apart_do_not_end_it() -> None:
    """A batch that failed at once may have halves that are slower by chance."""
    search = Search(32, 0.0)
    search.failed(ERROR, 0.05)
    assert not search.is_given_up


@pytest.mark.parametrize(
    ("error", "expected"),
    [
        (ValueError(), False),
        (ConnectionResetError(), True),
        (TimeoutError(), True),
        (socket.gaierror(-2, "unknown name"), True),
        (OSError(28, "no space left"), True),
        (FileNotFoundError(2, "no such file", "cat.png"), False),
        (OSError("the image is truncated"), False),
    ],
    ids=repr,
)
@pytest.mark.parametrize("is_wrapped", [False, True])
def test_errors_of_the_surroundings(error: Exception, expected: bool, is_wrapped: bool) -> None:
    """Of a connection, a time or the system; what a file that an item names is like, is the item's.

    Also where a library has raised an error of its own from it.
    """
    if is_wrapped:
        own = RuntimeError("the server cannot be asked")
        own.__cause__, error.__cause__ = error, own  # a chain that does not end
        error = own
    assert is_of_surroundings(error) is expected
    search = Search(32, 1.0)
    search.failed(error, 0.0)
    assert search.is_given_up is expected
