"""The batcher of a function that generates: its batches run in steps, and some are refilled between two.

A batch that is refilled is a batch anew at each step, in all figures. An item leaves it when it has ended;
then it is counted. Items that wait take the places of those that are gone.
"""

from __future__ import annotations

from collections.abc import Sequence
from functools import partial
from math import inf
from typing import Any, cast

from batched._core.batch import Batch
from batched._core.batcher import Batcher
from batched._core.call import Call, Slice
from batched._core.change import DONE, NO_CHANGE, OVER, Change
from batched._core.halves import cut_at
from batched._core.hooks import Run
from batched._policy.joining import Joining
from batched._policy.window import StartReason
from batched.errors import ResultTypeError, is_error, too_slow

_STEPS = (
    "a step of a generator has one piece per item of its batch: `batched.DONE` for an item that has ended"
)
_REFILLED_STEPS = (
    "with continuous=True a step has one piece per live item: those at `change.left` are gone, and "
    "`change.joined` stand behind those that remain"
)


class StreamBatcher(Batcher):
    """Hands out the pieces of each step; with the option `continuous`, has items join."""

    def begin(self) -> None:
        """Begin with an empty queue, and with nothing learned of joining."""
        super().begin()
        self._joining = Joining()  # anew: Ctrl-C may have come as it learned

    # -- a step -------------------------------------------------------------------------------------------

    def step(
        self, batch: Batch, pieces: list[Any], now: float, *, lets_join: bool = True
    ) -> Change[Any] | None:
        """Hand the calls of `batch` their next pieces, as the collator has split them.

        Returns what the function is to be told, `OVER` if it is to end. If other functions wait for the
        worker, the driver lets none join, so that the batch comes to its end.
        """
        batch.begun = True
        for (call, _, _), piece in zip(batch.slices, pieces, strict=True):
            if call.missing and call.left is None:
                self._hand_out(call, piece, batch)
        if self.options.continuous:
            return self._refill(batch, now, lets_join)
        if self.leaving:  # others may wait for their room
            self.take_in()
        # A future that has begun is never late.
        if not all(call.is_over(now if call.takes_pieces else -inf) for call in batch.calls):
            return None  # it may `yield from` an iterator that is no generator, which can be told nothing
        self._fail_late(batch.calls)
        return OVER

    def _hand_out(self, call: Call, piece: Any, batch: Batch) -> None:
        """Give `call` its piece, and have its caller told, unless that waits for all pieces.

        A consumer that has yet to take the piece before has been told already. The call is done with `DONE`,
        with an exception, or if its consumer is too far behind.
        """
        most = self.options.max_pieces
        if piece is DONE:
            call.missing = 0
        elif is_error(piece):
            batch.failed += 1
            call.fail_part(0, 1, piece)
        elif call.takes_pieces and len(call.results) >= most:
            batch.failed += 1
            call.fail(too_slow(self._name, most))
        else:
            call.results.append(piece)
            if not call.takes_pieces or len(call.results) > 1:
                return
        self.effects.answered.append(call)

    def _fail_late(self, calls: list[Call]) -> None:
        """Answer those of `calls`, which are over, that are late: a consumer may not look at its deadline."""
        late = [call for call in calls if call.missing and call.left is None]
        for call in late:
            call.left = "expired"
            call.fail(TimeoutError(call.overdue(self._name)))
        self.answer(late)

    # -- a batch is refilled ------------------------------------------------------------------------------

    def _refill(self, batch: Batch, now: float, lets_join: bool) -> Change[Any]:  # noqa: FBT001
        """Have items join `batch` in the places of those that are gone; return what has changed."""
        key = getattr(batch.slices[0][0], "key", None)
        started, self.running[batch] = self.running[batch], now
        fresh = self._count_step(batch, started, now, sum(not call.missing for call in batch.calls))
        batch.search = None  # what has begun does not run again
        batch.reason = StartReason.STEP
        self.take_in()
        for look in self._look:
            look(now)
        gone = [at for at, call in enumerate(batch.calls) if call.is_over(now)]
        self._joining.stepped(batch.size, fresh, now - started, len(gone))
        self._fail_late([batch.slices[at][0] for at in gone])
        self._leave(batch, gone)
        if self.first:
            self._find_first(now)  # drops what no caller wants any more
        joined: Sequence[Slice] = ()
        if lets_join and self.queue.items and not self.first:  # else a part of a batch waits for its end
            joined = self._join(batch, key, now)
        if not batch.slices:
            return OVER
        return Change(tuple(gone), tuple(self._items(joined))) if gone or joined else NO_CHANGE

    def _count_step(
        self, batch: Batch, started: float, now: float, answered: int, error: BaseException | None = None
    ) -> int:
        """Count a step of `batch`, and tell of it; return how many items have begun with it."""
        fresh = [call for call in batch.calls if not hasattr(call, "began")]
        for call in fresh:
            call.began = started
        batch.fresh = len(fresh)
        places = max(self.queue.batch_size, batch.size)  # fewer since `configure`, perhaps
        self.counters.stepped(batch, started, now, places if self.queue.items else None)
        self._learn(Run(batch, started, now, answered, error), ())
        return len(fresh)

    def _leave(self, batch: Batch, gone: Sequence[int]) -> None:
        """Remove the slices at these places: their calls are done, or not wanted any more."""
        for at in reversed(gone):
            piece = batch.slices.pop(at)
            batch.size -= 1  # at once: after a fault below, figures are balanced by what is left
            self.effects.released.append(piece[0])
            self.counters.left([piece], 1, piece[0].began)
            self.counters.late += piece[0].left == "expired"
        self.counters.failed += batch.failed
        batch.failed = 0

    def _join(self, batch: Batch, key: Any, now: float) -> Sequence[Slice]:
        """Have as many of the items that wait, and have this `key`, join `batch` as may; return them."""
        queue = self.queue.of_key(key) if self.queue.is_keyed else self.queue
        if queue is None or batch.size >= queue.batch_size or not self._allow_length(queue, batch):
            return ()
        room = self._room_beside(batch, queue, now)
        joined = self.join(batch, room, queue, now) if room else ()
        self.counters.joined += len(joined)
        if queue.lengths is not None:
            queue.lengths.budget = self.options.max_batch_length
        return joined

    def _allow_length(self, queue: Any, batch: Batch) -> bool:
        """Have `queue` give what fits beside `batch`, by its length; return whether the next item does."""
        budget, most, rule = self.options.max_batch_length, self.options.max_joining_length, queue.lengths
        if rule is None or not batch.slices:
            return True
        if budget is not None:
            budget -= sum(rule.at(call, 0) for call in batch.calls)
            if rule.at(queue.leader(), 0) > budget:
                return False
        rule.budget = most if budget is None else budget if most is None else min(budget, most)
        return True

    def _room_beside(self, batch: Batch, queue: Any, now: float) -> int:
        """Return how many items of `queue` join `batch`, which has places free."""
        room: int = min(queue.batch_size - batch.size, queue.items)
        if not batch.size:  # none is there that would wait
            return room
        limit: int = self.options.max_joining or queue.batch_size
        if self.options.max_joining_length is not None:
            limit = min(limit, queue.fitting())
        if self._is_draining or self.queue.items >= (self.options.max_queue_size or inf):  # no more come
            limit = min(limit, queue.items)
        if self._start_by(now) <= now:  # a call has used up too much of the time until its deadline
            return min(room, limit)
        return self._joining.room(batch.size, queue.batch_size, queue.items, limit)

    def _items(self, slices: Sequence[Slice]) -> list[Any]:
        collator = cast("Any", self._collator)
        rows = [(*args, *named.values()) for call, _, _ in slices for args, named in collator.items(call)]
        return [row[0] if len(row) == 1 else row for row in rows]

    # -- a batch ends -------------------------------------------------------------------------------------

    def finish(
        self,
        batch: Batch,
        parts: list[Any],
        now: float,
        error: BaseException | None = None,
        done: list[Call] | None = None,
    ) -> None:
        """End the streams of `batch`, which has run, and forget it.

        There are no `parts`. Those that are `done` are given after an `error`.
        """
        is_refilled = batch.begun and self.options.continuous  # then its steps are counted one by one
        if done is None:
            begun = [call for call in batch.calls if hasattr(call, "began")]
            if is_refilled and len(begun) < batch.size:
                # What joined as the function ended has no piece: it is the next batch.
                rest, anew = cut_at(batch, len(begun), None, None)
                anew.reason = StartReason.NO_GAIN
                self.first.divide(batch, [rest, anew])
            for call in batch.calls:
                call.missing = 0
        batch.begun = False
        done = [call for call in batch.calls if not call.missing and call.left is None]
        if not is_refilled:
            super().finish(batch, parts, now, error=error, done=done)
            return
        started = self.running.pop(batch, now)
        self.effects.has_moved = True
        try:
            if error is not None and batch.slices:
                self._count_step(batch, started, now, len(done), error)
            elif hasattr(batch, "told"):
                self.afterwards(partial(batch.told, None))
            self._leave(batch, range(len(batch.slices)))
        finally:
            self.answer(done)

    def fail(self, batch: Batch, error: BaseException, now: float) -> None:
        """Do as every batcher; an error of pieces that are not one per item notes what a step has."""
        if getattr(batch, "returned", None) is not None or isinstance(error, ResultTypeError):
            error.add_note(_REFILLED_STEPS if self.options.continuous else _STEPS)
        super().fail(batch, error, now)
