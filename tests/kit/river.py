"""What stands for a batcher, as a feature sees it: it writes down what the feature says of itself."""

from __future__ import annotations

from collections import Counter, deque
from collections.abc import Callable
from types import SimpleNamespace
from typing import Any

from batched._core.admission import Admission
from batched._core.batch import Batch
from batched._core.call import Call
from batched._core.first import First
from batched._core.halves import Half
from batched._core.hooks import Run
from batched._core.options import Options
from batched._policy.window import Window
from tests.kit.calls import listed, single


class StandInRiver:
    """A `River` with no calls but those that a test gives it."""

    def __init__(self, lengths: Any = None) -> None:
        self.arriving: list[Call] = []
        self.later: deque[Callable[[], None]] = deque()
        self.batch_s = 0.0
        self.followed = 0
        """How often its queue was told that the rule of lengths may have changed."""
        self.is_plain = True
        """Whether its queue follows no rule."""
        self.queue: Any = SimpleNamespace(
            items=0, lengths=lengths, large_limit=None, follow_rule=self._follow_rule
        )
        self.counters: Any = SimpleNamespace(chosen=Counter[str](), copies=0, told=set(), batch_error=None)
        self.running: dict[Batch, float] = {}
        self.first = First()
        self.windows: list[Window] = []
        """The windows that it was told to use, one after another."""
        self.hooked = 0
        """How often it was told that hooks have changed."""
        self.resized = 0
        """How often it was told that a limit has changed."""
        self.expired: list[tuple[Call, TimeoutError | None]] = []
        """The calls that it was told to answer, and their errors."""
        self.again: list[tuple[Batch, list[Half]]] = []
        """The batches that are to run again, and in which parts."""
        self.ended: list[tuple[Batch, BaseException]] = []
        """The batches that are not to run, and what their calls get."""
        self.afterward: list[Callable[[], object]] = []
        self.slots = 1.0
        self.options = Options()
        self.admission = Admission("f", self.options, None)

    def _follow_rule(self) -> bool:
        self.followed += 1
        return self.is_plain

    def use_window(self, window: Window) -> None:
        """Write down the window."""
        self.windows.append(window)

    def hook(self) -> None:
        """Count it."""
        self.hooked += 1

    def resize(self) -> None:
        """Count it."""
        self.resized += 1

    def expire(self, call: Call, error: TimeoutError | None = None) -> None:
        """Write down the call."""
        self.expired.append((call, error))

    def can_repeat(self, batch: Batch) -> bool:
        """Return True."""
        return True

    def prune(self, batch: Batch, started: float | None) -> bool:
        """Leave out what no caller wants."""
        return bool(batch.prune())

    def run_again(self, batch: Batch, parts: list[Half]) -> None:
        """Write it down; the parts come first."""
        self.running.pop(batch, None)
        self.again.append((batch, parts))
        self.first.extendleft(reversed(parts))

    def end_unrun(self, batch: Batch, error: BaseException, started: float, now: float) -> None:
        """Write it down."""
        self.ended.append((batch, error))

    def afterwards(self, do: Callable[[], object]) -> None:
        """Write it down."""
        self.afterward.append(do)


def batch_of(size: int, *, failed: int = 0) -> Batch:
    """Return a batch of so many single items, of which some have failed."""
    batch = Batch([(single(), 0, 1) for _ in range(size)], size)
    batch.failed = failed
    return batch


def run_of(size: int, seconds: float = 0.5, *, started: float = 10.0, failed: int = 0) -> Run:
    """Return a batch of so many single items that has run, and answered all of its calls."""
    return Run(batch_of(size, failed=failed), started, started + seconds, size, None)


def run_of_list(start: int, stop: int, *, arrived: float, started: float = 10.0) -> Run:
    """Return a run of a part of a list, which came at some time; with its last item the list is answered."""
    call = listed(10, arrived)
    return Run(
        Batch([(call, start, stop)], stop - start), started, started + 0.5, int(stop == call.size), None
    )
