"""The driver with a clock that is turned by hand: for simulations and tests."""

from __future__ import annotations

from typing import Any

from batched._core.batch import Batch
from batched._core.batcher import Batcher, NewQueue, snapshot
from batched._core.call import Call, Slice, release_inputs
from batched._core.collator import Collator
from batched._core.counters import Counters
from batched._core.effects import Effects, let_go
from batched._core.hooks import Feature
from batched._core.options import Options
from batched._core.queue import Queue
from batched._core.stats import Stats
from batched._drivers.telling import Teller
from batched._features.backlog import KnowsWorkers
from batched._parts.in_flight import store
from batched._parts.stack import features
from batched.errors import OverloadError


class _NoItems:
    """Stands for the collator where calls have no items: no function runs."""

    def place(self, piece: Slice, part: object) -> None:
        """Keep nothing."""

    def can_repeat(self, batch: Batch) -> bool:  # noqa: ARG002  for the protocol
        """Return True."""
        return True


class ManualDriver:
    """One batcher without a thread or a loop: each method is told what time it is.

    Without a collator no function runs, and what `finish` hands to calls is None. It is `without` some kinds
    of features. Its `workers` are given if it shares them, and its `teller` if batches are told of.
    """

    def __init__(  # noqa: PLR0913
        self,
        options: Options,
        queue: NewQueue = Queue,
        collator: Collator | None = None,
        name: str = "f",
        *,
        without: tuple[type[Feature], ...] = (),
        workers: KnowsWorkers | None = None,
        teller: Teller | None = None,
    ) -> None:
        items: Any = collator or _NoItems()
        self._collator = items
        self._has_items = collator is not None
        self._counters = Counters()
        self._answered: list[Call] = []
        found = features(name, workers=workers, teller=teller)
        used = [feature for feature in found if not isinstance(feature, without)]
        self.let_in: list[Call] = []
        """Calls that have waited for room, and now are in the queue."""
        self.batcher = Batcher(
            options,
            queue,
            items,
            name,
            self._counters,
            features=used,
        )

    @property
    def queue(self) -> Any:
        """The queue of the batcher."""
        return self.batcher.queue

    def push(self, *calls: Call) -> None:
        """Queue `calls`, unless they are refused: those have an `OverloadError` as their answer."""
        for call in calls:
            try:
                if call.deadline is not None:
                    self.batcher.door(call, call.arrived)
            except OverloadError as error:
                call.fail(error)
                call.waiting = 0
                self._answered.append(call)
            else:
                self.batcher.take_in()
                self.batcher.add(self.batcher.enter(call))

    def admit(self, call: Call, *, wait: bool) -> None:
        """Have `call` come as from a caller: it may `wait` for room. Raises why it is refused."""
        if call.deadline is not None:
            self.batcher.door(call, call.arrived)
        self.batcher.admit(call, wait=wait)
        self.batcher.take_in()
        self._carry_out()

    def delay(self, now: float) -> float | None:
        """Return the seconds until the next batch is due, 0.0 if it is, None if no call waits."""
        return self.batcher.plan(now)

    def pop(self, now: float) -> Batch:
        """Remove and return the next batch, for which `delay` has just returned 0.0."""
        return self.batcher.pop(now)

    def run(self, batch: Batch, now: float) -> list[Call]:
        """Run `batch`, which ends at `now`; return the calls that are done."""
        return self.finish(batch, now, batch.run(self._collator) if self._has_items else None)

    def finish(self, batch: Batch, now: float, outputs: Any = None) -> list[Call]:
        """Hand the calls of `batch` their part of `outputs`; return the calls that are done."""
        parts = batch.split(outputs, self._collator) if self._has_items else [None] * len(batch.slices)
        self.batcher.finish(batch, parts, now)
        return self.take_answered()

    def fail(self, batch: Batch, error: BaseException, now: float) -> list[Call]:
        """Have `batch` raise `error`; return the calls that are done. It may run again in halves."""
        self.batcher.fail(batch, error, now)
        return self.take_answered()

    def drop(self, call: Call) -> None:
        """Forget `call`: its caller has left."""
        self.batcher.drop(call)
        self._carry_out()

    def take_answered(self) -> list[Call]:
        """Return the calls that have their answer, and have not been returned before."""
        self._carry_out()
        answered, self._answered = self._answered, []
        return answered

    def stats(self, now: float) -> Stats:
        """Return a snapshot of the counters."""
        self.batcher.do_later()  # calls that were refused are to be counted
        return snapshot(self._counters, [self.batcher], now)

    def _carry_out(self) -> None:
        """Do what follows from the steps so far; callers are told by `take_answered`."""
        effects, self.batcher.effects = self.batcher.effects, Effects()
        let_go(effects.gone)
        release_inputs(effects.released)
        if effects.landed:
            store(effects.landed)
        self._answered += effects.answered
        self.let_in += effects.let_in
