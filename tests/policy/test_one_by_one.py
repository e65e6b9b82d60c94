"""Whether items run one by one, where the function fails for several of them at once."""

from __future__ import annotations

import pytest

from batched._policy.one_by_one import OneByOne
from batched._policy.search import Search

ERROR = ValueError()


def search(size: int, failures: int, *, parts: int = 0, duration: float = 0.0) -> Search:
    """Return a search of single items that has ended well after so many failures and parts that worked."""
    isolation = Search(size, duration, size, ERROR)
    for _ in range(failures - 1):
        isolation.failed(ERROR, 0.0, 2)
    for _ in range(parts):
        isolation.worked(0.0, 0)
    for _ in range(size):
        isolation.worked(0.0, 1, is_single=True)
    return isolation


def test_it_begins_after_a_search_that_took_more_runs_than_items() -> None:
    """And found none that fails."""
    one_by_one = OneByOne()
    assert one_by_one.tries
    assert one_by_one.searched(search(8, 7))
    assert one_by_one.is_on
    assert not one_by_one.tries


def test_one_failure_may_be_chance() -> None:
    """Of two items that share a batch there is but one; the second in a row is none."""
    one_by_one = OneByOne()
    assert one_by_one.searched(search(2, 1))
    assert not one_by_one.is_on
    assert one_by_one.searched(search(2, 1))
    assert one_by_one.is_on


def test_an_error_that_passes_is_no_error_of_batches() -> None:
    """Parts have worked; if it comes back before a batch has worked, it is."""
    one_by_one = OneByOne()
    isolation = Search(8, 0.0, 8, ERROR)
    isolation.worked(0.0, 4)
    isolation.worked(0.0, 4)
    assert isolation.has_ended_well
    assert not one_by_one.searched(isolation)
    assert one_by_one.is_alert
    one_by_one.worked(0.0, is_single=False)
    assert not one_by_one.is_alert
    assert not one_by_one.searched(isolation)
    assert one_by_one.searched(isolation)
    assert not one_by_one.is_on  # halves cost less than single items


def test_a_batch_that_works_or_an_item_that_fails_ends_it() -> None:
    """Then it has to begin anew."""
    for end in (lambda each: each.worked(0.0, is_single=False), OneByOne.end):
        one_by_one = OneByOne()
        one_by_one.searched(search(8, 7))
        end(one_by_one)
        assert not one_by_one.is_on
        assert one_by_one.tries


@pytest.mark.parametrize(
    ("failed_s", "each_s", "after"),
    [(0.0, 0.001, 16), (0.001, 0.0, 16), (0.1, 0.1, 16), (0.5, 0.1, 50), (10.0, 0.1, 256), (1.0, 0.0, 256)],
)
def test_a_batch_is_tried_now_and_then(failed_s: float, each_s: float, after: int) -> None:
    """Such that it costs a sixteenth of the runs, and a tenth of the time that can be felt."""
    one_by_one = OneByOne()
    one_by_one.searched(search(8, 7, duration=failed_s))
    singles = 0
    while not one_by_one.tries:
        one_by_one.worked(each_s, is_single=True)
        singles += 1
    assert after <= singles <= after + 1  # sums of times are rounded


def test_a_search_ends_well_if_no_item_has_failed() -> None:
    """Nor left the search unanswered, nor was it given up."""
    assert search(4, 3).has_ended_well
    isolation = Search(4, 0.0, 4, ERROR)
    isolation.worked(0.0, 2)
    assert not isolation.has_ended_well
    assert isolation.error is ERROR
    isolation.failed(ERROR, 0.0, 1, is_single=True)
    assert isolation.has_found
    isolation.ended(1)  # its caller has left
    assert not isolation.has_ended_well
    assert isolation.error is None  # its traceback leads to the items
    isolation = Search(4, 0.0, 4, ERROR)
    isolation.failed(ConnectionError(), 0.0, 2)
    assert isolation.is_given_up
    assert isolation.error is None


def test_in_a_search_items_run_one_by_one_once_it_shows_that_no_part_works() -> None:
    """Four that work alone are enough."""
    isolation = Search(32, 0.0, 32, ERROR)
    for alone in range(1, 5):
        isolation.worked(0.0, 1, is_single=True)
        assert isolation.prefers_singles is (alone == 4)
    isolation.worked(0.0, 2)
    assert not isolation.prefers_singles
