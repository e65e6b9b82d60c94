"""The threads of batchers: found by their names, and waited for until they sleep."""

from __future__ import annotations

import threading
from typing import Any

from tests.kit.gate import until
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
    inbox = driver_of(fn).batcher.inbox
    until(lambda: inbox.wake_after == calls)
