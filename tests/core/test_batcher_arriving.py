"""Where calls arrive at a batcher, and whether they wake the driver."""

from __future__ import annotations

import threading
from typing import Any

import pytest

import batched
from batched._core.batcher import Batcher
from batched._core.counters import Counters
from batched._core.options import Options
from batched._core.queue import Queue
from tests.kit.calls import single
from tests.kit.gate import PATIENCE_S, Gate, until
from tests.kit.kept import batchers


def test_calls_that_come_together_arrive_as_each_alone_does() -> None:
    """In their order, behind those that are there; enough of them wake the driver."""
    collator: Any = None  # nothing runs
    batcher = Batcher(Options(), Queue, collator, "f", Counters())
    calls = [single() for _ in range(4)]
    batcher.arrive(calls[0])
    batcher.wake_after = 4
    assert not batcher.wakes(calls[0])
    batcher.arrive_all(calls[1:])
    assert batcher.arriving == calls
    assert batcher.wakes(calls[3])


def test_a_refused_call_takes_no_wake_up_along(monkeypatch: pytest.MonkeyPatch) -> None:
    """A call has arrived, and no worker has been woken yet, when another is refused."""
    fn = batched.dynamically(Gate(), timeout_ms=0, max_queue_size=2)
    assert fn(0) == 0
    (batcher,) = batchers(fn)
    until(lambda: batcher.wake_after == 1)
    inside, refused = threading.Event(), threading.Event()
    wakes = Batcher.wakes

    def pausing(batcher: Batcher, call: Any) -> bool:
        inside.set()
        assert refused.wait(PATIENCE_S)
        return wakes(batcher, call)

    monkeypatch.setattr(Batcher, "wakes", pausing)
    answers: list[int] = []
    caller = threading.Thread(target=lambda: answers.append(fn(1)), daemon=True)
    caller.start()
    assert inside.wait(PATIENCE_S)
    with pytest.raises(ValueError, match="max_queue_size=2"):
        fn([1, 2, 3])
    refused.set()
    caller.join(PATIENCE_S)
    assert answers == [1]
