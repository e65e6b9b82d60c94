"""`batch_sizes`: only these sizes reach the function, and no caller can tell."""

from __future__ import annotations

from collections import Counter
from contextvars import ContextVar
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

import batched
from batched import BatchError
from tests.kit.culprits import Bad
from tests.kit.effort import times
from tests.kit.flavours import STREAMING, Flavour
from tests.kit.gate import PATIENCE_S, Gate, until

SIZES = st.lists(st.integers(1, 9), min_size=1, max_size=4, unique=True).map(sorted)


def doubled(items: list[int]) -> list[Any]:
    """Return twice each item; raise for 13, and return an exception for 14."""
    if 13 in items:
        raise Bad("13")
    return [Bad("14") if item == 14 else 2 * item for item in items]


def is_answer(asked: Any, outcome: Any) -> bool:
    """Whether a caller may have this alone: its answer, or the name of an item of its own that fails."""
    items = asked if isinstance(asked, list) else [asked]
    wrong = {str(item) for item in items if item in {13, 14}}
    if wrong:
        return outcome in wrong
    return bool(outcome == ([2 * item for item in items] if isinstance(asked, list) else 2 * asked))


def outcome(future: Any) -> Any:
    error = future.exception(PATIENCE_S)
    return str(error) if isinstance(error, Bad) else future.result(PATIENCE_S)


# The fixture has no state that one example could leave to the next.
@settings(max_examples=times(200), suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(
    items=st.lists(st.one_of(st.integers(0, 15), st.lists(st.integers(0, 15), max_size=9)), max_size=12),
    sizes=SIZES,
    keys=st.integers(1, 3),
    budget=st.sampled_from([None, 3, 12]),
)
def test_the_function_sees_only_these_sizes_and_each_caller_has_what_it_would_have_alone(
    flavour: Flavour, items: list[Any], sizes: list[int], keys: int, budget: int | None
) -> None:
    """Whatever fails, whatever the keys and the budget; items count once, and copies apart."""
    gate = Gate(doubled)
    fn = flavour.decorate(
        gate,
        batch_sizes=sizes,
        timeout_ms=0.1,
        group_by=(lambda item: item % keys) if keys > 1 else None,
        max_batch_length=budget,
        length=(lambda _: 1) if budget else "auto",
    )
    futures = [flavour.start(fn, item) for item in items]
    outcomes = [outcome(future) for future in futures]
    assert all(map(is_answer, items, outcomes)), (items, outcomes)
    assert {len(batch) for batch in gate.batches} <= set(sizes)
    assert all(len({item % keys for item in batch}) == 1 for batch in gate.batches)
    until(lambda: not fn.stats.running_items)
    stats = fn.stats
    count = sum(len(item) if isinstance(item, list) else 1 for item in items)
    assert stats.total_processed + stats.total_cancelled == stats.total_accepted == count
    assert stats.total_copies == sum(map(len, gate.batches)) - stats.batch_size.sum
    flavour.close(fn)


def test_one_item_that_waits_alone_runs_in_the_smallest_size(flavour: Flavour) -> None:
    gate = Gate()
    fn = flavour.decorate(gate, batch_sizes=(4, 8), timeout_ms=0)
    assert flavour.call(fn, "a") == "a"
    assert gate.batches == [["a"] * 4]
    stats = fn.stats
    assert (stats.total_processed, stats.total_copies, stats.copies_percent) == (1, 3, 75.0)
    assert "copies" in str(stats)


@pytest.mark.parametrize("rows", [0, np.zeros(2)], ids=str)
def test_an_item_is_not_asked_for_its_attributes(flavour: Flavour, rows: Any) -> None:
    """One that says that it has no rows, say: only calls of arrays have rows that could be missing."""
    gate = Gate(lambda items: [1] * len(items))
    fn = flavour.decorate(gate, batch_sizes=(2, 4), timeout_ms=0)
    assert flavour.call(fn, SimpleNamespace(rows=rows)) == 1
    assert len(gate.batches[0]) == 2


def test_an_array_of_batch_sizes_is_taken(flavour: Flavour) -> None:
    fn = flavour.decorate(Gate(), batch_sizes=np.array([2, 4]))
    assert flavour.call(fn, [1, 2, 3, 4, 5]) == [1, 2, 3, 4, 5]


def test_the_error_of_a_copy_is_no_error_of_an_item(flavour: Flavour) -> None:
    """What the function returns for a copy is dropped, whatever it is."""
    fn = flavour.decorate(lambda items: [*items[:1], *[Bad(item) for item in items[1:]]], batch_sizes=(4,))
    assert flavour.call(fn, "a") == "a"
    assert fn.stats.total_failed == 0


def test_an_item_that_fails_is_the_only_one_that_does(flavour: Flavour) -> None:
    """Parts of the batch that failed have these sizes too."""
    gate = Gate(doubled)
    fn = flavour.decorate(gate, batch_sizes=(2, 8), timeout_ms=60_000)
    futures = [flavour.start(fn, item) for item in (1, 2, 13, 3, 4, 5, 6, 7)]
    assert [outcome(future) for future in futures] == [2, 4, "13", 6, 8, 10, 12, 14]
    assert {len(batch) for batch in gate.batches} == {2, 8}
    assert fn.stats.total_failed == 1


def test_return_exceptions_has_no_place_for_copies(flavour: Flavour) -> None:
    fn = flavour.decorate(doubled, batch_sizes=(4,), timeout_ms=0)
    *others, error = flavour.call(fn.options(return_exceptions=True), [1, 2, 14])
    assert others == [2, 4]
    assert isinstance(error, Bad)


def test_a_wrong_number_of_results_is_told_for_the_size_that_the_function_saw(flavour: Flavour) -> None:
    fn = flavour.decorate(lambda items: items[:3], batch_sizes=(4,), timeout_ms=0)
    with pytest.raises(BatchError, match="3 results for a batch of 4 items"):
        flavour.call(fn, ["a", "b", "c"])


def test_a_number_that_is_right_by_chance_is_found_out(flavour: Flavour) -> None:
    """The function returns four results for any batch: those for three items and a copy would be wrong."""
    fn = flavour.decorate(lambda items: items[:1] * 4, batch_sizes=(2, 4, 8), timeout_ms=0)
    for many in (8, 3):
        with pytest.raises(BatchError, match="returned 4 results for a batch of"):
            flavour.call(fn, list(range(many)))


def test_columns_are_filled_up_alike(flavour: Flavour) -> None:
    seen = []

    def pair(left: list[int], right: list[int]) -> list[tuple[int, int]]:
        seen.append((len(left), len(right)))
        return list(zip(left, right, strict=True))

    fn = flavour.decorate(pair, batch_sizes=(4,), timeout_ms=0)
    assert flavour.call(fn, [1, 2, 3], [4, 5, 6]) == [(1, 4), (2, 5), (3, 6)]
    assert seen == [(4, 4)]


def test_memory_that_runs_out_divides_into_smaller_sizes(flavour: Flavour) -> None:
    """Also where half of the items would be filled up to the size that did not fit."""

    def fits_two(items: list[int]) -> list[int]:
        if len(items) > 2:
            raise MemoryError
        return items

    gate = Gate(fits_two)
    fn = flavour.decorate(gate, batch_sizes=(2, 7), timeout_ms=0)
    assert flavour.call(fn, [1, 2, 3, 4, 5, 6, 7]) == [1, 2, 3, 4, 5, 6, 7]
    assert Counter(map(len, gate.batches)) == Counter({7: 1, 2: 4})
    assert fn.stats.fits_memory == 2
    assert flavour.call(fn, [1, 2, 3, 4]) == [1, 2, 3, 4]
    assert [len(batch) for batch in gate.batches[-2:]] == [2, 2]


def read(items: list[Any]) -> list[int]:
    """Return the sum of each item, an iterator or a list."""
    return [sum(item) for item in items]


def test_items_that_a_run_uses_up_have_no_copy(flavour: Flavour) -> None:
    """They run in sizes that they fill; a copy of another item will do."""
    gate = Gate(read, note=len)
    fn = flavour.decorate(gate, batch_sizes=(1, 2, 4), timeout_ms=60_000)
    assert flavour.call(fn, [iter([1]), iter([2]), iter([3]), iter([4])]) == [1, 2, 3, 4]
    assert gate.batches == [4]
    fn.configure(timeout_ms=0)
    assert flavour.call(fn, [iter([1]), iter([2]), iter([3])]) == [1, 2, 3]
    assert gate.batches == [4, 2, 1]
    assert flavour.call(fn, [iter([1]), [2], iter([3])]) == [1, 2, 3]
    assert gate.batches == [4, 2, 1, 4]


def test_where_no_item_has_a_copy_and_no_size_is_filled_the_error_says_what_to_do(flavour: Flavour) -> None:
    gate = Gate(read, note=len)
    fn = flavour.decorate(gate, batch_sizes=(4,), timeout_ms=0)
    with pytest.raises(BatchError, match="add 1 to batch_sizes"):
        flavour.call(fn, iter([1]))
    assert not gate.batches
    assert flavour.call(fn, (1, 2)) == 3


def test_where_copies_would_exceed_the_budget_a_batch_has_the_size_that_it_fills(flavour: Flavour) -> None:
    gate = Gate(note=len)
    fn = flavour.decorate(gate, batch_sizes=(1, 2, 4), timeout_ms=0, max_batch_length=6)
    assert flavour.call(fn, ["aa", "bb", "cc"]) == ["aa", "bb", "cc"]
    assert gate.batches == [2, 1]


def test_batch_size_follows(flavour: Flavour) -> None:
    fn = flavour.decorate(Gate(), batch_sizes=(1, 5))
    assert "batch_size=5" in repr(fn)
    with pytest.raises(ValueError, match="batch_size=4 is not the largest"):
        fn.configure(batch_size=4)
    with pytest.raises(TypeError, match="cannot change 'batch_sizes'"):
        fn.configure(batch_sizes=(1, 2))


class Rows:
    """A function over arrays that notes the shapes of `ids`."""

    def __init__(self) -> None:
        self.shapes: list[tuple[int, ...]] = []

    def __call__(self, features: dict[str, Any]) -> Any:
        self.shapes.append(features["ids"].shape)
        return features["ids"] * 2


@settings(max_examples=times(100), suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(
    calls=st.lists(
        st.lists(st.lists(st.integers(1, 9), min_size=1, max_size=8), min_size=1, max_size=5), max_size=8
    ),
    sizes=SIZES,
    lengths=st.sampled_from([(8,), (2, 8), (1, 3, 8)]),
    budget=st.sampled_from([None, 12, 30]),
    side=st.sampled_from(["left", "right"]),
)
def test_a_function_over_arrays_sees_only_the_shapes_that_it_lists(  # noqa: PLR0913, PLR0917
    flavour: Flavour, calls: Any, sizes: list[int], lengths: tuple[int, ...], budget: int | None, side: str
) -> None:
    rows = Rows()
    fn = flavour.decorate_arrays(
        rows,
        batch_sizes=sizes,
        pad_to_lengths=lengths,
        timeout_ms=0.1,
        unpad_outputs=True,
        max_batch_length=budget,
        padding_side=side,
    )
    futures = [flavour.start(fn, {"ids": [np.array(row) for row in call]}) for call in calls]
    for call, future in zip(calls, futures, strict=True):
        answer = future.result(PATIENCE_S)
        assert [row.tolist() for row in answer] == [[2 * each for each in row] for row in call]
    assert set(rows.shapes) <= set(fn.shapes())
    until(lambda: not fn.stats.running_items)
    stats = fn.stats
    assert stats.total_processed == sum(map(len, calls))
    assert stats.padding.real == sum(len(row) for call in calls for row in call)
    flavour.close(fn)


def test_a_row_longer_than_the_longest_length_is_refused_for_its_caller_alone(flavour: Flavour) -> None:
    fn = flavour.decorate_arrays(Rows(), batch_sizes=(1, 2), pad_to_lengths=(4, 8))
    with pytest.raises(ValueError, match=r"'ids' has a row of length 9, .* pad_to_lengths is 8"):
        flavour.call(fn, {"ids": np.ones((1, 9))})
    assert flavour.call(fn, {"ids": np.ones((1, 3))}).shape == (1, 4)


def test_a_call_of_no_rows_has_no_row_to_copy(flavour: Flavour) -> None:
    fn = flavour.decorate_arrays(Rows(), batch_sizes=(1, 2))
    with pytest.raises(ValueError, match="no row to copy"):
        flavour.call(fn, {"ids": np.ones((0, 3))})
    with pytest.raises(ValueError, match="no row to copy"):
        flavour.map(fn, [{"ids": np.ones((0, 3))}])


@pytest.mark.parametrize("kind", STREAMING)
def test_the_pieces_of_copies_are_dropped(kind: type[Flavour]) -> None:
    seen = []

    def count(items: list[int]) -> Any:
        seen.append(len(items))
        for step in range(3):
            yield [item + step if step < item else batched.DONE for item in items]

    flavour = kind()
    with flavour.running():
        fn = flavour.decorate(count, batch_sizes=(3,), timeout_ms=0)
        assert list(flavour.stream(fn, 2)) == [2, 3]
        assert seen == [3]
        until(lambda: fn.stats.total_processed)  # the batch ends after the last piece
        assert (fn.stats.total_processed, fn.stats.total_copies) == (1, 2)


def test_nothing_is_wanted_of_a_copy(flavour: Flavour) -> None:
    """`left` has a place for each: so it goes with the list that the function is given."""
    seen: list[Any] = []

    def look(items: list[int]) -> list[Any]:
        left = batched.current_batch().left
        seen.append(left)
        return [None if gone else item for gone, item in zip(left, items, strict=True)]

    fn = flavour.decorate(look, batch_sizes=(4,), timeout_ms=0)
    assert flavour.call(fn, [1, 2, 3]) == [1, 2, 3]
    assert seen == [[False, False, False, True]]
    flavour.close(fn)


def test_a_copy_has_the_context_of_its_item(flavour: Flavour) -> None:
    """So the contexts go with the list that the function is given."""
    caller: ContextVar[str] = ContextVar("caller")

    def name_callers(items: list[int]) -> list[str | None]:
        contexts = batched.current_batch().contexts
        assert len({*map(id, contexts)}) == len(contexts) == len(items) == 4
        return [each.get(caller) for each in contexts]

    fn = flavour.decorate(name_callers, batch_sizes=(4,), timeout_ms=0)
    caller.set("me")
    names = flavour.call(fn, [1, 2, 3])
    assert names in (["me"] * 3, [None] * 3)  # a flavour may call in a thread that has no context of its own
    flavour.close(fn)


def test_a_function_that_may_not_see_an_item_twice_sees_no_copies(flavour: Flavour) -> None:
    """With `isolate_errors=False`, which says so, batches run in sizes that they fill."""
    gate = Gate(shut=True)

    def count(items: list[_Words]) -> list[int]:
        gate(items)
        for item in items:
            item.append("end")
        return [len(item) for item in items]

    fn = flavour.decorate(count, batch_sizes=(1, 4), timeout_ms=0, isolate_errors=False)
    futures = [flavour.start(fn, _Words())]
    gate.wait_for_batch()
    futures += [flavour.start(fn, _Words()) for _ in range(3)]
    gate.open()
    assert [future.result(PATIENCE_S) for future in futures] == [1] * 4
    assert fn.stats.total_copies == 0
    with pytest.raises(ValueError, match="have 1 among the sizes"):
        flavour.decorate(list, batch_sizes=(2, 4), isolate_errors=False)
    flavour.close(fn)


class _Words:
    """A document to which words are added: one item, which is no list."""

    def __init__(self) -> None:
        self.words: list[str] = []

    def append(self, word: str) -> None:
        self.words.append(word)

    def __len__(self) -> int:
        return len(self.words)


def test_what_was_cut_off_a_batch_and_is_dropped_before_it_runs_counts_as_cancelled(flavour: Flavour) -> None:
    """The list that it belongs to has failed by then: it was in no batch that has finished."""
    fn = flavour.decorate(doubled, batch_sizes=(1, 4), timeout_ms=0, isolate_errors=False)
    with pytest.raises(Bad):
        flavour.call(fn, [14, 1, 2])
    until(lambda: not fn.stats.running_items)
    stats = fn.stats
    assert (stats.total_accepted, stats.total_processed, stats.total_cancelled) == (3, 1, 2)
    assert stats.batch_size.sum == stats.total_failed == 1
