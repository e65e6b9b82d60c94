"""What is told of the batches of all functions, also of those that are decorated later."""

from __future__ import annotations

from batched._drivers.event_loop import LoopDriver
from batched._drivers.fork_and_exit import live
from batched._drivers.telling import OnBatch, of_all
from batched._drivers.thread import ThreadDriver


def listen(on_batch: OnBatch) -> None:
    """Have `on_batch` told of each batch from now on, as if each function had that option."""
    of_all.append(on_batch)
    _ask_anew()


def ignore(on_batch: OnBatch) -> None:
    """Have `on_batch` told of what has run by now, and no more."""
    for driver in _drivers():
        driver.teller.flush()
    of_all.remove(on_batch)
    _ask_anew()


def _drivers() -> list[ThreadDriver | LoopDriver]:
    return [each for each in live() if isinstance(each, ThreadDriver | LoopDriver)]


def _ask_anew() -> None:
    """Have each batcher find out whether anything listens."""
    for driver in _drivers():
        driver.configure({})
