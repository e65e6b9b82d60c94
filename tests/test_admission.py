"""`max_queue_size` and `on_full`: how much may wait, and what becomes of the rest."""

from __future__ import annotations

import asyncio
import contextlib
import gc
import threading
import time
import weakref
from concurrent.futures import CancelledError, Future
from typing import Any

import pytest

import batched
from batched import QueueFullError
from batched._core.call import Call
from batched._core.inbox import Inbox
from batched._core.options import Options
from batched._drivers.manual_clock import ManualDriver
from tests.kit.flavours import Flavour
from tests.kit.gate import PATIENCE_S, Gate, until
from tests.kit.kept import blocked, outside


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
    assert fn.stats.queue_size  # and whoever has left is gone
    waiting = outside(fn)

    def work() -> None:
        try:
            future.set_result(flavour.call(fn, *args))
        except BaseException as error:
            future.set_exception(error)

    threading.Thread(target=work, daemon=True).start()
    until(lambda: outside(fn) - waiting or future.done())
    return future


def test_what_waits_is_bounded_and_the_rest_refused_at_once(flavour: Flavour) -> None:
    """The error says how many wait; what runs does not count, and whoever is refused costs nothing."""
    gate, fn, first = hold(flavour)
    futures = [flavour.start(fn, item) for item in range(3)]
    for _ in range(5):
        with pytest.raises(QueueFullError, match="embed has 3 items waiting, and max_queue_size=3"):
            flavour.call(fn, "refused")
    stats = fn.stats
    assert (stats.queue_size, stats.total_accepted, stats.total_rejected) == (3, 4, 5)
    gate.open()
    assert [future.result(PATIENCE_S) for future in (first, *futures)] == ["first", 0, 1, 2]
    assert flavour.call(fn, "again") == "again"
    assert ["refused"] not in gate.batches


def test_a_list_is_admitted_whole_or_not_at_all(flavour: Flavour) -> None:
    """By items, as single calls are."""
    gate, fn, _ = hold(flavour)
    one = flavour.start(fn, 1)
    with pytest.raises(QueueFullError, match="no room for 3 more"):
        flavour.call(fn, [2, 3, 4])
    two = flavour.start(fn, [5, 6])
    assert (fn.stats.queue_size, fn.stats.total_rejected) == (3, 3)
    gate.open()
    assert (one.result(PATIENCE_S), two.result(PATIENCE_S)) == (1, [5, 6])


@pytest.mark.parametrize("on_full", ["raise", "wait"])
def test_a_list_larger_than_the_bound_is_an_error_that_says_so(flavour: Flavour, on_full: str) -> None:
    """However empty the queue is."""
    fn = flavour.decorate(Gate(), timeout_ms=0, max_queue_size=3, on_full=on_full, name="embed")
    with pytest.raises(ValueError, match="embed has max_queue_size=3: a call of 4 items will never fit"):
        flavour.call(fn, [1, 2, 3, 4])
    assert flavour.call(fn, [1, 2, 3]) == [1, 2, 3]


def test_who_waits_for_room_is_let_in_first_come_first_served(flavour: Flavour) -> None:
    """A small call does not overtake a large one that waits before it."""
    gate, fn, _ = hold(flavour, on_full="wait", batch_size=2)
    flavour.start(fn, [1, 2])
    large = begin(flavour, fn, ["large"] * 3)
    small = begin(flavour, fn, "small")
    later = begin(flavour, fn, "later")
    assert fn.stats.queue_size == 2
    gate.open()
    assert large.result(PATIENCE_S) == ["large"] * 3
    assert (small.result(PATIENCE_S), later.result(PATIENCE_S)) == ("small", "later")
    assert gate.batches[:2] == [["first"], [1, 2]]
    assert gate.batches[2].count("large") >= 1
    assert not outside(fn)
    assert not blocked(fn)


def test_a_full_queue_does_not_wait_for_company(flavour: Flavour) -> None:
    """A bound below the batch size would else never fill a batch while callers wait for room."""
    fn = flavour.decorate(Gate(), batch_size=8, timeout_ms=60_000, max_queue_size=2, on_full="wait")
    futures = [flavour.start(fn, item) for item in range(2)]
    answers: list[Any] = []
    third = threading.Thread(target=lambda: answers.append(flavour.call(fn, 2)), daemon=True)
    third.start()
    assert [future.result(PATIENCE_S) for future in futures] == [0, 1]
    until(lambda: fn.stats.queue_size == 1)
    flavour.close(fn)
    third.join(PATIENCE_S)
    assert answers == [2]


def test_waiting_for_room_ends_at_the_deadline(flavour: Flavour) -> None:
    """With a TimeoutError, and nothing of the call is kept."""
    gate, fn, _ = hold(flavour, on_full="wait", max_queue_size=1)
    flavour.start(fn, 1)
    started = time.monotonic()
    with pytest.raises(TimeoutError, match="deadline_ms=50"):
        flavour.call(fn.options(deadline_ms=50), 2)
    assert time.monotonic() - started < 10
    third = begin(flavour, fn, 3)
    gate.open()
    assert third.result(PATIENCE_S) == 3
    assert [2] not in gate.batches
    until(lambda: fn.stats.total_expired == 1)
    assert not blocked(fn)
    stats = fn.stats
    assert stats.total_accepted == stats.total_processed + stats.total_expired == 4


def test_a_task_that_is_cancelled_while_it_waits_for_room_leaves() -> None:
    """Those behind it move up."""
    gate = Gate(shut=True)
    fn = batched.dynamically(gate, batch_size=1, timeout_ms=0, max_queue_size=1, on_full="wait")

    async def main() -> None:
        tasks = [asyncio.create_task(fn.acall(item)) for item in range(4)]
        await asyncio.to_thread(gate.wait_for_batch)
        tasks[2].cancel()
        with pytest.raises(asyncio.CancelledError):
            await tasks[2]
        gate.open()
        assert await asyncio.gather(tasks[0], tasks[1], tasks[3]) == [0, 1, 3]

    asyncio.run(main())
    assert [2] not in gate.batches
    assert not blocked(fn)
    assert fn.stats.total_cancelled == 1


def test_submit_blocks_until_there_is_room() -> None:
    """Its future is not returned before."""
    gate = Gate(shut=True)
    fn = batched.dynamically(gate, batch_size=1, timeout_ms=0, max_queue_size=1, on_full="wait")
    futures = [fn.submit(0)]
    gate.wait_for_batch()
    futures.append(fn.submit(1))
    returned = threading.Event()

    def submit() -> None:
        futures.append(fn.submit(2))
        returned.set()

    threading.Thread(target=submit, daemon=True).start()
    until(lambda: blocked(fn))
    assert not returned.is_set()
    gate.let_through()
    gate.wait_for_batch()
    assert returned.wait(PATIENCE_S)
    gate.open()
    assert [future.result(PATIENCE_S) for future in futures] == [0, 1, 2]


def test_map_never_overruns_the_bound(flavour: Flavour) -> None:
    """It waits for room even where others are refused."""
    most = []
    fn = flavour.decorate(
        lambda items: (most.append(fn.stats.queue_size + len(items)), items)[1],
        batch_size=4, timeout_ms=0, max_queue_size=5,
    )  # fmt: skip
    assert flavour.map(fn, range(200)) == list(range(200))
    assert max(most) <= 5 + 4
    until(lambda: not fn.stats.running_items)
    assert fn.stats.total_rejected == 0


def test_map_through_a_queue_of_one_comes_to_its_end(flavour: Flavour) -> None:
    """Each element is a call of its own there."""
    fn = flavour.decorate(lambda items: items, batch_size=4, timeout_ms=0, max_queue_size=1)
    assert flavour.map(fn, range(20)) == list(range(20))


@pytest.mark.parametrize("cancel_futures", [False, True])
def test_shutdown_with_callers_that_wait_for_room(flavour: Flavour, cancel_futures: bool) -> None:
    """They are served, or cancelled as all that is queued."""
    flavour.needs_threads()
    gate, fn, first = hold(flavour, on_full="wait", max_queue_size=1)
    queued = flavour.start(fn, 1)
    waiting = [begin(flavour, fn, item) for item in (2, 3)]
    fn.shutdown(wait=False, cancel_futures=cancel_futures)
    gate.open()
    fn.shutdown()
    assert first.result(PATIENCE_S) == "first"
    if cancel_futures:
        for future in (queued, *waiting):
            with pytest.raises(CancelledError):
                future.result(PATIENCE_S)
    else:
        assert [future.result(PATIENCE_S) for future in (queued, *waiting)] == [1, 2, 3]
    assert not blocked(fn)


def test_lowering_the_bound_below_who_waits_does_not_lock_them_out(flavour: Flavour) -> None:
    """They were promised a place; new ones are measured by the new bound."""
    gate, fn, _ = hold(flavour, on_full="wait")
    flavour.start(fn, 1)
    large = begin(flavour, fn, ["large"] * 3)
    behind = begin(flavour, fn, "behind")
    fn.configure(max_queue_size=2)
    with pytest.raises(ValueError, match="max_queue_size=2"):
        flavour.call(fn, ["x"] * 3)
    gate.open()
    assert large.result(PATIENCE_S) == ["large"] * 3
    assert behind.result(PATIENCE_S) == "behind"


def test_raising_the_bound_lets_in_who_waits(flavour: Flavour) -> None:
    """Also lifting it."""
    for bound in (10, None):
        gate, fn, _ = hold(flavour, on_full="wait", max_queue_size=1)
        flavour.start(fn, 1)
        waiting = [begin(flavour, fn, item) for item in (2, 3)]
        assert fn.stats.queue_size == 1
        fn.configure(max_queue_size=bound)
        assert fn.stats.queue_size == 3
        gate.open()
        assert [future.result(PATIENCE_S) for future in waiting] == [2, 3]


def test_a_bound_set_live_counts_what_came_before(flavour: Flavour) -> None:
    """As from the start."""
    gate, fn, _ = hold(flavour, max_queue_size=None)
    futures = [flavour.start(fn, item) for item in range(3)]
    fn.configure(max_queue_size=3)
    with pytest.raises(QueueFullError):
        flavour.call(fn, 4)
    gate.open()
    assert [future.result(PATIENCE_S) for future in futures] == [0, 1, 2]


def test_a_list_of_mixed_keys_is_admitted_whole(flavour: Flavour) -> None:
    """Its groups count together."""
    gate, fn, _ = hold(flavour, group_by=lambda item: str(item))
    flavour.start(fn, 1)
    with pytest.raises(QueueFullError):
        flavour.call(fn, [2, 3, 4])
    both = flavour.start(fn, [5, 6])
    gate.open()
    assert both.result(PATIENCE_S) == [5, 6]


def test_a_refused_task_leaves_no_timer_behind() -> None:
    """A deadline far ahead would else keep its call for as long."""
    gate = Gate(shut=True)
    fn = batched.dynamically(gate, batch_size=1, timeout_ms=0, max_queue_size=1)

    async def main() -> None:
        first = asyncio.create_task(fn.acall(0))
        await asyncio.to_thread(gate.wait_for_batch)
        second = asyncio.create_task(fn.acall(1))
        await asyncio.sleep(0)
        for _ in range(10):
            with pytest.raises(QueueFullError):
                await fn.options(deadline_ms=600_000).acall(2)
        timers = asyncio.get_running_loop()._scheduled  # type: ignore[attr-defined]
        assert not [timer for timer in timers if not timer.cancelled()]
        gate.open()
        assert await asyncio.gather(first, second) == [0, 1]

    asyncio.run(main())


def test_an_instance_is_collected_after_callers_were_refused_or_late() -> None:
    """Nothing of their calls is kept."""

    class Model:
        @batched.dynamically(batch_size=1, timeout_ms=0, max_queue_size=1, on_full="wait")
        def embed(self, items: list[int]) -> list[int]:
            result: list[int] = gate(items)
            return result

    gate = Gate(shut=True)
    model = Model()
    futures = [model.embed.submit(0)]
    gate.wait_for_batch()
    futures.append(model.embed.submit(1))
    for _ in range(3):
        with pytest.raises(TimeoutError):
            model.embed.options(deadline_ms=10).submit(2)
    gate.open()
    assert [future.result(PATIENCE_S) for future in futures] == [0, 1]
    assert not model.embed._find().dispatcher.blocked
    reference = weakref.ref(model)
    del model
    until(lambda: gc.collect() is not None and reference() is None)


def test_an_instance_is_collected_after_a_map_whose_bound_was_taken_away(flavour: Flavour) -> None:
    """The batcher keeps no calls of a map once they are answered, also if the bound has changed meanwhile."""

    class Failed(Exception):
        pass

    def embed(self: Any, items: list[int]) -> list[int]:
        gate(items)
        raise Failed  # whose traceback leads to the instance

    gate = Gate(shut=True)
    cls = type("Model", (), {"embed": flavour.decorate(embed, timeout_ms=0, max_queue_size=8)})
    model = cls()

    def change(model: Any) -> None:
        gate.wait_for_batch()
        model.embed.configure(max_queue_size=None)
        gate.open()

    changing = threading.Thread(target=change, args=(model,), daemon=True)
    changing.start()
    results = flavour.map(model.embed.options(return_exceptions=True), [1, 2])
    changing.join(PATIENCE_S)
    assert list(map(type, results)) == [Failed, Failed]
    reference = weakref.ref(model)
    del model, results, changing
    until(lambda: gc.collect() is not None and reference() is None)


def ask_in_a_thread(fn: Any, seed: int, answered: list[int]) -> None:
    """Ask lists of all sizes, some of them in great haste."""
    for turn in range(60):
        size = 1 + (seed + turn) % 10
        with contextlib.suppress(TimeoutError):
            assert fn.options(deadline_ms=20_000 if turn % 5 else 0.2)([turn] * size) == [turn] * size
            answered.append(seed)


async def ask_in_a_task(fn: Any, seed: int, answered: list[int]) -> None:
    """Ask lists of all sizes, and leave at times."""
    for turn in range(60):
        task = asyncio.ensure_future(fn.acall([turn] * (1 + (seed + turn) % 10)))
        if turn % 7 == 0:
            await asyncio.sleep(0)
            task.cancel()
        with contextlib.suppress(asyncio.CancelledError):
            assert set(await task) == {turn}
            answered.append(seed)


def test_a_bounded_queue_under_random_load_answers_everybody() -> None:
    """Threads and tasks, with and without patience; then nothing is left."""
    fn = batched.dynamically(
        lambda items: items, batch_size=8, timeout_ms=0.2,
        max_queue_size=10, on_full="wait", max_concurrent_batches=2,
    )  # fmt: skip
    answered: list[int] = []

    async def tasks() -> None:
        await asyncio.gather(*(ask_in_a_task(fn, seed, answered) for seed in range(10)))

    threads = [threading.Thread(target=ask_in_a_thread, args=[fn, seed, answered]) for seed in range(4)]
    for thread in threads:
        thread.start()
    asyncio.run(asyncio.wait_for(tasks(), PATIENCE_S))
    for thread in threads:
        thread.join(PATIENCE_S)
        assert not thread.is_alive()
    until(lambda: fn.stats.queue_size + fn.stats.running_items == 0)
    stats = fn.stats
    assert stats.total_accepted == stats.total_processed + stats.total_cancelled + stats.total_expired
    assert len(answered) > 100
    batcher = fn._batcher
    assert not batcher.dispatcher.blocked
    assert not batcher.batcher.calls.admission.awaiting_room
    fn.shutdown()


# -- single items that there is room for, beside calls that are refused ---------------------------------


def test_a_refused_call_does_not_keep_others_from_a_full_batch(flavour: Flavour) -> None:
    """Who waits in the window is counted on, whoever is turned away meanwhile."""
    gate = Gate()
    fn = flavour.decorate(gate, batch_size=4, timeout_ms=60_000, adaptive=False, max_queue_size=10)
    futures = [flavour.start(fn, item) for item in range(3)]
    with pytest.raises(ValueError, match="max_queue_size=10"):
        flavour.call(fn, list(range(11)))
    futures.append(flavour.start(fn, 3))
    assert [future.result(PATIENCE_S) for future in futures] == [0, 1, 2, 3]
    assert gate.batches == [[0, 1, 2, 3]]


def test_a_refused_call_takes_no_wake_up_along(monkeypatch: pytest.MonkeyPatch) -> None:
    """A call has arrived, and no worker has been woken yet, when another is refused."""
    fn = batched.dynamically(Gate(), timeout_ms=0, max_queue_size=2)
    assert fn(0) == 0
    batcher = fn._batcher.batcher
    until(lambda: batcher.inbox.wake_after == 1)
    inside, refused = threading.Event(), threading.Event()
    wakes = Inbox.wakes

    def pausing(inbox: Inbox, call: Any) -> bool:
        inside.set()
        assert refused.wait(PATIENCE_S)
        return wakes(inbox, call)

    monkeypatch.setattr(Inbox, "wakes", pausing)
    answers: list[int] = []
    caller = threading.Thread(target=lambda: answers.append(fn(1)), daemon=True)
    caller.start()
    assert inside.wait(PATIENCE_S)
    with pytest.raises(ValueError, match="max_queue_size=2"):
        fn([1, 2, 3])
    refused.set()
    caller.join(PATIENCE_S)
    assert answers == [1]


def test_a_bound_counts_the_items_of_lists_that_came_before_it(flavour: Flavour) -> None:
    """All of them, though they have not been looked at yet."""
    gate, fn, first = hold(flavour, max_queue_size=None)
    many = flavour.start(fn, list(range(10)))
    fn.configure(max_queue_size=5)
    with pytest.raises(QueueFullError, match="10 items waiting"):
        flavour.call(fn, "more")
    gate.open()
    assert first.result(PATIENCE_S) == "first"
    assert many.result(PATIENCE_S) == list(range(10))


def test_a_queue_that_is_empty_again_holds_on_to_nobody() -> None:
    """Though whoever has left was never asked for: who learns of calls forgets those too."""
    driver = ManualDriver(Options())
    call = Call().begin(list, 1, 1, False, 0.0)
    driver.push(call)
    call.left = "cancelled"
    driver.drop(call)
    assert all(call not in value for value in vars(driver.batcher).values() if isinstance(value, list))


def test_single_items_never_overrun_the_bound() -> None:
    """However many threads push at once; and none is refused while there is room."""
    gate = Gate(shut=True)
    fn = batched.dynamically(gate, batch_size=1, timeout_ms=0, max_queue_size=50)
    first = fn.submit(-1)
    gate.wait_for_batch()
    results: list[int | str] = []
    barrier = threading.Barrier(80)

    def call(item: int) -> None:
        barrier.wait(PATIENCE_S)
        try:
            results.append(fn(item))
        except QueueFullError:
            results.append("full")

    threads = [threading.Thread(target=call, args=[item], daemon=True) for item in range(80)]
    for thread in threads:
        thread.start()
    until(lambda: results.count("full") == 30)
    assert fn.stats.queue_size == 50
    gate.open()
    for thread in threads:
        thread.join(PATIENCE_S)
    assert first.result(PATIENCE_S) == -1
    assert len(results) == 80
    assert results.count("full") == 30
    fn.shutdown()
