"""Whether the number of results follows that of the items."""

from __future__ import annotations

from batched._policy.result_count import ResultCount


def test_a_number_that_was_wrong_is_doubted_until_another_is_right() -> None:
    """As it is not the number of items that it follows."""
    results = ResultCount()
    assert results.doubted is None
    results.was_right(3)
    results.was_wrong(2)
    assert results.doubted == 2
    results.was_right(2)
    assert results.doubted == 2
    results.was_wrong(5)
    assert results.doubted == 5
    results.was_right(1)
    assert results.doubted is None


def test_one_result_or_none_is_never_doubted() -> None:
    """A single item has no other answer, and no results were no number."""
    results = ResultCount()
    for number in (1, 0, None):
        results.was_wrong(number)
        assert results.doubted is None
    results.was_wrong(4)
    results.was_wrong(None)
    assert results.doubted == 4
