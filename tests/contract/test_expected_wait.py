"""What `expected_wait_ms` says is kept, whatever else is read or changed, and wherever batches ran."""

from __future__ import annotations

import asyncio
from threading import Thread
from typing import Any

import pytest

import batched
import batched.aio
from tests.kit.flavours import Flavour
from tests.kit.gate import Gate


def used(flavour: Flavour, batches: int = 8, **options: Any) -> Any:
    """Return a function of which so many batches ran."""
    fn = flavour.decorate(Gate(), **{"timeout_ms": 0, "batch_size": 4, **options})
    for item in range(batches):
        assert flavour.call(fn, item) == item
    return fn


@pytest.mark.parametrize("batches", [8, 256, 300])
def test_it_is_known_where_stats_were_read(flavour: Flavour, batches: int) -> None:
    """Before it was asked for; also where they were counted by themselves, after 256 batches."""
    fn = used(flavour, batches)
    for _ in range(3):
        assert fn.stats.total_batches == batches
        fn.explain()
    assert fn.expected_wait_ms() > 0.0


def test_it_stays_known_where_all_else_is_read_or_changed(flavour: Flavour) -> None:
    fn = used(flavour)
    reader = Thread(target=lambda: [fn.stats, fn.explain()])
    reader.start()
    reader.join()
    fn.configure(batch_size=2, timeout_ms=1)
    assert fn.expected_wait_ms() > 0.0
    assert fn.stats.total_batches == 8
    fn.configure(max_concurrent_batches=2)
    assert fn.expected_wait_ms(100) > fn.expected_wait_ms()


def test_batches_that_failed_tell_nothing_of_it(flavour: Flavour) -> None:
    """Of a function that has only failed, it is not known."""

    def fails(items: list[int]) -> list[int]:
        raise ConnectionError

    fn = flavour.decorate(fails, timeout_ms=0)
    for item in range(6):
        with pytest.raises(ConnectionError):
            flavour.call(fn, item)
    assert fn.expected_wait_ms() is None


def test_it_is_known_on_a_new_loop_and_after_the_end_of_the_old_one() -> None:
    """Batches take as long on all loops."""

    @batched.aio.dynamically(timeout_ms=0)
    async def double(items: list[int]) -> list[int]:
        return [2 * item for item in items]

    async def use(times: int) -> float | None:
        before = double.expected_wait_ms()
        for item in range(times):
            await double.acall(item)
        return before

    assert asyncio.run(use(6)) is None
    assert double.expected_wait_ms() is not None
    assert asyncio.run(use(1)) is not None
    assert double.stats.total_batches == 7
    assert double.expected_wait_ms() is not None
