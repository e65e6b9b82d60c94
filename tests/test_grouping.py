"""`group_by`: only items of an equal key share a batch."""

from __future__ import annotations

import gc
import threading
from collections import Counter
from concurrent.futures import CancelledError
from itertools import islice
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import batched
import batched.inference
from batched import BatchError
from tests.kit.flavours import Flavour
from tests.kit.gate import PATIENCE_S, Gate, until
from tests.kit.kept import batchers, size_of


def parity(item: int) -> int:
    return item % 2


@given(
    items=st.lists(st.one_of(st.integers(0, 20), st.lists(st.integers(0, 20), max_size=9)), max_size=12),
    batch_size=st.integers(1, 6),
    keys=st.integers(1, 4),
)
@settings(max_examples=60)
def test_only_items_of_a_key_share_a_batch(items: list[Any], batch_size: int, keys: int) -> None:
    """Every caller gets its own answers in order, whatever keys its list mixes; each runs once."""
    gate = Gate()
    fn = batched.dynamically(gate, batch_size=batch_size, timeout_ms=0.1, group_by=lambda item: item % keys)
    futures = [fn.submit(item) for item in items]
    assert [future.result(PATIENCE_S) for future in futures] == items
    assert all(len({item % keys for item in batch}) == 1 for batch in gate.batches)
    assert all(len(batch) <= batch_size for batch in gate.batches)
    every = [item for asked in items for item in (asked if isinstance(asked, list) else [asked])]
    assert Counter(item for batch in gate.batches for item in batch) == Counter(every)
    assert fn.stats.total_accepted == fn.stats.total_processed == len(every)
    fn.shutdown()


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
    """With its first failing batch, and what of it has not started is dropped."""

    def odd_fails(items: list[int]) -> list[int]:
        if items[0] % 2:
            raise ValueError("odd")
        return items

    gate = Gate(odd_fails)
    fn = flavour.decorate(gate, batch_size=2, timeout_ms=0, group_by=parity)
    with pytest.raises(ValueError, match="^odd$"):
        flavour.call(fn, [1, 2, 3, 4, 5, 6])
    assert flavour.call(fn, 8) == 8
    stats = fn.stats
    assert stats.total_accepted == 7 == stats.total_processed + stats.total_cancelled
    assert not any(size_of(each.calls.queue) for each in batchers(fn))


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


# -- callbacks that misbehave ---------------------------------------------------------------------------


class Incomparable:
    """A key that can be hashed, and nothing more."""

    def __hash__(self) -> int:
        return 1

    def __eq__(self, other: object) -> bool:
        raise ZeroDivisionError("no")


@pytest.mark.parametrize(
    ("key", "message"),
    [
        (lambda item: item["missing"], "embed: group_by failed: TypeError"),
        (lambda item: [item], "embed: group_by failed: TypeError: unhashable"),
        (lambda item: item, "embed: group_by failed: RuntimeError: boom"),
    ],
)
def test_a_key_that_fails_or_is_none_fails_that_call_only(flavour: Flavour, key: Any, message: str) -> None:
    """With the callback named; nothing is queued."""

    class Booby:
        def __hash__(self) -> int:
            raise RuntimeError("boom")

    fn = flavour.decorate(
        Gate(), timeout_ms=0, name="embed", group_by=lambda item: item if item == "good" else key(Booby())
    )
    for items in (1, ["good", 1]):
        with pytest.raises(BatchError, match=message):
            flavour.call(fn, items)
    assert flavour.call(fn, ["good", "good"]) == ["good", "good"]
    assert fn.stats.total_accepted == 2


def test_keys_that_cannot_be_compared_fail_that_call_only() -> None:
    """The one that came second; the first is answered."""
    gate = Gate(shut=True)
    fn = batched.dynamically(gate, timeout_ms=0, group_by=lambda item: Incomparable() if item else 0)
    held = fn.submit(0)
    gate.wait_for_batch()
    first = fn.submit(1)
    with pytest.raises(ZeroDivisionError):
        fn(2)
    with pytest.raises(ZeroDivisionError):
        fn([0, 2])  # of which nothing runs, the item of a known key neither
    gate.open()
    assert (held.result(PATIENCE_S), first.result(PATIENCE_S)) == (0, 1)
    assert fn(0) == 0
    assert (fn.stats.total_accepted, fn.stats.total_processed) == (3, 3)


def test_a_key_that_fails_in_a_map_is_raised_at_its_place(flavour: Flavour) -> None:
    """After the answers before it; with return_exceptions it stays there."""
    flavour.needs_threads()
    fn = flavour.decorate(Gate(), batch_size=4, timeout_ms=0, group_by=lambda item: 6 // item)
    mapped = fn.map([1, 2, 3, 1, 2, 0, 3])
    assert list(islice(mapped, 5)) == [1, 2, 3, 1, 2]
    with pytest.raises(BatchError, match="group_by failed: ZeroDivisionError"):
        next(mapped)
    answers = flavour.map(fn.options(return_exceptions=True), [0, 1, 0, 0, 0, 0, 2])
    assert [row if isinstance(row, int) else BatchError for row in answers] == [
        BatchError, 1, BatchError, BatchError, BatchError, BatchError, 2,
    ]  # fmt: skip


def test_group_by_is_a_plain_function() -> None:
    """A coroutine would be a key of its own for every item."""

    async def key(item: Any) -> Any:
        return item

    for wrong in (key, "key", 3):
        with pytest.raises(TypeError, match="group_by must be a"):
            batched.dynamically(len, group_by=wrong)


# -- leaving and being late -----------------------------------------------------------------------------


def test_a_cancelled_list_leaves_every_group(flavour: Flavour) -> None:
    """What of it has not started never runs, and no key is kept."""
    if not flavour.cancels:
        pytest.skip("a blocked thread has no cancel")
    gate = Gate(shut=True)
    fn = flavour.decorate(gate, batch_size=4, timeout_ms=0, group_by=parity)
    first = flavour.start(fn, 0)
    gate.wait_for_batch()
    gone = flavour.start(fn, [1, 2, 3, 4])
    stays = flavour.start(fn, [5, 6])
    flavour.cancel(gone)
    gate.open()
    assert (first.result(PATIENCE_S), stays.result(PATIENCE_S)) == (0, [5, 6])
    assert gate.batches == [[0], [5], [6]]
    assert fn.stats.total_cancelled == 4
    assert not any(size_of(each.calls.queue) for each in batchers(fn))


def test_a_deadline_holds_for_a_list_of_mixed_keys(flavour: Flavour) -> None:
    """Also if one part of it has run already."""
    gate = Gate(shut=True)
    fn = flavour.decorate(gate, batch_size=2, timeout_ms=0, group_by=parity)
    late = flavour.start(fn.options(deadline_ms=50), [1, 2, 3, 4])
    gate.wait_for_batch()
    if flavour.name != "submit":  # whose deadline only drops what has not started
        with pytest.raises(TimeoutError):
            late.result(PATIENCE_S)
    threading.Event().wait(0.06)
    gate.open()
    with pytest.raises(TimeoutError):
        late.result(PATIENCE_S)
    assert gate.batches == [[1, 3]]
    until(lambda: (fn.stats.total_expired, fn.stats.total_processed) == (2, 2))


def test_cancelling_at_shutdown_reaches_a_list_of_mixed_keys() -> None:
    """Once, whatever of it runs."""
    gate = Gate(shut=True)
    fn = batched.dynamically(gate, batch_size=2, timeout_ms=0, group_by=parity)
    part = fn.submit([1, 2])
    gate.wait_for_batch()
    whole = fn.submit([3, 4])
    fn.shutdown(wait=False, cancel_futures=True)
    gate.open()
    fn.shutdown()
    for future in (part, whole):
        with pytest.raises(CancelledError):
            future.result(PATIENCE_S)


# -- many keys ------------------------------------------------------------------------------------------


def test_a_key_that_nobody_uses_costs_nothing() -> None:
    """Tens of thousands of keys leave nothing behind; `test_groups.py` says what more of them cost."""
    fn = batched.dynamically(Gate(), batch_size=64, timeout_ms=0, group_by=lambda item: item)
    count = 20_000
    futures = [fn.submit(item) for item in range(count // 2)]
    assert sum(future.result(PATIENCE_S) for future in futures) == sum(range(count // 2))
    assert fn(list(range(count // 2))) == list(range(count // 2))
    assert size_of(fn._batcher.batcher.calls.queue) == 0
    fn.shutdown()


def test_an_instance_that_was_grouped_is_collected() -> None:
    """No key and no member holds it."""
    import weakref

    class Model:
        @batched.dynamically(timeout_ms=0, group_by=parity)
        def embed(self, items: list[int]) -> list[int]:
            return items

    model = Model()
    assert model.embed([1, 2, 3]) == [1, 2, 3]
    reference = weakref.ref(model)
    del model
    until(lambda: gc.collect() is not None and reference() is None)


# -- arrays ---------------------------------------------------------------------------------------------


def test_arrays_are_grouped_by_call() -> None:
    """The callback is passed the features of a call."""
    shapes = []

    def double(features: dict[str, Any]) -> Any:
        shapes.append(features["x"].shape)
        return features["x"] * 2

    fn = batched.inference.dynamically(
        double, batch_size=8, timeout_ms=500, group_by=lambda features: features["x"].shape[1] > 4
    )
    futures = [fn.submit(x=np.ones((2, length))) for length in (3, 9, 4, 8)]
    assert [future.result(PATIENCE_S).shape[0] for future in futures] == [2, 2, 2, 2]
    assert sorted(shapes) == [(4, 4), (4, 9)]
    with pytest.raises(BatchError, match="group_by failed: KeyError"):
        fn(y=np.ones((2, 3)))


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
