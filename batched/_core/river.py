"""What the deciding parts of a batcher see of it."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable
from typing import Any, Protocol

from batched._core.admission import Admission
from batched._core.batch import Batch
from batched._core.call import Call
from batched._core.counters import Counters
from batched._core.first import First
from batched._core.halves import Half
from batched._core.options import Options
from batched._policy.window import Window


class River(Protocol):
    """The calls on their way, as features see them.

    They read the queue, what runs and what is to run `first`. They write into `first`, `later`, `batch_s`,
    `slots` and `admission`, and their own figures into `counters`; all else is said by a method.
    """

    arriving: list[Call]
    later: deque[Callable[[], None]]
    batch_s: float
    queue: Any
    """A `Queue`, or `KeyedQueues`."""
    counters: Counters
    running: dict[Batch, float]
    first: First
    slots: float
    """How many batches run at once; where they overlap by stages, as far as that is known."""
    options: Options
    admission: Admission

    def use_window(self, window: Window) -> None:
        """Hold batches that are not full back as long as `window` says."""
        ...

    def hook(self) -> None:
        """Ask and tell the features that have a hook at present."""
        ...

    def resize(self) -> None:
        """Have the queue know how many items a batch has, at most."""
        ...

    def expire(self, call: Call, error: TimeoutError | None = None) -> None:
        """Answer `call`, which is late or will be, with `error` or else a `TimeoutError`."""
        ...

    def can_repeat(self, batch: Batch) -> bool:
        """Whether the items of `batch`, which has run, are as they were."""
        ...

    def prune(self, batch: Batch, started: float | None) -> bool:
        """Forget what of `batch` no caller wants; return whether that was any. None: it has not `started`."""
        ...

    def run_again(self, batch: Batch, parts: list[Half]) -> None:
        """Have `parts` of `batch`, which has failed, run before what waits."""
        ...

    def end_unrun(self, batch: Batch, error: BaseException, started: float, now: float) -> None:
        """Answer the calls of `batch`, which does not run, with `error`."""
        ...

    def afterwards(self, do: Callable[[], object]) -> None:
        """Have something done after this step, without the lock, and before callers are told."""
        ...
