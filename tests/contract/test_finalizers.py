"""Finalizers of items and results may ask the batcher."""

from __future__ import annotations

import contextlib
import gc
from typing import Any

import pytest

from tests.kit.flavours import Flavour
from tests.kit.gate import IS_FREE_THREADED, PATIENCE_S, Gate, until


class Finalized:
    """An item whose finalizer asks the batcher, as code that reports does."""

    def __init__(self, fn: Any, seen: list[Any]) -> None:
        self.fn = fn
        self.seen = seen

    def __del__(self) -> None:
        self.seen.append(self.fn.stats)


@pytest.mark.parametrize("fails", [False, True], ids=["answered", "failed"])
@pytest.mark.parametrize("count", [None, 1, 5], ids=["one", "list", "long list"])
def test_a_finalizer_of_an_item_may_ask_the_batcher(flavour: Flavour, count: int | None, fails: bool) -> None:
    """No lock is held while items that are answered are forgotten: neither worker nor loop stands still."""

    def answer(items: list[Any]) -> list[int]:
        if fails:
            raise ValueError
        return [1] * len(items)

    fn = flavour.decorate(answer, batch_size=2, timeout_ms=0)
    seen: list[Any] = []
    with contextlib.suppress(ValueError):
        if count is None:
            flavour.call(fn, Finalized(fn, seen))
        else:
            flavour.call(fn, [Finalized(fn, seen) for _ in range(count)])
    until(lambda: gc.collect() is not None and len(seen) == (count or 1))
    if not fails:
        assert flavour.call(fn, 1) == 1


class Answer:
    """A result with a finalizer that asks the batcher."""

    def __init__(self, fn: Any) -> None:
        self.fn = fn

    def __del__(self) -> None:
        self.fn().stats  # noqa: B018


@pytest.mark.skipif(IS_FREE_THREADED, reason="there it may hang, as docs/architecture.md says")
def test_a_finalizer_of_a_result_may_ask_the_batcher(flavour: Flavour) -> None:
    """Also of a call that had a deadline, while others wait: no lock is held while it is forgotten."""
    found: list[Any] = []
    gate = Gate(lambda items: [Answer(lambda: found[0]) for _ in items], shut=True)
    fn = flavour.decorate(gate, batch_size=2, timeout_ms=0)
    found.append(fn)
    futures = [flavour.start(fn.options(deadline_ms=60_000), item) for item in range(6)]
    gate.open()
    while futures:
        futures.pop(0).result(PATIENCE_S)
    assert fn.stats.total_processed == 6
    found.append(None)
