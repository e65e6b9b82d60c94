"""A bounded queue that is full, and callers that wait for room in it."""

from __future__ import annotations

import threading
from concurrent.futures import Future
from typing import Any

from tests.kit.flavours import Flavour
from tests.kit.gate import Gate, until
from tests.kit.kept import outside


def hold(flavour: Flavour, **options: Any) -> tuple[Gate, Any, Future[Any]]:
    """Return a bounded batcher that is busy with a first call until its gate is opened."""
    gate = Gate(shut=True)
    options = {"batch_size": 1, "timeout_ms": 0, "max_queue_size": 3, **options}
    fn = flavour.decorate(gate, name="embed", **options)
    first = flavour.start(fn, "first")
    gate.wait_for_batch()
    return gate, fn, first


def begin(flavour: Flavour, fn: Any, *args: Any) -> Future[Any]:
    """Begin a call that waits for room, from a thread: `submit` blocks, and nothing is accepted yet."""
    future: Future[Any] = Future()
    assert fn.stats.queue_size  # and callers that have left are gone
    waiting = outside(fn)

    def work() -> None:
        try:
            future.set_result(flavour.call(fn, *args))
        except BaseException as error:
            future.set_exception(error)

    threading.Thread(target=work, daemon=True).start()
    until(lambda: outside(fn) - waiting or future.done())
    return future
