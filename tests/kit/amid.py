"""What runs in the middle of the steps of a batcher, as a finalizer may."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest

from batched._core.batch import Batch
from batched._core.batcher import Batcher
from batched._core.keyed_queues import KeyedQueues
from batched._core.queue import Queue
from batched._core.stream_batcher import StreamBatcher
from batched._features.isolation import Isolation

# What needs no lock: making a batcher, and what callers ask of it.
FREE = {"__init__", "_begin", "ahead", "begin", "_ask_doors", "feature", "follow", "resize", "wakes"}
OF_BATCHES = ("answer", "fail", "prune")


def watch_steps(monkeypatch: pytest.MonkeyPatch, see: Callable[[str], object]) -> None:
    """Call `see`, with the name of the method, before and after each method that needs the lock."""

    def watch(cls: type, name: str) -> None:
        right = getattr(cls, name)

        def watched(self: Any, *args: Any, **named: Any) -> Any:
            see(f"{cls.__name__}.{name}")
            returned = right(self, *args, **named)
            see(f"{cls.__name__}.{name}, at its end")
            return returned

        monkeypatch.setattr(cls, name, watched)

    for cls in (Queue, KeyedQueues, Batcher, StreamBatcher, Isolation):
        for name in {name for name, value in vars(cls).items() if callable(value)} - FREE:
            watch(cls, name)
    for name in OF_BATCHES:
        watch(Batch, name)
