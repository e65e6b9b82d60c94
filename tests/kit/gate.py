"""Batch functions that tests can watch and hold, and a wait that fails loudly."""

from __future__ import annotations

import asyncio
import sysconfig
import threading
from collections.abc import Callable
from gc import collect
from itertools import count
from time import monotonic
from typing import Any

PATIENCE_S = 20.0
IS_FREE_THREADED = bool(sysconfig.get_config_var("Py_GIL_DISABLED"))


class Door:
    """Holds whatever comes to it while it is shut, until that is let through.

    To open it costs the same however many may come, which a semaphore's permits for all of them would not.
    """

    def __init__(self, *, shut: bool) -> None:
        self._changed = threading.Condition()
        self._passes = 0
        self._is_open = not shut

    def wait(self) -> None:
        """Wait until this one may pass."""
        if not self._is_open:
            with self._changed:
                assert self._changed.wait_for(self._passed, PATIENCE_S), "the gate was not opened"

    def _passed(self) -> bool:
        if self._is_open or not self._passes:
            return self._is_open
        self._passes -= 1
        return True

    def let_through(self, number: int) -> None:
        """Let so many pass."""
        with self._changed:
            self._passes += number
            self._changed.notify_all()

    def open(self) -> None:
        """Hold none any more."""
        with self._changed:
            self._is_open = True
            self._changed.notify_all()

    def close(self) -> None:
        """Hold all that come from now on."""
        with self._changed:
            self._is_open = False
            self._passes = 0

    def shut_again(self) -> None:
        """Let none pass for one that never came."""
        with self._changed:
            self._passes = 0


class Gate:
    """A batch function that notes its batches and, while shut, holds each until it is let through."""

    def __init__(
        self,
        answer: Callable[[Any], Any] = list,
        *,
        shut: bool = False,
        note: Callable[[Any], Any] = list,
    ) -> None:
        self.answer = answer
        self.note = note
        self.batches: list[Any] = []
        self.entered = threading.Semaphore(0)
        self._door = Door(shut=shut)

    def __call__(self, items: Any) -> Any:
        """Note the batch, wait at the gate, answer."""
        self.batches.append(self.note(items))
        self.entered.release()
        self._door.wait()
        return self.answer(items)

    def let_through(self, batches: int = 1) -> None:
        """Let so many batches pass."""
        self._door.let_through(batches)

    def open(self) -> None:
        """Hold no batch any more."""
        self._door.open()

    def close(self) -> None:
        """Hold each batch from now on, also after `open`."""
        self._door.close()
        self.shut_again()

    def shut_again(self) -> None:
        """Hold further batches, also those for which a batch that never came was to make way."""
        self._door.shut_again()
        while self.entered.acquire(blocking=False):
            pass

    def wait_for_batch(self) -> None:
        """Wait until one more batch has come to the gate."""
        assert self.entered.acquire(timeout=PATIENCE_S), f"no further batch came: {self.batches}"


class AsyncGate:
    """A gate for batch functions that are `async def`."""

    def __init__(
        self,
        answer: Callable[[Any], Any] = lambda items: items,
        *,
        shut: bool = True,
        note: Callable[[Any], Any] = list,
    ) -> None:
        self.answer = answer
        self.note = note
        self.batches: list[Any] = []
        self.entered = asyncio.Semaphore(0)
        self.opened = asyncio.Event()
        if not shut:
            self.opened.set()

    async def __call__(self, items: Any) -> Any:
        """Note the batch, wait at the gate, answer."""
        self.batches.append(self.note(items))
        self.entered.release()
        await self.opened.wait()
        return self.answer(items)


def until(condition: Callable[[], Any]) -> None:
    """Wait until `condition` holds, for what gives no event."""
    done = threading.Event()
    end = monotonic() + PATIENCE_S  # turns would not do: a condition may collect garbage, which takes long
    for turn in count(1):
        if condition():
            return
        if monotonic() > end:
            break
        done.wait(0.001)
        if IS_FREE_THREADED and turn % 64 == 0:  # more often the threads would hardly get further
            # An object that another thread has made dies when that thread goes on, or at a collection.
            # (Written as `gc.collect`, no test that waits would run in two threads with pytest-run-parallel.)
            collect()
    raise AssertionError("the condition never came true")


async def turns(count: int = 5) -> None:
    """Let every task that can run do so."""
    for _ in range(count):
        await asyncio.sleep(0)


async def turns_until(condition: Callable[[], Any]) -> None:
    """Let the loop run until `condition`, which nothing on it sets, holds."""
    for turn in range(int(PATIENCE_S * 1000)):
        if condition():
            return
        await asyncio.sleep(0.001)
        if IS_FREE_THREADED and turn % 64 == 63:  # as in `until`
            collect()
    raise AssertionError("the condition never came true")


async def moment(seconds: float) -> None:
    """Let the loop run for a while: calls that come at a rate, or what gives no event and may be missed."""
    await asyncio.sleep(seconds)
