"""Streams together with the options, `current_batch` and the end."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from concurrent.futures import CancelledError
from typing import Any

import pytest

import batched
import batched.inference
from batched import ClosedError, QueueFullError
from tests.kit.flavours import Flavour
from tests.kit.gate import PATIENCE_S, until
from tests.kit.kept import blocked
from tests.kit.steps import Steps, counting, endless


def test_a_bounded_queue_holds_streams_too(streaming: Flavour) -> None:
    """Refused at once, or let in when there is room."""
    steps = Steps(lambda items, step: items if not step else None, shut=True)
    fn = streaming.decorate(steps, batch_size=1, timeout_ms=0, max_queue_size=1)
    streams = [streaming.stream(fn, 0)]
    steps.wait_for_step()
    streams.append(streaming.stream(fn, 1))
    with pytest.raises(QueueFullError):
        streaming.stream(fn, 2)
    fn.configure(on_full="wait")
    streams += [streaming.stream(fn, item) for item in (3, 4)]
    streams[2].close()
    steps.open()
    assert [list(stream) for stream in streams] == [[0], [1], [], [4]]
    assert not blocked(fn)


def test_a_submit_that_waits_for_room_goes_on_at_the_next_step(streaming: Flavour) -> None:
    """Of the stream that runs, once one that waited has left: not only when the batch ends."""
    streaming.needs_threads()
    steps = Steps(endless, shut=True)
    fn = streaming.decorate(steps, batch_size=1, timeout_ms=0, max_queue_size=1, on_full="wait")
    runs = streaming.stream(fn, "runs")
    steps.wait_for_step()
    waits = streaming.stream(fn, "waits")
    came: list[Any] = []
    thread = threading.Thread(target=lambda: came.append(fn.submit("comes")), daemon=True)
    thread.start()
    until(lambda: blocked(fn))
    waits.close()
    steps.let_through()
    thread.join(PATIENCE_S)
    assert came, "it waits for the end of the batch"
    came[0].cancel()
    runs.close()
    steps.open()
    until(lambda: not fn.stats.running_items)


def test_streams_are_grouped(streaming: Flavour) -> None:
    """Only items of one key share a batch."""
    steps = Steps(lambda items, step: items if not step else None)
    fn = streaming.decorate(steps, batch_size=2, timeout_ms=60_000, group_by=lambda item: item % 2)
    streams = [streaming.stream(fn, item) for item in range(4)]
    assert [list(stream) for stream in streams] == [[0], [1], [2], [3]]
    assert steps.batches == [[0, 2], [1, 3]]


def test_batches_stream_at_once(streaming: Flavour) -> None:
    """As many as there may be."""
    streaming.needs_threads()
    steps = Steps(endless)
    many = 1_000_000_000  # pieces may wait: on a busy machine a consumer falls far behind
    fn = streaming.decorate(steps, batch_size=1, timeout_ms=0, max_concurrent_batches=3, max_pieces=many)
    streams = [streaming.stream(fn, item) for item in range(3)]
    for step in range(5):
        assert [next(stream) for stream in streams] == [(item, step) for item in range(3)]
    for stream in streams:
        stream.close()
    until(lambda: fn.stats.running_items == 0)
    fn.shutdown()


def test_a_stream_knows_its_batch(streaming: Flavour) -> None:
    """At every step; when all have left it can see that before the next."""
    seen = []

    def generate(items: list[int]) -> Iterator[list[int]]:
        while not batched.current_batch().cancelled():
            seen.append(batched.current_batch().size)
            yield items

    fn = streaming.decorate(generate, batch_size=2, timeout_ms=60_000)
    streams = [streaming.stream(fn, item) for item in range(2)]
    assert [next(stream) for stream in streams] == [0, 1]
    for stream in streams:
        stream.close()
    until(lambda: fn.stats.running_items == 0)
    assert set(seen) == {2}


def test_shutdown_lets_streams_end(streaming: Flavour) -> None:
    """What is queued runs too, and later streams are refused."""
    streaming.needs_threads()
    steps = Steps(counting, shut=True)
    fn = streaming.decorate(steps, batch_size=1, timeout_ms=0)
    streams = [streaming.stream(fn, 2), streaming.stream(fn, 3)]
    steps.wait_for_step()
    fn.shutdown(wait=False)
    with pytest.raises(ClosedError):
        streaming.stream(fn, 1)
    steps.open()
    assert [list(stream) for stream in streams] == [[(n, k) for k in range(n)] for n in (2, 3)]
    fn.shutdown()


def test_cancelling_at_shutdown_spares_the_stream_that_runs(streaming: Flavour) -> None:
    """What is queued gets a CancelledError, in a task that of asyncio."""
    streaming.needs_threads()
    steps = Steps(counting, shut=True)
    fn = streaming.decorate(steps, batch_size=1, timeout_ms=0)
    running, queued = streaming.stream(fn, 2), streaming.stream(fn, 3)
    steps.wait_for_step()
    fn.shutdown(wait=False, cancel_futures=True)
    with pytest.raises(CancelledError):
        next(queued)
    steps.open()
    assert list(running) == [(2, 0), (2, 1)]
    fn.shutdown()


@pytest.mark.parametrize(
    "options", [{"group_by": lambda item: 0}, {"max_queue_size": 4}], ids=["keys", "bound"]
)
def test_a_stream_that_is_late_at_the_door_harms_nobody(streaming: Flavour, options: dict[str, Any]) -> None:
    """It raises `TimeoutError`, and a caller that waits beside it gets its pieces."""
    steps = Steps(lambda items, step: items if not step else None)
    fn = streaming.decorate(steps, batch_size=4, timeout_ms=100, adaptive=False, **options)
    waiting = streaming.stream(fn, 1)
    late = fn.options(deadline_ms=1e-6, priority="bulk")
    for _ in range(4):
        with pytest.raises(TimeoutError):
            next(streaming.stream(late, 2))
    assert list(waiting) == [1]
