"""Instances are collected when their calls are answered, and their threads end."""

from __future__ import annotations

import contextlib
import gc
import threading
import weakref
from collections.abc import Iterator
from typing import Any

import pytest

import batched
import batched.aio.inference
import batched.inference
from batched import aio
from tests.kit.effort import times
from tests.kit.gate import IS_FREE_THREADED, PATIENCE_S, turns, until
from tests.kit.kept import driver_of
from tests.kit.script import run_script
from tests.kit.threads import workers


def test_an_instance_is_collected_and_its_workers_end() -> None:
    """All of them, whatever they have done."""

    class Model:
        @batched.dynamically(batch_size=1, timeout_ms=0, max_concurrent_batches=3, name="collected")
        def embed(self, items: list[int]) -> list[int]:
            return items

    model = Model()
    assert model.embed(list(range(30))) == list(range(30))
    assert workers("collected")
    reference = weakref.ref(model)
    del model
    until(lambda: gc.collect() is not None and reference() is None and not workers("collected"))


def test_an_instance_is_collected_after_a_failed_call_with_a_deadline() -> None:
    """Also if the deadline is far, a list was cut short, or an async function broke its loop."""

    class Model:
        @batched.dynamically(batch_size=4, timeout_ms=0)
        def fails(self, items: list[int]) -> list[int]:
            raise ValueError

        @batched.dynamically(timeout_ms=0)
        async def breaks(self, items: list[int]) -> list[int]:
            raise SystemExit

    model = Model()
    for call in (model.fails.options(deadline_ms=60_000), model.breaks):
        for items in (1, [1] * 20):
            with pytest.raises((ValueError, SystemExit)):
                call(items)
    reference = weakref.ref(model)
    del model, call
    until(lambda: gc.collect() is not None and reference() is None)


def test_an_instance_is_collected_after_a_call_that_its_deadline_has_started() -> None:
    """Where lengths are known, such a call goes first; it is not kept as the one that goes first."""

    class Model:
        @batched.dynamically(timeout_ms=60_000, adaptive=False, length=len, max_concurrent_batches=2)
        def fails(self, items: list[str]) -> list[int]:
            raise MemoryError if len(items) > 1 else ZeroDivisionError

    model = Model()
    with pytest.raises(ZeroDivisionError):
        model.fails.options(deadline_ms=1000)(["of a list", "of three", "fails"])
    reference = weakref.ref(model)
    del model
    until(lambda: gc.collect() is not None and reference() is None)


@pytest.mark.skipif(IS_FREE_THREADED, reason="there the collector does not come after each object")
def test_a_finalizer_may_submit_with_a_deadline_anywhere() -> None:
    """A garbage collection can run it in the middle of another such call, also in the thread that watches."""
    run_script("""
        futures = []
        may_submit = True

        class Phoenix:  # each collection runs one finalizer, which leaves garbage for the next collection
            def __init__(self):
                self.cycle = self
            def __del__(self):
                if may_submit:
                    if threading.current_thread() is not worker:  # it refuses calls of its own
                        futures.append(double.options(deadline_ms=60_000).submit(1))
                    Phoenix()

        double(1)
        worker, = workers()
        Phoenix()
        gc.set_threshold(1)
        for _ in range(300):
            futures.append(double.options(deadline_ms=60_000).submit(1))
        gc.set_threshold(700)
        may_submit = False
        assert len(futures) > 310, len(futures)  # how often the collector comes is up to Python
        assert {future.result(10) for future in futures} == {2}
        """)


def test_an_instance_is_collected_when_its_calls_are_answered(run: Any) -> None:
    """Without the collector, also after failures and long deadlines, while the loop goes on."""

    class Item:
        pass

    class Failing:
        @aio.dynamically(batch_size=2, timeout_ms=0)
        async def run(self, items: list[Any]) -> list[Any]:
            if len(items) == 2:
                raise ValueError
            return items

    async def main() -> None:
        model = Failing()
        item = Item()
        references = [weakref.ref(model), weakref.ref(item)]
        for call in (model.run, model.run.options(deadline_ms=60_000)):
            await call(item)
            with pytest.raises(ValueError):  # noqa: PT011
                await call([item] * 5)
        await turns()
        del model, item, call
        gc.collect()  # for pytest's own cycle
        assert [reference() for reference in references] == [None, None]

    run(main())


def test_dropped_instances_leave_no_thread_and_no_memory() -> None:
    """Thousands of them, created, used and dropped."""
    run_script(
        f"""
        def use(count):
            for factor in range(count):
                assert Model(factor).run(2) == 2 * factor
        use(500)
        join_workers()
        gc.collect()
        before = sys.getallocatedblocks()
        use({times(25_000, 25)})
        join_workers()
        gc.collect()
        grown = sys.getallocatedblocks() - before
        assert grown < 2_000, grown  # less than one block of each
        assert not Model.__dict__["run"]._shared.binding._made
        assert not Model.__dict__["run"]._shared.binding.views
        assert len(batched._drivers.fork_and_exit._live) <= 2
        """,
        counts_memory=True,
    )


def test_an_instance_in_a_cycle_is_collected_too() -> None:
    """By the garbage collector, wherever it runs, also in a worker."""
    run_script(
        """
        for factor in range(200):
            model = Model(factor)
            model.me = model
            assert model.run(1) == factor
        del model
        gc.collect()
        join_workers()
        """
    )


def test_an_instance_is_collected_once_its_streams_have_ended() -> None:
    """Those that were read, those that were dropped, and those that failed."""

    class Model:
        @batched.dynamically(batch_size=1, timeout_ms=0)
        def generate(self, items: list[int]) -> Iterator[list[Any]]:
            yield items
            if items == [2]:
                raise ValueError

    model = Model()
    kept = [model.generate.stream(item) for item in range(4)]
    next(kept[0])
    kept[1].close()
    with contextlib.suppress(ValueError):
        list(kept[2])
    list(kept[3])
    batcher = driver_of(model.generate)
    until(lambda: batcher.stats.running_items == 0)
    reference = weakref.ref(model)
    del model
    until(lambda: gc.collect() is not None and reference() is None)


@pytest.mark.parametrize("isolate_errors", [False, True])
def test_an_idle_worker_keeps_no_instance_of_its_last_batch_alive(isolate_errors: bool) -> None:
    """By way of the batch that it ran last, whatever became of it."""

    class Model:
        @batched.dynamically(timeout_ms=0, batch_size=2, isolate_errors=isolate_errors)
        def embed(self, items: list[int]) -> list[int]:
            entered.set()
            assert leave.wait(PATIENCE_S)
            raise ValueError

    entered, leave = threading.Event(), threading.Event()
    model = Model()
    future = model.embed.submit([1, 2])
    assert entered.wait(PATIENCE_S)
    future.cancel()
    leave.set()
    batcher = driver_of(model.embed)
    until(lambda: not batcher.stats.running_items)
    reference = weakref.ref(model)
    del model, future
    until(lambda: gc.collect() is not None and reference() is None)
