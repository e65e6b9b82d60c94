"""Errors of batch functions that yield."""

from __future__ import annotations

import logging
import threading
from collections.abc import AsyncIterator, Iterator
from typing import Any

import pytest

from batched import DONE, BatchError
from tests.kit.flavours import Flavour
from tests.kit.gate import PATIENCE_S, until
from tests.kit.steps import Steps


def test_an_error_mid_stream_reaches_all_live_consumers(streaming: Flavour) -> None:
    """After their pieces; a caller that has ended before is not told, and each has its own copy."""

    def rows(items: list[int], step: int) -> list[Any]:
        if step == 2:
            raise ValueError("mid-stream")
        return [DONE if item == 0 and step == 1 else (item, step) for item in items]

    fn = streaming.decorate(Steps(rows), batch_size=3, timeout_ms=60_000)
    streams = [streaming.stream(fn, item) for item in range(3)]
    assert list(streams[0]) == [(0, 0)]
    errors = []
    for item in (1, 2):
        assert [next(streams[item]), next(streams[item])] == [(item, 0), (item, 1)]
        with pytest.raises(ValueError, match="^mid-stream$") as caught:
            next(streams[item])
        errors.append(caught.value)
        assert list(streams[item]) == []
    assert errors[0] is not errors[1]
    until(lambda: fn.stats.total_processed == 3)
    assert fn.stats.total_failed == 2


def test_an_exception_as_a_piece_fails_its_own_item(streaming: Flavour) -> None:
    """Its neighbour goes on."""

    def rows(items: list[int], step: int) -> list[Any] | None:
        if step == 3:
            return None
        return [KeyError("bad") if item == 1 and step == 1 else step for item in items]

    fn = streaming.decorate(Steps(rows), batch_size=2, timeout_ms=60_000)
    good, bad = streaming.stream(fn, 0), streaming.stream(fn, 1)
    assert list(good) == [0, 1, 2]
    assert next(bad) == 0
    with pytest.raises(KeyError, match="bad"):
        next(bad)
    assert list(bad) == []
    until(lambda: fn.stats.total_processed == 2)
    assert fn.stats.total_failed == 1


def test_an_error_is_raised_even_to_who_wants_exceptions_returned(streaming: Flavour) -> None:
    """A stream has no other place for it."""

    def rows(items: list[int], step: int) -> list[Any]:
        if step:
            raise ValueError("batch")
        return [KeyError("item") if item else "piece" for item in items]

    fn = streaming.decorate(Steps(rows), batch_size=2, timeout_ms=60_000)
    view = fn.options(return_exceptions=True)
    first, second = streaming.stream(view, 0), streaming.stream(view, 1)
    with pytest.raises(KeyError, match="item"):
        next(second)
    assert next(first) == "piece"
    with pytest.raises(ValueError, match="^batch$"):
        next(first)


@pytest.mark.parametrize(
    ("pieces", "error", "message"),
    [
        (None, TypeError, "must return one result per item, .* not NoneType"),
        ("ab", TypeError, "not str"),
        ([1], BatchError, "yielded 1 piece for a batch of 2 items"),
        ([1, 2, 3], BatchError, "yielded 3 pieces for a batch of 2 items; each step must yield"),
    ],
)
def test_pieces_that_are_not_one_per_item_fail_the_stream(
    streaming: Flavour, pieces: Any, error: Any, message: str
) -> None:
    """With a note of what a step has. And close the generator; the next batch works."""
    closed = threading.Event()

    def generate(items: list[int]) -> Iterator[Any]:
        try:
            yield items
            yield pieces if items == [1, 2] else items
        finally:
            closed.set()

    fn = streaming.decorate(generate, batch_size=2, timeout_ms=60_000)
    for stream in [streaming.stream(fn, item) for item in (1, 2)]:
        next(stream)
        with pytest.raises(error, match=message) as caught:
            next(stream)
        assert any("a step of a generator has one piece per item" in note for note in caught.value.__notes__)
    assert closed.wait(PATIENCE_S)
    assert [list(stream) for stream in [streaming.stream(fn, item) for item in (3, 4)]] == [[3, 3], [4, 4]]


@pytest.mark.parametrize("kind", [SystemExit, KeyboardInterrupt, StopAsyncIteration])
@pytest.mark.parametrize("asynchronous", [False, True])
def test_whatever_is_raised_reaches_the_consumer_and_not_the_worker(
    streaming: Flavour, kind: Any, asynchronous: bool
) -> None:
    """From a generator and an asynchronous one; a task gets a `BatchError` of it. The next stream works."""
    broken = True

    def generate(items: list[int]) -> Iterator[list[int]]:
        yield items
        if broken:
            raise kind("stop")

    async def agenerate(items: list[int]) -> AsyncIterator[list[int]]:
        yield items
        if broken:
            raise kind("stop")

    fn = streaming.decorate(agenerate if asynchronous else generate, timeout_ms=0)
    stream = streaming.stream(fn, 1)
    assert next(stream) == 1
    with pytest.raises(BaseException) as caught:  # noqa: PT011
        next(stream)
    error = caught.value.__cause__ if isinstance(caught.value, BatchError) else caught.value
    assert isinstance(error, (kind, RuntimeError))  # which Python makes of a StopAsyncIteration
    broken = False
    assert list(streaming.stream(fn, 2)) == [2]
    streaming.close(fn)


@pytest.mark.parametrize("kind", [StopIteration, StopAsyncIteration])
def test_a_piece_that_looks_like_the_end_is_an_error(streaming: Flavour, kind: Any) -> None:
    """An item whose piece is such an exception fails: its consumer does not take it for the end."""

    def generate(items: list[int]) -> Iterator[list[Any]]:
        yield items
        yield [kind("odd")] * len(items)

    stream = streaming.stream(streaming.decorate(generate, timeout_ms=0), 1)
    assert next(stream) == 1
    with pytest.raises(BatchError) as caught:
        next(stream)
    assert isinstance(caught.value.__cause__, kind)


def test_a_generator_that_cannot_be_closed_is_logged(
    streaming: Flavour, caplog: pytest.LogCaptureFixture
) -> None:
    """Its consumers have their pieces, and the worker goes on."""

    def stubborn(items: list[int]) -> Iterator[list[Any]]:
        try:
            yield items
            yield [DONE] * len(items)
        finally:
            raise OSError("no")

    async def astubborn(items: list[int]) -> AsyncIterator[list[Any]]:
        try:
            yield items
            yield [DONE] * len(items)
        finally:
            raise OSError("no")

    for function in (stubborn, astubborn):
        fn = streaming.decorate(function, timeout_ms=0)
        with caplog.at_level(logging.ERROR, "batched"):
            assert list(streaming.stream(fn, 1)) == [1]
            assert list(streaming.stream(fn, 2)) == [2]
        streaming.close(fn)
        assert "could not close the generator" in caplog.text
        caplog.clear()


@pytest.mark.parametrize("known", [False, True])
def test_out_of_memory_before_the_first_piece_divides_the_batch(streaming: Flavour, known: bool) -> None:
    """No caller has got anything yet; later the pieces cannot be taken back, so it is an error."""

    def rows(items: list[int], step: int) -> list[Any] | None:
        if len(items) > 2 and step == int(known):
            raise MemoryError
        return items if step < 2 else None

    steps = Steps(rows)
    fn = streaming.decorate(steps, batch_size=4, timeout_ms=60_000)
    streams = [streaming.stream(fn, item) for item in range(4)]
    if known:
        for item, stream in enumerate(streams):
            assert next(stream) == item
            with pytest.raises(MemoryError):
                next(stream)
    else:
        assert [list(stream) for stream in streams] == [[item, item] for item in range(4)]
        assert steps.batches == [[0, 1, 2, 3], [0, 1], [2, 3]]
    assert fn.stats.fits_memory == 2


def test_an_item_that_fails_before_the_first_piece_fails_alone(streaming: Flavour) -> None:
    """Later the pieces cannot be taken back, so all of the batch fail."""

    def rows(items: list[int], step: int) -> list[Any] | None:
        if step == 0 and 2 in items:
            raise ValueError
        return items if step < 2 else None

    steps = Steps(rows)
    fn = streaming.decorate(steps, batch_size=4, timeout_ms=60_000)
    streams = [streaming.stream(fn, item) for item in range(4)]
    for item, stream in enumerate(streams):
        if item == 2:
            with pytest.raises(ValueError):  # noqa: PT011
                next(stream)
        else:
            assert list(stream) == [item, item]
    assert steps.batches == [[0, 1, 2, 3], [0, 1], [2, 3], [2], [3]]
