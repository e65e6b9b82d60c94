"""The batcher of a function that generates: its batches run in steps, and some are refilled between two.

A batch that is refilled is a batch anew at each step, in all figures. An item leaves it when it has ended;
then it is counted. Items that wait take the places of those that are gone.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from math import inf
from typing import Any, cast

from batched._core.batch import Batch
from batched._core.batcher import Batcher
from batched._core.call import DONE, Call, Slice
from batched._core.change import NO_CHANGE, NOT_TOLD, Change
from batched._core.halves import Half
from batched._core.hooks import Run
from batched._policy.joining import Joining
from batched._policy.window import StartReason
from batched.errors import SlowConsumerError, is_error

_STEPS = (
    "a step of a generator has one piece per item of its batch: `batched.DONE` for an item that has ended"
)
_REFILLED_STEPS = (
    "with continuous=True a step has one piece per live item: those at `change.left` are gone, and "
    "`change.joined` stand behind those that remain"
)


class _Live:
    """What is known of a batch that is refilled, besides what it has at present."""

    __slots__ = ("began", "fresh", "joined", "key")

    def __init__(self, batch: Batch, began: float) -> None:
        self.began = began
        self.joined: dict[Call, float] = {}  # when each call did that was not there from the beginning
        self.key = getattr(batch.slices[0][0], "key", None)
        self.fresh = batch.size  # items that have joined at the present step


class StreamBatcher(Batcher):
    """Hands out the pieces of each step; with the option `continuous`, has items join."""

    def __init__(self, *args: Any, **named: Any) -> None:
        self.others_wait: Callable[[], bool] = _never
        """Whether other functions wait for the worker: then no item joins, and the batch comes to its end."""
        self._live: dict[Batch, _Live] = {}
        self._joining = Joining()
        super().__init__(*args, **named)

    # -- a step -------------------------------------------------------------------------------------------

    def step(self, batch: Batch, pieces: list[Any], now: float) -> tuple[list[Call], Change[Any] | None]:
        """Hand the calls of `batch` their next pieces, as the collator has split them.

        Returns the calls that have something new, and what the function is to be told; None if it is to end.
        """
        batch.begun = True
        told = [
            call
            for (call, _, _), piece in zip(batch.slices, pieces, strict=True)
            if call.missing and call.left is None and self._hand_out(call, piece, batch)
        ]
        if self.options.continuous:
            return told, self._refill(batch, now)
        if self.leaving:  # others may wait for their room
            self.take_in()
        waits = [call for call in batch.calls if call.missing and call.left is None]
        if not all(call.takes_pieces and call.is_over(now) for call in waits):
            return told, NOT_TOLD
        for call in waits:  # consumers that do not look at their deadline, as they do not read
            call.fail(TimeoutError(call.overdue(self._name)))
        return told, None

    def note_pieces(self, error: BaseException) -> None:
        """Note on `error`, of a wrong number of pieces, which number is right."""
        error.add_note(_REFILLED_STEPS if self.options.continuous else _STEPS)

    def _hand_out(self, call: Call, piece: Any, batch: Batch) -> bool:
        """Give `call` its piece; return whether its caller is to be told.

        It is done with `DONE`, an exception, or if its consumer is too far behind.
        """
        most = self.options.max_pieces
        if piece is DONE:
            call.missing = 0
        elif is_error(piece):
            batch.failed += 1
            call.fail_part(0, 1, piece)
        elif not call.takes_pieces:
            call.results.append(piece)
            return False
        elif len(call.results) >= most:
            batch.failed += 1
            call.fail(
                SlowConsumerError(
                    f"{self._name}: the consumer of this stream fell max_pieces={most} pieces behind, so the "
                    f"stream has ended; consume faster, or raise max_pieces"
                )
            )
        else:
            call.results.append(piece)
        return True

    # -- a batch is refilled ------------------------------------------------------------------------------

    def _refill(self, batch: Batch, now: float) -> Change[Any] | None:
        """Have items join `batch` in the places of those that are gone; return what has changed."""
        self._count_step(batch, now)
        self.take_in()
        for look in self._look:
            look(now)
        gone = [at for at, call in enumerate(batch.calls) if call.is_over(now)]
        if gone:
            self._answer_late([batch.slices[at][0] for at in gone])
            self._leave(batch, gone)
        self._joining.ended(len(gone))
        if self.first:
            self._finds_first(now)  # drops what no caller wants any more
        joined: Sequence[Slice] = ()
        if self.queue.items and not (self.first or self.others_wait()):  # else something waits for its end
            joined = self._join(batch, now)
        if not batch.slices:
            return None
        return Change(tuple(gone), tuple(self._items(joined))) if gone or joined else NO_CHANGE

    def _count_step(self, batch: Batch, now: float) -> None:
        started, self.running[batch] = self.running[batch], now
        live = self._live.get(batch)
        if live is None:
            live = self._live[batch] = _Live(batch, started)
        places = max(self.queue.batch_size, batch.size)  # fewer since `configure`, perhaps
        self.counters.stepped(batch, started, now, places if self.queue.items else None)
        self._joining.stepped(batch.size, live.fresh, now - started)
        answered = sum(not call.missing for call in batch.calls)
        for ended in self._ended:
            ended(Run(batch, started, now, answered, None, joined=_joined(batch, live)))
        live.fresh = 0
        batch.search = None  # what has begun does not run again
        batch.reason = StartReason.STEP

    def _leave(self, batch: Batch, gone: Sequence[int]) -> None:
        """Remove the slices at these places: their calls are done, or not wanted any more."""
        left = [batch.slices[at] for at in gone]
        for at in reversed(gone):
            del batch.slices[at]
        batch.size = len(batch.slices)
        self.effects.released += [call for call, _, _ in left]
        live = self._live[batch]
        for piece in left:
            self.counters.left([piece], 1, live.joined.pop(piece[0], live.began))
        self.counters.failed += batch.failed
        batch.failed = 0

    def _began(self, batch: Batch, call: Call) -> float:
        live = self._live.get(batch)
        return super()._began(batch, call) if live is None else live.joined.get(call, live.began)

    def _answer_late(self, calls: list[Call]) -> None:
        """Answer those of `calls` that are late: a future has no caller that waits. A consumer sees it."""
        late = [call for call in calls if call.missing and call.left is None and not call.takes_pieces]
        for call in late:
            call.fail(TimeoutError(call.overdue(self._name)))
        self.answer(late)

    def _join(self, batch: Batch, now: float) -> Sequence[Slice]:
        """Have as many of the items that wait join `batch` as may, and return them."""
        queues = self.queue
        queue = queues.of_key(self._live[batch].key) if queues.is_keyed else queues
        if queue is None or batch.size >= queue.batch_size or not self._allow_length(queue, batch):
            return ()
        room = self._room_beside(batch, queue, now)
        joined = self._take(queue, room, batch, now) if room else ()
        if queue.lengths is not None:
            queue.lengths.budget = self.options.max_batch_length
        return joined

    def _room_beside(self, batch: Batch, queue: Any, now: float) -> int:
        """Return how many items of `queue` join `batch`, which has places free."""
        room: int = min(queue.batch_size - batch.size, queue.items)
        if not batch.size:  # none is there that would wait
            return room
        limit: int = self.options.max_joining or queue.batch_size
        if self.options.max_joining_length is not None:
            limit = min(limit, queue.fitting())
        if self._is_urgent(now):
            return min(room, limit)
        return self._joining.room(batch.size, queue.batch_size, queue.items, limit)

    def _take(self, queue: Any, room: int, batch: Batch, now: float) -> Sequence[Slice]:
        """Have so many items of `queue` join `batch`, and return them."""
        live, queues = self._live[batch], self.queue
        self.taking_from = queue
        more: Batch = queue.take(room)
        if queues.is_keyed:
            queues.taken(more, now, more.size / queues.batch_size)
        if self.keys_may_change:
            self._refuse_changed(more, now)
        for call in more.calls:
            live.joined[call] = now
        live.fresh = more.size
        batch.slices += more.slices
        batch.size += more.size
        self.taking_from = None
        self.counters.joined += more.size
        if self.admission.awaiting_room:
            self.admit_waiting()
        joined = more.slices[:]
        more.clear()  # the queue knows it until it takes the next
        return joined

    def _is_urgent(self, now: float) -> bool:
        """Whether a call has used up so much of the time until its deadline that it waits no longer."""
        start = inf
        for sooner in self._start:
            start, _ = sooner(start, StartReason.DEADLINE, now)
        return start <= now

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

    def _items(self, slices: Sequence[Slice]) -> list[Any]:
        rows: list[Any] = []
        for call, _, _ in slices:
            for args, named in cast("Any", self._collator).items(call):
                row = (*args, *named.values())
                rows.append(row[0] if len(row) == 1 else row)
        return rows

    # -- a batch ends -------------------------------------------------------------------------------------

    def finish(
        self,
        batch: Batch,
        parts: list[Any],
        now: float,
        *,
        error: BaseException | None = None,
        done: list[Call] | None = None,
    ) -> bool:
        """End the streams of `batch`, which has run, and forget it; return whether callers are to be told.

        There are no `parts`. Those that are `done` are given after an `error`.
        """
        live = self._live.get(batch)
        if done is None:
            if live is not None and live.fresh:
                self._begin_anew(batch, live)
            done = batch.calls
            for call in done:
                call.missing = 0
        batch.begun = False
        if live is None:
            ended = [call for call in batch.calls if _has_ended(call)]
            return super().finish(batch, parts, now, error=error, done=ended)
        started = self.running.pop(batch, now)
        self.effects.has_moved = True
        try:
            if error is not None and batch.slices:
                self.counters.stepped(batch, started, now, None)
                for tell in self._ended:
                    tell(Run(batch, started, now, len(done), error, joined=_joined(batch, live)))
            self._leave(batch, range(len(batch.slices)))
        finally:
            self._live.pop(batch, None)
            self.answer(done)
        return bool(self.effects.answered)

    def _begin_anew(self, batch: Batch, live: _Live) -> None:
        """Have what joined as the function ended, so that there is no piece of it, be the next batch."""
        part = Half(batch.slices[-live.fresh :], live.fresh, None, None)
        part.reason = StartReason.NO_GAIN
        self.first.append(part)
        del batch.slices[-live.fresh :]
        batch.size -= live.fresh
        for call in part.calls:
            del live.joined[call]

    def _answer_with(self, error: BaseException, batch: Batch) -> list[Call]:
        """Answer the calls of `batch` with `error`, but for those that have ended before."""
        failed = batch.failed
        done = super()._answer_with(error, batch)
        batch.failed = failed + len(done)
        return done

    def _failed_in(self, batch: Batch, lost: list[Call]) -> int:
        self._live.pop(batch, None)
        return batch.failed + len(lost)

    def end_streams(self, error: BaseException) -> None:
        """Fail the calls of batches that run."""
        calls = [call for call in self.running_calls() if call.missing]
        for call in calls:
            call.left = "cancelled"
            call.fail(error)
        self.answer(calls)


def _never() -> bool:
    return False


def _joined(batch: Batch, live: _Live) -> int | None:
    """Return how many of the items of a step joined at it; None if it is the first."""
    return live.fresh if batch.reason == StartReason.STEP else None


def _has_ended(call: Call) -> bool:
    return not call.missing and call.left is None
