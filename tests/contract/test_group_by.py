"""`group_by`: only items of an equal key share a batch."""

from __future__ import annotations

from collections import Counter
from itertools import islice
from typing import Any

import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from batched import BatchError
from tests.kit.effort import times
from tests.kit.flavours import Flavour
from tests.kit.gate import PATIENCE_S, Gate, until
from tests.kit.kept import batchers, size_of


def parity(item: int) -> int:
    return item % 2


# The fixture has no state that one example could leave to the next.
@settings(max_examples=times(120), suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(
    items=st.lists(st.one_of(st.integers(0, 20), st.lists(st.integers(0, 20), max_size=9)), max_size=12),
    batch_size=st.integers(1, 6),
    keys=st.integers(1, 4),
)
def test_only_items_of_a_key_share_a_batch(
    flavour: Flavour, items: list[Any], batch_size: int, keys: int
) -> None:
    """Every caller gets its own answers in order, whatever keys its list mixes; each runs once."""
    gate = Gate()
    fn = flavour.decorate(gate, batch_size=batch_size, timeout_ms=0.1, group_by=lambda item: item % keys)
    futures = [flavour.start(fn, item) for item in items]
    assert [future.result(PATIENCE_S) for future in futures] == items
    assert all(len({item % keys for item in batch}) == 1 for batch in gate.batches)
    assert all(len(batch) <= batch_size for batch in gate.batches)
    every = [item for asked in items for item in (asked if isinstance(asked, list) else [asked])]
    assert Counter(item for batch in gate.batches for item in batch) == Counter(every)
    until(lambda: not fn.stats.running_items)
    assert fn.stats.total_accepted == fn.stats.total_processed == len(every)
    flavour.close(fn)


def test_each_key_fills_batches_of_its_own(flavour: Flavour) -> None:
    """Callers that alternate between keys do not cut each other's batches short."""
    gate = Gate()
    fn = flavour.decorate(gate, batch_size=4, timeout_ms=60_000, group_by=parity)
    futures = [flavour.start(fn, item) for item in range(8)]
    assert [future.result(PATIENCE_S) for future in futures] == list(range(8))
    assert gate.batches == [[0, 2, 4, 6], [1, 3, 5, 7]]


def test_keys_take_turns(flavour: Flavour) -> None:
    """A key with much to do does not keep another from its turn."""
    gate = Gate(shut=True)
    fn = flavour.decorate(gate, batch_size=2, timeout_ms=0, group_by=lambda item: item[0])
    first = flavour.start(fn, "x")
    gate.wait_for_batch()
    futures = [flavour.start(fn, item) for item in ("a1", "b1", "a2", "a3", "a4", "b2", "a5")]
    gate.open()
    for future in (first, *futures):
        future.result(PATIENCE_S)
    assert gate.batches == [["x"], ["a1", "a2"], ["b1", "b2"], ["a3", "a4"], ["a5"]]


def test_a_list_of_mixed_keys_fails_as_one(flavour: Flavour) -> None:
    """With its first item that fails, and what of it has not started is dropped."""

    def odd_fails(items: list[int]) -> list[int]:
        if items[0] % 2:
            raise ValueError("odd")
        return items

    gate = Gate(odd_fails)
    fn = flavour.decorate(gate, batch_size=2, timeout_ms=0, group_by=parity)
    with pytest.raises(ValueError, match=r"^odd\b"):
        flavour.call(fn, [1, 2, 3, 4, 5, 6])
    assert flavour.call(fn, 8) == 8
    stats = fn.stats
    assert stats.total_accepted == 7 == stats.total_processed + stats.total_cancelled
    assert not any(size_of(each.queue) for each in batchers(fn))


def test_errors_stay_in_place_in_a_list_of_mixed_keys(flavour: Flavour) -> None:
    """Failing items and failing batches alike."""

    def picky(items: list[int]) -> list[Any]:
        if items[0] % 3 == 1:
            raise ValueError("one")
        return [KeyError(item) if item == 3 else item for item in items]

    fn = flavour.decorate(picky, batch_size=2, timeout_ms=0, group_by=lambda item: item % 3)
    answer = flavour.call(fn.options(return_exceptions=True), list(range(7)))
    expected = [0, ValueError, 2, KeyError, ValueError, 5, 6]
    assert [row if isinstance(row, int) else type(row) for row in answer] == expected


def test_map_over_mixed_keys(flavour: Flavour) -> None:
    """In order, and the first that fails raises at its place."""
    flavour.needs_threads()
    fn = flavour.decorate(Gate(), batch_size=4, timeout_ms=0, group_by=parity)
    assert flavour.map(fn, range(50)) == list(range(50))
    fails = flavour.decorate(
        lambda xs: [KeyError(x) if x == 20 else x for x in xs], batch_size=4, timeout_ms=0, group_by=parity
    )
    answers = fails.map(range(50))
    assert list(islice(answers, 20)) == list(range(20))
    with pytest.raises(KeyError):
        next(answers)


def test_arrays_are_grouped_by_call(flavour: Flavour) -> None:
    """The callback is passed the features of a call."""
    shapes = []

    def double(features: dict[str, Any]) -> Any:
        shapes.append(features["x"].shape)
        return features["x"] * 2

    fn = flavour.decorate_arrays(
        double, batch_size=4, timeout_ms=60_000, group_by=lambda features: features["x"].shape[1] > 4
    )
    futures = [flavour.start(fn, x=np.ones((2, length))) for length in (3, 9, 4, 8)]
    assert [future.result(PATIENCE_S).shape[0] for future in futures] == [2, 2, 2, 2]
    assert sorted(shapes) == [(4, 4), (4, 9)]
    with pytest.raises(BatchError, match="group_by failed: KeyError"):
        flavour.call(fn, y=np.ones((2, 3)))


@pytest.mark.parametrize(
    "option", [{"length": lambda x, y: x + y}, {"max_batch_length": 3, "length": lambda x, y: x + y}]
)
def test_items_of_several_columns_are_grouped_and_measured(flavour: Flavour, option: dict[str, Any]) -> None:
    """The key of a group says no more which parameters were passed."""

    def product(xs: list[int], y: list[int]) -> list[int]:
        assert len({parity(x) for x in xs}) == 1
        return [x * each for x, each in zip(xs, y, strict=True)]

    fn = flavour.decorate(product, batch_size=2, timeout_ms=0, group_by=lambda x, y: parity(x), **option)
    assert flavour.start(fn, 2, 3).result(PATIENCE_S) == 6
    assert flavour.start(fn, [1, 2, 3], [4, 5, 6]).result(PATIENCE_S) == [4, 10, 18]
    assert flavour.start(fn, [1, 2], y=[4, 5]).result(PATIENCE_S) == [4, 10]
