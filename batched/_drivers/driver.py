"""What the drivers for threads and for event loops share."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Collection, Mapping
from copy import deepcopy
from dataclasses import replace
from typing import Any, Literal, NoReturn, Protocol

from batched._clock import monotonic
from batched._core.admission import admits_with_lock
from batched._core.batcher import Batcher, NewQueue, snapshot, with_tenants
from batched._core.call import Call, Slice
from batched._core.collator import Collator
from batched._core.counters import Counters
from batched._core.lessons import NOTHING, Lessons
from batched._core.options import Options, has_stages
from batched._core.stats import Stats
from batched._core.stream_batcher import StreamBatcher
from batched._drivers.fork_and_exit import register
from batched._drivers.step_lock import StepLock, new_step_lock
from batched._drivers.telling import Teller
from batched._drivers.wakeups import error_of
from batched._features.backlog import Backlog, KnowsWorkers
from batched._parts.layers import LayeredCollator
from batched._parts.stack import features
from batched.errors import ClosedError, raise_as_was


class Follower(Protocol):
    """What is told of changed options."""

    def follow(self) -> None:
        """Note that options have changed."""
        ...


class Driver(ABC):
    """One decorated function's way to its batchers, for callers."""

    followers: Collection[Follower] = ()
    """Servers of the function, in this process."""
    worker_times: KnowsWorkers | None = None
    """What knows of the workers, if other functions use them too."""

    def __init__(self, options: Options, queue: NewQueue, collator: Collator, name: str) -> None:
        self.options: Options = options  # as last configured
        self.collator: Collator = collator
        self.name: str = name
        self.closed: bool = False
        self.new_queue: NewQueue = queue
        self._takes_turns = False
        self.admits_with_lock: bool = admits_with_lock(options)
        self._begin_anew()
        register(self)

    def after_fork(self) -> None:
        """Start afresh in the child: calls, and what would answer them, are the parent's."""
        self._begin_anew()

    def _begin_anew(self) -> None:
        """Start with a free lock, and nothing counted."""
        self.counters: Counters = Counters()
        self.teller: Teller = Teller(self.name, self.options.on_batch)
        self.lock: StepLock = new_step_lock()
        self._amid_step: Stats | None = None  # the figures in the middle of the present step, if asked for

    def _follow(self, changes: Mapping[str, Any]) -> None:
        """Change options. Needs the lock: another thread may change others."""
        self.options = replace(self.options, **changes)
        self.admits_with_lock = admits_with_lock(self.options)

    def take_turns(self) -> None:
        """Have tenants take turns from now on; calls that have none are of one together."""
        if not self._takes_turns:  # else each server would make one more layer around the queue
            self.new_queue = with_tenants(self.new_queue)
            self._takes_turns = True
        if isinstance(self.collator, LayeredCollator):
            self.collator.take_given_tenants()

    async def rest(self) -> None:
        """Return once what is told of batches has been told: drivers wait for those that run first."""
        await self.teller.aflush()

    def _close(self) -> None:
        self.closed = True

    def new_batcher(self) -> Batcher:
        """Return a batcher with the present options."""
        found = features(
            self.name,
            overlaps=has_stages(self.options) and self.options.workers is None,
            workers=self.worker_times,
            teller=self.teller,
        )
        kind = StreamBatcher if self.options.streams else Batcher
        return kind(
            self.options,
            self.new_queue,
            self.collator,
            self.name,
            self.counters,
            features=found,
        )

    def expect(self, call: Call) -> None:  # noqa: B027  `arrivals` have more to do
        """Note that `call` comes: it asks an asynchronous cache before it is queued."""

    def own_error(self, where: str) -> RuntimeError:
        """Return what a call raises that was made `where` its answer cannot come before that goes on."""
        return RuntimeError(
            f"{self.name} was called from inside {where}, where it would wait for itself: call its plain "
            f"function there, {self.name}.__wrapped__"
        )

    def _wait_s(self, batcher: Batcher, items: int) -> float | None:
        """Return how long a call of `items` would wait in this batcher; None if that is not known."""
        waits = batcher.feature(Backlog)
        if not self.lock.is_mine():
            with self.lock.later, self.lock:
                waits.learn()
        return waits.wait_s(items, monotonic())

    @property
    def may_wait(self) -> bool:
        """Whether calls wait for room in a queue that is full; else they are refused."""
        return self.options.on_full == "wait"

    @abstractmethod
    def _drop(self, call: Call) -> None:
        """Have `call` dropped, without the lock: it may be the garbage collector that ends a caller."""

    def closed_error(self) -> ClosedError:
        """Return what calls raise after the end."""
        return ClosedError(f"{self.name} was shut down and takes no more calls")

    def _snapshot(self, batchers: list[Batcher], gone: Lessons = NOTHING, *, amid_step: bool) -> Stats:
        """Return what `batchers` have done so far, and what was learned by one `gone`; needs the lock.

        In the middle of a step that counts what has been counted by then, on a copy, so that the step goes on
        as if unseen. There are no other figures until the step ends, and thousands of finalizers may ask.
        """
        if not amid_step:
            return snapshot(self.counters, batchers, monotonic(), gone)
        if self._amid_step is None:
            self._amid_step = snapshot(deepcopy(self.counters), batchers, monotonic(), gone)
            self.lock.later.append(self._forget_snapshot)
        return self._amid_step

    @abstractmethod
    def warm_up(self, new_slices: Callable[[], list[Slice]], *, in_task: bool) -> list[Call]:
        """Have each worker run a batch of new slices; return their calls, which have come at once.

        For the running task to wait for if it is `in_task`, else for this thread.
        """

    def count_anew(self) -> None:  # noqa: B027  a server counts for its clients
        """Put the counters right after a step was broken off. Needs the lock."""

    def _forget_snapshot(self) -> None:
        self._amid_step = None

    def count_cached(self, call: Call) -> None:
        """Count the items of a call of which nothing is queued: the cache knew them, or has been too slow."""
        if self.lock.is_mine():
            self.counters.unqueued(call.hits, call.unanswered)
            return
        with self.lock.later, self.lock:
            self.counters.unqueued(call.hits, call.unanswered)

    def cancel(self, call: Call) -> None:
        """Note that the caller of `call` has left: the items that have not started never run."""
        self._leave(call, "cancelled")

    def _leave(self, call: Call, why: Literal["cancelled", "expired"]) -> None:
        if call.missing and call.left is None:
            call.left = why
            self._drop(call)

    def raise_error(self, call: Call) -> NoReturn:
        """Raise, in its caller, the error of `call`, or that it is late."""
        if call.missing:
            self._leave(call, "expired")
        raise_as_was(error_of(call, self.name))
