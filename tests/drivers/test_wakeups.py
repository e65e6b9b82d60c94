"""Event loops are woken once for all calls that are answered meanwhile."""

from __future__ import annotations

import asyncio
import gc
import os
import weakref
from contextvars import Context
from typing import Any

import pytest

import batched
from batched._core.call import Call
from batched._drivers import wakeups
from batched._drivers.wakeups import Outbox, ask, wake
from tests.kit.gate import PATIENCE_S, Gate, until


def test_a_loop_that_is_behind_is_woken_once_for_all_that_is_answered_meanwhile() -> None:
    """A wake-up costs as much as many answers: while one is under way there is no other."""
    fn = batched.dynamically(Gate(), batch_size=1, timeout_ms=0)

    async def main() -> None:
        loop = asyncio.get_running_loop()
        wake_up = loop.call_soon_threadsafe
        woken = []

        def wake_up_and_count(*args: Any, **named: Any) -> Any:
            woken.append(args)
            return wake_up(*args, **named)

        loop.call_soon_threadsafe = wake_up_and_count  # type: ignore[method-assign]
        for round_ in range(1, 3):
            calls = [asyncio.create_task(fn.acall(item)) for item in range(5)]
            await asyncio.sleep(0)
            until(lambda round_=round_: fn.stats.total_processed == 5 * round_)  # and the loop stands still
            assert await asyncio.wait_for(asyncio.gather(*calls), PATIENCE_S) == list(range(5))
            assert len(woken) == round_

    asyncio.run(main())


class Loop:
    """What `wake` asks of an event loop."""

    def __init__(self) -> None:
        self.ready: list[Any] = []
        self.error: type[BaseException] | None = None
        self.closed = False

    def call_soon_threadsafe(self, callback: Any) -> None:  # as loops of some libraries, without a handle
        if self.error is not None:
            raise self.error
        self.ready.append(callback)

    def is_closed(self) -> bool:
        return self.closed

    def call_on(self) -> Call:
        call = Call().begin(list, None, 1, False, 0.0)
        call.waits_at = self
        call.missing = 0
        return call


def test_no_answer_is_lost_between_two_wake_ups() -> None:
    """What comes after the loop has begun to empty its outbox is told of again."""
    loop = Loop()
    calls = [loop.call_on() for _ in range(4)]
    wake(calls[:1])
    wake(calls[1:2])
    assert len(loop.ready) == 1
    calls[0].add_done_callback(lambda _: wake(calls[2:3]), context=Context())  # in the middle of it
    loop.ready[0]()
    assert [call.is_woken for call in calls[:3]] == [True, True, False]
    loop.ready[1]()
    assert calls[2].is_woken
    wake(calls[3:])
    loop.ready[2]()
    assert calls[3].is_woken


def test_a_loop_is_not_taken_for_another_of_the_same_id(monkeypatch: pytest.MonkeyPatch) -> None:
    """One that is gone, whose wake-up is still to come, had its id."""
    gone, loop = Loop(), Loop()
    monkeypatch.setattr(wakeups, "id", lambda _: 7, raising=False)
    told, call = gone.call_on(), loop.call_on()
    wake([told])
    wake([call])
    assert len(gone.ready) == len(loop.ready) == 1
    loop.ready[0]()
    assert call.is_woken
    assert not told.is_woken


def test_of_very_many_loops_each_is_told_of_its_own_calls() -> None:
    """Also twice, and little is kept of all of them."""
    loops = [Loop() for _ in range(3000)]
    calls = [each.call_on() for _ in range(2) for each in loops]
    for call in calls:
        wake([call])
    outboxes = {callback.__self__ for each in loops for callback in each.ready}
    assert sum(map(weakref.getweakrefcount, outboxes)) < 2000
    for each in loops:
        for callback in each.ready:
            callback()
    assert all(call.is_woken for call in calls)


def test_a_loop_that_is_closed_keeps_no_calls() -> None:
    """No caller will ever come for them."""
    loop = Loop()
    told = loop.call_on()
    calls = [weakref.ref(told)]
    wake([told])
    loop.ready.clear()  # as `close` does
    loop.error = RuntimeError
    call = loop.call_on()
    calls.append(weakref.ref(call))
    wake([call])
    del told, call
    assert [call() for call in calls] == [None, None]


def test_a_release_that_fails_is_tried_once_and_the_others_come_after_it() -> None:
    """It would fail again, for ever."""
    tried: list[str] = []
    all_tried = asyncio.Event()

    def release(calls: list[Any]) -> None:
        tried.extend(calls)
        if "last" in calls:
            all_tried.set()
        if "fails" in calls:
            raise ValueError

    async def main() -> None:
        loop = asyncio.get_running_loop()
        loop.set_exception_handler(lambda *_: None)
        outbox: Any = Outbox(loop, release)
        outbox.lists.extend([["first"], ["fails"], ["last"]])
        loop.call_soon(outbox.empty)
        await asyncio.wait_for(all_tried.wait(), PATIENCE_S)
        await asyncio.sleep(0)

    asyncio.run(main())
    assert tried == ["first", "fails", "last"]


def test_a_release_that_fails_after_the_loop_was_run_once_more_loses_no_others() -> None:
    """Its calls are gone by then: what is first in line are others, or none."""
    for others in ([], [["next"]]):
        tried: list[str] = []

        def release(calls: list[Any], tried: list[str] = tried) -> None:
            tried.extend(calls)
            if tried == ["fails"]:
                outbox.lists.popleft()  # as a loop does that is run once more
                raise ValueError

        async def main(others: list[list[str]] = others) -> None:
            nonlocal outbox
            outbox = Outbox(asyncio.get_running_loop(), release)
            outbox.lists.extend([["fails"], *others])
            with pytest.raises(ValueError, match=r"^$"):
                outbox.empty()
            await asyncio.sleep(0)

        outbox: Any = None
        asyncio.run(main())
        assert tried == ["fails", *(["next"] if others else [])]


class ClosesMeanwhile(asyncio.SelectorEventLoop):
    """A loop that its own thread closes after another has seen that it is open."""

    handle: asyncio.Handle

    def call_soon_threadsafe(self, callback: Any, *args: Any, **named: Any) -> asyncio.Handle:
        self.close()
        self.handle = asyncio.Handle(callback, args, self, **named)
        return self.handle


def test_a_loop_that_is_closed_meanwhile_is_handed_nothing() -> None:
    """It would keep a batcher, its calls and their instances for as long as the loop itself is kept."""
    loop = ClosesMeanwhile()
    item = Gate()
    assert not ask(loop, print, item)
    kept = weakref.ref(item)
    del item
    assert kept() is None
    assert loop.handle.cancelled()


def test_a_loop_without_handles_can_be_closed_meanwhile() -> None:
    """Loops of some libraries return nothing."""
    loop: Any = Loop()
    assert ask(loop, print)
    loop.closed = True
    assert not ask(loop, print)


def test_a_wake_up_that_is_interrupted_is_made_up_for() -> None:
    """In the thread of the worker or of the loop: later calls are answered."""
    loop = Loop()
    calls = [loop.call_on() for _ in range(3)]
    loop.error = KeyboardInterrupt
    with pytest.raises(KeyboardInterrupt):
        wake(calls[:1])
    loop.error = None
    wake(calls[1:2])
    loop.ready.clear()  # the loop had just taken it out
    wake(calls[2:])
    loop.ready[0]()
    assert calls[2].is_woken


def test_who_is_told_goes_on_after_an_interruption() -> None:
    """Those behind the caller that was being released are released in the next turn."""

    async def main() -> None:
        loop = Loop()
        calls = [loop.call_on() for _ in range(4)]
        wake(calls[:3])
        wake(calls[3:])

        def interrupt(_: object) -> None:
            raise KeyboardInterrupt

        calls[1].add_done_callback(interrupt, context=Context())
        with pytest.raises(KeyboardInterrupt):
            loop.ready[0]()
        assert [call.is_woken for call in calls] == [True, True, False, False]
        await asyncio.sleep(0)
        assert [call.is_woken for call in calls] == [True, True, True, True]

    asyncio.run(main())


@pytest.mark.skipif(not hasattr(os, "fork"), reason="needs fork")
def test_a_child_process_waits_for_no_wake_up_of_its_parents() -> None:
    """One that was under way when it was forked may never come there."""
    loop = Loop()
    calls = [loop.call_on() for _ in range(2)]
    wake(calls[:1])
    child = os.fork()
    if not child:
        wake(calls[1:])
        os._exit(len(loop.ready))
    _, status = os.waitpid(child, 0)
    assert os.waitstatus_to_exitcode(status) == 2


def test_calls_that_wait_at_an_outbox_are_handed_on_together() -> None:
    """By its loop, in one step for all that are answered meanwhile; where the loop is gone, they are not."""

    async def main() -> None:
        loop = asyncio.get_running_loop()
        released: list[list[Call]] = []
        outbox = Outbox(loop, released.append)
        calls = [Call().begin(None, at, 1, False, 0.0) for at in range(3)]
        for call in calls:
            call.waits_at = outbox
        assert wake(calls[:2]) == []
        assert wake(calls[2:]) == []
        assert released == []
        await asyncio.sleep(0)
        await asyncio.sleep(0)
        assert released == [calls[:2], calls[2:]]

    asyncio.run(main())
    loop = Loop()
    outbox = Outbox(loop, lambda _: None)  # type: ignore[arg-type]
    call = Call().begin(None, 1, 1, False, 0.0)
    call.waits_at = outbox
    del loop
    gc.collect()
    assert outbox.loop() is None
    assert wake([call]) == []
    assert not outbox.is_told
