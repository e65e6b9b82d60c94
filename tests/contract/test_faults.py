"""Faults of this library: every call is answered all the same."""

from __future__ import annotations

from typing import Any

import pytest

from batched._core.batcher import Batcher
from batched._core.keyed_queues import KeyedQueues
from batched._core.queue import Queue
from tests.kit.flavours import Flavour
from tests.kit.gate import PATIENCE_S
from tests.kit.held import hold
from tests.kit.kept import batchers
from tests.kit.stats import check_sums


def breaking_once(cls: type, where: str, armed: list[ZeroDivisionError], fn: Any) -> Any:
    """Return the method of this name, which raises the fault once, for `fn`."""
    right = getattr(cls, where)

    def wrong(self: Any, *args: Any, **named: Any) -> Any:
        # A batcher of an earlier test may be about to end meanwhile, and is not to take the fault.
        known = batchers(fn)
        if not armed or not any(self in (each, each.queue) for each in known):
            return right(self, *args, **named)
        if where == "push_all":
            right(self, *(arg[:1] for arg in args))  # half-way through
        raise armed.pop()

    return wrong


@pytest.mark.parametrize("where", ["finish", "plan", "pop", "_learn", "push_all"])
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
    """Each call has an answer, the fault if need be, and later calls are answered.

    A fault in a step of a caller is raised there, and any other is logged.
    """
    if "cache" in options:
        options = {"cache": {}}
    gate, fn, first = hold(flavour, batch_size=2, timeout_ms=0, **options)
    futures = [flavour.start(fn, item) for item in ("second", ["third", "fourth", "fifth"], "sixth")]
    fault = ZeroDivisionError("a fault")
    armed = [fault]
    places: dict[str, tuple[type, ...]] = {
        "push_all": (Queue, KeyedQueues),
    }
    for cls in places.get(where, (Batcher,)):
        monkeypatch.setattr(cls, where, breaking_once(cls, where, armed, fn))
    raised: list[ZeroDivisionError] = []
    for item in ("seventh", ["eighth", "ninth"]):
        try:
            futures.append(flavour.start(fn, item))
        except ZeroDivisionError as error:  # as it reads `stats`, to see that the call has come
            raised.append(error)
    gate.open()
    for future in [first, *futures]:
        try:
            future.result(PATIENCE_S)
        except ZeroDivisionError as error:
            raised.append(error)
    assert not armed
    assert flavour.call(fn, "later") == "later"
    check_sums(fn)
    is_logged = any(record.exc_info and record.exc_info[1] is fault for record in caplog.records)
    # Calls are queued in steps of callers too: it is raised in one of them, or for one that reads `stats`.
    assert is_logged or (where == "push_all" and len(raised) <= 1)
