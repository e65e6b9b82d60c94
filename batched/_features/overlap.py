"""When the next batch is taken, and how many items it has, where a batch passes stages.

A batch is prepared, is in the function, and is finished; at most one batch is in each stage. While one is in
the function, the next is taken as late as it will still be prepared in time (late binding), by the time that
stages take for a batch of a size, as it was learned.

Where two batches overlap, each pays for the fixed costs, but only the slowest stage takes time. So calls that
wait run beside the batch before only if both together take no longer than one batch of all of them: else its
callers, once they have their answers, would have shared that. And what waits for an idle function is divided,
if it is answered sooner so.

The others hear of a batch as if it had taken the time that it spent in stages, without waits between them,
and as many batches ran at once as the time of all stages has of that of the slowest.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from batched._core.batch import Batch
from batched._core.hooks import Feature, Run
from batched._core.options import Options
from batched._policy.batch_cost import BatchCost
from batched._policy.window import ANY_NUMBER, StartReason

_STAGES = range(3)  # it is prepared, in the function, and finished

_MOST_PARTS = 4  # of what waits for an idle function
_WORTH_IT = 0.95  # of the time: it is divided if it takes less than that
_FIRST = 3  # batches: until then the times of stages are not known
_TRIAL = 2  # of so many batches, one is of half the size until costs are known ...
_TRIALS = 24  # ... or so many have run
_EARLY = 0.1  # of the time of the function: it may end that much sooner than expected
_EARLY_S = 500e-6  # waking a thread takes a part of that


_BEGINS = ("start", "room", "ended")
_LEARNS = ("start", "room", "lesson")


class Overlap(Feature):
    """Knows what stages take, and decides which batches overlap."""

    hooks: tuple[str, ...] = _BEGINS

    def __init__(self) -> None:
        self._costs = [BatchCost() for _ in _STAGES]
        self._runs = 0
        self._takes = 0
        self._in_function: Batch | None = None
        self._since = 0.0  # when that began
        self._size = 0

    def configure(self, options: Options) -> None:
        """Follow new options."""
        self._adaptive = options.adaptive
        self._tell_slots()

    # -- the driver says, with the lock --------------------------------------------------------------------

    def begins(self, batch: Batch, now: float) -> None:
        """Note that `batch` is in the function from now on."""
        self._in_function = batch
        self._since, self._size = now, batch.size

    def ends(self) -> None:
        """Note that no batch is in the function any more."""
        self._in_function = None

    def look_at(self, now: float) -> float | None:
        """Return when to take the next batch, while others are in later stages; None: not with what waits.

        The time may have passed.
        """
        queue = self.river.queue
        river = self.river
        if river.first and river.first.ready(river.running) is not None:
            return now
        if not queue.items or not self._pays(min(queue.items, queue.batch_size)):
            return None
        if self._runs < _FIRST:
            return None  # when the function ends, is not known
        if self._in_function is None:
            return now
        own_s = self._seconds(1, self._size)
        needs_s = self._seconds(0, min(queue.items, queue.batch_size))
        return self._since + own_s - needs_s - _EARLY * own_s - _EARLY_S

    def lacks(self) -> int:
        """Return how many more items it takes for `look_at` to return a time, about."""
        queue = self.river.queue
        if self._runs < _FIRST:
            return ANY_NUMBER
        if not queue.items:
            return 1
        running = sum(batch.size for batch in self.river.running)
        lacking: int = queue.batch_size - queue.items - running + 1
        return max(lacking, 1)

    def gives_up(self, batch: Batch, more: int, now: float) -> bool:
        """Whether it pays to prepare `batch`, which is prepared, once more with so many items that have come.

        They would wait for the function else, until it has run that batch. With them it may begin later.
        """
        if self._in_function is None or self._runs < _FIRST:
            return False
        size = batch.size + more
        free = self._since + self._seconds(1, self._size)
        late_s = max(now + self._seconds(0, size) - max(free, now), 0.0)
        saves_s = more * self._seconds(1, batch.size) - batch.size * (
            self._seconds(1, size) - self._seconds(1, batch.size)
        )
        return late_s * size < saves_s

    # -- what is asked ------------------------------------------------------------------------------------

    def start(self, start: float, reason: StartReason, now: float) -> tuple[float, StartReason]:
        """Take a batch ahead when it is time, whatever the window says: the function is not idle."""
        if self.river.running:
            at = self.look_at(now)
            if at is not None and at < start:
                return at, StartReason.AHEAD
        return start, reason

    def room(self, queue: Any, room: int, now: float) -> int:
        """Divide what waits, if its parts, one behind the other, are answered sooner."""
        if (
            room <= 1
            or self._runs < _FIRST
            or queue.items > (_MOST_PARTS - 1) * queue.batch_size
            or not self._adaptive
        ):
            return room
        if not self._is_known:
            self._takes += 1
            return room // 2 if self._takes % _TRIAL == 0 and self._takes <= _TRIALS else room
        busy_s = 0.0
        if self._in_function is not None:
            busy_s = max(self._since + self._seconds(1, self._size) - now, 0.0)
        items = queue.items
        best, best_s = room, self._makespan(items, room, busy_s) * _WORTH_IT
        for parts in range(2, _MOST_PARTS + 1):
            size = -(-items // parts)
            if 0 < size < room and (takes_s := self._makespan(items, size, busy_s)) < best_s:
                best, best_s = size, takes_s
        return best

    def ended(self, run: Run) -> None:
        """Learn from each of the first batches."""
        self.lesson(run)
        if self._runs >= _TRIALS:
            self.have(*_LEARNS)

    def lesson(self, run: Run) -> None:
        """Learn what the stages of a batch took."""
        times: Sequence[float] | None = getattr(run.batch, "stage_s", None)
        if times is None:
            return
        if run.error is None and not run.batch.failed and run.batch.size:
            self._runs += 1
            for cost, seconds in zip(self._costs, times, strict=True):
                cost.add(run.batch.size, seconds)
            self._tell_slots()

    # -- what is known ------------------------------------------------------------------------------------

    @property
    def _is_known(self) -> bool:
        """Whether it is known what the slowest stages take, by their sizes."""
        size = self._usual
        total = sum(self._seconds(stage, size) for stage in _STAGES)
        told = [
            cost.is_known
            for stage, cost in enumerate(self._costs)
            if self._seconds(stage, size) > 0.2 * total  # the others matter little
        ]
        return self._runs >= _FIRST and all(told)

    @property
    def _usual(self) -> int:
        return max(self._size, 1)

    def _seconds(self, stage: int, size: int) -> float:
        cost = self._costs[stage]
        return cost.fixed + cost.each * size

    def _slowest_s(self, size: int) -> float:
        return max(self._seconds(stage, size) for stage in _STAGES)

    def _all_s(self, size: int) -> float:
        return sum(self._seconds(stage, size) for stage in _STAGES)

    def _makespan(self, items: int, size: int, busy_s: float) -> float:
        """Return how long `items` take in batches of `size`; the function is busy for so long."""
        batches = -(-items // size)
        prepare, function, finish = (self._seconds(stage, size) for stage in _STAGES)
        return max(prepare, busy_s) + function + finish + (batches - 1) * self._slowest_s(size)

    def _pays(self, items: int) -> bool:
        """Whether `items` run beside the batches that run: not if one batch of all would be faster."""
        sizes = [*(batch.size for batch in self.river.running), items]
        if len(sizes) == 1 or sum(sizes) > self.river.queue.batch_size:
            return True
        if not self._is_known:
            return False
        apart = sum(self._all_s(size) for size in sizes) / len(sizes)
        for stage in _STAGES:
            apart = max(apart, sum(self._seconds(stage, size) for size in sizes))
        return apart < _WORTH_IT * self._all_s(sum(sizes))

    def _tell_slots(self) -> None:
        """Say how many batches run at once, as far as that is known."""
        if self._runs >= _FIRST:
            size = self._usual
            slowest = self._slowest_s(size)
            self.river.slots = max(self._all_s(size) / slowest, 1.0) if slowest else 1.0
