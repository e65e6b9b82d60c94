"""`map` and `amap`: each element is one item, with an answer or an error of its own at its own place."""

from __future__ import annotations

import asyncio
import contextlib
import gc
import operator
import random
import weakref
from collections.abc import AsyncIterator, Callable, Iterator
from typing import Any

import numpy as np
import pytest
import tqdm
import tqdm.asyncio

import batched
from batched import BatchError, ClosedError
from tests.kit.flavours import Flavour
from tests.kit.gate import PATIENCE_S, Gate, turns, turns_until, until

BAD = 3.5
"""An item that the callbacks below do not take."""


def picky(item: Any) -> int:
    """Take any item but one, as a `length`, `group_by` or `cache_key` may."""
    if item == BAD:
        raise KeyError("no such item")
    return int(item)


def read(flavour: Flavour, fn: Any, *sources: Any) -> tuple[list[Any], BaseException | None]:
    """Return the answers that a map gives, and the error that ends it."""
    answers: list[Any] = []

    async def consume() -> None:
        async for answer in fn.amap(*sources):
            answers.append(answer)

    try:
        if flavour.in_tasks:
            flavour.run(consume())
        else:
            for answer in fn.map(*sources):
                answers.append(answer)  # noqa: PERF402  those before an error are to be kept
    except Exception as error:
        return answers, error
    return answers, None


def noted(items: Any, seen: list[Any]) -> Iterator[Any]:
    """Yield `items`, and note those that have been read."""
    for item in items:
        seen.append(item)
        yield item


async def slowly(items: Any) -> AsyncIterator[Any]:
    """Yield `items`, and let the loop turn between them."""
    for item in items:
        yield item
        await asyncio.sleep(0)


# -- an element that is refused at the door -------------------------------------------------------------

REFUSING: dict[str, dict[str, Any]] = {
    "length": {"length": picky},
    "odd keys": {"group_by": lambda item: picky(item) % 3},
    "negative length": {"length": lambda item: -1 if item == BAD else 1},
    "budget": {"max_batch_length": 50},
    "group_by": {"group_by": picky},
    "cache_key": {"cache": True, "cache_key": picky},
    "no key": {"cache": True},
    "length and group_by": {"length": picky, "group_by": lambda item: int(item) % 3},
    "group_by and length": {"group_by": picky, "length": lambda _: 1},
    "group_by and cache": {"group_by": picky, "cache": True, "cache_key": lambda item: item},
    "length and cache": {"length": picky, "cache": True, "cache_key": lambda item: item},
    "all": {"length": picky, "group_by": picky, "cache": True, "cache_key": picky},
}
ITEMS: dict[str, tuple[Callable[[int], Any], Any]] = {
    "budget": (lambda number: "x" * (number % 5), BAD),
    "no key": (lambda number: number, [BAD]),
}


@pytest.mark.parametrize("how", REFUSING)
@pytest.mark.parametrize("batch_size", [1, 4, 32])
def test_an_element_that_is_refused_fails_alone_at_its_place(
    flavour: Flavour, how: str, batch_size: int
) -> None:
    """With the error of a single call; nothing after it is answered, unless errors are to be returned."""
    options = {**REFUSING[how]}
    if options.get("cache") is True:
        options["cache"] = {}
    fn = flavour.decorate(
        lambda items: [("answer", item) for item in items], batch_size=batch_size, timeout_ms=0, **options
    )
    good, bad = ITEMS.get(how, (lambda number: number, BAD))
    with pytest.raises((BatchError, TypeError), match="failed|must return|cache_key is needed") as single:
        flavour.call(fn, bad if how != "no key" else [bad])
    rng = random.Random(how)
    for share in (0.02, 0.1, 0.5, 1.0):
        items = [bad if rng.random() < share else good(number) for number in range(60)]
        seen: list[Any] = []
        answers, error = read(flavour, fn, noted(items, seen))
        first = items.index(bad) if bad in items else len(items)
        assert answers == [("answer", item) for item in items[:first]]
        assert (None if error is None else str(error)) == (str(single.value) if bad in items else None)
        assert len(seen) <= first + 3 * batch_size
        answers, error = read(flavour, fn.options(return_exceptions=True), items)
        assert error is None
        for item, answer in zip(items, answers, strict=True):
            if item == bad:
                assert (type(answer), str(answer)) == (single.type, str(single.value))
            else:
                assert answer == ("answer", item)


@pytest.mark.parametrize(
    "options",
    [
        {},
        {"group_by": lambda features: features["x"].shape[1] % 2},
        {"cache": True, "cache_key": lambda features: features["x"].tobytes()},
        {"group_by": lambda _: 0, "cache": True, "cache_key": lambda features: features["x"].tobytes()},
    ],
    ids=["plain", "group_by", "cache", "both"],
)
def test_a_malformed_element_of_arrays_fails_alone_at_its_place(
    flavour: Flavour, options: dict[str, Any]
) -> None:
    """Whatever stands in front of the queue."""
    if "cache" in options:
        options = {**options, "cache": {}}
    fn = flavour.decorate_arrays(lambda features: features["x"] * 2, timeout_ms=0, **options)
    items: list[Any] = [{"x": np.full((1, 2), number)} for number in range(9)]
    items[4] = {"x": 3}
    items[6] = 5
    answers, error = read(flavour, fn, items)
    assert [answer.tolist() for answer in answers] == [[[2 * number] * 2] for number in range(4)]
    assert isinstance(error, TypeError)
    assert "'x' must be a numpy array" in str(error)
    answers, error = read(flavour, fn.options(return_exceptions=True), items)
    assert error is None
    assert [type(answer) for answer in answers] == [
        TypeError if number in {4, 6} else np.ndarray for number in range(9)
    ]
    assert [answer.tolist() for answer in answers[7:]] == [[[14] * 2], [[16] * 2]]


def test_where_a_column_is_missing_each_element_is_refused(flavour: Flavour) -> None:
    """The error names the column; it comes at the place of the first."""

    def add(xs: list[int], ys: list[int]) -> list[int]:
        return [x + y for x, y in zip(xs, ys, strict=True)]

    fn = flavour.decorate(add, timeout_ms=0)
    answers, error = read(flavour, fn, range(5))
    assert answers == []
    assert isinstance(error, TypeError)
    assert "missing a required argument: 'ys'" in str(error)
    answers, error = read(flavour, fn.options(return_exceptions=True), range(5))
    assert error is None
    assert [str(answer).split(": ", 1)[1] for answer in answers] == ["missing a required argument: 'ys'"] * 5
    assert fn.stats.total_accepted == 0


class Incomparable:
    """A key that can be hashed, but not compared with the others."""

    def __hash__(self) -> int:
        return 1

    def __eq__(self, other: object) -> bool:
        raise ZeroDivisionError("no")


def test_a_key_that_cannot_be_compared_fails_its_own_element(flavour: Flavour) -> None:
    """It may be refused as late as when it is queued."""
    gate = Gate(shut=True)
    fn = flavour.decorate(
        gate, timeout_ms=0, batch_size=4, group_by=lambda item: Incomparable() if item == BAD else 1
    )
    running = flavour.start(fn, 0)
    gate.wait_for_batch()
    waiting = flavour.start(fn, 0)
    gate.open()
    answers, error = read(flavour, fn.options(return_exceptions=True), [1, 2, BAD, 3])
    assert error is None
    assert [answers[0], answers[1], answers[3]] == [1, 2, 3]
    assert isinstance(answers[2], ZeroDivisionError | float)  # an answer, if no other key was there by then
    assert [running.result(PATIENCE_S), waiting.result(PATIENCE_S)] == [0, 0]


def test_callbacks_are_asked_once_where_no_element_is_refused(flavour: Flavour) -> None:
    """Each element costs one call of each callback."""
    asked: list[int] = []

    def measure(item: int) -> int:
        asked.append(item)
        return 1

    fn = flavour.decorate(lambda items: items, batch_size=4, timeout_ms=0, length=measure)
    assert read(flavour, fn, range(40)) == (list(range(40)), None)
    assert sorted(asked) == list(range(40))


# -- an element that fails later ------------------------------------------------------------------------


def test_an_element_that_is_late_fails_at_its_place(flavour: Flavour) -> None:
    """A deadline holds for each element, so its error is one of the element's own."""
    gate = Gate(shut=True)
    fn = flavour.decorate(gate, batch_size=2, timeout_ms=0)
    running = flavour.start(fn, 0)
    gate.wait_for_batch()
    answers, error = read(flavour, fn.options(deadline_ms=1, return_exceptions=True), range(5))
    assert (error, [type(answer) for answer in answers]) == (None, [TimeoutError] * 5)
    answers, error = read(flavour, fn.options(deadline_ms=1), range(5))
    assert (answers, type(error)) == ([], TimeoutError)
    gate.open()
    assert running.result(PATIENCE_S) == 0


def test_errors_of_the_source_are_raised_even_if_errors_are_returned(flavour: Flavour) -> None:
    """After the answers before them."""

    def source() -> Iterator[Any]:
        yield from [1, BAD, 3]
        raise OSError("no more")

    fn = flavour.decorate(lambda items: items, timeout_ms=0, length=picky)
    answers, error = read(flavour, fn.options(return_exceptions=True), source())
    assert [type(answer) for answer in answers] == [int, BatchError, int]
    assert isinstance(error, OSError)
    answers, error = read(flavour, fn, source())
    assert (answers, type(error)) == ([1], BatchError)


@pytest.mark.parametrize("view", [{}, {"return_exceptions": True}])
def test_what_is_read_after_the_end_is_refused_after_the_answers_before_it(
    flavour: Flavour, view: dict[str, Any]
) -> None:
    """What has been read by then is answered, and nothing more is read."""
    fn = flavour.decorate(Gate(), batch_size=2, timeout_ms=0)
    seen: list[int] = []
    answers: list[Any] = []
    at_close: list[int] = []

    async def consume() -> None:
        async for answer in fn.options(**view).amap(noted(range(100), seen)):
            if not answers:
                await fn.aclose()
                at_close.extend(seen)
            answers.append(answer)

    def consume_here() -> None:
        for answer in fn.options(**view).map(noted(range(100), seen)):
            if not answers:
                flavour.close(fn)
                at_close.extend(seen)
            answers.append(answer)

    with pytest.raises(ClosedError):  # noqa: PT012
        if flavour.in_tasks:
            flavour.run(consume())
        else:
            consume_here()
    assert answers == at_close
    assert len(seen) <= len(at_close) + 2


def test_the_end_of_the_batcher_is_no_error_of_an_element(flavour: Flavour) -> None:
    """Not even if it comes while an element is taken: it is raised, and not returned in a place."""
    flavour.needs_threads()

    def measure(item: int) -> int:
        if item == 3:
            fn.shutdown(wait=False)
        return 1

    fn = flavour.decorate(Gate(), batch_size=1, timeout_ms=0, length=measure)
    items = slowly(range(6)) if flavour.in_tasks else range(6)
    answers, error = read(flavour, fn.options(return_exceptions=True), items)
    assert answers in ([0, 1, 2], [0, 1, 2, 3])  # the last one, if the worker had not ended yet
    assert isinstance(error, ClosedError)


def test_the_error_of_a_source_keeps_nothing_alive_once_it_is_dropped(flavour: Flavour) -> None:
    """Its traceback leads to what was read, but not to itself."""

    class Thing:
        pass

    things: list[weakref.ref[Thing]] = []

    def source() -> Iterator[int]:
        thing = Thing()
        things.append(weakref.ref(thing))
        yield 1
        raise OSError("no more")

    fn = flavour.decorate(lambda items: items, timeout_ms=0)

    async def consume() -> None:
        with contextlib.suppress(OSError):
            async for _ in fn.amap(source()):
                pass

    gc.disable()
    try:
        if flavour.in_tasks:
            flavour.run(consume())
        else:
            with contextlib.suppress(OSError):
                for _ in fn.map(source()):
                    pass
        until(lambda: things[0]() is None)
    finally:
        gc.enable()


# -- how far it reads ahead -----------------------------------------------------------------------------


@pytest.mark.parametrize("options", [{}, {"max_queue_size": 10}, {"max_queue_size": 5, "on_full": "wait"}])
@pytest.mark.parametrize("sizes", [(4, 4), (32, 2), (2, 32), (7, 3)])
def test_it_reads_three_batches_ahead_also_after_configure(
    flavour: Flavour, sizes: tuple[int, int], options: dict[str, Any]
) -> None:
    """Of the size that holds by then; a map that has begun follows, too."""
    before, after = sizes
    fn = flavour.decorate(lambda items: items, batch_size=before, timeout_ms=0, **options)
    seen: list[int] = []
    most = 3 * before
    changed_at = 40
    ahead: list[tuple[int, int]] = []  # how many are read and not answered, and how many may be

    def note(answer: int) -> None:
        nonlocal most
        if answer == changed_at:
            fn.configure(batch_size=after)
            most = 3 * max(sizes)
        if answer >= changed_at + 3 * before:  # what had been read is answered by now
            most = 3 * after
        ahead.append((len(seen) - answer, most))

    async def consume() -> None:
        async for answer in fn.amap(noted(range(300), seen)):
            note(answer)

    if flavour.in_tasks:
        flavour.run(consume())
    else:
        for answer in fn.map(noted(range(300), seen)):
            note(answer)
    assert len(ahead) == 300
    assert all(items <= bound for items, bound in ahead), ahead
    seen.clear()
    most = 3 * after
    changed_at = -1
    ahead.clear()
    if flavour.in_tasks:
        flavour.run(consume())
    else:
        for answer in fn.map(noted(range(300), seen)):
            note(answer)
    assert all(items <= 3 * after for items, _ in ahead)


# -- an asynchronous source -----------------------------------------------------------------------------


def in_tasks(flavour: Flavour) -> None:
    """Skip a test of `amap` where there is none."""
    if not flavour.in_tasks:
        pytest.skip("only `amap` has an asynchronous source")


async def consumed(fn: Any, source: Any, answers: list[Any]) -> None:
    """Append the answers of an `amap`."""
    async for answer in fn.amap(source):
        answers.append(answer)


@pytest.mark.parametrize("batch_size", [1, 4])
def test_nothing_comes_in_the_place_of_an_element_that_is_refused(flavour: Flavour, batch_size: int) -> None:
    """What the source gives after it is not run; the answers before it are there, however late they come."""
    in_tasks(flavour)
    gate = Gate(lambda items: [str(item).upper() for item in items], shut=True)
    fn = flavour.decorate(
        gate, batch_size=batch_size, timeout_ms=0, length=lambda item: 1 if item != BAD else picky(item)
    )
    answers: list[str] = []

    async def main() -> None:
        consumer = asyncio.create_task(consumed(fn, slowly(["first", BAD, "third", "fourth"]), answers))
        await turns(20)
        gate.open()
        await consumer

    with pytest.raises(BatchError, match="length failed: KeyError"):
        flavour.run(main())
    assert answers == ["FIRST"]
    assert gate.batches == [["first"]]


@pytest.mark.parametrize("how", ["task", "group"])
def test_an_error_is_not_hidden_by_the_end_of_a_source_that_waits(flavour: Flavour, how: str) -> None:
    """It reaches the consumer as it is, also the task group that the consumer is in."""
    in_tasks(flavour)
    fn = flavour.decorate(lambda items: items, batch_size=4, timeout_ms=0, length=picky)
    answers: list[Any] = []

    async def source() -> AsyncIterator[Any]:
        yield 1
        await asyncio.sleep(0)
        yield BAD
        await asyncio.Event().wait()
        yield 3

    async def main() -> None:
        if how == "task":
            await asyncio.wait_for(consumed(fn, source(), answers), PATIENCE_S)
            return
        async with asyncio.timeout(PATIENCE_S), asyncio.TaskGroup() as group:
            group.create_task(consumed(fn, source(), answers))

    with pytest.raises((BatchError, ExceptionGroup)) as caught:
        flavour.run(main())
    error = caught.value.exceptions[0] if isinstance(caught.value, ExceptionGroup) else caught.value
    assert isinstance(error, BatchError)
    assert answers == [1]


def test_an_end_of_the_batcher_is_not_hidden_while_the_source_waits(flavour: Flavour) -> None:
    """The consumer gets `ClosedError` for the next element, after the answers before it."""
    in_tasks(flavour)
    fn = flavour.decorate(lambda items: items, batch_size=4, timeout_ms=0)
    answers: list[Any] = []

    async def main() -> None:
        more = asyncio.Event()

        async def source() -> AsyncIterator[Any]:
            yield 1
            await more.wait()
            yield 2
            await asyncio.Event().wait()

        consumer = asyncio.create_task(consumed(fn, source(), answers))
        await turns(20)
        await fn.aclose()
        more.set()
        await asyncio.wait_for(consumer, PATIENCE_S)

    with pytest.raises(ClosedError):
        flavour.run(main())
    assert answers == [1]


@pytest.mark.parametrize("order", ["source first", "consumer first", "source has given"])
@pytest.mark.parametrize("waits_for", ["source", "answer", "its own business"])
@pytest.mark.parametrize("batch_size", [2, 8])
def test_what_the_source_gives_as_the_consumer_is_cancelled_is_not_run(
    flavour: Flavour, order: str, waits_for: str, batch_size: int
) -> None:
    """Whichever of the two comes first in the turn, and whatever the consumer waits for."""
    in_tasks(flavour)
    gate = Gate(shut=waits_for == "answer")
    fn = flavour.decorate(gate, batch_size=batch_size, timeout_ms=0)

    async def main() -> None:
        loop = asyncio.get_running_loop()
        more = loop.create_future()
        given = loop.create_future()

        async def source() -> AsyncIterator[int]:
            yield 1
            await more
            given.set_result(None)
            yield 2
            await asyncio.Event().wait()

        async def consume() -> None:
            async for _ in fn.amap(source()):
                if waits_for == "its own business":
                    await asyncio.Event().wait()

        consumer = asyncio.create_task(consume())
        await turns_until(lambda: gate.batches if waits_for == "answer" else fn.stats.total_processed)
        await turns(20)
        if order == "source first":
            more.set_result(None)
            consumer.cancel()
        elif order == "consumer first":
            consumer.cancel()
            more.set_result(None)
        else:
            more.set_result(None)
            given.add_done_callback(lambda _: consumer.cancel())
        with pytest.raises(asyncio.CancelledError):
            await consumer
        gate.open()
        await turns(20)
        await fn.aclose()

    flavour.run(main())
    assert gate.batches == [[1]]


@pytest.mark.parametrize("ends", [False, True])
def test_a_consumer_that_goes_on_after_a_cancel_gets_every_answer(flavour: Flavour, ends: bool) -> None:
    """What was held back is queued when it asks again, and then the source ends."""
    in_tasks(flavour)
    fn = flavour.decorate(lambda items: items, batch_size=4, timeout_ms=0)
    answers: list[int] = []

    async def main() -> None:
        more = asyncio.Event()
        is_busy = asyncio.Event()

        async def source() -> AsyncIterator[int]:
            yield 1
            await more.wait()
            yield 2
            yield 3
            if not ends:
                await asyncio.sleep(0)
                yield 4

        async def consume() -> None:
            async for answer in fn.amap(source()):
                answers.append(answer)
                if answer == 1:
                    is_busy.set()
                    with contextlib.suppress(asyncio.CancelledError):
                        await asyncio.Event().wait()
                    await turns(20)

        consumer = asyncio.create_task(consume())
        await is_busy.wait()
        more.set()
        consumer.cancel()
        await asyncio.wait_for(consumer, PATIENCE_S)

    flavour.run(main())
    assert answers == ([1, 2, 3] if ends else [1, 2, 3, 4])


def test_a_source_that_does_not_listen_to_its_end_is_not_read_on(flavour: Flavour) -> None:
    """Leaving ends with what it gives next, which is not run."""
    in_tasks(flavour)
    gate = Gate()
    fn = flavour.decorate(gate, batch_size=4, timeout_ms=0)

    async def source() -> AsyncIterator[int]:
        yield 1
        for item in range(2, 100):
            with contextlib.suppress(asyncio.CancelledError):
                await asyncio.Event().wait()
            yield item

    async def main() -> None:
        answers = fn.amap(source())
        assert await anext(answers) == 1
        await answers.aclose()

    flavour.run(main())
    assert gate.batches == [[1]]


def test_a_consumer_that_is_cancelled_elsewhere_and_keeps_its_iterator_leaves(flavour: Flavour) -> None:
    """Its error leads to its iterator; both are collected, and the loop is told of no pending task."""
    in_tasks(flavour)
    fn = flavour.decorate(list, batch_size=2, timeout_ms=0)
    said: list[Any] = []

    async def consume(reached: asyncio.Event) -> None:
        answers = fn.amap(range(100))
        assert await anext(answers) == 0
        reached.set()
        await asyncio.Event().wait()

    async def main() -> None:
        asyncio.get_running_loop().set_exception_handler(lambda _, context: said.append(context))
        reached = asyncio.Event()
        consumer = asyncio.create_task(consume(reached))
        await reached.wait()
        consumer.cancel()
        await asyncio.wait([consumer])
        del consumer
        gc.collect()
        await turns()
        gc.collect()

    flavour.run(main())
    assert said == []
    until(lambda: fn.stats.queue_size == fn.stats.running_items == 0)


@pytest.mark.parametrize("return_exceptions", [False, True])
def test_an_error_that_would_seem_the_end_comes_as_another(flavour: Flavour, return_exceptions: bool) -> None:
    """A `StopIteration` of the function, in a loop over the answers."""
    if flavour.name == "aio":
        pytest.skip("a coroutine cannot raise it")

    def function(items: list[int]) -> list[int]:
        raise StopIteration("of the function")

    fn = flavour.decorate(function, batch_size=1, timeout_ms=0)
    if return_exceptions:
        (error,) = flavour.map(fn.options(return_exceptions=True), [1])
        assert isinstance(error, StopIteration)
    else:
        answers, raised = read(flavour, fn, [1])
        assert answers == []
        assert isinstance(raised, BatchError)
        assert isinstance(raised.__cause__, StopIteration)


# -- how long it is -------------------------------------------------------------------------------------


class Unwilling:
    """A source whose length cannot be asked."""

    def __len__(self) -> int:
        raise ZeroDivisionError

    def __iter__(self) -> Iterator[int]:
        return iter([1, 2])


def made(flavour: Flavour, fn: Any, *sources: Any) -> Any:
    """Return an unread `map` or `amap`."""
    return fn.amap(*sources) if flavour.in_tasks else fn.map(*sources)


def test_the_answers_are_as_many_as_the_source_has_elements(flavour: Flavour) -> None:
    """Of several sources the shortest; none are said where a source does not say its own."""
    fn = flavour.decorate(lambda items: items, timeout_ms=0)
    for source in (range(7), [1] * 7, iter([1] * 7), dict.fromkeys(range(7))):
        answers = made(flavour, fn, source)
        assert (len(answers), operator.length_hint(answers)) == (7, 7)
    for unknown in ((x for x in range(7)), Unwilling(), range(10**30)):
        answers = made(flavour, fn, unknown)
        assert operator.length_hint(answers, 99) == 99
    pair = flavour.decorate(lambda xs, ys: xs, timeout_ms=0)
    assert len(made(flavour, pair, range(7), [1, 2])) == 2
    assert operator.length_hint(made(flavour, pair, range(7), (x for x in range(9))), 99) == 99
    assert read(flavour, fn, Unwilling()) == ([1, 2], None)


def test_the_length_is_of_what_is_still_to_come(flavour: Flavour) -> None:
    """It is 0 after the end, be that an error or the consumer's leaving."""
    fn = flavour.decorate(lambda items: items, batch_size=2, timeout_ms=0, length=picky)

    async def lengths(items: list[Any], leave_at: int) -> list[int]:
        answers = fn.amap(items)
        found = [len(answers)]
        with contextlib.suppress(BatchError):
            async for answer in answers:
                found.append(len(answers))
                if answer == leave_at:
                    await answers.aclose()
        return [*found, len(answers)]

    def lengths_here(items: list[Any], leave_at: int) -> list[int]:
        answers = fn.map(items)
        found = [len(answers)]
        with contextlib.suppress(BatchError):
            for answer in answers:
                found.append(len(answers))
                if answer == leave_at:
                    answers.close()
        return [*found, len(answers)]

    for items, leave_at, expected in [
        ([1, 2, 3], 0, [3, 2, 1, 0, 0]),
        ([1, BAD, 3], 0, [3, 2, 0]),
        ([1, 2, 3], 1, [3, 2, 0]),
    ]:
        found = flavour.run(lengths(items, leave_at)) if flavour.in_tasks else lengths_here(items, leave_at)
        assert found == expected


def test_tqdm_shows_a_bar(flavour: Flavour) -> None:
    """It knows the total, and ends at it."""
    fn = flavour.decorate(lambda items: items, timeout_ms=0)

    async def consume() -> tuple[Any, int]:
        bar = tqdm.asyncio.tqdm(fn.amap(range(50)), file=Silent())
        answers = [answer async for answer in bar]
        assert answers == list(range(50))
        return bar.total, bar.n

    if flavour.in_tasks:
        assert flavour.run(consume()) == (50, 50)
        return
    bar = tqdm.tqdm(fn.map(range(50)), file=Silent())
    assert list(bar) == list(range(50))
    assert (bar.total, bar.n) == (50, 50)


class Silent:
    """A file that forgets."""

    def write(self, _: str) -> None:
        """Forget a text."""

    def flush(self) -> None:
        """Do nothing."""


def test_a_map_is_an_iterator_whatever_its_source() -> None:
    """It can be asked for one answer, read on, and closed."""
    gate = Gate()
    with batched.dynamically(gate, batch_size=2, timeout_ms=0) as fn:
        for source in (range(20), iter(range(20)), (x for x in range(20))):
            answers: Any = fn.map(source)
            assert iter(answers) is answers
            assert next(answers) == 0
            assert [next(answers) for _ in range(3)] == [1, 2, 3]
            answers.close()
            assert list(answers) == []
