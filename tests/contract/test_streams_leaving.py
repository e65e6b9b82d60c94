"""Consumers of streams that leave, or are late."""

from __future__ import annotations

import gc
import threading
import weakref
from math import inf
from typing import Any

import pytest

from batched._api import streams
from tests.kit.flavours import Flavour
from tests.kit.gate import PATIENCE_S, until
from tests.kit.stats import check_sums
from tests.kit.steps import Steps, counting, endless


def leave_by_close(stream: Any) -> None:
    stream.close()


def leave_by_break(stream: Any) -> None:
    for _ in stream:
        break
    stream.close()


@pytest.mark.parametrize("leave", [leave_by_close, leave_by_break])
def test_when_nobody_is_left_the_generator_is_closed(streaming: Flavour, leave: Any) -> None:
    """At its next step, and not before the last has left."""
    steps = Steps(endless)
    many = 1_000_000_000  # pieces may wait: on a busy machine a consumer falls far behind
    fn = streaming.decorate(steps, batch_size=2, timeout_ms=60_000, max_pieces=many)
    first, last = streaming.stream(fn, "first"), streaming.stream(fn, "last")
    next(last)
    leave(first)
    assert list(first) == []
    for _ in range(20):
        next(last)
    assert not steps.closed.is_set()
    leave(last)
    assert steps.closed.wait(PATIENCE_S)
    until(lambda: fn.stats.total_processed == 2)


def test_a_consumer_that_drops_its_iterator_has_left(streaming: Flavour) -> None:
    """Breaking out of a loop is enough."""
    steps = Steps(endless)
    fn = streaming.decorate(steps, timeout_ms=0)
    for _ in streaming.stream(fn, "a"):
        break
    gc.collect()
    assert steps.closed.wait(PATIENCE_S)
    streaming.close(fn)


class Piece:
    """One that can be looked for."""

    def __init__(self, item: str) -> None:
        self.item = item


def test_a_consumer_that_left_keeps_no_pieces(streaming: Flavour) -> None:
    """While its neighbour goes on."""
    alive: weakref.WeakSet[Piece] = weakref.WeakSet()

    def pieces(items: list[str], step: int) -> list[Piece]:
        made = [Piece(item) for item in items]
        alive.update(made)
        return made

    steps = Steps(pieces, shut=True)
    fn = streaming.decorate(steps, batch_size=2, timeout_ms=60_000)
    gone, stays = streaming.stream(fn, "gone"), streaming.stream(fn, "stays")
    steps.let_through()
    next(stays)
    assert [piece.item for piece in alive if piece.item == "gone"]
    gone.close()
    steps.let_through(100)
    for _ in range(100):
        next(stays)
    stays.close()
    steps.open()
    assert steps.closed.wait(PATIENCE_S)
    until(lambda: not [piece for piece in alive if piece.item == "gone"])
    assert list(gone) == []


def test_a_stream_that_is_closed_while_it_waits_never_runs(streaming: Flavour) -> None:
    """Its place is taken by the next."""
    steps = Steps(lambda items, step: items if not step else None, shut=True)
    fn = streaming.decorate(steps, batch_size=1, timeout_ms=0)
    running = streaming.stream(fn, "running")
    steps.wait_for_step()
    waiting = [streaming.stream(fn, item) for item in range(3)]
    waiting[1].close()
    steps.open()
    assert list(running) == ["running"]
    assert [list(stream) for stream in waiting] == [[0], [], [2]]
    assert steps.batches == [["running"], [0], [2]]
    assert fn.stats.total_cancelled == 1


def test_a_stream_that_is_closed_ends_for_a_reader_that_waits(streaming: Flavour) -> None:
    """By another thread, or another task: it has no further piece, even if one is on its way."""
    steps = Steps(endless, shut=True)
    fn = streaming.decorate(steps, timeout_ms=0)
    stream = streaming.stream(fn, "a")
    steps.let_through()
    pieces: list[Any] = []
    reader = threading.Thread(target=lambda: pieces.extend([*map(pieces.append, stream), "end"]), daemon=True)
    reader.start()
    until(lambda: pieces)
    stream.close()
    reader.join(PATIENCE_S)
    assert pieces == [("a", 0), None, "end"]
    steps.open()
    until(lambda: not fn.stats.running_items)
    assert list(stream) == []


def test_a_deadline_ends_a_stream_that_waits_and_one_that_runs(streaming: Flavour) -> None:
    """With a TimeoutError; then the generator is closed."""
    steps = Steps(endless, shut=True)
    fn = streaming.decorate(steps, batch_size=1, timeout_ms=0)
    running = streaming.stream(fn.options(deadline_ms=250), "running")
    until(lambda: steps.batches)
    waiting = streaming.stream(fn.options(deadline_ms=30), "waiting")
    for stream, deadline_ms in ((running, 250), (waiting, 30)):
        with pytest.raises(TimeoutError, match=f"did not answer within deadline_ms={deadline_ms}$"):
            next(stream)
        assert list(stream) == []
    steps.open()
    assert steps.closed.wait(PATIENCE_S)
    until(lambda: fn.stats.total_expired == 1)
    assert steps.batches == [["running"]]


def test_a_deadline_ends_a_stream_whose_pieces_never_stop(streaming: Flavour) -> None:
    """However fast they come."""
    steps = Steps(endless)
    fn = streaming.decorate(steps, timeout_ms=0, max_pieces=1_000_000_000)
    with pytest.raises(TimeoutError):
        for _ in streaming.stream(fn.options(deadline_ms=30), 1):
            pass
    until(lambda: not fn.stats.queue_size + fn.stats.running_items)
    assert steps.closed.is_set() or not steps.batches  # it was late before it could start


def test_the_function_does_not_run_on_for_a_late_consumer_that_does_not_read(streaming: Flavour) -> None:
    """Which gets what came in time, and then its error."""
    steps = Steps(endless)
    fn = streaming.decorate(steps, timeout_ms=0, max_pieces=1_000_000_000)
    stream = streaming.stream(fn.options(deadline_ms=300), 1)
    assert next(stream) is not None
    until(steps.closed.is_set)
    with pytest.raises(TimeoutError, match="within deadline_ms=300$"):
        for _ in stream:
            pass
    check_sums(fn)


def test_pieces_that_came_in_time_are_there_after_the_deadline(
    streaming: Flavour, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A stream that has ended is not late."""
    fn = streaming.decorate(Steps(counting), timeout_ms=0)
    stream = streaming.stream(fn.options(deadline_ms=5000), 3)
    until(lambda: fn.stats.total_processed == 1)
    monkeypatch.setattr(streams, "monotonic", lambda: inf)
    assert list(stream) == [(3, 0), (3, 1), (3, 2)]
