"""`length` and `max_batch_length`, as callers meet them."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import batched
from batched import inference
from tests.kit.gate import Gate

# -- callers -----------------------------------------------------------------------------------------------


def doubled(items: list[Any]) -> list[Any]:
    return [item * 2 for item in items]


@settings(max_examples=50)
@given(st.lists(st.text(max_size=9), max_size=40), st.integers(1, 7))
def test_a_list_is_answered_in_its_own_order(items: list[str], batch_size: int) -> None:
    """However it was sorted and divided; by key, with a cache and through a map too."""
    for options in ({}, {"group_by": len}, {"cache": {}}, {"group_by": lambda s: s[:1], "cache": {}}):
        with batched.dynamically(doubled, batch_size, 0, length=len, **options) as fn:
            assert fn(items) == doubled(items)
            assert list(fn.map(items)) == doubled(items)
            assert [fn(item) for item in items] == doubled(items)


def test_a_list_goes_longest_first_and_is_copied() -> None:
    """So that the first to run out of memory is the first."""
    gate = Gate(doubled)
    items = ["a", "ccc", "bb"]
    with batched.dynamically(gate, 2, 0, length=len) as fn:
        assert fn(items) == doubled(items)
    assert gate.batches == [["ccc", "bb"], ["a"]]
    assert items == ["a", "ccc", "bb"]


def test_errors_of_a_list_have_their_places() -> None:
    """With `return_exceptions`, whatever part of it they come from."""

    def picky(items: list[int]) -> list[Any]:
        return [ValueError(str(item)) if item % 2 else item for item in items]

    with batched.dynamically(picky, 2, 0, length=int) as fn:
        answers = fn.options(return_exceptions=True)([1, 4, 3, 2])
        assert list(map(str, answers)) == ["1", "4", "3", "2"]
        with pytest.raises(ValueError, match="[13]"):
            fn([1, 4, 3, 2])


def test_columns_are_measured_together() -> None:
    """`length` is given all of an item's."""

    def joined(texts: list[str], times: list[int]) -> list[str]:
        return [text * number for text, number in zip(texts, times, strict=True)]

    with batched.dynamically(joined, 2, 0, length=lambda text, times: len(text) * times) as fn:
        assert fn(["a", "b", "c"], [1, 3, 2]) == ["a", "bbb", "cc"]
        assert fn("a", times=2) == "aa"


@pytest.mark.parametrize("wrong", [-1, float("nan"), float("inf"), "3", None, 1j])
def test_a_length_that_is_none_fails_its_call_only(wrong: Any) -> None:
    """And says what it was."""
    with batched.dynamically(doubled, length=lambda item: wrong if item == "bad" else 1) as fn:
        with pytest.raises(batched.BatchError, match="length must return a number .*, got"):
            fn("bad")
        with pytest.raises(batched.BatchError, match="length"):
            list(fn.map(["bad"]))
        assert fn(["a", "b"]) == ["aa", "bb"]


def test_a_length_that_raises_fails_its_call_only() -> None:
    """As a `BatchError`, whose cause says why."""
    with batched.dynamically(doubled, length=len) as fn:
        with pytest.raises(batched.BatchError, match="length failed: TypeError") as caught:
            fn(3)
        assert isinstance(caught.value.__cause__, TypeError)
        assert fn("a") == "aa"
    with (
        batched.dynamically(doubled, max_batch_length=8) as fn,
        pytest.raises(batched.BatchError, match="which is len where none is given"),
    ):
        fn(3)


def test_a_length_is_measured_once_per_item() -> None:
    """By whoever calls."""
    measured: list[str] = []
    with batched.dynamically(doubled, 2, length=lambda item: measured.append(item) or len(item)) as fn:
        fn(["a", "bb", "c"])
        fn("d")
    assert measured == ["a", "bb", "c", "d"]


def test_options_are_checked() -> None:
    """At the door, and arrays know how long they are."""
    with pytest.raises(TypeError, match="length must be a function of one item, got 3"):
        batched.dynamically(doubled, length=3)  # type: ignore[call-overload]
    with pytest.raises(ValueError, match="max_batch_length must be at least 1, got 0"):
        batched.dynamically(doubled, max_batch_length=0)
    with pytest.raises(TypeError, match="length does not go with arrays"):
        inference.dynamically(doubled, length=len)  # type: ignore[call-overload]


def test_a_budget_is_changed_live() -> None:
    """Where lengths are known; `length` itself is not."""
    gate = Gate(doubled)
    with batched.dynamically(gate, timeout_ms=0, max_batch_length=4) as fn:
        fn(["aa", "bb", "cc"])
        fn.configure(max_batch_length=6)
        fn(["aa", "bb", "cc"])
        fn.configure(max_batch_length=None)
        fn(["aa", "bb", "ccccccc"])
        with pytest.raises(TypeError, match="length"):
            fn.configure(length=len)
    assert [len(batch) for batch in gate.batches] == [2, 1, 3, 3]
    with (
        batched.dynamically(doubled) as fn,
        pytest.raises(TypeError, match="max_batch_length where neither it nor length was given"),
    ):
        fn.configure(max_batch_length=4)


def test_stats_say_what_was_padded_and_how_batches_were_chosen() -> None:
    """In units of `length`."""
    with batched.dynamically(doubled, timeout_ms=0, length=len) as fn:
        fn(["a", "bbb"])
        stats = fn.stats
    assert (stats.padding.real, stats.padding.padded) == (4, 6)
    assert stats.padding.waste_percent == pytest.approx(100 / 3)
    assert stats.chosen == {"arrival": 1}
    assert "33.3 % of 6" in str(stats)
    with batched.dynamically(doubled, timeout_ms=0) as fn:
        fn("a")
        assert fn.stats.chosen == {}


# -- arrays ------------------------------------------------------------------------------------------------


def test_arrays_know_their_lengths() -> None:
    """Along the second axis of what is padded, and of that only."""
    gate = Gate(
        lambda features: features["x"].sum(axis=1), shut=True, note=lambda features: features["x"].shape
    )
    fn = inference.dynamically(gate, timeout_ms=0, max_batch_length=6)

    def call(length: int) -> Any:
        return fn.submit(x=np.ones((1, length)), image=np.ones((1, 100)))

    futures = [call(1)]
    gate.wait_for_batch()
    futures += [call(length) for length in (2, 3, 3)]
    gate.open()
    assert [int(future.result(10)[0]) for future in futures] == [1, 2, 3, 3]
    fn.shutdown()
    assert gate.batches == [(1, 1), (2, 3), (1, 3)]


def test_rows_of_one_call_are_as_long_as_the_longest() -> None:
    """They are not taken apart."""
    with inference.dynamically(lambda features: features["x"].sum(axis=1), timeout_ms=0) as fn:
        rows = [np.ones(3), np.ones(5), np.ones(1)]
        assert fn(x=rows).tolist() == [3, 5, 1]
