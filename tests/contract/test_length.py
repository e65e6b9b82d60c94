"""`length` and `max_batch_length`, as callers meet them."""

from __future__ import annotations

from dataclasses import dataclass
from fractions import Fraction
from typing import Any, NamedTuple

import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

import batched
from tests.kit.effort import times
from tests.kit.flavours import Flavour
from tests.kit.gate import PATIENCE_S, Gate, until


def doubled(items: list[Any]) -> list[Any]:
    return [item * 2 for item in items]


# The fixture has no state that one example could leave to the next.
@settings(max_examples=times(80, 20), suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(items=st.lists(st.text(max_size=9), max_size=40), batch_size=st.integers(1, 7))
def test_a_list_is_answered_in_its_own_order(flavour: Flavour, items: list[str], batch_size: int) -> None:
    """However it was sorted and divided; by key, with a cache and through a map too."""
    for options in ({}, {"group_by": len}, {"cache": {}}, {"group_by": lambda s: s[:1], "cache": {}}):
        fn = flavour.decorate(doubled, batch_size=batch_size, timeout_ms=0, length=len, **options)
        assert flavour.call(fn, items) == doubled(items)
        assert flavour.map(fn, items) == doubled(items)
        assert [flavour.call(fn, item) for item in items] == doubled(items)
        flavour.close(fn)


def test_a_list_goes_longest_first_and_is_copied(flavour: Flavour) -> None:
    """So that the first to run out of memory is the first."""
    gate = Gate(doubled)
    items = ["a", "ccc", "bb"]
    fn = flavour.decorate(gate, batch_size=2, timeout_ms=0, length=len)
    assert flavour.call(fn, items) == doubled(items)
    assert gate.batches == [["ccc", "bb"], ["a"]]
    assert items == ["a", "ccc", "bb"]


def test_errors_of_a_list_have_their_places(flavour: Flavour) -> None:
    """With `return_exceptions`, whatever part of it they come from."""

    def picky(items: list[int]) -> list[Any]:
        return [ValueError(str(item)) if item % 2 else item for item in items]

    fn = flavour.decorate(picky, batch_size=2, timeout_ms=0, length=int)
    answers = flavour.call(fn.options(return_exceptions=True), [1, 4, 3, 2])
    assert list(map(str, answers)) == ["1", "4", "3", "2"]
    with pytest.raises(ValueError, match="[13]"):
        flavour.call(fn, [1, 4, 3, 2])


def test_columns_are_measured_together(flavour: Flavour) -> None:
    """`length` is given all of an item's."""

    def joined(texts: list[str], times: list[int]) -> list[str]:
        return [text * number for text, number in zip(texts, times, strict=True)]

    fn = flavour.decorate(joined, batch_size=2, timeout_ms=0, length=lambda text, times: len(text) * times)
    assert flavour.call(fn, ["a", "b", "c"], [1, 3, 2]) == ["a", "bbb", "cc"]
    assert flavour.call(fn, "a", times=2) == "aa"


@pytest.mark.parametrize(
    "wrong",
    [-1, float("nan"), float("inf"), "3", None, 1j, 10**400, -(10**400), 10**5000, 1e308, 2**54, [1]],
    ids=lambda wrong: f"{type(wrong).__name__}{str(wrong)[:6] if type(wrong) is not int else ''}",
)
def test_a_length_that_is_none_fails_its_call_only(flavour: Flavour, wrong: Any) -> None:
    """And says what it was."""
    fn = flavour.decorate(doubled, length=lambda item: wrong if item == "bad" else 1)
    with pytest.raises(batched.BatchError, match="length must return a number .*, got"):
        flavour.call(fn, "bad")
    with pytest.raises(batched.BatchError, match="length"):
        flavour.map(fn, ["bad"])
    assert flavour.call(fn, ["a", "b"]) == ["aa", "bb"]


def test_a_length_that_is_none_hurts_no_batch(flavour: Flavour) -> None:
    """Not the calls that wait beside it, nor those after."""
    gate = Gate(doubled, shut=True)
    fn = flavour.decorate(
        gate, batch_size=8, timeout_ms=0, length=lambda item: 10**400 if item == "bad" else 1
    )
    first = flavour.start(fn, "a")
    gate.wait_for_batch()
    waiting = [flavour.start(fn, item) for item in "bcd"]
    with pytest.raises(batched.BatchError, match="an integer of 1329 bits"):
        flavour.call(fn, ["e", "bad"])
    gate.open()
    assert [future.result(PATIENCE_S) for future in (first, *waiting)] == ["aa", "bb", "cc", "dd"]
    assert flavour.call(fn, "e") == "ee"


@pytest.mark.parametrize(
    "right", [0, 3.5, True, np.int64(3), np.float32(3), Fraction(1, 3), 2**53, 1e15, np.uint8(3)], ids=repr
)
def test_any_other_number_is_a_length(flavour: Flavour, right: Any) -> None:
    """Those of numpy too; batches of the longest ones add up."""
    fn = flavour.decorate(doubled, timeout_ms=0, length=lambda item: right)
    assert flavour.call(fn, list("abc" * 30)) == doubled(list("abc" * 30))
    assert flavour.call(fn, "a") == "aa"


PAIRS: dict[str, Any] = {
    "tuple": lambda query, passage: (query, passage),
    "dict": lambda query, passage: {"query": query, "passage": passage, "id": 7},
    "named tuple": lambda query, passage: Pair(query, passage),
    "dataclass": lambda query, passage: Asked(query, passage),
}


class Pair(NamedTuple):
    """A query and what may answer it."""

    query: str
    passage: str


@dataclass
class Asked:
    """The same."""

    query: str
    passage: str


@pytest.mark.parametrize("pair", PAIRS)
def test_a_budget_counts_the_texts_of_a_pair(flavour: Flavour, pair: str) -> None:
    """Without `length` too: a tuple is not 2 long."""
    gate = Gate(list)
    fn = flavour.decorate(gate, timeout_ms=0, max_batch_length=12)
    items = [PAIRS[pair]("ab", "cdef")] * 5
    assert flavour.call(fn, items) == items
    assert [len(batch) for batch in gate.batches] == [2, 2, 1]


def test_a_budget_counts_the_texts_of_all_columns(flavour: Flavour) -> None:
    """However they are passed."""
    sizes: list[int] = []

    def rank(queries: list[str], passages: list[str]) -> list[int]:
        sizes.append(len(queries))
        return list(map(len, passages))

    fn = flavour.decorate(rank, timeout_ms=0, max_batch_length=12)
    assert flavour.call(fn, ["ab"] * 5, passages=["cdef"] * 5) == [4] * 5
    assert sizes == [2, 2, 1]


def test_a_length_that_raises_fails_its_call_only(flavour: Flavour) -> None:
    """As a `BatchError`, whose cause says why."""
    fn = flavour.decorate(doubled, length=len)
    with pytest.raises(batched.BatchError, match="length failed: TypeError") as caught:
        flavour.call(fn, 3)
    assert isinstance(caught.value.__cause__, TypeError)
    assert flavour.call(fn, "a") == "aa"
    fn = flavour.decorate(doubled, max_batch_length=8)
    with pytest.raises(batched.BatchError, match="length .len by default. failed"):
        flavour.call(fn, 3)


def test_a_length_is_measured_once_per_item(flavour: Flavour) -> None:
    """In the thread of the caller."""
    measured: list[str] = []
    fn = flavour.decorate(doubled, batch_size=2, length=lambda item: measured.append(item) or len(item))
    flavour.call(fn, ["a", "bb", "c"])
    flavour.call(fn, "d")
    assert measured == ["a", "bb", "c", "d"]


def test_a_budget_is_changed_live(flavour: Flavour) -> None:
    """Where lengths are known; `length` itself is not."""
    gate = Gate(doubled)
    fn = flavour.decorate(gate, timeout_ms=0, max_batch_length=4)
    flavour.call(fn, ["aa", "bb", "cc"])
    fn.configure(max_batch_length=6)
    flavour.call(fn, ["aa", "bb", "cc"])
    fn.configure(max_batch_length=None)
    flavour.call(fn, ["aa", "bb", "ccccccc"])
    with pytest.raises(TypeError, match="length"):
        fn.configure(length=len)
    assert [len(batch) for batch in gate.batches] == [2, 1, 3, 3]
    fn = flavour.decorate(doubled)
    with pytest.raises(TypeError, match="max_batch_length unless the decorator was given it or length"):
        fn.configure(max_batch_length=4)


def test_stats_say_what_was_padded_and_how_batches_were_chosen(flavour: Flavour) -> None:
    """In units of `length`."""
    fn = flavour.decorate(doubled, timeout_ms=0, length=len)
    flavour.call(fn, ["a", "bbb"])
    until(lambda: not fn.stats.running_items)
    stats = fn.stats
    assert (stats.padding.real, stats.padding.padded) == (4, 6)
    assert stats.padding.waste_percent == pytest.approx(100 / 3)
    assert stats.chosen == {"arrival": 1}
    assert "33.3% of 6" in str(stats)
    fn = flavour.decorate(doubled, timeout_ms=0)
    flavour.call(fn, "a")
    assert fn.stats.chosen == {}


def test_arrays_know_their_lengths(flavour: Flavour) -> None:
    """Along the second axis of what is padded, and of that only."""
    gate = Gate(
        lambda features: features["x"].sum(axis=1), shut=True, note=lambda features: features["x"].shape
    )
    fn = flavour.decorate_arrays(gate, timeout_ms=0, max_batch_length=6)

    def call(length: int) -> Any:
        return flavour.start(fn, x=np.ones((1, length)), image=np.ones((1, 100)))

    futures = [call(1)]
    gate.wait_for_batch()
    futures += [call(length) for length in (2, 3, 3)]
    gate.open()
    assert [int(future.result(PATIENCE_S)[0]) for future in futures] == [1, 2, 3, 3]
    assert gate.batches == [(1, 1), (2, 3), (1, 3)]


def test_rows_of_one_call_are_as_long_as_the_longest(flavour: Flavour) -> None:
    """They are not taken apart."""
    fn = flavour.decorate_arrays(lambda features: features["x"].sum(axis=1), timeout_ms=0)
    rows = [np.ones(3), np.ones(5), np.ones(1)]
    assert flavour.call(fn, x=rows).tolist() == [3, 5, 1]
