"""What every caller may rely on, however it calls."""

from __future__ import annotations

import asyncio
import contextlib
import gc
import pickle
import random
import time
import traceback
import weakref
from collections import UserList, deque
from collections.abc import Iterator
from concurrent.futures import CancelledError, Future, wait
from typing import Any

import numpy as np
import pytest
import torch

from batched import BatchError, ClosedError
from batched._core.batcher import Batcher
from batched._core.keyed_queues import KeyedQueues
from batched._core.next_batch import NextBatch
from batched._core.queue import Queue
from batched._core.running import Running
from tests.kit.flavours import Flavour, batchers
from tests.kit.gate import PATIENCE_S, Gate, until

# -- one item or a list ---------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "item", ["a", ("a", "b"), None, 0, {"a": 1}, {1, 2}, deque([1]), b"bytes", StopIteration, float("inf")]
)
def test_anything_but_a_list_is_one_item(flavour: Flavour, item: Any) -> None:
    """A tuple, a string, None and so on go in as one item and come back as one result."""
    gate = Gate()
    fn = flavour.decorate(gate, timeout_ms=0)
    assert item == flavour.call(fn, item)
    assert gate.batches == [[item]]


@pytest.mark.parametrize("items", [[1], [1, 2, 3], [[1, 2], [3]], [(1, 2)], [None, None], list(range(100))])
def test_a_list_comes_back_as_a_list_in_order(flavour: Flavour, items: list[Any]) -> None:
    """A list is many items, a list of lists many items that are lists, and order is kept."""
    fn = flavour.decorate(lambda xs: [(x,) for x in xs], batch_size=7, timeout_ms=0)
    assert [(x,) for x in items] == flavour.call(fn, items)


def test_an_empty_list_is_answered_at_once(flavour: Flavour) -> None:
    """No batch runs for an empty list."""
    gate = Gate(shut=True)
    assert flavour.call(flavour.decorate(gate), []) == []
    assert gate.batches == []


def test_a_list_subclass_is_many_items_and_answered_by_a_plain_list(flavour: Flavour) -> None:
    """Only what is a list is many; the answer is always a plain one."""

    class Items(list[int]):
        pass

    fn = flavour.decorate(Gate(), timeout_ms=0)
    answer = flavour.call(fn, Items([1, 2]))
    assert answer == [1, 2]
    assert type(answer) is list


def test_the_callers_list_is_copied_at_the_door(flavour: Flavour) -> None:
    """What a caller does to its list afterwards, or the function to its own, reaches nobody."""
    gate = Gate(lambda xs: [xs.pop(0) for _ in range(len(xs))], shut=True)
    fn = flavour.decorate(gate, batch_size=2, timeout_ms=0)
    items = [1, 2, 3, 4]
    future = flavour.start(fn, items)
    gate.wait_for_batch()
    items[:] = [9, 9, 9, 9, 9]
    gate.open()
    assert future.result(PATIENCE_S) == [1, 2, 3, 4]
    assert items == [9, 9, 9, 9, 9]


def test_the_argument_can_be_named(flavour: Flavour) -> None:
    """The one parameter is accepted by its own name, and only that."""

    def double(numbers: list[int]) -> list[int]:
        return [2 * number for number in numbers]

    fn = flavour.decorate(double, timeout_ms=0)
    assert flavour.call(fn, numbers=2) == 4
    assert flavour.call(fn, numbers=[2, 3]) == [4, 6]
    for args, named in [((), {}), ((1, 2), {}), ((), {"number": 1}), ((1,), {"numbers": 1})]:
        with pytest.raises(TypeError, match="takes one argument, 'numbers'"):
            flavour.call(fn, *args, **named)


def test_an_async_batch_function_works(flavour: Flavour) -> None:
    """An `async def` batch function is run to its end, batch after batch, on one loop."""
    loops = set()

    async def double(items: list[int]) -> list[int]:
        await asyncio.sleep(0)
        loops.add(asyncio.get_running_loop())
        return [2 * item for item in items]

    fn = flavour.decorate(double, batch_size=2, timeout_ms=0)
    assert flavour.call(fn, [1, 2, 3]) == [2, 4, 6]
    assert flavour.call(fn, 4) == 8
    assert len(loops) == 1
    flavour.close(fn)


# -- what the function returns --------------------------------------------------------------------------


@pytest.mark.parametrize(
    "rows",
    [tuple, np.array, torch.tensor, UserList, deque, range],
    ids=["tuple", "ndarray", "tensor", "UserList", "deque", "range"],
)
def test_any_sized_sequence_of_rows_will_do(flavour: Flavour, rows: Any) -> None:
    """Arrays, tuples and their like are rows."""
    fn = flavour.decorate((lambda xs: range(len(xs))) if rows is range else rows, timeout_ms=0)
    answer = flavour.call(fn, [0, 1, 2])
    assert type(answer) is list
    assert [int(row) for row in answer] == [0, 1, 2]
    assert int(flavour.call(fn, 0)) == 0


def test_rows_of_an_array_keep_their_type(flavour: Flavour) -> None:
    """A row of a float32 matrix is a float32 vector."""
    fn = flavour.decorate(lambda xs: np.array([[x, x] for x in xs], dtype=np.float32), timeout_ms=0)
    assert flavour.call(fn, 1).dtype == np.float32
    assert flavour.call(fn, 1).shape == (2,)
    assert [row.tolist() for row in flavour.call(fn, [1, 2])] == [[1, 1], [2, 2]]


@pytest.mark.parametrize(
    "outputs",
    [None, 3, "ab", b"ab", {"a": 1, "b": 2}, {1, 2}, iter([1, 2]), (x for x in "ab"), np.array(2), object],
)
def test_what_is_not_one_row_per_item_is_a_type_error(flavour: Flavour, outputs: Any) -> None:
    """The function's name and the offending type are in the message."""

    def embed(items: list[Any]) -> Any:
        return outputs

    fn = flavour.decorate(embed, timeout_ms=0)
    with pytest.raises(TypeError, match=f"embed must return .* not {type(outputs).__qualname__}"):
        flavour.call(fn, [1, 2])


def test_a_data_frame_is_a_type_error(flavour: Flavour) -> None:
    """It iterates over its columns, so its rows would silently be swapped for them."""
    frame = UserList("ab")
    frame.columns = ["a", "b"]  # type: ignore[attr-defined]
    fn = flavour.decorate(lambda xs: frame, timeout_ms=0)
    with pytest.raises(TypeError, match="UserList"):
        flavour.call(fn, [1, 2])


@pytest.mark.parametrize("results", [0, 1, 3])
def test_a_wrong_number_of_results_is_a_batch_error(flavour: Flavour, results: int) -> None:
    """It names both numbers, comes to every caller of the batch, and is a ValueError."""

    def embed(items: list[Any]) -> list[Any]:
        return [0] * results

    fn = flavour.decorate(embed, timeout_ms=0)
    with pytest.raises(
        BatchError, match=f"embed returned {results} results for a batch of 2 items"
    ) as caught:
        flavour.call(fn, [1, 2])
    assert isinstance(caught.value, ValueError)


def test_a_list_that_the_function_keeps_is_not_the_callers(flavour: Flavour) -> None:
    """A function may return the same list every time."""
    kept: list[Any] = []

    def same(items: list[Any]) -> list[Any]:
        kept[:] = items
        return kept

    fn = flavour.decorate(same, timeout_ms=0)
    first = flavour.call(fn, [1, 2])
    flavour.call(fn, [3, 4])
    assert first == [1, 2]


# -- who shares a batch, and in which order -------------------------------------------------------------


def hold(flavour: Flavour, **options: Any) -> tuple[Gate, Any, Future[Any]]:
    """Return a batcher whose worker is busy with a first call until its gate is opened."""
    gate = Gate(shut=True)
    fn = flavour.decorate(gate, **options)
    first = flavour.start(fn, ["first"] * options["batch_size"])
    gate.wait_for_batch()
    return gate, fn, first


def test_callers_share_a_batch_that_is_bound_late(flavour: Flavour) -> None:
    """Who comes while a batch runs is together in the next, and a full batch needs no window."""
    gate, fn, first = hold(flavour, batch_size=4, timeout_ms=1)
    futures = [flavour.start(fn, index) for index in range(6)]
    gate.open()
    assert [future.result(PATIENCE_S) for future in futures] == list(range(6))
    assert first.result(PATIENCE_S) == ["first"] * 4
    assert gate.batches[1:] == [[0, 1, 2, 3], [4, 5]]


def test_a_full_batch_starts_before_its_window_ends(flavour: Flavour) -> None:
    """With a window of a minute, four items at `batch_size=4` are answered all the same."""
    fn = flavour.decorate(Gate(), batch_size=4, timeout_ms=60_000)
    futures = [flavour.start(fn, index) for index in range(4)]
    assert [future.result(PATIENCE_S) for future in futures] == [0, 1, 2, 3]
    assert flavour.call(fn, [1, 2, 3, 4]) == [1, 2, 3, 4]
    assert fn.stats.total_batches == 2


def test_small_calls_go_ahead_of_large_ones(flavour: Flavour) -> None:
    """A small call that comes while a long list runs is in the very next batch."""
    gate, fn, _ = hold(flavour, batch_size=4, timeout_ms=0, small_batch_threshold=2)
    large = flavour.start(fn, list(range(12)))
    gate.let_through()
    gate.wait_for_batch()
    small = flavour.start(fn, "small")
    gate.let_through(2)
    assert small.result(PATIENCE_S) == "small"
    gate.open()
    assert large.result(PATIENCE_S) == list(range(12))
    assert gate.batches[1:] == [[0, 1, 2, 3], ["small", 4, 5, 6], [7, 8, 9, 10], [11]]


def test_priority_overrules_the_size(flavour: Flavour) -> None:
    """`interactive` lists go ahead of `bulk` singles."""
    gate, fn, _ = hold(flavour, batch_size=2, timeout_ms=0, small_batch_threshold=1)
    flavour.start(fn.options(priority="bulk"), "bulk")
    flavour.start(fn, "single")
    last = flavour.start(fn.options(priority="interactive"), [1, 2])
    gate.open()
    last.result(PATIENCE_S)
    until(lambda: len(gate.batches) == 3)
    assert gate.batches[1:] == [["single", 1], [2, "bulk"]]


def test_an_eighth_is_kept_for_large_calls(flavour: Flavour) -> None:
    """While small calls alone would fill every batch, a large one still gets on."""
    gate, fn, _ = hold(flavour, batch_size=8, timeout_ms=0, small_batch_threshold=1)
    large = flavour.start(fn, ["x", "y"])
    small = [flavour.start(fn, index) for index in range(30)]
    gate.open()
    large.result(PATIENCE_S)
    for future in small:
        future.result(PATIENCE_S)
    assert gate.batches[1:3] == [["x", *range(7)], ["y", *range(7, 14)]]


# -- failure --------------------------------------------------------------------------------------------


class OwnError(Exception):
    """Its arguments are not its message, so `copy.copy` would make a different error of it."""

    def __init__(self, code: int) -> None:
        super().__init__(f"code {code}")
        self.code = code


def broken(items: list[Any]) -> list[Any]:
    """Raise an error with everything an error can have."""
    try:
        {}["missing"]
    except KeyError as cause:
        error = OwnError(7)
        error.add_note("note")
        raise error from cause
    return items


def test_an_error_comes_as_it_was_and_to_each_caller_its_own(flavour: Flavour) -> None:
    """Type, message, attributes, notes, cause and the traceback into the function are kept."""
    gate = Gate(broken, shut=True)
    fn = flavour.decorate(gate, batch_size=3, timeout_ms=60_000)
    futures = [flavour.start(fn, index) for index in range(3)]
    gate.open()
    errors = [future.exception(PATIENCE_S) for future in futures]
    assert len({id(error) for error in errors}) == 3
    for error in errors:
        assert isinstance(error, OwnError)
        assert (str(error), error.code, error.__notes__) == ("code 7", 7, ["note"])
        assert isinstance(error.__cause__, KeyError)
        frames = [frame.name for frame in traceback.extract_tb(error.__traceback__)]
        assert frames[-2:] == ["__call__", "broken"]
        assert not {"_run", "_work"} & set(frames)


def test_a_failing_batch_fails_only_its_own_callers(flavour: Flavour) -> None:
    """The next batch on the same worker is untouched, a hundred times over."""

    def positive(items: list[int]) -> list[int]:
        if min(items) < 0:
            raise ValueError("negative")
        return items

    fn = flavour.decorate(positive, timeout_ms=0)
    for item in range(100):
        with pytest.raises(ValueError, match="^negative$"):
            flavour.call(fn, -1)
        assert flavour.call(fn, item) == item


def test_an_exception_as_a_result_fails_its_own_item(flavour: Flavour) -> None:
    """The neighbours in the batch get their results."""
    gate = Gate(lambda xs: [OwnError(x) if x < 0 else x for x in xs], shut=True)
    fn = flavour.decorate(gate, batch_size=3, timeout_ms=60_000)
    futures = [flavour.start(fn, item) for item in (1, -2, 3)]
    gate.open()
    assert futures[0].result(PATIENCE_S) == 1
    with pytest.raises(OwnError, match="^code -2$"):
        futures[1].result(PATIENCE_S)
    assert futures[2].result(PATIENCE_S) == 3
    assert fn.stats.total_failed == 1


def test_a_list_fails_with_its_first_failing_item_and_the_rest_is_dropped(flavour: Flavour) -> None:
    """What of it has not started never runs."""
    gate = Gate(lambda xs: [OwnError(x) if x in (3, 4) else x for x in xs])
    fn = flavour.decorate(gate, batch_size=4, timeout_ms=0)
    with pytest.raises(OwnError, match="^code 3$"):
        flavour.call(fn, list(range(12)))
    assert flavour.call(fn, 5) == 5
    assert gate.batches == [[0, 1, 2, 3], [5]]
    assert fn.stats.total_cancelled == 8


def test_return_exceptions_leaves_them_in_their_places(flavour: Flavour) -> None:
    """As `asyncio.gather` does: failing items, failing batches, and a failing single."""

    def picky(items: list[int]) -> list[Any]:
        if 5 in items:
            raise ValueError("five")
        return [OwnError(item) if item == 1 else item for item in items]

    fn = flavour.decorate(picky, batch_size=2, timeout_ms=0).options(return_exceptions=True)
    answer = flavour.call(fn, [0, 1, 2, 3, 4, 5, 6])
    assert [0, OwnError, 2, 3, ValueError, ValueError, 6] == [
        type(row) if isinstance(row, Exception) else row for row in answer
    ]
    assert isinstance(flavour.call(fn, 1), OwnError)
    assert isinstance(flavour.call(fn, 5), ValueError)
    assert flavour.call(fn, [1])[0].code == 1


def test_errors_that_are_returned_are_each_callers_own(flavour: Flavour) -> None:
    """As those that are raised: of a failing batch, a failing item, a list, two equal items of a cache."""
    found = ValueError("found"), KeyError("raised")

    def picky(items: list[str]) -> list[Any]:
        if "raise" in items or "raise too" in items:
            raise found[1]
        return [found[0]] * len(items)

    for options in ({}, {"cache": {}}):
        gate = Gate(picky, shut=True)
        fn = flavour.decorate(gate, batch_size=5, timeout_ms=0, **options)
        view = fn.options(return_exceptions=True)
        first = flavour.start(view, "first")
        gate.wait_for_batch()
        futures = [flavour.start(view, asked) for asked in ("a", "d", ["b", "c", "b"])]
        gate.let_through(2)
        errors: list[Any] = [first.result(PATIENCE_S), *found]
        for future in futures:
            answer = future.result(PATIENCE_S)
            errors += answer if isinstance(answer, list) else [answer]
        futures = [flavour.start(view, asked) for asked in ("raise", "raise too")]
        gate.open()
        errors += [future.result(PATIENCE_S) for future in futures]
        assert list(map(type, errors)) == [ValueError] * 2 + [KeyError] + [ValueError] * 5 + [KeyError] * 2
        assert len(set(map(id, errors))) == len(errors)


def test_a_list_of_another_kind_is_what_it_iterates_over(flavour: Flavour) -> None:
    """However it is cut or indexed."""

    class Doubled(list[int]):
        def __iter__(self) -> Iterator[int]:
            return (2 * item for item in range(len(self)))

    fn = flavour.decorate(lambda items: list(items), batch_size=2, timeout_ms=0)
    assert flavour.call(fn, Doubled([0, 1, 2, 3, 4])) == [0, 2, 4, 6, 8]


def test_the_result_of_one_item_is_the_functions_own_even_a_list(flavour: Flavour) -> None:
    """No more is done to it with `return_exceptions` than without."""
    row = [1, OwnError(2)]
    fn = flavour.decorate(lambda items: [row for _ in items], timeout_ms=0)
    assert flavour.call(fn, 1) is row
    assert flavour.call(fn.options(return_exceptions=True), 1) is row


@pytest.mark.parametrize("kind", [SystemExit, KeyboardInterrupt, GeneratorExit, StopIteration, BaseException])
def test_whatever_is_raised_reaches_the_caller_and_not_the_worker(
    flavour: Flavour, kind: type[BaseException]
) -> None:
    """A task is spared what would break its event loop: it gets a BatchError from it."""

    def fatal(items: list[int]) -> list[int]:
        if 0 in items:
            raise kind("stop")
        return items

    fn = flavour.decorate(fatal, timeout_ms=0)
    if kind is StopIteration and flavour.name == "aio":
        kind = RuntimeError  # Python's own doing, for a coroutine that raises it
    error = flavour.start(fn, 0).exception(PATIENCE_S)
    if flavour.in_tasks and kind is not RuntimeError:
        assert isinstance(error, BatchError)
        error = error.__cause__
    assert type(error) is kind
    assert flavour.call(fn, 1) == 1


def test_an_error_that_cannot_be_copied_arrives_as_a_batch_error(flavour: Flavour) -> None:
    """The original is its cause."""

    class Stubborn(Exception):
        __dict__ = None  # type: ignore[assignment]

    def fail(items: list[Any]) -> list[Any]:
        error = Stubborn("x")
        raise error

    fn = flavour.decorate(fail, timeout_ms=0)
    error = flavour.start(fn, 1).exception(PATIENCE_S)
    assert isinstance(error, BatchError)
    assert isinstance(error.__cause__, Stubborn)


def test_an_error_keeps_its_own_context_even_where_another_is_handled(flavour: Flavour) -> None:
    """Calling from an `except` block must not overwrite what the function was handling."""

    def fail(items: list[Any]) -> list[Any]:
        try:
            raise KeyError("inner")
        except KeyError:
            raise OwnError(1)  # noqa: B904

    fn = flavour.decorate(fail, timeout_ms=0)

    async def awaiting() -> BaseException | None:
        try:
            raise OSError("outer")
        except OSError:
            try:
                await fn.acall(1)
            except OwnError as error:
                return error.__context__
        return None

    def blocking() -> BaseException | None:
        try:
            raise OSError("outer")
        except OSError:
            try:
                fn(1)
            except OwnError as error:
                return error.__context__
        return None

    assert isinstance(asyncio.run(awaiting()) if flavour.in_tasks else blocking(), KeyError)


# -- leaving and being late -----------------------------------------------------------------------------


def test_a_cancelled_call_never_runs_and_its_place_is_refilled(flavour: Flavour) -> None:
    """Behind four cancelled callers, four live ones make one full batch."""
    if not flavour.cancels:
        pytest.skip("a blocked thread has no cancel")
    gate, fn, _ = hold(flavour, batch_size=4, timeout_ms=60_000)
    gone = [flavour.start(fn, "gone") for _ in range(4)]
    live = [flavour.start(fn, index) for index in range(4)]
    for future in gone:
        flavour.cancel(future)
    assert all(future.cancelled() for future in gone)
    gate.open()
    assert [future.result(PATIENCE_S) for future in live] == [0, 1, 2, 3]
    assert gate.batches[1:] == [[0, 1, 2, 3]]
    assert fn.stats.total_cancelled == 4


def test_a_cancelled_caller_of_a_running_batch_harms_nobody(flavour: Flavour) -> None:
    """It is free at once, while the batch still runs; the others get their answers."""
    if not flavour.cancels:
        pytest.skip("a blocked thread has no cancel")
    gate = Gate(shut=True)
    fn = flavour.decorate(gate, batch_size=3, timeout_ms=60_000)
    futures = [flavour.start(fn, index) for index in range(3)]
    gate.wait_for_batch()
    flavour.cancel(futures[1])
    with pytest.raises(CancelledError):
        futures[1].result(0)
    gate.open()
    assert [futures[0].result(PATIENCE_S), futures[2].result(PATIENCE_S)] == [0, 2]
    assert flavour.call(fn, [7, 8, 9]) == [7, 8, 9]


def test_a_random_half_cancelled_leaves_the_other_half_whole(flavour: Flavour) -> None:
    """Of 400 calls every one that stays gets its own answer."""
    if not flavour.cancels:
        pytest.skip("a blocked thread has no cancel")
    gate, fn, _ = hold(flavour, batch_size=16, timeout_ms=0)
    futures = [flavour.start(fn, index) for index in range(400)]
    gone = set(random.Random(1).sample(range(400), 200))
    for index in gone:
        flavour.cancel(futures[index])
    gate.open()
    for index, future in enumerate(futures):
        if index not in gone:
            assert future.result(PATIENCE_S) == index
    assert not gone & {item for batch in gate.batches for item in batch}


def test_a_deadline_frees_the_caller_while_the_worker_is_busy(flavour: Flavour) -> None:
    """The item that was late is never executed."""
    gate, fn, first = hold(flavour, batch_size=1, timeout_ms=0)
    late = flavour.start(fn.options(deadline_ms=20), "late")
    if flavour.name != "submit":  # a future's wait is bounded by its caller
        with pytest.raises(TimeoutError, match="deadline_ms=20"):
            late.result(PATIENCE_S)
    else:
        wait([late], timeout=0.05)
    gate.open()
    assert first.result(PATIENCE_S) == ["first"]
    with pytest.raises(TimeoutError, match="deadline_ms=20"):
        late.result(PATIENCE_S)
    assert flavour.call(fn, "next") == "next"
    assert gate.batches == [["first"], ["next"]]
    assert fn.stats.total_expired == 1


def test_a_deadline_shorter_than_the_window_is_met(flavour: Flavour) -> None:
    """No caller times out only because it was made to wait for company."""
    fn = flavour.decorate(Gate(), batch_size=4, timeout_ms=60_000)
    assert flavour.call(fn.options(deadline_ms=1000), 1) == 1


@pytest.mark.parametrize("value", [0, -1, float("nan"), "5", True, [5]])
def test_a_senseless_deadline_is_refused(flavour: Flavour, value: Any) -> None:
    """The value is in the message, whatever has been asked for before; nothing else is shown with it."""
    fn = flavour.decorate(Gate())
    fn.options(deadline_ms=1)  # which is equal to True
    with pytest.raises((TypeError, ValueError), match="deadline_ms must be") as caught:
        fn.options(deadline_ms=value)
    assert caught.value.__context__ is None
    with pytest.raises(ValueError, match="'urgent'"):
        fn.options(priority="urgent")


# -- faults of this library ------------------------------------------------------------------------------


@pytest.mark.parametrize("where", ["finish", "plan", "pop", "learn", "push_all"])
@pytest.mark.parametrize(
    "options",
    [{}, {"max_queue_size": 10}, {"group_by": str}, {"cache": True}, {"length": len}],
    ids=lambda options: next(iter(options), "plain"),
)
def test_nobody_hangs_on_a_fault_of_this_library(
    flavour: Flavour,
    monkeypatch: pytest.MonkeyPatch,
    caplog: pytest.LogCaptureFixture,
    where: str,
    options: dict[str, Any],
) -> None:
    """Whoever calls has an answer, the fault if need be; it is logged, and later calls are answered."""
    if "cache" in options:
        options = {"cache": {}}
    gate, fn, first = hold(flavour, batch_size=2, timeout_ms=0, **options)
    futures = [flavour.start(fn, item) for item in ("second", ["third", "fourth", "fifth"], "sixth")]
    fault = ZeroDivisionError("a fault")
    armed = [fault]

    def break_once(cls: type) -> None:
        right = getattr(cls, where)

        def wrong(self: Any, *args: Any) -> Any:
            # A batcher of an earlier test may be about to end meanwhile, and is not to take the fault.
            known = batchers(fn)
            if not armed or not any(
                self in (each, each.next_batch, each.running, each.calls.queue) for each in known
            ):
                return right(self, *args)
            if where == "push_all":
                right(self, *(arg[:1] for arg in args))  # half-way through
            raise armed.pop()

        monkeypatch.setattr(cls, where, wrong)

    places: dict[str, tuple[type, ...]] = {
        "push_all": (Queue, KeyedQueues),
        "learn": (NextBatch,),
        "finish": (Running,),
    }
    for cls in places.get(where, (Batcher,)):
        break_once(cls)
    futures += [flavour.start(fn, item) for item in ("seventh", ["eighth", "ninth"])]
    gate.open()
    for future in [first, *futures]:
        with contextlib.suppress(ZeroDivisionError):
            future.result(PATIENCE_S)
    assert not armed
    assert flavour.call(fn, "later") == "later"
    until(lambda: fn.stats.queue_size == fn.stats.running_items == 0)
    stats = fn.stats
    assert stats.total_accepted == stats.total_processed + stats.total_cancelled + stats.total_expired
    assert any(record.exc_info and record.exc_info[1] is fault for record in caplog.records)


class Finalized:
    """An item whose finalizer asks the batcher, as code that reports does."""

    def __init__(self, fn: Any, seen: list[Any]) -> None:
        self.fn = fn
        self.seen = seen

    def __del__(self) -> None:
        self.seen.append(self.fn.stats)


@pytest.mark.parametrize("fails", [False, True], ids=["answered", "failed"])
@pytest.mark.parametrize("count", [None, 1, 5], ids=["one", "list", "long list"])
def test_a_finalizer_of_an_item_may_ask_the_batcher(flavour: Flavour, count: int | None, fails: bool) -> None:
    """No lock is held while items that are answered are forgotten: neither worker nor loop stands still."""

    def answer(items: list[Any]) -> list[int]:
        if fails:
            raise ValueError
        return [1] * len(items)

    fn = flavour.decorate(answer, batch_size=2, timeout_ms=0)
    seen: list[Any] = []
    with contextlib.suppress(ValueError):
        if count is None:
            flavour.call(fn, Finalized(fn, seen))
        else:
            flavour.call(fn, [Finalized(fn, seen) for _ in range(count)])
    until(lambda: gc.collect() is not None and len(seen) == (count or 1))
    if not fails:
        assert flavour.call(fn, 1) == 1


class Answer:
    """A result with a finalizer that asks the batcher."""

    def __init__(self, fn: Any) -> None:
        self.fn = fn

    def __del__(self) -> None:
        self.fn().stats  # noqa: B018


def test_a_finalizer_of_a_result_may_ask_the_batcher(flavour: Flavour) -> None:
    """Also of a call that had a deadline, while others wait: no lock is held while it is forgotten."""
    found: list[Any] = []
    gate = Gate(lambda items: [Answer(lambda: found[0]) for _ in items], shut=True)
    fn = flavour.decorate(gate, batch_size=2, timeout_ms=0)
    found.append(fn)
    futures = [flavour.start(fn.options(deadline_ms=60_000), item) for item in range(6)]
    gate.open()
    while futures:
        futures.pop(0).result(PATIENCE_S)
    assert fn.stats.total_processed == 6
    found.append(None)


# -- the end --------------------------------------------------------------------------------------------


def test_closing_runs_what_is_queued_and_refuses_what_comes_later(flavour: Flavour) -> None:
    """Every future is done; later calls raise a ClosedError, a RuntimeError, and never wait."""
    gate, fn, first = hold(flavour, batch_size=4, timeout_ms=60_000)
    queued = [flavour.start(fn, index) for index in range(3)]
    gate.open()
    flavour.close(fn)
    assert [future.result(0.5) for future in (first, *queued)] == [["first"] * 4, 0, 1, 2]
    with pytest.raises(ClosedError, match="was shut down"):
        flavour.call(fn, 1)
    flavour.close(fn)


def test_a_call_from_inside_the_batch_function_is_an_error(flavour: Flavour) -> None:
    """It would wait for itself; the outer caller gets that error, and the worker goes on."""
    if not flavour.blocks:
        pytest.skip("see test_aio: a function that does not await cannot wait for itself")
    fn: Any = None

    def again(items: list[int]) -> list[int]:
        if 0 in items:
            fn(1)
        return items

    fn = flavour.decorate(again, timeout_ms=0)
    with pytest.raises(RuntimeError, match="from inside its own batch function"):
        flavour.call(fn, 0)
    assert flavour.call(fn, 2) == 2


def test_another_batcher_may_be_called_from_a_batch_function(flavour: Flavour) -> None:
    """Re-entrance is a matter of one batcher, not of all."""
    if not flavour.blocks:
        pytest.skip("see test_aio")
    inner = flavour.decorate(lambda xs: [x + 1 for x in xs], timeout_ms=0)
    outer = flavour.decorate(lambda xs: inner(xs), timeout_ms=0)
    assert flavour.call(outer, [1, 2]) == [2, 3]


def test_everyone_gets_their_own_answer(flavour: Flavour) -> None:
    """A random mix of singles, lists and failing items, from many callers at once."""

    def answer(items: list[int]) -> list[Any]:
        return [OwnError(item) if item % 17 == 0 else item * 3 for item in items]

    fn = flavour.decorate(answer, batch_size=5, timeout_ms=0.1)
    rng = random.Random(2)
    asked = [rng.randrange(1000) if rng.random() < 0.7 else rng.sample(range(1000), 9) for _ in range(200)]
    futures = [flavour.start(fn.options(return_exceptions=True), items) for items in asked]
    for items, future in zip(asked, futures, strict=True):
        rows = future.result(PATIENCE_S)
        pairs = [(items, rows)] if isinstance(items, int) else zip(items, rows, strict=True)
        for item, row in pairs:
            assert row.code == item if item % 17 == 0 else row == item * 3
    stats = fn.stats
    assert (
        stats.total_accepted
        == stats.total_processed
        == sum(1 if isinstance(items, int) else len(items) for items in asked)
    )
    assert stats.avg_batch_size == stats.total_processed / stats.total_batches
    assert stats.avg_processing_time > 0


def test_options_of_a_view_add_to_those_it_was_made_of(flavour: Flavour) -> None:
    """Until they are given again: None takes a deadline back."""
    gate = Gate(shut=True)
    fn = flavour.decorate(gate, batch_size=1, timeout_ms=0, small_batch_threshold=1)
    first = flavour.start(fn, 0)
    gate.wait_for_batch()
    late = fn.options(deadline_ms=1, return_exceptions=True)
    futures = [
        flavour.start(view, item)
        for item, view in enumerate(
            [
                late.options(priority="bulk").options(),
                late.options(priority="bulk").options(deadline_ms=None),
                late.options(priority="bulk", deadline_ms=None).options(priority="interactive"),
            ],
            1,
        )
    ]
    until(lambda: fn.stats.total_accepted == 4)
    asked = time.monotonic()
    until(lambda: time.monotonic() > asked + 0.001)
    gate.open()
    assert first.result(PATIENCE_S) == 0
    with pytest.raises(TimeoutError):
        futures[0].result(PATIENCE_S)
    assert [future.result(PATIENCE_S) for future in futures[1:]] == [2, 3]
    assert gate.batches == [[0], [3], [2]]


# -- map ------------------------------------------------------------------------------------------------


def test_map_answers_every_item_in_order(flavour: Flavour) -> None:
    """Each element is one item, even a list; any iterable will do."""
    fn = flavour.decorate(Gate(), batch_size=4, timeout_ms=0)
    assert flavour.map(fn, range(50)) == list(range(50))
    assert flavour.map(fn, iter([[1], [2, 3], None])) == [[1], [2, 3], None]
    assert flavour.map(fn, []) == []
    assert flavour.map(fn.options(deadline_ms=20_000), range(50)) == list(range(50))


def test_a_failing_item_of_map_raises_at_its_place(flavour: Flavour) -> None:
    """What comes before it is there, and with `return_exceptions` what comes after it too."""
    fn = flavour.decorate(lambda xs: [OwnError(x) if x == 5 else x for x in xs], batch_size=4, timeout_ms=0)
    seen = []

    def source() -> Any:
        for item in range(20):
            seen.append(item)
            yield item

    with pytest.raises(OwnError, match="code 5"):
        flavour.map(fn, source())
    assert len(seen) < 20
    rows = flavour.map(fn.options(return_exceptions=True), range(8))
    assert [type(row) is OwnError for row in rows] == [row == 5 for row in range(8)]


def test_an_error_of_the_source_comes_after_the_answers_before_it(flavour: Flavour) -> None:
    """As with the builtin map."""

    def source() -> Any:
        yield from range(6)
        raise OSError("no more")

    fn = flavour.decorate(Gate(), batch_size=4, timeout_ms=0)
    if flavour.in_tasks:
        with pytest.raises(OSError, match="no more"):
            flavour.map(fn, source())
        return
    answers = fn.map(source())
    assert [next(answers) for _ in range(6)] == list(range(6))
    with pytest.raises(OSError, match="no more"):
        next(answers)


@pytest.mark.parametrize("awaits", [False, True])
def test_an_error_keeps_nothing_alive_once_its_caller_has_dropped_it(flavour: Flavour, awaits: bool) -> None:
    """No cycle through its traceback: a failing batch's tensors are free at once, without the collector."""

    class Tensor:
        pass

    tensors: list[weakref.ref[Tensor]] = []

    def fail(items: list[Any]) -> list[Any]:
        tensor = Tensor()
        tensors.append(weakref.ref(tensor))
        raise ValueError(items)

    async def fail_too(items: list[Any]) -> list[Any]:
        return fail(items)

    fn = flavour.decorate(fail_too if awaits else fail, timeout_ms=0)

    async def handle() -> None:
        with contextlib.suppress(ValueError):
            await fn.acall(1)

    gc.disable()
    try:
        for _ in range(3):
            if flavour.in_tasks:
                asyncio.run(handle())
            else:
                with contextlib.suppress(ValueError):
                    fn(1)
        until(lambda: [tensor() for tensor in tensors] == [None, None, None])
    finally:
        gc.enable()


@pytest.mark.parametrize("array", [np.ones, torch.ones], ids=["numpy", "torch"])
def test_rows_of_one_array_are_each_callers_own(flavour: Flavour, array: Any) -> None:
    """Changing one changes no other, keeping one keeps no other, and the function may reuse its buffer."""
    buffer = array((4, 1000))
    gate = Gate(lambda xs: buffer[: len(xs)], shut=True)
    fn = flavour.decorate(gate, batch_size=4, timeout_ms=60_000)
    futures = [flavour.start(fn, index) for index in range(4)]
    gate.open()
    first, *others = [future.result(PATIENCE_S) for future in futures]
    first += 1
    buffer[:] = 9
    assert all(float(row.sum()) == 1000 for row in others)
    assert float(first.sum()) == 2000
    assert len(pickle.dumps(first)) < 12_000


def test_an_async_source_may_be_cancelled_from_inside(flavour: Flavour) -> None:
    """Whatever it raises reaches the consumer after the answers before it; nothing waits for ever."""
    if not flavour.in_tasks:
        pytest.skip("only `amap` has one")
    fn = flavour.decorate(Gate(), timeout_ms=0)

    async def consume(error: BaseException) -> list[Any]:
        async def source() -> Any:
            yield 1
            raise error

        seen: list[Any] = []
        try:
            async for answer in fn.amap(source()):
                seen.append(answer)
        except BaseException as caught:
            seen.append(type(caught))
        return seen

    for error in (asyncio.CancelledError(), BaseException("x"), GeneratorExit(), OSError()):
        seen = asyncio.run(asyncio.wait_for(consume(error), PATIENCE_S))
        assert seen == [1, type(error)]
