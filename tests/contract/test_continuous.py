"""`continuous=True`: a batch is refilled while it runs, and each caller has the pieces of its own item."""

from __future__ import annotations

import asyncio
import gc
import threading
import weakref
from collections.abc import AsyncIterator, Iterator
from itertools import count
from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

import batched
from batched import DONE, aio
from batched._core.batch import Batch
from batched._core.queue import Queue
from batched._core.stream_batcher import StreamBatcher
from tests.kit.effort import times
from tests.kit.flavours import Flavour
from tests.kit.gate import PATIENCE_S, until
from tests.kit.pooled import needs_workers
from tests.kit.refilled import Refilled, pieces_of, so_many
from tests.kit.stats import check_sums


def decorate(streaming: Flavour, rows: Any, **options: Any) -> Any:
    """Return `rows` batched, refilled."""
    return streaming.decorate(rows, continuous=True, **options)


def read(streaming: Flavour, fn: Any, items: list[Any]) -> list[list[Any]]:
    """Return the pieces of `items`, of which all streams are open before one is read."""
    streams = [streaming.stream(fn, item) for item in items]
    return [list(stream) for stream in streams]


async def asynchronous(items: list[Any]) -> AsyncIterator[list[Any]]:
    """Yield the pieces of `so_many`."""
    steps = Refilled(so_many)(items)
    pieces = next(steps)
    while True:
        change = yield pieces
        await asyncio.sleep(0)
        pieces = steps.send(change)  # type: ignore[attr-defined]


@given(
    lengths=st.lists(st.integers(0, 9), min_size=1, max_size=14),
    batch_size=st.integers(1, 5),
    max_joining=st.sampled_from([None, 1, 2]),
    awaits=st.booleans(),
)
@settings(max_examples=times(80), suppress_health_check=[HealthCheck.function_scoped_fixture])
def test_every_caller_gets_the_pieces_of_its_own_item(
    streaming: Flavour, lengths: list[int], batch_size: int, max_joining: int | None, awaits: bool
) -> None:
    """In order, whatever joins and leaves beside it; and no step has more items than a batch may."""
    rows = Refilled(so_many)
    fn = decorate(streaming, asynchronous if awaits else rows, batch_size=batch_size, max_joining=max_joining)
    assert read(streaming, fn, lengths) == [pieces_of(length) for length in lengths]
    until(lambda: not fn.stats.running_items)
    stats = fn.stats
    assert (stats.total_accepted, stats.total_processed, stats.total_failed) == (len(lengths),) * 2 + (0,)
    assert stats.batch_size.max <= batch_size
    if not awaits:
        assert stats.total_joined == len(lengths) - sum(map(len, rows.began))
        assert stats.total_batches == len(rows.live)
        assert stats.wait.count == len(lengths)
    streaming.close(fn)


def test_an_item_joins_in_the_place_of_one_that_has_ended(streaming: Flavour) -> None:
    """At the next step, while the others go on; the function is told where."""
    rows = Refilled(so_many, shut=True)
    fn = decorate(streaming, rows, batch_size=2)
    first = streaming.stream(fn, 1)
    rows.wait_for_step()
    others = [streaming.stream(fn, item) for item in (9, 2)]
    rows.open()
    assert list(first) == pieces_of(1)
    assert [list(stream) for stream in others] == [pieces_of(9), pieces_of(2)]
    rows.wait_for_end()
    assert rows.began == [[1]]
    assert rows.live[:4] == [[1], [1, 9], [9, 2], [9, 2]]
    told = [change for change in rows.changes if change]
    assert [(change.left, change.joined) for change in told] == [((), (9,)), ((0,), (2,)), ((1,), ())]


def test_that_nothing_has_changed_is_cheap_to_see(streaming: Flavour) -> None:
    """It is false, and one object."""
    rows = Refilled(so_many)
    fn = decorate(streaming, rows, batch_size=2)
    assert read(streaming, fn, [6]) == [pieces_of(6)]
    assert rows.changes[1:6] == [batched.Change()] * 5
    assert not any(rows.changes[:6])
    assert len({id(change) for change in rows.changes[:6]}) == 1


def test_the_place_of_a_caller_that_leaves_is_free_at_the_next_step(streaming: Flavour) -> None:
    """Nothing more is made for it."""
    rows = Refilled(lambda item, step: (item, step), shut=True)
    fn = decorate(streaming, rows, batch_size=2)
    stays, leaves = streaming.stream(fn, "stays"), streaming.stream(fn, "leaves")
    rows.wait_for_step()
    until(lambda: fn.stats.total_accepted == 2)
    waits = streaming.stream(fn, "waits")
    rows.let_through()
    next(leaves if "leaves" in rows.live[0] else stays)
    leaves.close()
    rows.let_through(2)
    assert next(waits) == ("waits", 0)
    assert "leaves" not in rows.live[-1]
    stays.close()
    waits.close()
    rows.open()
    rows.wait_for_end()
    until(lambda: fn.stats.total_processed == 3)


def test_an_item_that_is_late_leaves(streaming: Flavour) -> None:
    """Its consumer gets `TimeoutError`; the others go on."""
    rows = Refilled(lambda item, step: (item, step) if item == "late" or step < 400 else DONE)
    fn = decorate(streaming, rows, batch_size=2, max_pieces=1_000_000_000)
    other = streaming.stream(fn, "other")
    assert next(other) == ("other", 0)
    late = streaming.stream(fn.options(deadline_ms=50), "late")
    with pytest.raises(TimeoutError, match="within deadline_ms=50"):
        for _ in late:
            pass
    assert len(list(other)) == 399
    rows.wait_for_end()  # else it would run on for the one that is late
    until(lambda: fn.stats.total_accepted == 2 and not fn.stats.running_items)


def test_a_call_that_is_late_amid_its_batch_is_answered(streaming: Flavour) -> None:
    """Also a future, for which no caller looks at the deadline: it has left the batch for good."""
    rows = Refilled(lambda item, step: (item, step))
    fn = decorate(streaming, rows)
    late = fn.options(deadline_ms=50)
    while not rows.began:  # on a busy machine a call may be late before it is in a batch
        call = late.submit("late") if streaming.blocks else streaming.start(late, "late")
        with pytest.raises(TimeoutError, match="within deadline_ms=50"):
            call.result(PATIENCE_S)
    rows.wait_for_end()
    check_sums(fn)


def test_an_exception_in_the_place_of_a_piece_is_of_one_item(streaming: Flavour) -> None:
    """Its place is free for another."""
    rows = Refilled(lambda item, step: ValueError(item) if item == "bad" and step else (item, step))
    fn = decorate(streaming, rows, batch_size=2, max_pieces=1_000_000_000)
    good = streaming.stream(fn, "good")
    assert next(good) == ("good", 0)
    bad = streaming.stream(fn, "bad")
    assert next(bad) == ("bad", 0)
    with pytest.raises(ValueError, match="bad"):
        next(bad)
    another = streaming.stream(fn, "another")
    assert next(another) == ("another", 0)
    good.close()
    another.close()
    until(lambda: fn.stats.total_processed == 3)
    assert fn.stats.total_failed == 1
    assert rows.began == [["good"]]


def test_a_fault_of_the_function_is_of_what_is_live(streaming: Flavour) -> None:
    """What has ended keeps its pieces, what waits runs in a batch of its own."""
    rows = Refilled(lambda item, step: 1 / 0 if item == "poison" else so_many(item, step), shut=True)
    fn = decorate(streaming, rows, batch_size=2)
    short, long = (streaming.stream(fn, item) for item in (1, 50))
    rows.wait_for_step()
    until(lambda: fn.stats.total_accepted == 2 or fn.stats.queue_size)
    poison = streaming.stream(fn, "poison")
    waits = streaming.stream(fn, 3)
    rows.open()
    assert list(short) == pieces_of(1)
    with pytest.raises(ZeroDivisionError):
        list(poison)
    assert list(waits) == pieces_of(3)
    if [1, 50] in rows.live:
        with pytest.raises(ZeroDivisionError):
            list(long)
    until(lambda: not fn.stats.running_items)
    assert fn.stats.total_processed == 4
    assert fn.stats.total_accepted == 4


def test_with_nothing_left_the_generator_is_closed_and_begins_anew(streaming: Flavour) -> None:
    """An idle function holds no generator."""
    rows = Refilled(so_many)
    fn = decorate(streaming, rows, batch_size=2)
    for length in (2, 1):
        assert read(streaming, fn, [length]) == [pieces_of(length)]
        rows.wait_for_end()
    assert rows.began == [[2], [1]]


def test_a_function_that_ends_by_itself_ends_what_is_live(streaming: Flavour) -> None:
    """What waits begins with a new generator."""

    def twice(items: list[int]) -> Iterator[list[int]]:
        for _ in range(2):
            change = yield list(items)
            items = [item for at, item in enumerate(items) if at not in change.left] + [*change.joined]

    fn = decorate(streaming, twice, batch_size=1)
    assert read(streaming, fn, [5, 6, 7]) == [[5, 5], [6, 6], [7, 7]]
    until(lambda: fn.stats.total_processed == 3)


@pytest.mark.parametrize(("first", "batch_size"), [(0, 1), (9, 2)])
def test_what_joins_as_the_function_ends_begins_with_the_next_generator(
    streaming: Flavour, first: int, batch_size: int
) -> None:
    """It has no piece yet, so it has not ended: also if the function returns because nothing was left."""
    rows = Refilled(so_many, shut=True)
    ends = ["once"]

    def returns(items: list[int]) -> Iterator[Any]:
        steps: Any = rows(items)
        change = yield next(steps)
        while not (change.joined and ends):
            change = yield steps.send(change)
        ends.clear()

    fn = decorate(streaming, returns, batch_size=batch_size)
    live = streaming.stream(fn, first)
    rows.wait_for_step()
    joins = streaming.stream(fn, 3)
    until(lambda: fn.stats.total_accepted == 2)
    rows.open()
    assert list(joins) == pieces_of(3)
    assert list(live) == pieces_of(first)[:1]
    assert rows.began == [[first], [3]]
    check_sums(fn)
    assert fn.stats.total_processed == 2
    assert fn.stats.total_failed == 0
    streaming.close(fn)


def test_only_items_of_one_key_are_live_together_and_keys_take_turns(streaming: Flavour) -> None:
    """Else a key of which items keep coming would hold up all others."""
    rows = Refilled(so_many, shut=True)
    fn = decorate(streaming, rows, batch_size=2, group_by=lambda item: item[1])
    streams = [streaming.stream(fn, (3, "a"))]
    rows.wait_for_step()
    streams += [streaming.stream(fn, item) for item in [(2, "a"), (1, "b"), (2, "a"), (1, "a")]]
    rows.open()
    assert [list(stream) for stream in streams] == [
        pieces_of(item) for item in [(3, "a"), (2, "a"), (1, "b"), (2, "a"), (1, "a")]
    ]
    assert all(len({key for _, key in live}) == 1 for live in rows.live)
    keys = [live[0][1] for live in rows.live]
    assert [key for at, key in enumerate(keys) if not at or keys[at - 1] != key] == ["a", "b", "a"]


def test_a_key_of_bulk_items_alone_keeps_no_small_one_from_joining(streaming: Flavour) -> None:
    """Those of another key go ahead of it, until it is its turn."""
    rows = Refilled(so_many, shut=True)
    fn = decorate(streaming, rows, batch_size=2, group_by=lambda item: item[1])
    streams = [streaming.stream(fn, (200, "a"))]
    rows.wait_for_step()
    streams.append(streaming.stream(fn.options(priority="bulk"), (1, "b")))
    until(lambda: fn.stats.total_accepted == 2)
    streams += [streaming.stream(fn, (2, "a", at)) for at in range(30)]
    until(lambda: fn.stats.total_accepted == 32)
    rows.open()
    assert [list(stream) for stream in streams] == [
        pieces_of(item) for item in [(200, "a"), (1, "b"), *((2, "a", at) for at in range(30))]
    ]
    assert [(200, "a"), (2, "a", 0)] in rows.live
    order = list(dict.fromkeys(item for live in rows.live for item in live))
    assert order.index((1, "b")) < len(order) - 1


def test_a_budget_of_length_is_of_what_is_live(streaming: Flavour) -> None:
    """An item waits until there is room for it, and none goes ahead of it."""
    rows = Refilled(lambda item, step: item if step < 3 else DONE, shut=True)
    fn = decorate(streaming, rows, batch_size=9, max_batch_length=10)
    streams = [streaming.stream(fn, "six..."), streaming.stream(fn, "seven..")]
    rows.wait_for_step()
    streams += [streaming.stream(fn, item) for item in ("x", "a" * 12, "y")]
    rows.open()
    assert [list(stream) for stream in streams] == [
        [item] * 3 for item in ("six...", "seven..", "x", "a" * 12, "y")
    ]
    assert all(sum(map(len, live)) <= 10 or len(live) == 1 for live in rows.live)
    order = list(dict.fromkeys(item for live in rows.live for item in live))
    assert order == ["six...", "seven..", "x", "a" * 12, "y"]


def test_a_bulk_item_that_has_no_room_keeps_no_small_one_from_joining(streaming: Flavour) -> None:
    """Those go ahead of it, until it is its turn: then it waits for its room, and none goes ahead."""
    rows = Refilled(so_many, shut=True)
    fn = decorate(streaming, rows, batch_size=9, max_batch_length=10, length=lambda item: item[1])
    streams = [streaming.stream(fn, (60, 5))]
    rows.wait_for_step()
    streams.append(streaming.stream(fn.options(priority="bulk"), (1, 9)))
    streams += [streaming.stream(fn, (2, 3, at)) for at in range(30)]
    until(lambda: fn.stats.total_accepted == 32)
    rows.open()
    assert [list(stream) for stream in streams] == [
        pieces_of(item) for item in [(60, 5), (1, 9), *((2, 3, at) for at in range(30))]
    ]
    assert [(60, 5), (2, 3, 0)] in rows.live
    order = list(dict.fromkeys(item for live in rows.live for item in live))
    assert order.index((1, 9)) < len(order) - 1


@pytest.mark.parametrize(
    ("limit", "joined"),
    [
        ({"max_joining": 2}, [("aa", "bb"), ("cc", "dd"), ("ee",)]),
        ({"max_joining_length": 5}, [("aa", "bb"), ("cc", "dd"), ("ee",)]),
        ({"max_joining_length": 1}, [("aa",), ("bb",), ("cc",), ("dd",), ("ee",)]),
    ],
)
def test_what_joins_at_one_step_is_limited(streaming: Flavour, limit: Any, joined: Any) -> None:
    """By number or by length; a longer item joins alone."""
    rows = Refilled(lambda item, step: item if step < 30 else DONE, shut=True)
    fn = decorate(streaming, rows, batch_size=9, **limit)
    streams = [streaming.stream(fn, "first")]
    rows.wait_for_step()
    streams += [streaming.stream(fn, letter * 2) for letter in "abcde"]
    rows.open()
    assert all(len(list(stream)) == 30 for stream in streams)
    assert [change.joined for change in rows.changes if change.joined] == joined


def test_small_calls_and_tenants_join_in_the_order_of_the_queue(streaming: Flavour) -> None:
    """`priority` puts an item behind the others; tenants take turns."""
    rows = Refilled(so_many, shut=True)
    fn = decorate(streaming, rows, batch_size=1, fair_by=lambda item: item[1])
    bulk = fn.options(priority="bulk")
    streams = [streaming.stream(fn, (1, "a", 0))]
    rows.wait_for_step()
    streams.append(streaming.stream(bulk, (1, "a", "bulk")))
    streams += [streaming.stream(fn, item) for item in [(1, "a", 1), (1, "a", 2), (1, "b", 3)]]
    rows.open()
    for stream in streams:
        list(stream)
    order = list(dict.fromkeys(live[0][2] for live in rows.live))
    assert order.index(3) < order.index(2)
    assert order[-1] == "bulk"


def test_a_place_in_a_bounded_queue_is_free_as_an_item_joins(streaming: Flavour) -> None:
    """A call that waits for room comes in."""
    rows = Refilled(so_many, shut=True)
    fn = decorate(streaming, rows, batch_size=1, max_queue_size=1, on_full="wait")
    items = [2, 3, 1, 2]
    found: dict[int, list[Any]] = {}

    def caller(at: int) -> None:
        found[at] = list(streaming.stream(fn, items[at]))

    threads = [threading.Thread(target=caller, args=(at,), daemon=True) for at in range(len(items))]
    for thread in threads:
        thread.start()
    rows.open()
    for thread in threads:
        thread.join(PATIENCE_S)
    assert [found[at] for at in range(len(items))] == [pieces_of(item) for item in items]


def test_a_batch_function_knows_which_of_its_items_are_over(streaming: Flavour) -> None:
    """A plain stream too, which keeps the places of those that have left."""
    seen: list[list[bool]] = []
    go_on = threading.Event()

    def generate(items: list[str]) -> Iterator[list[str]]:
        yield items
        assert go_on.wait(PATIENCE_S)
        seen.append(batched.current_batch().left)
        yield items

    fn = streaming.decorate(generate, batch_size=2, timeout_ms=60_000)
    stays, leaves = streaming.stream(fn, "stays"), streaming.stream(fn, "leaves")
    assert (next(stays), next(leaves)) == ("stays", "leaves")
    leaves.close()
    go_on.set()
    assert list(stays) == ["stays"]
    assert seen == [[False, True]]


def test_a_batch_function_knows_its_batch_until_it_is_closed(streaming: Flavour) -> None:
    """Which has no items then."""
    seen: list[str] = []
    rows = Refilled(so_many)

    def closes(items: list[int]) -> Iterator[Any]:
        try:
            yield from rows(items)
        finally:
            seen.append(repr(batched.current_batch()))

    fn = decorate(streaming, closes)
    assert read(streaming, fn, [2]) == [pieces_of(2)]
    streaming.close(fn)
    assert seen == ["<batch of 0 items, cancelled>"]


def test_items_of_several_parameters_join_as_tuples(streaming: Flavour) -> None:
    """A function of two lists begins with two lists."""
    joined: list[Any] = []

    go_on = threading.Event()

    def count(names: list[str], limits: list[int]) -> Iterator[list[Any]]:
        assert go_on.wait(PATIENCE_S)
        rows = [[name, limit, 0] for name, limit in zip(names, limits, strict=True)]
        while True:
            pieces = [(name, step) if step < limit else DONE for name, limit, step in rows]
            for row in rows:
                row[2] += 1
            change = yield pieces
            joined.extend(change.joined)
            rows = [row for at, row in enumerate(rows) if at not in change.left]
            rows += [[name, limit, 0] for name, limit in change.joined]

    fn = decorate(streaming, count, batch_size=2)
    streams = [streaming.stream(fn, name, limit) for name, limit in [("a", 2), ("b", 4), ("c", 1)]]
    go_on.set()
    assert [list(stream) for stream in streams] == [
        [(name, step) for step in range(limit)] for name, limit in [("a", 2), ("b", 4), ("c", 1)]
    ]
    assert ("c", 1) in joined


def test_arguments_by_name_join_in_the_order_of_the_parameters(streaming: Flavour) -> None:
    """Not in that of their names, nor of a call; a default of None that is left out has no place."""
    joined: list[Any] = []
    go_on = threading.Event()

    def count(names: list[str], *, most: Any = None, least: Any = None) -> Iterator[list[Any]]:
        assert most is not None or least is not None
        assert go_on.wait(PATIENCE_S)
        live = len(names)
        while True:
            change = yield [DONE] * live
            joined.extend(change.joined)
            live += len(change.joined) - len(change.left)

    fn = decorate(streaming, count, batch_size=1)
    streams = [
        streaming.stream(fn, "a", most=2, least=1),
        streaming.stream(fn, "b", least=1, most=2),
        streaming.stream(fn, "c", least=1),
        streaming.stream(fn, "d", least=1),
    ]
    go_on.set()
    assert [list(stream) for stream in streams] == [[]] * 4
    assert joined == [("b", 2, 1), ("d", 1)]


def test_a_shared_worker_is_given_back_when_another_function_waits(streaming: Flavour) -> None:
    """Though items of the first keep coming: none joins, so that its batch comes to an end."""
    needs_workers(streaming)
    workers = batched.Workers(1)
    rows = Refilled(so_many, shut=True)
    fn = decorate(streaming, rows, batch_size=1, workers=workers)
    other = streaming.decorate(lambda items: items, workers=workers, timeout_ms=0)
    streams = [streaming.stream(fn, (2, 0))]
    rows.wait_for_step()
    answer = streaming.start(other, "other")
    streams.append(streaming.stream(fn, (2, 1)))
    until(lambda: other.stats.queue_size == 1 or other.stats.total_accepted == 1)
    rows.let_through(3)
    assert answer.result(PATIENCE_S) == "other"
    assert rows.live[:3] == [[(2, 0)]] * 3
    rows.open()
    assert [list(stream) for stream in streams] == [pieces_of((2, 0)), pieces_of((2, 1))]
    assert len(rows.began) == 2


def test_a_call_of_another_function_keeps_no_item_from_joining_once_it_has_left(streaming: Flavour) -> None:
    """Nothing waits for the worker then."""
    needs_workers(streaming)
    workers = batched.Workers(1)
    rows = Refilled(so_many, shut=True)
    fn = decorate(streaming, rows, batch_size=2, workers=workers)
    other = streaming.decorate(lambda items: items, workers=workers, timeout_ms=0)
    long = streaming.stream(fn, (40, 0))
    rows.wait_for_step()
    answer = streaming.start(other, "other")
    until(lambda: other.stats.queue_size == 1 or other.stats.total_accepted == 1)
    streaming.cancel(answer)
    joins = streaming.stream(fn, (3, 1))
    until(lambda: fn.stats.total_accepted == 2)
    rows.open()
    assert [list(joins), list(long)] == [pieces_of((3, 1)), pieces_of((40, 0))]
    assert [(40, 0), (3, 1)] in rows.live
    check_sums(other)


def test_shared_workers_count_the_steps_of_a_batch_that_runs(streaming: Flavour) -> None:
    """Each is a batch in their figures too, and an item that joins is an item: the batch may never end."""
    needs_workers(streaming)
    workers = batched.Workers(1)
    rows = Refilled(so_many, shut=True)
    fn = decorate(streaming, rows, batch_size=2, workers=workers, name="texts")
    streams = [streaming.stream(fn, (steps, 0)) for steps in (1, 2, 3, 100_000)]
    rows.open()
    assert [list(stream) for stream in streams[:3]] == [pieces_of((steps, 0)) for steps in (1, 2, 3)]
    next(streams[3])

    def share() -> Any:
        return workers.stats.functions.get("texts")

    until(lambda: share() is not None and share().items == 4)
    assert share().batches >= 3
    assert fn.stats.running_items == 1
    streams[3].close()
    streaming.close(fn)
    until(lambda: share().batches == fn.stats.total_batches)
    assert share().items == fn.stats.total_accepted == 4
    workers.shutdown()


def test_of_several_shared_workers_one_is_given_back(streaming: Flavour) -> None:
    """That of the batch which ends first, though items of its function wait; the other batch runs on."""
    needs_workers(streaming)
    workers = batched.Workers(2)
    first, second = Refilled(so_many, shut=True), Refilled(so_many, shut=True)
    functions = [decorate(streaming, rows, batch_size=1, workers=workers) for rows in (first, second)]
    other = streaming.decorate(lambda items: items, workers=workers, timeout_ms=0)
    streams = [streaming.stream(fn, (2, 0)) for fn in functions]
    for rows in (first, second):
        rows.wait_for_step()
    answer = streaming.start(other, "other")
    streams += [streaming.stream(functions[0], (2, 1))]
    until(lambda: other.stats.queue_size == 1 or other.stats.total_accepted == 1)
    first.let_through(3)
    assert answer.result(PATIENCE_S) == "other"
    assert second.live == [[(2, 0)]]
    second.open()
    first.open()
    assert [list(stream) for stream in streams] == [pieces_of((2, 0)), pieces_of((2, 0)), pieces_of((2, 1))]
    assert (len(first.began), len(second.began)) == (2, 1)


def test_what_cannot_be_told_of_a_change_says_so(streaming: Flavour) -> None:
    """An iterator after `yield from`, in Python's words and with a note."""
    if streaming.name == "aio":
        pytest.skip("an `async def` function has no `yield from`")

    def pieces(items: list[int]) -> Iterator[list[int]]:
        yield from [items, items]

    fn = decorate(streaming, pieces, timeout_ms=0)
    with pytest.raises(AttributeError, match="no attribute 'send'") as caught:
        streaming.call(fn, 1)
    assert "change = yield pieces" in "".join(caught.value.__notes__)


def test_no_other_error_says_what_cannot_be_told(streaming: Flavour) -> None:
    """Not even one of the same words, amid a batch: what has no `send` may be the user's own connection."""
    connection: Any = None

    def pieces(items: list[int]) -> Iterator[list[int]]:
        yield items
        connection.send(items)

    fn = decorate(streaming, pieces, timeout_ms=0)
    with pytest.raises(AttributeError, match="no attribute 'send'") as caught:
        streaming.call(fn, 1)
    assert "change = yield pieces" not in "".join(getattr(caught.value, "__notes__", ()))


def test_the_error_of_a_function_that_goes_on_with_what_has_left_says_what_a_step_has(
    streaming: Flavour,
) -> None:
    """The number of pieces alone would not tell it what it has missed."""

    def forgets(items: list[int]) -> Iterator[list[Any]]:
        for step in count():
            _ = yield [step if step < item else DONE for item in items]

    fn = decorate(streaming, forgets, batch_size=2, max_pieces=1_000_000_000)
    with pytest.raises(batched.BatchError) as caught:
        read(streaming, fn, [10**9, 1])
    assert ["live item" in note for note in caught.value.__notes__] == [True]
    assert "`change.left`" in caught.value.__notes__[0]


def test_out_of_memory_amid_a_batch_teaches_how_many_items_fit(streaming: Flavour) -> None:
    """What is in it fails, as it has begun; later batches have no more items, however many steps fit."""
    have_come = threading.Event()

    def hungry(item: int, step: int) -> Any:
        if len(rows.live[-1]) > 3:
            raise MemoryError
        if item == 200:
            assert have_come.wait(PATIENCE_S)
        return so_many(item, step)

    rows = Refilled(hungry, shut=True)
    fn = decorate(streaming, rows, batch_size=4)
    ahead = streaming.stream(fn, 0)
    rows.wait_for_step()
    streams = [streaming.stream(fn, 3) for _ in range(4)]  # which join together as that one ends
    rows.open()
    assert list(ahead) == []
    for stream in streams:
        with pytest.raises(MemoryError):
            list(stream)
    assert fn.stats.fits_memory == 2
    seen = len(rows.live)
    streams = [streaming.stream(fn, 200) for _ in range(4)]
    until(lambda: fn.stats.total_accepted == 9)
    have_come.set()
    assert [list(stream) for stream in streams] == [pieces_of(200)] * 4
    assert max(map(len, rows.live[seen:])) <= 2
    assert fn.stats.fits_memory == 2


def test_shutdown_runs_what_waits(streaming: Flavour) -> None:
    """In the batch that runs; then no more joins."""
    rows = Refilled(so_many, shut=True)
    fn = decorate(streaming, rows, batch_size=1)
    streams = [streaming.stream(fn, length) for length in (2, 3)]
    rows.wait_for_step()
    closing = threading.Thread(target=streaming.close, args=(fn,), daemon=True)
    closing.start()
    rows.open()
    assert [list(stream) for stream in streams] == [pieces_of(2), pieces_of(3)]
    closing.join(PATIENCE_S)
    assert not closing.is_alive()
    with pytest.raises(batched.ClosedError):
        list(streaming.stream(fn, 1))


def test_each_step_is_a_batch_in_all_figures(streaming: Flavour) -> None:
    """`on_batch` is told of it; the time since the last step is that of a batch that runs."""
    records: list[batched.BatchRecord] = []
    rows = Refilled(so_many, shut=True)
    fn = decorate(streaming, rows, batch_size=2, on_batch=records.append)
    streams = [streaming.stream(fn, length) for length in (2, 4, 3)]
    until(lambda: fn.stats.total_accepted == 3)
    rows.open()
    assert [list(stream) for stream in streams] == [pieces_of(length) for length in (2, 4, 3)]
    streaming.close(fn)
    stats = fn.stats
    until(lambda: len(records) == stats.total_batches)
    assert [record.size for record in records] == list(map(len, rows.live))
    assert sum(len(record.waits_ms) for record in records) == stats.wait.count == 3
    assert sum(stats.closed.values()) == stats.total_batches
    assert stats.closed["step"] == stats.total_batches - len(rows.began)
    assert stats.avg_batch_size == stats.batch_size.mean
    assert stats.batch_size.sum == sum(map(len, rows.live))
    assert stats.running == ()
    if stats.occupancy is not None:
        assert 0 < stats.occupancy <= 1
    assert "joined" in str(stats)


def test_an_item_that_runs_does_not_wait(streaming: Flavour) -> None:
    """What is told of a step is how long that which joined has waited, and not how old the others are."""
    records: list[batched.BatchRecord] = []
    rows = Refilled(so_many, shut=True)
    fn = decorate(streaming, rows, batch_size=2, on_batch=records.append)
    streams = [streaming.stream(fn, 5)]
    rows.wait_for_step()
    streams.append(streaming.stream(fn, 2))
    until(lambda: fn.stats.total_accepted == 2)
    rows.open()
    assert [list(stream) for stream in streams] == [pieces_of(5), pieces_of(2)]
    streaming.close(fn)
    until(lambda: len(records) == fn.stats.total_batches)
    assert [record.waited_ms for record in records] == [
        max(record.waits_ms, default=0.0) for record in records
    ]
    assert sum(len(record.waits_ms) for record in records) == 2
    assert records[-1].waited_ms == 0.0


def picky(item: int, step: int) -> Any:
    """Write a piece, as `so_many` does; raise for 1 and 13."""
    if item in {1, 13}:
        raise ValueError(item)
    return so_many(item, step)


def test_an_item_that_fails_with_the_first_step_is_found(streaming: Flavour) -> None:
    """As in any batch: the others have their pieces, each part with a generator of its own."""
    rows = Refilled(picky, shut=True)
    fn = decorate(streaming, rows, batch_size=4)
    first = streaming.stream(fn, 1)
    rows.wait_for_step()
    streams = [streaming.stream(fn, item) for item in (2, 13, 3)]
    until(lambda: fn.stats.total_accepted == 4)
    rows.open()
    for stream, item in [(first, "1"), (streams[1], "13")]:
        with pytest.raises(ValueError, match=f"^{item}$"):
            list(stream)
    assert [list(streams[0]), list(streams[2])] == [pieces_of(2), pieces_of(3)]
    assert rows.began[:2] == [[1], [2, 13, 3]]


def test_a_part_of_a_batch_that_failed_keeps_no_item_from_joining_once_its_callers_have_left(
    streaming: Flavour,
) -> None:
    """Nothing waits for the end of the other part then."""
    rows = Refilled(picky, shut=True)
    fn = decorate(streaming, rows, batch_size=2)
    first = streaming.stream(fn, 1)
    rows.wait_for_step()
    long, bad = (streaming.stream(fn, item) for item in (40, 13))
    until(lambda: fn.stats.total_accepted == 3)
    rows.let_through(3)  # the first batch, the second, and a part of that
    with pytest.raises(ValueError, match="^1$"):
        list(first)
    assert next(long) == (40, 0)
    bad.close()
    joins = streaming.stream(fn, 3)
    until(lambda: fn.stats.total_accepted == 4)
    rows.open()
    assert [list(joins), list(long)] == [pieces_of(3), pieces_of(40)[1:]]
    assert [40, 3] in rows.live
    check_sums(fn)


def test_an_error_of_the_package_as_items_join_loses_none_of_them(
    streaming: Flavour, monkeypatch: pytest.MonkeyPatch
) -> None:
    """As where memory runs out: what is live has the error, and what was about to join is a new batch."""
    rows = Refilled(so_many, shut=True)
    fn = decorate(streaming, rows, batch_size=2)
    live = streaming.stream(fn, (9, 0))
    rows.wait_for_step()
    waits = [streaming.stream(fn, (3, at)) for at in (1, 2)]
    until(lambda: fn.stats.total_accepted == 3)
    right = Queue.take

    def broken(self: Queue, room: int) -> Batch:
        right(self, room)
        monkeypatch.undo()
        raise MemoryError

    monkeypatch.setattr(Queue, "take", broken)
    rows.open()
    with pytest.raises(MemoryError):
        list(live)
    assert [list(stream) for stream in waits] == [pieces_of((3, at)) for at in (1, 2)]
    check_sums(fn)


class Piece:
    """What can be referred to weakly."""


def test_no_idle_function_keeps_what_has_joined(streaming: Flavour) -> None:
    """Not the pieces that its caller has not taken; nor an error, by which its frames are found."""
    made: list[weakref.ref[Piece]] = []

    def piece(_: Any, step: int) -> Any:
        if step == 3:
            return DONE
        new = Piece()
        made.append(weakref.ref(new))
        return new

    rows = Refilled(piece, shut=True)
    fn = decorate(streaming, rows, batch_size=2)
    first = streaming.stream(fn, "first")
    rows.wait_for_step()
    joins = streaming.stream(fn, "joins")
    rows.open()
    assert len(list(first)) == 3
    rows.wait_for_end()
    until(lambda: not fn.stats.running_items)
    assert (fn.stats.total_joined, len(made)) == (1, 6)
    del first, joins
    gc.collect()
    until(lambda: not any(kept() for kept in made))


@pytest.mark.parametrize("name", ["_hand_out", "_leave", "_join"])
def test_a_ctrl_c_within_a_step_on_a_loop_loses_no_call(monkeypatch: pytest.MonkeyPatch, name: str) -> None:
    """The stream that has ended with it has its end, and so has each of the others, if by the Ctrl-C."""

    async def read(length: int) -> Any:
        return [piece async for piece in fn.astream(length)]

    right = getattr(StreamBatcher, name)

    def interrupted(self: StreamBatcher, *args: Any, **named: Any) -> Any:
        found = right(self, *args, **named)
        if name != "_hand_out" or args[1] is DONE:
            monkeypatch.undo()
            raise KeyboardInterrupt
        return found

    fn = aio.dynamically(asynchronous, batch_size=2, timeout_ms=0, continuous=True)
    loop = asyncio.new_event_loop()
    try:
        monkeypatch.setattr(StreamBatcher, name, interrupted)
        readers = [loop.create_task(read(length)) for length in (2, 4, 3, 2)]
        _, pending = loop.run_until_complete(asyncio.wait(readers, timeout=PATIENCE_S))
        assert not pending
        assert loop.run_until_complete(asyncio.wait_for(read(5), PATIENCE_S)) == pieces_of(5)
        assert [reader.exception() for reader in readers].count(None) < len(readers)
        loop.run_until_complete(asyncio.sleep(0))
        check_sums(fn)
    finally:
        loop.close()


def test_a_ctrl_c_within_a_step_on_a_loop_tells_no_call_that_has_not_ended(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """A task that awaits all pieces has the Ctrl-C as its error, though the function waits as it closes."""
    name = "_hand_out"
    right = getattr(StreamBatcher, name)

    def interrupted(self: StreamBatcher, *args: Any) -> None:
        right(self, *args)
        monkeypatch.undo()
        raise KeyboardInterrupt

    async def waits_to_close(items: list[int]) -> AsyncIterator[list[Any]]:
        try:
            yield items
            yield items
        finally:
            await asyncio.sleep(0)

    async def main() -> None:
        fn: Any = aio.dynamically(waits_to_close, timeout_ms=0)
        monkeypatch.setattr(StreamBatcher, name, interrupted)
        with pytest.raises(batched.BatchError) as raised:
            await asyncio.wait_for(fn(3), PATIENCE_S)
        assert isinstance(raised.value.__cause__, KeyboardInterrupt)
        await fn.aclose()

    asyncio.run(main())
