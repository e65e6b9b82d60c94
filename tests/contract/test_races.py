"""What holds when threads meet at every step: the interpreter changes threads as often as it can."""

from __future__ import annotations

import threading
from typing import Any

import pytest

from batched._core.batch import Batch
from batched._core.batcher import Batcher
from batched._core.calls import Calls
from batched._core.keyed_queues import KeyedQueues
from batched._core.next_batch import NextBatch
from batched._core.queue import Queue
from batched._core.running import Running
from tests.kit.flavours import Flavour
from tests.kit.gate import PATIENCE_S, Gate
from tests.kit.kept import driver_of
from tests.kit.stats import check_sums

pytestmark = pytest.mark.usefixtures("restless")

# What needs no lock: making a batcher, and what callers ask of it.
FREE = {"__init__", "ahead", "begin", "follow", "resize"}


@pytest.mark.parametrize(
    "options", [{}, {"group_by": str}, {"length": len}], ids=["plain", "keys", "lengths"]
)
def test_the_queue_is_used_with_the_lock_only(
    flavour: Flavour, monkeypatch: pytest.MonkeyPatch, options: dict[str, Any]
) -> None:
    """Deciding takes several looks at the queue, and no other thread may change it between two of them."""
    outside: list[str] = []
    locks: list[Any] = []

    def watch(cls: type, name: str) -> None:
        right = getattr(cls, name)

        def watched(self: Any, *args: Any, **named: Any) -> Any:
            thread = threading.current_thread().name
            is_other = thread.startswith("batched") and not thread.endswith(": watched")  # of an earlier test
            if locks and not locks[0].locked() and not is_other:
                outside.append(f"{cls.__name__}.{name} in {thread}")
            return right(self, *args, **named)

        monkeypatch.setattr(cls, name, watched)

    for cls in (Queue, KeyedQueues, Batcher, Calls, NextBatch, Running):
        for name in {name for name, value in vars(cls).items() if callable(value)} - FREE:
            watch(cls, name)
    for name in ("answer", "step", "end", "fail", "prune", "halves"):
        watch(Batch, name)

    def answer(items: list[str]) -> list[str]:
        if "bad" in items:
            raise ValueError("bad")
        return items

    gate = Gate(answer, shut=True)
    fn = flavour.decorate(
        gate,
        name="watched",
        batch_size=4,
        timeout_ms=1,
        adaptive=False,
        max_queue_size=100,
        on_full="wait",
        isolate_errors=True,
        **options,
    )
    gate.let_through()
    flavour.call(fn, "the first, for which all is made")
    batcher = driver_of(fn)
    locks.append(batcher.lock)
    futures = [flavour.start(fn, item) for item in ("a", "bad", ["c"] * 9, "d")]
    gate.wait_for_batch()
    fn.configure(batch_size=3)
    futures.append(flavour.start(fn.options(deadline_ms=1), "late"))
    gate.open()
    for future in futures:
        future.exception(PATIENCE_S)
    check_sums(fn)
    flavour.close(fn)
    assert outside == []
