"""Where a worker is."""

from __future__ import annotations

import batched
from tests.kit.gate import PATIENCE_S, Gate


def test_the_worker_stack_shows_where_the_function_is() -> None:
    """The name and line of what hangs; nothing before the first call."""

    def hangs(items: list[int]) -> list[int]:
        result: list[int] = gate(items)
        return result

    gate = Gate(shut=True)
    fn = batched.dynamically(hangs, timeout_ms=0)
    assert fn.worker_stack() == ""
    future = fn.submit(1)
    gate.wait_for_batch()
    assert "in hangs" in fn.worker_stack()
    gate.open()
    future.result(PATIENCE_S)
    fn.shutdown()
    assert fn.worker_stack() == ""
