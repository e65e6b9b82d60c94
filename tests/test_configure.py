"""`fn.configure`: options that change while calls come."""

from __future__ import annotations

import copy
import sys
import threading
from typing import Any

import pytest

import batched
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


def test_a_shorter_window_releases_who_waits(flavour: Flavour) -> None:
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


@pytest.mark.parametrize("asked", [[[0, 1, 2, 3, 4, 5]], [[0, 1], 2, 3, [4, 5]]], ids=["a list", "calls"])
def test_more_batches_run_at_once_while_one_runs(flavour: Flavour, asked: list[Any]) -> None:
    """At once, not when that has ended; also of the rest of the list that it is of."""
    gate = Gate(shut=True)
    fn = flavour.decorate(gate, batch_size=2, timeout_ms=0)
    for _ in range(3):
        futures = [flavour.start(fn, asked[0])]
        gate.wait_for_batch()
        futures += [flavour.start(fn, items) for items in asked[1:]]
        fn.configure(max_concurrent_batches=3)
        for _ in range(2):
            gate.wait_for_batch()
        gate.let_through(3)
        assert [future.result(PATIENCE_S) for future in futures] == asked
        until(lambda: not fn.stats.running_items)
        fn.configure(max_concurrent_batches=1)
    flavour.close(fn)


class Turn:
    """The turn of the workers of a batcher, with a step of the test's own before a worker gives it back."""

    def __init__(self, lock: Any, before_release: Any) -> None:
        self.acquire, self.locked, self._release = lock.acquire, lock.locked, lock.release
        self._before_release = before_release

    def release(self) -> None:
        """Run the step once, then give the turn back."""
        step, self._before_release = self._before_release, lambda: None
        step()
        self._release()


def test_more_batches_run_at_once_though_a_worker_is_about_to_give_its_turn_back() -> None:
    """`configure` leaves it to the worker with the turn to start another: also where that has its batch."""
    gate = Gate(shut=True)
    fn = batched.dynamically(gate, batch_size=1, timeout_ms=0)
    batcher = fn._find()
    batcher.workers._turn = Turn(batcher.workers._turn, lambda: fn.configure(max_concurrent_batches=2))
    futures = [fn.submit(item) for item in range(2)]
    for _ in range(2):
        gate.wait_for_batch()
    gate.open()
    assert [future.result(PATIENCE_S) for future in futures] == [0, 1]
    fn.shutdown()


def test_more_batches_run_at_once_though_a_worker_is_about_to_end() -> None:
    """The same where that worker was one too many before."""
    gate = Gate(shut=True)
    fn = batched.dynamically(gate, batch_size=1, timeout_ms=0, max_concurrent_batches=2)
    futures = [fn.submit(item) for item in range(2)]
    for _ in range(2):
        gate.wait_for_batch()
    batcher = fn._find()
    batcher.workers._turn = Turn(batcher.workers._turn, lambda: fn.configure(max_concurrent_batches=2))
    fn.configure(max_concurrent_batches=1)
    gate.let_through()
    futures.append(fn.submit(2))
    gate.wait_for_batch()
    assert len(fn.stats.running) == 2
    gate.open()
    assert [future.result(PATIENCE_S) for future in futures] == [0, 1, 2]
    fn.shutdown()


def test_fewer_batches_run_at_once_when_the_others_have_ended(flavour: Flavour) -> None:
    """Whatever runs is finished; no thread is left that is one too many, and then there may be more again."""
    gate = Gate(shut=True)
    fn = flavour.decorate(gate, batch_size=1, timeout_ms=0, max_concurrent_batches=4, name="fewer")
    futures = [flavour.start(fn, item) for item in range(10)]
    for _ in range(4):
        gate.wait_for_batch()
    fn.configure(max_concurrent_batches=2)
    gate.let_through(2)
    until(lambda: fn.stats.total_processed == 2)
    assert len(fn.stats.running) == len(gate.batches) - 2 == 2
    for batches in range(5, 9):
        gate.let_through()
        gate.wait_for_batch()
        assert len(gate.batches) == batches
        assert len(fn.stats.running) <= 2
    fn.configure(max_concurrent_batches=4)
    for _ in range(2):
        gate.wait_for_batch()
    assert len(fn.stats.running) == 4
    gate.open()
    assert [future.result(PATIENCE_S) for future in futures] == list(range(10))
    fn.configure(max_concurrent_batches=1)
    until(lambda: len([t for t in threading.enumerate() if t.name == "batched: fewer"]) <= 1)
    assert flavour.call(fn, list(range(9))) == list(range(9))
    flavour.close(fn)


def test_as_many_batches_run_at_once_as_may_while_that_changes(flavour: Flavour) -> None:
    """Never more than the highest number of late; every list is answered whole, failing ones too."""
    most = 0
    running = 0
    lock = threading.Lock()

    def run(items: list[int]) -> list[int]:
        nonlocal most, running
        with lock:
            running += 1
            most = max(most, running)
        try:
            return [1 // item for item in items]
        finally:
            with lock:
                running -= 1

    fn = flavour.decorate(run, batch_size=4, timeout_ms=0)
    for turn in range(100):
        futures = [flavour.start(fn, [1] * 40), flavour.start(fn, [1] * 20 + [0] + [1] * 19)]
        fn.configure(max_concurrent_batches=1 + turn % 3)
        assert futures[0].result(PATIENCE_S) == [1] * 40
        assert isinstance(futures[1].exception(PATIENCE_S), ZeroDivisionError)
    assert most <= 3
    until(lambda: fn.stats.queue_size + fn.stats.running_items == 0)
    stats = fn.stats
    assert stats.total_accepted == stats.total_processed + stats.total_cancelled == 8000
    flavour.close(fn)


def test_a_value_that_makes_no_sense_changes_nothing() -> None:
    """Not even the others of the same call."""
    fn = batched.dynamically(Gate(), batch_size=4)
    before = repr(fn)
    for changes, error, message in (
        ({"batch_size": 8, "timeout_ms": -1}, ValueError, "timeout_ms must be at least 0"),
        ({"batch_size": 8, "on_full": "drop"}, ValueError, "on_full must be 'raise' or 'wait'"),
        ({"batch_size": "8"}, TypeError, "batch_size must be an int"),
        ({"max_queue_size": 0}, ValueError, "max_queue_size must be at least 1"),
        ({"isolate_errors": 1}, TypeError, "isolate_errors must be True or False"),
        ({"max_concurrent_batches": 0}, ValueError, "max_concurrent_batches must be at least 1"),
    ):
        with pytest.raises(error, match=message):
            fn.configure(**changes)
        assert repr(fn) == before


@pytest.mark.parametrize("option", ["group_by", "cache", "cache_key", "name", "pad_token", "batchsize"])
def test_what_cannot_change_is_a_type_error_that_says_what_can(option: str) -> None:
    """And nothing else of the call is changed."""
    fn = batched.dynamically(Gate(), batch_size=4)
    with pytest.raises(
        TypeError, match=f"configure cannot change {option!r}.*; it can change .*batch_size, "
    ):
        fn.configure(**{option: None, "batch_size": 8})
    assert "batch_size=4" in repr(fn)


def test_repr_shows_it() -> None:
    """Of a function, of a method of one instance, of views made before."""

    class Model:
        @batched.dynamically(batch_size=4)
        def embed(self, items: list[int]) -> list[int]:
            return items

    fn = batched.dynamically(Gate(), batch_size=4)
    view = fn.options(deadline_ms=5)
    view.configure(batch_size=8, max_queue_size=100, on_full="wait", isolate_errors=True)
    for shown in (fn, view):
        assert "batch_size=8" in repr(shown)
        assert "max_queue_size=100, on_full='wait', isolate_errors=True" in repr(shown)
    model, other = Model(), Model()
    model.embed.configure(batch_size=8)
    assert "batch_size=8" in repr(model.embed)
    assert "batch_size=4" in repr(other.embed)
    assert "batch_size=4" in repr(Model.embed)
    with pytest.raises(AttributeError, match="use an instance"):
        Model.embed.configure(batch_size=8)  # type: ignore[attr-defined]


def test_a_copy_has_what_was_decorated() -> None:
    """Its batcher is its own."""

    class Model:
        @batched.dynamically(batch_size=4, timeout_ms=0)
        def embed(self, items: list[int]) -> list[int]:
            return items

    model = Model()
    model.embed.configure(batch_size=8)
    assert "batch_size=4" in repr(copy.deepcopy(model).embed)


def test_changes_of_different_options_do_not_undo_each_other() -> None:
    """Whatever threads make them at the same time."""
    fn = batched.dynamically(Gate(), batch_size=1, timeout_ms=0, small_batch_threshold=0)
    barrier = threading.Barrier(3)

    def change(name: str) -> None:
        barrier.wait(PATIENCE_S)
        for value in range(1, 301):
            fn.configure(**{name: value})

    threads = [
        threading.Thread(target=change, args=[name])
        for name in ("batch_size", "timeout_ms", "small_batch_threshold")
    ]
    interval = sys.getswitchinterval()
    sys.setswitchinterval(1e-6)
    try:
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join(PATIENCE_S)
    finally:
        sys.setswitchinterval(interval)
    assert "batch_size=300, timeout_ms=300, small_batch_threshold=300" in repr(fn)


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
