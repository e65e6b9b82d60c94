"""The end of a batcher, and calls from inside its own batch function."""

from __future__ import annotations

from typing import Any

import pytest

from batched import ClosedError
from tests.kit.flavours import Flavour
from tests.kit.held import hold


def test_closing_runs_what_is_queued_and_refuses_what_comes_later(flavour: Flavour) -> None:
    """Every future is done; later calls raise a ClosedError, a RuntimeError, and never wait."""
    gate, fn, first = hold(flavour, batch_size=4, timeout_ms=60_000)
    queued = [flavour.start(fn, index) for index in range(3)]
    gate.open()
    flavour.close(fn)
    assert [future.result(0.5) for future in (first, *queued)] == [["first"] * 4, 0, 1, 2]
    with pytest.raises(ClosedError, match="was shut down"):
        flavour.call(fn, 1)
    flavour.close(fn)


def test_a_call_from_inside_the_batch_function_is_an_error(flavour: Flavour) -> None:
    """It would wait for itself. The error, of the outer caller, says what to write; the worker goes on."""
    if not flavour.blocks:
        pytest.skip("see drivers/test_loop_dispatcher_tasks.py: what does not await cannot wait for itself")
    fn: Any = None

    def again(items: list[int]) -> list[int]:
        if 0 in items:
            fn(1)
        return items

    fn = flavour.decorate(again, timeout_ms=0)
    with pytest.raises(RuntimeError, match=r"from inside its own batch function.*__wrapped__"):
        flavour.call(fn, 0)
    assert flavour.call(fn, 2) == 2


def test_another_batcher_may_be_called_from_a_batch_function(flavour: Flavour) -> None:
    """Re-entrance is a matter of one batcher, not of all."""
    if not flavour.blocks:
        pytest.skip("see drivers/test_loop_dispatcher_tasks.py")
    inner = flavour.decorate(lambda xs: [x + 1 for x in xs], timeout_ms=0)
    outer = flavour.decorate(lambda xs: inner(xs), timeout_ms=0)
    assert flavour.call(outer, [1, 2]) == [2, 3]
