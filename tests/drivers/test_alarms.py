"""One timer of an event loop wakes all callers whose deadlines pass."""

from __future__ import annotations

import asyncio
import contextvars
import gc
import weakref
from collections.abc import Callable
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from batched._core import lazy_heap
from batched._core.call import Call
from batched._drivers import alarms, wakeups
from batched._drivers.alarms import watch


class Timer:
    """What `call_later` returns."""

    def __init__(self, when: float, callback: Callable[[], object]) -> None:
        self.when = when
        self.callback: Callable[[], object] | None = callback

    def cancel(self) -> None:
        """Forget the callback, as asyncio's timers do."""
        self.callback = None


class Sleeper(Call):
    """A call whose caller notes when it goes on."""

    went_on: list[float]

    @property
    def woken_at(self) -> float | None:
        """When it went on, if it has."""
        assert len(self.went_on) <= 1
        return self.went_on[0] if self.went_on else None

    def wake(self) -> None:
        """Be answered."""
        wakeups.resolve_on_loop([self])


class Loop:
    """A loop whose clock only tests turn."""

    def __init__(self) -> None:
        self.now = 0.0
        self.timers: list[Timer] = []
        self.set = 0

    def call_later(
        self, delay: float, callback: Callable[..., object], *args: Any, context: contextvars.Context
    ) -> Timer:
        """Note a timer."""
        assert not context
        assert delay >= 0.0
        timer = Timer(self.now + delay, lambda: callback(*args))
        self.timers.append(timer)
        self.set += 1
        return timer

    @property
    def pending(self) -> list[Timer]:
        """Timers that will go off."""
        return sorted((timer for timer in self.timers if timer.callback), key=lambda timer: timer.when)

    def run(self, until: float) -> None:
        """Turn the clock."""
        while self.pending and self.pending[0].when <= until:
            timer = self.pending[0]
            self.now = max(self.now, timer.when)
            callback, timer.callback = timer.callback, None
            assert callback is not None
            callback()
        self.now = until


def call(loop: Loop, deadline: float) -> Sleeper:
    """Watch a new call, and return it."""
    sleeper = Sleeper().begin(list, 1, 1, False, loop.now, deadline)
    went_on = sleeper.went_on = []
    sleeper.add_done_callback(lambda _: went_on.append(loop.now), context=contextvars.Context())
    watch(sleeper, loop)  # type: ignore[arg-type]
    return sleeper


@pytest.fixture
def loop(monkeypatch: pytest.MonkeyPatch) -> Loop:
    """A loop whose clock is that of the alarms, and is turned by hand."""
    made = Loop()
    monkeypatch.setattr(alarms, "monotonic", lambda: made.now)
    return made


@given(
    st.lists(
        st.tuples(
            st.floats(0.0, 0.2),  # pause before it
            st.floats(0.001, 1.0),  # allowed
            st.none() | st.floats(0.0, 1.0),  # answered after
        ),
        max_size=60,
    ),
    st.integers(1, 20),
)
def test_everybody_is_woken_at_their_own_deadline(
    calls: list[tuple[float, float, float | None]], few: int
) -> None:
    """Unless answered before; in whatever order the deadlines are set, and however many are kept."""
    with pytest.MonkeyPatch.context() as patch:
        loop = Loop()
        patch.setattr(alarms, "monotonic", lambda: loop.now)
        patch.setattr(lazy_heap, "LEAST_LIMIT", few)
        expected: list[tuple[Sleeper, float]] = []
        for pause, allowed, answered_after in calls:
            loop.run(loop.now + pause)
            waiter = call(loop, loop.now + allowed)
            when = loop.now + allowed
            if answered_after is not None and answered_after < allowed:
                when = loop.now + answered_after
                loop.call_later(answered_after, waiter.wake, context=contextvars.Context())
            expected.append((waiter, when))
            assert len(loop.pending) <= 1 + sum(after is not None for _, _, after in calls)
        loop.run(loop.now + 2.0)
        for waiter, when in expected:
            assert waiter.woken_at is not None
            # Whoever's deadline falls into the millisecond after another's may be woken with its end.
            assert when <= waiter.woken_at <= when + 0.0011
        assert loop.pending == []


def test_deadlines_that_come_in_order_share_a_timer(loop: Loop) -> None:
    """As most do: all calls have as long."""
    waiters = [call(loop, 1.0 + each / 1000) for each in range(500)]
    for waiter in waiters[:-1]:
        waiter.wake()
    assert loop.set == 1
    loop.run(1.0)
    assert loop.set == 2
    loop.run(2.0)
    assert waiters[-1].woken_at == pytest.approx(1.499)
    assert loop.set == 2


def test_those_that_are_answered_are_forgotten_before_their_deadline(loop: Loop) -> None:
    """An hour's deadline must not keep an hour's calls, nor what leads to those that somebody else keeps."""
    gone = weakref.ref(call(loop, loop.now + 3600.0))
    assert gone() is None
    kept = []
    for _ in range(5000):
        kept.append(call(loop, loop.now + 3600.0))
        kept[-1].wake()
    assert sum(map(weakref.getweakrefcount, kept)) <= 100


def test_nothing_is_kept_of_a_loop_that_is_closed() -> None:
    """With calls waiting, and timers set: what led to the calls is gone."""
    kept = Call().begin(list, 1, 1, False, 0.0, 1e9)

    async def main() -> int:
        watch(kept, asyncio.get_running_loop())
        return weakref.getweakrefcount(kept)

    assert asyncio.run(main()) == 1
    gc.collect()
    assert weakref.getweakrefcount(kept) == 0


def test_ctrl_c_while_callers_are_woken_leaves_the_others_their_deadline(loop: Loop) -> None:
    """The timer is set again, whatever was raised."""
    first, second = call(loop, 1.0), call(loop, 2.0)

    def interrupt(_: object) -> None:
        raise KeyboardInterrupt

    first.add_done_callback(interrupt, context=contextvars.Context())
    with pytest.raises(KeyboardInterrupt):
        loop.run(1.5)
    loop.run(3.0)
    assert second.woken_at == 2.0
