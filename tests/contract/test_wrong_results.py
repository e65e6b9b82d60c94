"""A function that does not return one result per item: no caller gets a piece of another's answer."""

from __future__ import annotations

from collections import namedtuple
from collections.abc import Callable, Iterator
from typing import Any, NamedTuple

import numpy as np
import pytest

from batched import BatchError
from tests.kit.flavours import Flavour
from tests.kit.gate import PATIENCE_S, Gate
from tests.kit.optional import HAS_TORCH, needs_torch, torch


def twice_and_thrice(rows: Any) -> Any:
    """Return two arrays for any number of rows."""
    rows = np.asarray(rows)
    return rows * 2, rows * 3


def best_of(rows: Any) -> Any:
    """Return what `torch.max` does: the values, and where they are."""
    return torch.max(torch.tensor([[row, row + 1] for row in rows]), dim=1)


def five(rows: Any) -> list[int]:
    """Return five results for any number of rows."""
    return [0] * 5


class Scored(NamedTuple):
    vectors: Any
    scores: Any


def only_first(rows: Any) -> list[Any]:
    """Return one result for any number of rows."""
    return [rows[0]]


CONSTANT = [
    pytest.param(twice_and_thrice, 2, id="arrays"),
    pytest.param(five, 5, id="five"),
]


def errors_of(flavour: Flavour, fn: Any, gate: Gate, items: list[Any]) -> list[BaseException | None]:
    """Return the errors of single calls that wait while another, which opens the gate, is running."""
    gate.shut_again()
    first = flavour.start(fn, items[0])
    gate.wait_for_batch()
    futures = [first, *(flavour.start(fn, item) for item in items[1:])]
    gate.let_through(1000)
    return [future.exception(PATIENCE_S) for future in futures]


@pytest.mark.parametrize(("function", "count"), CONSTANT)
def test_a_number_that_does_not_follow_the_items_is_believed_by_no_caller(
    flavour: Flavour, function: Callable[..., Any], count: int
) -> None:
    """Of batches of one, 32 and at last as many as there are results."""
    gate = Gate(function, shut=True)
    fn = flavour.decorate(gate)
    errors = errors_of(flavour, fn, gate, list(range(1 + 32 + count)))
    assert {type(error) for error in errors} == {BatchError}
    assert all(
        f"returned {count} result{'s' * (count != 1)} for a batch of" in str(error) for error in errors
    )
    flavour.close(fn)


@pytest.mark.parametrize(("function", "count"), CONSTANT)
def test_it_is_not_believed_where_it_is_right_by_chance(
    flavour: Flavour, function: Callable[..., Any], count: int
) -> None:
    """As it was wrong before: in lists, in single calls, with or without places for errors."""
    fn = flavour.decorate(function, batch_size=count + 1, timeout_ms=60_000)
    with pytest.raises(BatchError):
        flavour.call(fn, [1] * (count + 1))
    fn.configure(batch_size=count)
    for _ in range(3):
        with pytest.raises(BatchError):
            flavour.call(fn, [1] * count)
        futures = [flavour.start(fn, at) for at in range(count)]
        assert {type(future.exception(PATIENCE_S)) for future in futures} == {BatchError}
        answers = flavour.call(fn.options(return_exceptions=True), [1] * count)
        assert {type(answer) for answer in answers} == {BatchError}
    flavour.close(fn)


COLUMNS = [
    pytest.param(twice_and_thrice, id="arrays"),
    pytest.param(lambda rows: (rows[:], [str(row) for row in rows]), id="lists"),
    pytest.param(lambda rows: (np.ones((len(rows), 8)), rows[:]), id="an array and a list"),
    pytest.param(  # as ONNX Runtime has outputs
        lambda rows: [np.ones((len(rows), 4, 8)), np.ones((len(rows), 8))], id="a list of shapes"
    ),
    pytest.param(lambda rows: [np.ones(len(rows)), np.arange(len(rows))], id="a list of dtypes"),
]


@pytest.mark.parametrize("function", COLUMNS)
def test_columns_are_not_believed_in_the_first_batch(flavour: Flavour, function: Callable[..., Any]) -> None:
    """Which has as many items as there are columns: in single calls, and in lists."""
    gate = Gate(function)
    fn = flavour.decorate(gate, batch_size=2, timeout_ms=60_000, isolate_errors=False)
    futures = [flavour.start(fn, item) for item in range(2)]
    for future in futures:
        error = future.exception(PATIENCE_S)
        assert type(error) is BatchError
        assert "returned 2 results for its first batch of 2 items, and each of them has 2" in str(error)
    assert gate.batches == [[0, 1]]
    with pytest.raises(BatchError):
        flavour.call(fn, [1, 2])


@pytest.mark.parametrize("function", COLUMNS)
def test_columns_of_a_batch_that_is_filled_up_are_not_believed(
    flavour: Flavour, function: Callable[..., Any]
) -> None:
    """With copies, to as many items as there are columns."""
    fn = flavour.decorate(function, batch_sizes=(2,), timeout_ms=0)
    with pytest.raises(BatchError, match="so they are taken for columns"):
        flavour.call(fn, 1)


def test_results_of_a_batch_that_is_filled_up_are_believed_after_the_first(flavour: Flavour) -> None:
    """Though they look like columns: no batch of another size could show that they are none."""
    fn = flavour.decorate(lambda rows: tuple([row, row] for row in rows), batch_sizes=(2,), timeout_ms=0)
    with pytest.raises(BatchError, match="so they are taken for columns"):
        flavour.call(fn, 1)
    assert [flavour.call(fn, item) for item in range(3)] == [[0, 0], [1, 1], [2, 2]]


@pytest.mark.parametrize("function", [twice_and_thrice, lambda rows: (rows[:], [str(row) for row in rows])])
def test_a_first_batch_of_as_many_columns_runs_again_in_parts(
    flavour: Flavour, function: Callable[..., Any]
) -> None:
    """Which have another number of items, but as many columns."""
    gate = Gate(function)
    fn = flavour.decorate(gate, batch_size=2, timeout_ms=60_000)
    futures = [flavour.start(fn, item) for item in range(2)]
    for future in futures:
        assert "returned 2 results for a batch of 1 item" in str(future.exception(PATIENCE_S))
    assert gate.batches == [[0, 1], [0], [1]]


@pytest.mark.parametrize(
    "function",
    [
        lambda rows: [np.ones(2) * row for row in rows],
        lambda rows: [[row, row] for row in rows],
        lambda rows: np.array([[row, row] for row in rows]),
        lambda rows: tuple(np.ones(3) * row for row in rows),
        lambda rows: tuple((row, row) for row in rows),
        lambda rows: (None, np.ones(2)),
    ],
    ids=["arrays in a list", "lists", "an array", "longer ones", "tuples", "None"],
)
def test_results_as_long_as_they_are_many_are_believed(
    flavour: Flavour, function: Callable[..., Any]
) -> None:
    """Where nothing says that they are columns."""
    gate = Gate(function)
    fn = flavour.decorate(gate, batch_size=2, timeout_ms=60_000)
    futures = [flavour.start(fn, item) for item in range(2)]
    assert not [future.exception(PATIENCE_S) for future in futures if future.exception(PATIENCE_S)]
    assert gate.batches == [[0, 1]]


@pytest.mark.parametrize("size", [2, 3, 4])
def test_results_that_look_like_columns_are_right_in_parts(flavour: Flavour, size: int) -> None:
    """And believed from then on."""
    gate = Gate(lambda rows: tuple(np.full(size, row) for row in rows))
    fn = flavour.decorate(gate, batch_size=size, timeout_ms=60_000)
    for _ in range(3):
        found = flavour.call(fn, [*range(size)])
        assert [row.tolist() for row in found] == [[at] * size for at in range(size)]
    everything = [*range(size)]
    assert gate.batches == [
        everything,
        everything[: size // 2],
        everything[size // 2 :],
        everything,
        everything,
    ]


def test_results_taken_for_columns_fail_one_batch_at_most_where_nothing_runs_again(flavour: Flavour) -> None:
    """The next one shows that they are none."""
    gate = Gate(lambda rows: tuple(np.full(2, row) for row in rows))
    fn = flavour.decorate(gate, batch_size=2, timeout_ms=60_000, isolate_errors=False)
    with pytest.raises(BatchError, match="a list of arrays of one shape"):
        flavour.call(fn, [1, 2])
    for _ in range(3):
        assert [row.tolist() for row in flavour.call(fn, [3, 4])] == [[3, 3], [4, 4]]
    assert gate.batches == [[1, 2], [3], [4], [3, 4], [3, 4]]


def test_an_ordinary_function_is_not_suspected(flavour: Flavour) -> None:
    """Though it has left out items once, so that as many results were wrong as are right now."""
    gate = Gate(lambda rows: [row * 2 for row in rows if row >= 0])
    fn = flavour.decorate(gate, batch_size=5, timeout_ms=60_000)
    for _ in range(2):
        with pytest.raises(BatchError, match="2 results for a batch of 5 items"):
            flavour.call(fn, [1, 2, -3, -4, -5])
        gate.batches.clear()
        fn.configure(batch_size=2)
        for _ in range(2):
            assert flavour.call(fn, [3, 4]) == [6, 8]
        assert gate.batches == [[3], [4], [3, 4]]
        fn.configure(batch_size=5)


def test_one_result_for_one_item_is_its_own(flavour: Flavour) -> None:
    """Also where the function returns one for any number of items: there is no other answer to take."""
    fn = flavour.decorate(only_first, batch_size=4, timeout_ms=0)
    with pytest.raises(BatchError, match="1 result for a batch of 4 items"):
        flavour.call(fn, [1, 2, 3, 4])
    assert flavour.call(fn, 7) == 7


def test_a_wrong_number_fails_all_of_the_batch_at_once(flavour: Flavour) -> None:
    """No item is to blame as far as can be told, so it runs once; single calls, lists, places for errors."""
    gate = Gate(lambda items: [item for item in items if item != 2])
    fn = flavour.decorate(gate, batch_size=4, timeout_ms=60_000)
    futures = [flavour.start(fn, item) for item in range(4)]
    assert {type(future.exception(PATIENCE_S)) for future in futures} == {BatchError}
    answers = flavour.call(fn.options(return_exceptions=True), [0, 1, 2, 3])
    assert all("returned 3 results for a batch of 4 items" in str(answer) for answer in answers)
    assert gate.batches == [[0, 1, 2, 3]] * 2
    assert fn.stats.total_divided == 0
    assert flavour.call(fn, [4, 5, 6, 7]) == [4, 5, 6, 7]


@pytest.mark.parametrize(
    "outputs",
    [
        None,
        {1: 2},
        "abcd",
        object(),
        Scored([1, 2, 3, 4], [5, 6, 7, 8]),
        namedtuple("Four", "a b c d")(1, 2, 3, 4),  # noqa: PYI024
        pytest.param(HAS_TORCH and best_of([1, 2, 3, 4]), marks=needs_torch),
    ],
    ids=["None", "dict", "str", "object", "named", "as many names", "torch's"],
)
def test_what_is_no_list_of_results_fails_all_of_the_batch_at_once(flavour: Flavour, outputs: Any) -> None:
    """It is the function's fault whatever the items are."""
    gate = Gate(lambda _: outputs)
    fn = flavour.decorate(gate, batch_size=4, timeout_ms=60_000)
    futures = [flavour.start(fn, item) for item in range(4)]
    for future in futures:
        error = future.exception(PATIENCE_S)
        assert isinstance(error, BatchError)
        assert isinstance(error, TypeError)
    assert len(gate.batches) == 1


class Lazy:
    """Results that cannot be had."""

    def __init__(self, fails: str) -> None:
        self.fails = fails

    def __len__(self) -> int:
        if self.fails == "len":
            raise RuntimeError("not yet")
        return 4

    def __iter__(self) -> Iterator[int]:
        raise ValueError("lazy")


@pytest.mark.parametrize("fails", ["len", "iter"])
def test_results_that_raise_as_they_are_read_are_not_divided(flavour: Flavour, fails: str) -> None:
    """Their class is to blame, or the function that returns it."""
    gate = Gate(lambda _: Lazy(fails))
    fn = flavour.decorate(gate, batch_size=4, timeout_ms=60_000)
    futures = [flavour.start(fn, item) for item in range(4)]
    expected = RuntimeError if fails == "len" else ValueError
    assert all(isinstance(future.exception(PATIENCE_S), expected) for future in futures)
    assert len(gate.batches) == 1


def test_columns_are_no_different(flavour: Flavour) -> None:
    """Nor is a key, or a cache."""
    fn = flavour.decorate(
        lambda xs, ys: twice_and_thrice(xs),
        batch_size=3,
        timeout_ms=60_000,
        group_by=lambda x, y: y,
        cache={},
        cache_key=lambda x, y: (x, y),
    )
    with pytest.raises(BatchError, match="2 results for a batch of 3 items"):
        flavour.call(fn, [1, 2, 3], [0, 0, 0])
    fn.configure(batch_size=2)
    futures = [flavour.start(fn, at, 0) for at in (4, 5)]
    assert {type(future.exception(PATIENCE_S)) for future in futures} == {BatchError}


def test_arrays_are_no_different(flavour: Flavour) -> None:
    """A sum over the rows has as many entries as a row: with as many rows it would pass for their answers."""
    gate = Gate(lambda features: features["x"].sum(axis=0), note=lambda features: len(features["x"]))
    fn = flavour.decorate_arrays(gate, batch_size=4, timeout_ms=60_000)
    futures = [flavour.start(fn, x=np.ones((1, 2))) for _ in range(4)]
    assert {type(future.exception(PATIENCE_S)) for future in futures} == {BatchError}
    assert gate.batches == [4]
    fn.configure(batch_size=2)
    for _ in range(2):
        with pytest.raises(BatchError):
            flavour.call(fn, x=np.ones((2, 2)))
        futures = [flavour.start(fn, x=np.ones((1, 2))) for _ in range(2)]
        assert {type(future.exception(PATIENCE_S)) for future in futures} == {BatchError}


def test_a_named_tuple_of_as_many_columns_is_believed_by_no_caller(flavour: Flavour) -> None:
    """In the first batch, and later: it has a column for each name, never a result for each item."""
    for size in (2, 1, 2):
        fn = flavour.decorate(lambda rows: Scored(rows, rows), batch_size=size, timeout_ms=60_000)
        futures = [flavour.start(fn, item) for item in range(size)]
        for future in futures:
            assert "which has a column for each name" in str(future.exception(PATIENCE_S))


def test_streams_are_no_different(streaming: Flavour) -> None:
    """Their first pieces are the results of the batch."""

    def pairs(rows: list[Any]) -> Iterator[Any]:
        steps.append(len(rows))
        yield twice_and_thrice(rows)

    steps: list[int] = []
    fn = streaming.decorate(pairs, batch_size=4, timeout_ms=60_000)
    for size in (4, 2):
        fn.configure(batch_size=size)
        streams = [streaming.stream(fn, at) for at in range(size)]
        for stream in streams:
            with pytest.raises(BatchError, match="yielded 2 pieces"):
                next(stream)
    assert steps == [4, 1, 1]


def test_pieces_that_look_like_columns_are_believed_after_plain_ones(streaming: Flavour) -> None:
    """What has been handed out cannot run again in parts, so the first pieces say what they are."""

    def pieces(rows: list[Any]) -> Iterator[Any]:
        yield tuple("begins" for _ in rows)
        yield tuple([row] * 2 for row in rows)

    fn = streaming.decorate(pieces, batch_size=2, timeout_ms=60_000)
    streams = [streaming.stream(fn, at) for at in range(2)]
    assert [[*stream] for stream in streams] == [["begins", [0, 0]], ["begins", [1, 1]]]
