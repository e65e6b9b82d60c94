"""The lock of a driver, which knows its owner and takes steps later."""

from __future__ import annotations

import threading

import pytest

from batched._drivers.step_lock import StepLock
from batched._locks import owns_publicly
from tests.kit.gate import PATIENCE_S


@pytest.mark.parametrize("owns", [StepLock.is_mine, owns_publicly], ids=["quick", "public"])
def test_it_is_known_which_thread_holds_it(owns: object) -> None:
    """This one, or not: another may."""
    assert callable(owns)
    lock = StepLock()
    seen: list[bool] = []

    def look() -> None:
        seen.append(owns(lock))

    def look_from_elsewhere() -> None:
        other = threading.Thread(target=look)
        other.start()
        other.join(PATIENCE_S)

    look()
    with lock:
        look()
        look_from_elsewhere()
        with lock:
            pass
        look()
    look()
    assert seen == [False, True, False, True, False]


def test_steps_are_taken_later_when_the_lock_is_free(caplog: pytest.LogCaptureFixture) -> None:
    """In order, also after one that fails; one that finds the lock held by its thread waits for longer."""
    lock = StepLock()
    taken: list[object] = []

    def take() -> None:
        if lock.is_mine():
            lock.later.append(take)
        else:
            taken.append("first")

    def fail() -> None:
        raise ValueError("failed")

    with lock.later, lock:
        with lock.later, lock:
            lock.later.append(take)
        assert taken == []
        lock.later.extend([fail, lambda: taken.append("last")])
    assert taken == ["first", "last"]
    assert [str(record.exc_info and record.exc_info[1]) for record in caplog.records] == ["failed"]
