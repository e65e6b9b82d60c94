"""A batcher and its lock: how drivers take steps, and do what follows from them."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable
from functools import partial
from typing import TYPE_CHECKING, Any, TypeVar, cast

from batched._clock import monotonic
from batched._core.batch import Batch
from batched._core.batcher import Batcher
from batched._core.call import Call, release_inputs
from batched._core.change import Change
from batched._core.effects import Effects, let_go
from batched._core.mending import give_up_all, give_up_batch, mend
from batched._core.stream_batcher import StreamBatcher
from batched._drivers.current_worker import cause_of
from batched._drivers.driver import Driver
from batched._drivers.room_on_stack import check_stack
from batched._drivers.step_lock import StepLock
from batched._parts.in_flight import store
from batched.errors import RestartWorker

T = TypeVar("T")

_OF_LOCK = ("__enter__",)  # not in the class itself: pyright would take it for no method


class Dispatcher(ABC):
    """Asks a batcher for batches, and runs them.

    `with dispatcher:` holds the lock. After it the inputs of calls that have ended are released,
    results are stored in the cache, and callers are woken, all without the lock.
    """

    __slots__ = ("__dict__", "__weakref__", *_OF_LOCK)

    raises_interrupts = False
    """Whether a Ctrl-C in the user's cache is raised where it came; else it is only logged."""

    def __init__(self, driver: Driver) -> None:
        self.driver: Driver = driver
        self.batcher: Batcher = driver.new_batcher()
        self.collator: Any = driver.collator
        self.name: str = driver.name
        self.streams: bool = driver.options.streams
        self.use_lock(driver.lock)
        self._spare: Effects | None = None  # what has been done, to be used again

    if TYPE_CHECKING:

        def __enter__(self) -> bool:
            """Take the lock."""
            ...

    def use_lock(self, lock: StepLock) -> None:
        """Guard the batcher by `lock`."""
        self.lock: StepLock = lock
        setattr(self, "__enter__", lock.acquire)  # noqa: B010  to Python a method, without a frame

    def __exit__(self, *_: object) -> None:  # noqa: C901, PLR0912  one more call costs each batch a frame
        effects: Effects | None = None
        interrupt: BaseException | None = None
        try:
            try:
                batcher = self.batcher
                there = batcher.effects
                if (
                    there.answered
                    or there.released
                    or there.has_moved
                    or there.gone
                    or there.let_in
                    or there.landed
                ):
                    spare, self._spare = self._spare, None
                    effects, batcher.effects = there, spare or Effects()
                    if effects.let_in:
                        self._let_in(effects.let_in)
                        effects.let_in = []
            finally:
                self.lock.release()
            # Without the lock; what has been done is dropped from `effects`.
            if effects is not None:
                if effects.gone:
                    let_go(effects.gone)
                    effects.gone = []
                if effects.released:  # first: answered callers find their instance kept by no batch
                    release_inputs(effects.released)
                    effects.released = []
                if effects.landed:
                    interrupt = store(effects.landed)  # before callers can ask again; a Ctrl-C in their cache
                    effects.landed = []
                if effects.answered:
                    self._wake_callers(effects.answered)
                    effects.answered = []
                if effects.has_moved:
                    effects.has_moved = False
                    self._moved()
                self._spare = effects
        except BaseException:  # Ctrl-C, or a fault of this library
            self.lock.free()
            if effects is not None:
                with self.lock:
                    there = self.batcher.effects
                    there.put_back(effects)
            raise
        if self.lock.later:
            self.lock.later.take()
        if interrupt is not None and self.raises_interrupts:
            raise interrupt

    def take_step(self, step: Callable[[Batcher], T]) -> T | None:
        """Take a `step`, and return what that does; in the middle of another, once that has ended."""
        if self.lock.is_mine():
            self.lock.later.append(partial(self.take_step, step))
            return None
        check_stack()
        try:
            with self:
                return step(self.batcher)
        except BaseException as error:
            self.recover(error)
            raise

    def recover(self, error: BaseException, *, may_refuse: bool = False) -> None:
        """Leave the lock after `error` has broken off a step, and do what the step has left undone.

        Of a step that `may_refuse` a call, or options, an `Exception` is a refusal, which leaves nothing
        undone. Any other may be raised by a signal handler, as a Ctrl-C is: calls that wait go on waiting.
        """
        is_known = may_refuse and isinstance(error, Exception)
        if is_known and not self.lock.is_mine():
            return  # it has come through the end of the step
        self.lock.free()
        try:
            with self:
                if not is_known:
                    mend(self.batcher, error)
                    self._count_anew()
        except BaseException as another:
            self.lock.free()
            if isinstance(another, Exception):
                raise
            # A second Ctrl-C while this waited for the lock: what starts programs may pass on the terminal's.
            self.recover(another)

    def answer_lost(self, batch: Batch | None, error: BaseException, *, and_all: bool) -> None:
        """Answer `batch`, and others that no thread or task goes on with, with `error`.

        After a fault that may have broken the queue all calls that wait are answered with it too.
        """
        lost = [] if batch is None else [batch]

        def give_up(batcher: Batcher) -> None:
            lost.extend(each for each in self._out_of_hand() if each is not batch)
            for each in lost:
                give_up_batch(batcher, each, error)
            if and_all:
                give_up_all(batcher, error)
            self._count_anew()

        self.lock.free()
        self.take_step(give_up)
        for each in lost:
            each.clear()

    def fail(self, batch: Batch, error: BaseException, now: float) -> None:
        """Have `batch` fail by `error`, or by what broke its worker. Needs the lock."""
        if isinstance(error, RestartWorker):
            error = cause_of(error)
            batch.blames_worker = True
        self.batcher.fail(batch, error, now)

    def step(self, batch: Batch, pieces: Any, *, lets_join: bool = True) -> Change[Any] | None:
        """Hand the callers of `batch`, which streams, their next pieces; this `lets_join` items that wait.

        Returns what the function is to be told, `OVER` if no caller wants more.
        """
        split = batch.split(pieces, self.collator)
        streaming = cast("StreamBatcher", self.batcher)
        return self.take_step(lambda _: streaming.step(batch, split, monotonic(), lets_join=lets_join))

    @abstractmethod
    def _wake_callers(self, calls: list[Call]) -> None:
        """Wake the callers of `calls`, which have their answers, or new pieces of them."""

    @abstractmethod
    def _out_of_hand(self) -> list[Batch]:
        """Return the batches that were taken, and that no thread or task goes on with. Needs the lock."""

    def _count_anew(self) -> None:
        """Put the counters right after a step that was broken off. Needs the lock."""
        self.driver.count_anew()

    def _let_in(self, calls: list[Call]) -> None:  # noqa: B027  tasks wait for their answers
        """Tell the callers of `calls`, which have waited for room, that there is room. Needs the lock."""

    def _moved(self) -> None:  # noqa: B027  a batcher for one call has no plan
        """Plan anew: calls have moved from the inbox into the queue since the last plan."""
