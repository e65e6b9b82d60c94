"""The threads of batchers, found by their names and waited for until they sleep; and threads that call."""

from __future__ import annotations

import threading
from collections.abc import Callable
from typing import Any

from tests.kit.gate import PATIENCE_S, until
from tests.kit.kept import driver_of


def workers(name: str | None = None) -> list[threading.Thread]:
    """Return the worker threads of the batcher of that name; without a name, those of all batchers."""
    threads = threading.enumerate()
    if name is None:
        return [thread for thread in threads if thread.name.startswith("batched: ")]
    return [thread for thread in threads if thread.name == f"batched: {name}"]


def watches(name: str) -> list[threading.Thread]:
    """Return the threads that watch the deadlines of the batcher of that name."""
    return [thread for thread in threading.enumerate() if thread.name == f"batched deadlines: {name}"]


def until_asleep(fn: Any, calls: int = 1) -> None:
    """Wait until the worker of `fn` sleeps, to be woken when so many calls have come."""
    inbox = driver_of(fn).batcher
    until(lambda: inbox.wake_after == calls)


def together(callers: int, work: Callable[[int], None]) -> None:
    """Run `work` in so many threads at once; raise the first error of any."""
    errors: list[BaseException] = []

    def run(number: int) -> None:
        try:
            work(number)
        except BaseException as error:
            errors.append(error)

    threads = [threading.Thread(target=run, args=(number,), daemon=True) for number in range(callers)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(PATIENCE_S * 2)
    assert not any(thread.is_alive() for thread in threads), "a caller hangs"
    if errors:
        raise errors[0]
