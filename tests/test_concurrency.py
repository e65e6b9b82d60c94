"""Several batches at once: `max_concurrent_batches`."""

from __future__ import annotations

import asyncio
import gc
import threading
import weakref
from concurrent.futures import CancelledError
from functools import partial
from typing import Any

import numpy as np
import pytest

import batched
import batched.inference
from batched._drivers.workers import Workers
from tests.kit.flavours import Flavour
from tests.kit.gate import PATIENCE_S, Gate, until
from tests.test_lifecycle import run


def workers(name: str) -> list[threading.Thread]:
    return [thread for thread in threading.enumerate() if thread.name == f"batched: {name}"]


def test_as_many_batches_run_at_once(flavour: Flavour) -> None:
    """And no more; the next waits for the first that ends, and is bound only then."""
    gate = Gate(shut=True)
    fn = flavour.decorate(gate, batch_size=2, timeout_ms=0, max_concurrent_batches=3)
    futures = [flavour.start(fn, [item, item]) for item in range(3)]
    for _ in range(3):
        gate.wait_for_batch()
    futures += [flavour.start(fn, item) for item in (3, 4)]
    assert len(gate.batches) == 3
    assert (fn.stats.running_items, fn.stats.queue_size, len(fn.stats.running)) == (6, 2, 3)
    gate.open()
    answers = [future.result(PATIENCE_S) for future in futures]
    assert answers == [[0, 0], [1, 1], [2, 2], 3, 4]
    assert gate.batches[3] == [3, 4]
    flavour.close(fn)


def test_a_burst_that_fits_one_batch_goes_as_one(flavour: Flavour) -> None:
    """However many workers are idle, and whether or not they have worked before."""
    gate = Gate(shut=True)
    fn = flavour.decorate(gate, batch_size=8, timeout_ms=60_000, max_concurrent_batches=4)
    first = [flavour.start(fn, [turn] * 8) for turn in range(4)]
    for _ in range(4):
        gate.wait_for_batch()
    gate.open()
    for future in first:
        future.result(PATIENCE_S)
    for _ in range(10):
        gate.batches.clear()
        futures = [flavour.start(fn, item) for item in range(8)]
        assert [future.result(PATIENCE_S) for future in futures] == list(range(8))
        assert gate.batches == [list(range(8))]
    flavour.close(fn)


def test_parts_of_one_list_run_at_once(flavour: Flavour) -> None:
    """And come together in order, in whatever order they end."""
    both = threading.Barrier(4)

    def together(items: list[int]) -> list[int]:
        both.wait(PATIENCE_S)
        return [item * 2 for item in items]

    fn = flavour.decorate(together, batch_size=5, timeout_ms=0, max_concurrent_batches=4)
    assert flavour.call(fn, list(range(20))) == list(range(0, 40, 2))
    flavour.close(fn)


def test_parts_that_end_in_reverse_come_together_in_order(flavour: Flavour) -> None:
    """Each part waits for the one behind it."""
    ended = [threading.Event() for _ in range(5)]
    ended[4].set()

    def backwards(items: list[int]) -> list[int]:
        part = items[0] // 2
        assert ended[part + 1].wait(PATIENCE_S)
        ended[part].set()
        return items

    fn = flavour.decorate(backwards, batch_size=2, timeout_ms=0, max_concurrent_batches=4)
    assert flavour.call(fn, list(range(8))) == list(range(8))
    flavour.close(fn)


def test_parts_of_one_call_of_arrays_run_at_once() -> None:
    """Rows are written where they belong."""
    both = threading.Barrier(4)

    def together(features: dict[str, Any]) -> Any:
        both.wait(PATIENCE_S)
        return features["x"] * 2

    fn = batched.inference.dynamically(together, batch_size=5, timeout_ms=0, max_concurrent_batches=4)
    x = np.arange(60).reshape(20, 3)
    assert np.array_equal(fn(x=x), x * 2)
    fn.shutdown()


def test_a_part_that_fails_fails_the_list_and_nobody_else(flavour: Flavour) -> None:
    """The other parts, running or not, go nowhere."""
    gate = Gate(lambda items: items if 3 not in items else 1 / 0, shut=True)  # type: ignore[arg-type,return-value]
    fn = flavour.decorate(gate, batch_size=2, timeout_ms=0, max_concurrent_batches=2)
    failing = flavour.start(fn, list(range(8)))
    for _ in range(2):
        gate.wait_for_batch()
    other = flavour.start(fn, "other")
    gate.open()
    assert isinstance(failing.exception(PATIENCE_S), ZeroDivisionError)
    assert other.result(PATIENCE_S) == "other"
    until(lambda: not fn.stats.running_items)
    stats = fn.stats
    assert stats.total_accepted == stats.total_processed + stats.total_cancelled == 9
    flavour.close(fn)


def test_threads_start_when_they_are_needed() -> None:
    """None before the first call, never more than there may be."""
    gate = Gate(shut=True)
    fn = batched.dynamically(gate, batch_size=1, timeout_ms=0, max_concurrent_batches=3, name="lazy")
    assert workers("lazy") == []
    futures = [fn.submit(0)]
    gate.wait_for_batch()
    assert len(workers("lazy")) <= 2
    futures += [fn.submit(item) for item in range(1, 20)]
    for _ in range(2):
        gate.wait_for_batch()
    assert len(workers("lazy")) == 3
    gate.open()
    assert [future.result(PATIENCE_S) for future in futures] == list(range(20))
    assert len(workers("lazy")) == 3
    fn.shutdown()
    assert workers("lazy") == []


def test_a_worker_that_starts_late_does_not_put_another_to_sleep(monkeypatch: pytest.MonkeyPatch) -> None:
    """The first may be asleep again, and wait to be woken, before the second has begun."""
    asleep = threading.Event()
    begun = threading.Event()
    work = Workers._work
    started: list[Any] = []

    def late(batcher: Workers) -> None:
        started.append(batcher)
        if len(started) == 2:
            asleep.wait(PATIENCE_S)
            begun.set()
        work(batcher)

    monkeypatch.setattr(Workers, "_work", late)
    fn = batched.dynamically(Gate(), timeout_ms=0, max_concurrent_batches=2)
    assert fn(1) == 1
    until(lambda: fn._batcher.batcher.inbox.wake_after == 1)
    asleep.set()
    assert begun.wait(PATIENCE_S)
    until(lambda: fn._batcher.workers.waiting_for_turn == 1)
    assert fn.submit(2).result(PATIENCE_S) == 2
    fn.shutdown()


def test_too_many_threads_for_the_process_is_no_error(monkeypatch: pytest.MonkeyPatch) -> None:
    """Those there are do the work."""
    fn = batched.dynamically(Gate(), batch_size=1, timeout_ms=0, max_concurrent_batches=8, name="few")
    start = threading.Thread.start

    def only_one(thread: threading.Thread) -> None:
        if workers("few"):
            raise RuntimeError("can't start new thread")
        start(thread)

    monkeypatch.setattr(threading.Thread, "start", only_one)
    assert fn(list(range(50))) == list(range(50))
    assert len(workers("few")) == len(fn._batcher.workers.threads) == 1
    monkeypatch.undo()
    fn.shutdown()


def test_shutdown_ends_all_workers(flavour: Flavour) -> None:
    """After what is queued has run, at once where they can."""
    gate = Gate(shut=True)
    fn = flavour.decorate(gate, batch_size=1, timeout_ms=0, max_concurrent_batches=3, name="ending")
    futures = [flavour.start(fn, item) for item in range(9)]
    for _ in range(3):
        gate.wait_for_batch()
    gate.open()
    flavour.close(fn)
    assert [future.result(PATIENCE_S) for future in futures] == list(range(9))
    until(lambda: not workers("ending"))


def test_cancelling_at_shutdown_spares_all_that_runs() -> None:
    """Three batches run, the rest is cancelled."""
    gate = Gate(shut=True)
    fn = batched.dynamically(gate, batch_size=1, timeout_ms=0, max_concurrent_batches=3)
    futures = [fn.submit(item) for item in range(9)]
    for _ in range(3):
        gate.wait_for_batch()
    fn.shutdown(wait=False, cancel_futures=True)
    gate.open()
    fn.shutdown()
    assert [future.result(PATIENCE_S) for future in futures[:3]] == [0, 1, 2]
    for future in futures[3:]:
        with pytest.raises(CancelledError):
            future.result(PATIENCE_S)


def test_a_closer_waits_for_all_batches() -> None:
    """`aclose` too, and re-entrance is refused in every worker."""
    gate = Gate(shut=True)
    fn = batched.dynamically(gate, batch_size=1, timeout_ms=0, max_concurrent_batches=2)
    futures = [fn.submit(item) for item in range(2)]
    for _ in range(2):
        gate.wait_for_batch()

    async def close() -> None:
        closing = asyncio.create_task(fn.aclose())
        await asyncio.sleep(0)
        gate.let_through()
        await asyncio.to_thread(lambda: until(lambda: sum(future.done() for future in futures) == 1))
        assert not closing.done()
        gate.open()
        await closing
        assert all(future.done() for future in futures)

    asyncio.run(close())


def test_every_worker_refuses_to_call_itself() -> None:
    """It would wait for itself once all are busy."""
    raised = []
    both = threading.Barrier(2)

    def again(items: list[int]) -> list[int]:
        both.wait(PATIENCE_S)
        try:
            fn(items)
        except RuntimeError as error:
            raised.append(error)
        return items

    fn = batched.dynamically(again, batch_size=1, timeout_ms=0, max_concurrent_batches=2)
    assert fn([1, 2]) == [1, 2]
    assert len(raised) == 2
    fn.shutdown()


def test_async_batch_functions_run_at_once(flavour: Flavour) -> None:
    """Each worker has a loop of its own."""
    entered = threading.Barrier(2)

    async def together(items: list[int]) -> list[int]:
        await asyncio.to_thread(entered.wait, PATIENCE_S)
        return items

    fn = flavour.decorate(together, batch_size=1, timeout_ms=0, max_concurrent_batches=2)
    assert flavour.call(fn, [1, 2]) == [1, 2]
    assert flavour.call(fn, [3, 4]) == [3, 4]
    flavour.close(fn)


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


def test_a_fork_starts_afresh() -> None:
    """While batches run, and others wait for a turn."""
    assert (
        run(
            """
            gate = threading.Event()
            inside = threading.Semaphore(0)

            @batched.dynamically(batch_size=1, timeout_ms=0, max_concurrent_batches=3)
            def held(items):
                inside.release()
                gate.wait(20)
                return items

            futures = [held.submit(item) for item in range(5)]
            for _ in range(3):
                assert inside.acquire(timeout=20)
            child = os.fork()
            if not child:
                gate.set()
                status = held([1, 2, 3]) != [1, 2, 3] or held.stats.total_accepted != 3
                os._exit(int(status))
            assert os.waitpid(child, 0)[1] == 0
            gate.set()
            print([future.result(20) for future in futures])
            """
        )
        == "[0, 1, 2, 3, 4]\n"
    )


@pytest.mark.parametrize("has_started", [False, True], ids=["before the thread runs", "when the thread runs"])
@pytest.mark.parametrize("is_first", [True, False], ids=["first worker", "second worker"])
def test_shutdown_ends_after_an_interrupted_start_of_a_worker(
    monkeypatch: pytest.MonkeyPatch, has_started: bool, is_first: bool
) -> None:
    """Ctrl-C leaves no worker that never runs, for which `shutdown` would wait."""
    gate = Gate(shut=True)
    fn = batched.dynamically(gate, batch_size=1, timeout_ms=0, name="stillborn")
    if not is_first:
        fn.submit(0)
        gate.wait_for_batch()
    start = threading.Thread.start

    def interrupted(thread: threading.Thread) -> None:
        if has_started:
            start(thread)
        raise KeyboardInterrupt

    interrupt = partial(fn.submit, 1) if is_first else partial(fn.configure, max_concurrent_batches=2)
    with monkeypatch.context() as patched:
        patched.setattr(threading.Thread, "start", interrupted)
        with pytest.raises(KeyboardInterrupt):
            interrupt()
    gate.open()
    closer = threading.Thread(target=fn.shutdown, daemon=True)
    closer.start()
    closer.join(PATIENCE_S)
    assert not closer.is_alive()
    until(lambda: not workers("stillborn"))
    assert gate.batches == ([] if is_first else [[0]])


@pytest.mark.parametrize("options", [{}, {"max_queue_size": 8}], ids=["unbounded", "bounded"])
@pytest.mark.parametrize("ask", ["__call__", "submit"])
def test_a_call_after_an_interrupted_start_of_a_worker_is_answered(
    monkeypatch: pytest.MonkeyPatch, options: dict[str, Any], ask: str
) -> None:
    """Ctrl-C cancels only the call that it interrupts."""
    gate = Gate()
    fn = batched.dynamically(gate, timeout_ms=0, **options)

    def interrupted(thread: threading.Thread) -> None:
        raise KeyboardInterrupt

    with monkeypatch.context() as patched:
        patched.setattr(threading.Thread, "start", interrupted)
        with pytest.raises(KeyboardInterrupt):
            getattr(fn, ask)("interrupted")
    assert fn.submit("later").result(PATIENCE_S) == "later"
    assert gate.batches == [["later"]]
    fn.shutdown()


@pytest.mark.parametrize("close", ["shutdown", "aclose"])
def test_a_closer_waits_for_a_worker_that_was_one_too_many(close: str) -> None:
    """That worker still closes its own event loop, where a task of the user may end."""
    entered = threading.Semaphore(0)
    ending, may_end = threading.Event(), threading.Event()
    go = threading.Event()
    left: list[asyncio.Task[None]] = []

    async def leave_task_behind() -> None:
        try:
            await asyncio.get_running_loop().create_future()
        finally:
            if not ending.is_set():  # the first worker that ends
                ending.set()
                may_end.wait(PATIENCE_S)

    async def batch_function(items: list[int]) -> list[int]:
        entered.release()
        left.append(asyncio.create_task(leave_task_behind()))
        await asyncio.sleep(0)
        go.wait(PATIENCE_S)
        return items

    fn = batched.dynamically(
        batch_function, batch_size=1, timeout_ms=0, max_concurrent_batches=2, name="too many"
    )
    futures = [fn.submit(item) for item in range(2)]
    for _ in range(2):
        assert entered.acquire(timeout=PATIENCE_S)
    fn.configure(max_concurrent_batches=1)
    go.set()
    assert [future.result(PATIENCE_S) for future in futures] == [0, 1]
    assert ending.wait(PATIENCE_S)  # the worker that is one too many ends
    assert fn.submit(2).result(PATIENCE_S) == 2
    closed = threading.Event()

    def end() -> None:
        if close == "shutdown":
            fn.shutdown()
        else:
            asyncio.run(fn.aclose())
        closed.set()

    closer = threading.Thread(target=end, daemon=True)
    closer.start()
    assert not closed.wait(0.05)
    may_end.set()
    assert closed.wait(PATIENCE_S)
    if close == "shutdown":
        assert workers("too many") == []


def test_shutdown_leaves_no_thread_while_the_number_of_workers_falls() -> None:
    """All threads have ended when it returns, those too that were about to leave anyway."""
    for _ in range(20):
        fn = batched.dynamically(Gate(), batch_size=1, timeout_ms=0, max_concurrent_batches=4, name="falling")
        futures = [fn.submit(item) for item in range(8)]
        fn.configure(max_concurrent_batches=1)
        assert [future.result(PATIENCE_S) for future in futures] == list(range(8))
        fn.shutdown()
        assert workers("falling") == []
