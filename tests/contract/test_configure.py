"""`fn.configure`: options that change while calls come."""

from __future__ import annotations

import threading
from typing import Any

from tests.kit.flavours import Flavour
from tests.kit.gate import PATIENCE_S, Gate, until


def test_queued_items_follow_at_the_next_batch(flavour: Flavour) -> None:
    """The batch that runs does not."""
    gate = Gate(shut=True)
    fn = flavour.decorate(gate, batch_size=2, timeout_ms=60_000)
    futures = [flavour.start(fn, item) for item in range(2)]
    gate.wait_for_batch()
    futures += [flavour.start(fn, item) for item in range(2, 8)]
    fn.configure(batch_size=3)
    gate.open()
    assert [future.result(PATIENCE_S) for future in futures] == list(range(8))
    assert gate.batches == [[0, 1], [2, 3, 4], [5, 6, 7]]


def test_a_shorter_window_releases_the_calls_that_wait(flavour: Flavour) -> None:
    """So does a smaller batch that is then full."""
    for changes in ({"timeout_ms": 0}, {"batch_size": 1}):
        fn = flavour.decorate(Gate(), batch_size=8, timeout_ms=60_000)
        future = flavour.start(fn, 1)
        fn.configure(**changes)
        assert future.result(PATIENCE_S) == 1


def test_a_new_threshold_classes_what_waits_anew(flavour: Flavour) -> None:
    """A list of three is small by now."""
    gate = Gate(shut=True)
    fn = flavour.decorate(gate, batch_size=3, timeout_ms=0, small_batch_threshold=1)
    first = flavour.start(fn, ["first"] * 3)
    gate.wait_for_batch()
    futures = [flavour.start(fn, [1, 2, 3]), flavour.start(fn, 4)]
    fn.configure(small_batch_threshold=3)
    gate.open()
    for future in (first, *futures):
        future.result(PATIENCE_S)
    assert gate.batches[1:] == [[1, 2, 3], [4]]


def test_isolation_can_be_switched_on_while_a_batch_runs(flavour: Flavour) -> None:
    """It holds for whatever fails from then on."""

    def picky(items: list[int]) -> list[int]:
        if 1 in items:
            raise ValueError
        return items

    gate = Gate(picky, shut=True)
    fn = flavour.decorate(gate, batch_size=3, timeout_ms=60_000)
    futures = [flavour.start(fn, item) for item in range(3)]
    gate.wait_for_batch()
    fn.configure(isolate_errors=True)
    gate.open()
    assert (futures[0].result(PATIENCE_S), futures[2].result(PATIENCE_S)) == (0, 2)
    assert isinstance(futures[1].exception(PATIENCE_S), ValueError)


def test_a_map_goes_on_though_the_bound_is_lowered_below_what_it_sends_at_once(flavour: Flavour) -> None:
    """Its next part is let in alone."""
    gate = Gate(shut=True)
    fn = flavour.decorate(gate, batch_size=8, timeout_ms=0, max_queue_size=8)
    answers: list[Any] = []
    mapping = threading.Thread(target=lambda: answers.extend(flavour.map(fn, range(100))), daemon=True)
    mapping.start()
    gate.wait_for_batch()
    fn.configure(max_queue_size=2)
    gate.open()
    mapping.join(PATIENCE_S)
    assert answers == list(range(100))


def test_every_call_is_answered_while_everything_changes(flavour: Flavour) -> None:
    """Sizes, windows and bounds; in groups too."""
    for options in ({}, {"group_by": lambda item: item % 2}, {"cache": {}}):
        fn: Any = flavour.decorate(lambda items: items, timeout_ms=1, on_full="wait", **options)
        over = threading.Event()

        def change(fn: Any = fn, over: Any = over) -> None:
            turn = 0
            while not over.wait(1e-4):
                turn += 1
                fn.configure(batch_size=1 + turn % 7, timeout_ms=turn % 3, small_batch_threshold=turn % 5)
                fn.configure(max_queue_size=20 + turn % 30 if turn % 4 else None)
                fn.configure(max_concurrent_batches=1 + turn % 3)

        thread = threading.Thread(target=change)
        thread.start()
        try:
            for turn in range(60):
                size = 1 + turn % 20
                assert flavour.call(fn, [turn] * size) == [turn] * size
            assert flavour.map(fn, range(200)) == list(range(200))
        finally:
            over.set()
            thread.join(PATIENCE_S)
        until(lambda fn=fn: fn.stats.queue_size + fn.stats.running_items == 0)
        flavour.close(fn)


class Reserved(dict[int, int]):
    """A cache that does not let itself be compared, as others may change it meanwhile."""

    def __eq__(self, other: object) -> bool:
        raise RuntimeError("dictionary changed size during iteration")

    __hash__ = None  # type: ignore[assignment]


def test_a_cache_is_not_walked_through_when_options_change(flavour: Flavour) -> None:
    """Comparing it would take as long as it is large, and fail while calls store in it."""
    cache = Reserved()
    fn = flavour.decorate(Gate(), cache=cache, timeout_ms=0)
    assert flavour.call(fn, 1) == 1
    fn.configure(timeout_ms=0)  # no change: all other options are compared
    assert (flavour.call(fn, 2), dict(cache)) == (2, {1: 1, 2: 2})
