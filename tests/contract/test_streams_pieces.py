"""Batch functions that yield: each caller gets the pieces of its own item as they come."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Iterator
from typing import Any

import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

import batched
import batched.inference
from batched import DONE, SlowConsumerError
from tests.kit.effort import times
from tests.kit.flavours import Flavour
from tests.kit.gate import PATIENCE_S, until
from tests.kit.steps import Steps, counting, endless


@given(
    lengths=st.lists(st.integers(0, 6), min_size=1, max_size=12),
    batch_size=st.integers(1, 5),
    asynchronous=st.booleans(),
)
@settings(max_examples=times(80), suppress_health_check=[HealthCheck.function_scoped_fixture])
def test_every_caller_gets_the_pieces_of_its_own_item_in_order(
    streaming: Flavour, lengths: list[int], batch_size: int, asynchronous: bool
) -> None:
    """Whoever shares the batch, however long its own item is."""

    def count(items: list[int]) -> Iterator[list[Any]]:
        for step in range(max(items) + 1):
            yield [(item, step) if step < item else DONE for item in items]

    async def acount(items: list[int]) -> AsyncIterator[list[Any]]:
        for pieces in count(items):
            await asyncio.sleep(0)
            yield pieces

    fn = streaming.decorate(acount if asynchronous else count, batch_size=batch_size, timeout_ms=0)
    streams = [streaming.stream(fn, length) for length in lengths]
    assert [list(stream) for stream in streams] == [[(n, k) for k in range(n)] for n in lengths]
    until(lambda: not fn.stats.running_items)
    assert fn.stats.total_processed == fn.stats.total_accepted == len(lengths)
    assert fn.stats.total_failed == 0
    streaming.close(fn)


def test_callers_share_a_batch(streaming: Flavour) -> None:
    """Streams that are opened together run together, and end one by one."""
    steps = Steps(counting)
    fn = streaming.decorate(steps, batch_size=3, timeout_ms=60_000)
    streams = [streaming.stream(fn, item) for item in (1, 3, 2)]
    assert [list(stream) for stream in streams] == [[(n, k) for k in range(n)] for n in (1, 3, 2)]
    assert steps.batches == [[1, 3, 2]]


def test_a_list_is_one_item_of_a_stream(streaming: Flavour) -> None:
    """There are no streams of many items."""
    fn = streaming.decorate(Steps(lambda items, step: items if step < 2 else None), timeout_ms=0)
    assert list(streaming.stream(fn, [1, 2])) == [[1, 2], [1, 2]]


def test_a_piece_comes_before_the_next_is_made(streaming: Flavour) -> None:
    """Nothing is held back until the end."""
    steps = Steps(endless, shut=True)
    fn = streaming.decorate(steps, timeout_ms=0)
    stream = streaming.stream(fn, "a")
    for step in range(5):
        steps.let_through()
        assert next(stream) == ("a", step)
    stream.close()
    steps.open()


def test_a_slow_consumer_slows_nobody(streaming: Flavour) -> None:
    """Its pieces wait for it, however many, while its neighbour reads to the end."""
    steps = Steps(lambda items, step: [step] * len(items) if step < 5000 else None)
    fn = streaming.decorate(steps, batch_size=2, timeout_ms=60_000)
    slow, fast = streaming.stream(fn, "slow"), streaming.stream(fn, "fast")
    assert [next(fast) for _ in range(300)] == list(range(300))
    assert steps.closed.wait(PATIENCE_S)
    assert [next(slow) for _ in range(300)] == list(range(300))
    slow.close()
    fast.close()


def test_a_consumer_that_is_too_far_behind_gets_an_error_of_its_own(streaming: Flavour) -> None:
    """After the pieces that wait for it; its neighbour goes on."""
    steps = Steps(endless, shut=True)
    fn = streaming.decorate(steps, batch_size=2, timeout_ms=60_000, max_pieces=3, name="generate")
    slow, fast = streaming.stream(fn, "slow"), streaming.stream(fn, "fast")
    for step in range(7):
        if step == 3:
            assert next(slow) == ("slow", 0)  # so that it is 3 behind, once more
        steps.let_through()
        assert next(fast) == ("fast", step)
    assert [next(slow) for _ in range(3)] == [("slow", step) for step in (1, 2, 3)]
    with pytest.raises(SlowConsumerError, match="generate: .* max_pieces=3 pieces behind.* raise max_pieces"):
        next(slow)
    assert list(slow) == []
    steps.let_through()
    assert next(fast) == ("fast", 7)
    fast.close()
    steps.open()
    until(lambda: fn.stats.total_processed == 2)
    assert fn.stats.total_failed == 1


def test_pieces_that_are_not_taken_end_by_themselves(streaming: Flavour) -> None:
    """The generator is closed when all of its consumers are too far behind, and the next batch runs."""
    steps = Steps(endless)
    fn = streaming.decorate(steps, batch_size=2, timeout_ms=60_000, max_pieces=50)
    streams = [streaming.stream(fn, item) for item in range(2)]
    assert steps.closed.wait(PATIENCE_S)
    assert steps.steps == 51
    for item, stream in enumerate(streams):
        assert [next(stream) for _ in range(50)] == [(item, step) for step in range(50)]
        with pytest.raises(SlowConsumerError):
            next(stream)
    following = [streaming.stream(fn, item) for item in (2, 3)]
    assert next(following[0]) == (2, 0)
    for stream in following:
        stream.close()


@pytest.mark.parametrize("rows", [tuple, np.array], ids=["tuple", "ndarray"])
def test_any_sized_sequence_of_pieces_will_do(streaming: Flavour, rows: Any) -> None:
    """As for rows; those of an array that is used again are copied."""
    kept = np.zeros(2)

    def refill(items: list[float]) -> Iterator[Any]:
        for step in range(3):
            kept[: len(items)] = items
            kept[:] += step
            yield kept[: len(items)] if rows is np.array else rows(kept[: len(items)].tolist())

    fn = streaming.decorate(refill, timeout_ms=0)
    stream = streaming.stream(fn, 1.0)
    until(lambda: fn.stats.total_processed == 1)
    assert [float(piece) for piece in stream] == [1.0, 2.0, 3.0]


def test_a_generator_that_yields_nothing_ends_every_stream(streaming: Flavour) -> None:
    """An empty stream is no error."""
    fn = streaming.decorate(Steps(lambda items, step: None), timeout_ms=0)
    assert list(streaming.stream(fn, 1)) == []


def test_an_async_generator_runs_in_one_task(streaming: Flavour) -> None:
    """What belongs to a task, `asyncio.timeout` or a context variable say, may span a `yield`."""
    tasks = set()

    async def generate(items: list[int]) -> AsyncIterator[list[int]]:
        async with asyncio.timeout(PATIENCE_S):
            for step in range(3):
                tasks.add(asyncio.current_task())
                await asyncio.sleep(0)
                yield [step] * len(items)

    fn = streaming.decorate(generate, timeout_ms=0)
    assert list(streaming.stream(fn, 1)) == [0, 1, 2]
    assert len(tasks) == 1


def test_methods_have_streams(streaming: Flavour) -> None:
    """Also through the class, and for a callable object."""

    class Model:
        @batched.dynamically(timeout_ms=0)
        def words(self, texts: list[str]) -> Iterator[list[Any]]:
            rows = [text.split() for text in texts]
            for step in range(max(map(len, rows))):
                yield [row[step] if step < len(row) else DONE for row in rows]

    model = Model()
    assert list(streaming.stream(model.words, "a b c")) == ["a", "b", "c"]
    assert list(Model.words.stream(model, "a b")) == ["a", "b"]
    assert list(model.words.stream(texts="a b")) == ["a", "b"]


def test_streams_of_several_parameters(streaming: Flavour) -> None:
    """A column each."""

    def repeat(texts: list[str], times: list[int]) -> Iterator[list[Any]]:
        for step in range(max(times)):
            yield [text if step < time else DONE for text, time in zip(texts, times, strict=True)]

    fn = streaming.decorate(repeat, timeout_ms=0)
    assert list(streaming.stream(fn, "a", 2)) == ["a", "a"]
    assert list(streaming.stream(fn, "b", times=3)) == ["b", "b", "b"]


def test_a_plain_call_has_all_pieces_as_its_answer(flavour: Flavour) -> None:
    """Of one item, even a list; it shares batches with streams. There is no map."""
    fn = flavour.decorate(Steps(counting), timeout_ms=0, batch_size=3, name="generate")
    answers = [flavour.start(fn, item) for item in (2, 0, 4)]
    assert [answer.result(PATIENCE_S) for answer in answers] == [
        [(item, step) for step in range(item)] for item in (2, 0, 4)
    ]
    spell = flavour.decorate(Steps(lambda items, step: items if step < 2 else None), timeout_ms=0)
    assert flavour.call(spell, [1, 2]) == [[1, 2], [1, 2]]
    with pytest.raises(TypeError, match="generate yields, so it streams, and has no map: call stream or"):
        flavour.map(fn, [1])


def test_a_plain_call_of_a_stream_has_its_own_error(flavour: Flavour) -> None:
    """That of its item, or of the batch; or in the place of an answer. `max_pieces` is for streams."""

    def rows(items: list[str], step: int) -> list[Any] | None:
        if step > 20:
            return None
        if "batch" in items and step:
            raise ZeroDivisionError
        return [KeyError(item) if item == "bad" and step else (item, step) for item in items]

    fn = flavour.decorate(Steps(rows), timeout_ms=0, batch_size=2, max_pieces=3)
    calls = [flavour.start(fn, item) for item in ("bad", "good")]
    with pytest.raises(KeyError, match="bad"):
        calls[0].result(PATIENCE_S)
    assert len(calls[1].result(PATIENCE_S)) == 21
    assert isinstance(flavour.call(fn.options(return_exceptions=True), "bad"), KeyError)
    with pytest.raises(ZeroDivisionError):
        flavour.call(fn, "batch")
    until(lambda: not fn.stats.running_items)
    assert fn.stats.total_failed == 3


def test_a_plain_call_of_a_stream_is_late_or_leaves(flavour: Flavour) -> None:
    """Then the function need not go on for it."""
    steps = Steps(endless)
    fn = flavour.decorate(steps, timeout_ms=0)
    hasty = fn.options(deadline_ms=50)
    while not steps.batches:  # on a busy machine a call may be late before it is in a batch
        with pytest.raises(TimeoutError):
            # The deadline of a future only drops what has not started.
            hasty("late") if flavour.name == "submit" else flavour.call(hasty, "late")
    assert steps.closed.wait(PATIENCE_S)
    if flavour.cancels:
        steps.closed.clear()
        call = flavour.start(fn, "leaves")
        until(lambda: fn.stats.running_items)
        flavour.cancel(call)
        assert steps.closed.wait(PATIENCE_S)
    until(lambda: not fn.stats.running_items)


def test_a_function_that_does_not_stream_has_no_streams(streaming: Flavour) -> None:
    """The error says what does."""
    fn = streaming.decorate(lambda items: items, timeout_ms=0, name="embed")
    with pytest.raises(TypeError, match="embed does not stream: only a batch function that is a generator"):
        streaming.stream(fn, 1)


def test_streams_that_end_early_are_learned_from(streaming: Flavour) -> None:
    """An item that is `DONE` before the function has ended was answered: its caller may come back."""

    def generate(items: list[int]) -> Iterator[list[Any]]:
        yield items
        yield [DONE] * len(items)

    fn = streaming.decorate(generate, timeout_ms=20)
    for number in range(20):
        assert list(streaming.stream(fn, number)) == [number]
    assert fn.stats.learned is not None


def test_steps_may_be_those_of_any_iterator(streaming: Flavour) -> None:
    """A function that yields from a list, or from `zip`, can be told nothing of its batch, and is not."""
    told: list[Any] = []

    def count(items: list[int]) -> Iterator[list[int]]:
        yield from [[step] * len(items) for step in range(2)]
        told.append((yield [2] * len(items)))
        yield from zip(*[range(3, 5)] * len(items), strict=True)

    fn = streaming.decorate(count)
    assert list(streaming.stream(fn, 1)) == [0, 1, 2, 3, 4]
    assert told == [None]
    streaming.close(fn)
