"""The learned window where several batches of a function may run at once."""

from __future__ import annotations

from collections.abc import Mapping
from math import ceil, inf
from typing import Any

from batched._policy.adaptive import AdaptiveWindow
from batched._policy.batch_cost import TOO_SHORT_S
from batched._policy.length_cost import LengthCost
from batched._policy.overlapping import OverlappingCohorts
from batched._policy.window import ANY_NUMBER

_RETURN = 0.5  # of the callers: where so many come back soon, they stay together (0.4 to 0.75 are alike)
_SINGLES = 1.1  # items of a call: a list that is divided would wait for both batches


class SeveralWindow(AdaptiveWindow):
    """Waits only in the last worker that is free.

    While another one is free, a batch that starts early costs nothing: the calls after it find that worker.
    Once all others are busy, callers that come too late for this batch wait for a whole one, as with a single
    worker.

    Callers that come back stay together from batch to batch. The `n` of one batch get
    `n / (fixed + each * n)` answers a second, which grows less and less with `n`, so that batches of like
    sizes answer most. The last free worker leaves to the next one what is more than its share.
    """

    def __init__(
        self,
        timeout_s: float | None,
        batch_size: int,
        cost: LengthCost | None = None,
        *,
        workers: int,
        running: Mapping[Any, float],
    ) -> None:
        """There are so many `workers`, and `running` has the batches that run, but none that ended."""
        super().__init__(timeout_s, batch_size, cost)
        self.workers: int = workers
        self.running: Mapping[Any, float] = running
        self._overlapping = self._cohorts = OverlappingCohorts()
        self._noted = 0.0  # when the last batch started of which it has learned that
        self._one_free_since = 0.0  # as long as not all of them are busy

    def start_at(self, oldest: float, items: int, now: float) -> float:
        """Return when to start a batch that is not full: `items` wait, the first of them since `oldest`."""
        for started in self.running.values():
            self._note_start(started)
        due = super().start_at(oldest, items, now)
        self.is_holding = due > now
        return due

    def _free_since(self) -> float:
        return self._one_free_since

    def _due(self, oldest: float, items: int, now: float) -> float:
        if self.workers - len(self.running) > 1:
            return -inf
        due = super()._due(oldest, items, now)
        even = self._evenly(items, now)
        if even > due:
            self.awaited = ANY_NUMBER
            return min(even, max(oldest, self._free_since(), self.free_at) + self._longest_s())
        return due

    def share(self, items: int) -> int | None:
        """Return how many of `items` that wait the next batch has at most; None: as many as it may."""
        running = self.running
        if self.is_suspended or len(running) != self.workers - 1:
            return None
        if self._overlapping.returning < _RETURN or self._items_per_call > _SINGLES:
            return None
        known: int = items + sum([batch.size for batch in running])
        return ceil(known / self.workers)

    def _evenly(self, items: int, now: float) -> float:
        """Return when to start so that batches start at even distances; if that is past, at once.

        Of calls that come anyway, those that come in a wait of `w` would else wait until the next worker is
        free, in `r`. It saves `rate * w * (r - w)`, and delays the calls that wait already. The best `w` is
        half of what `r` exceeds the time in which as many come as wait. Yet a worker that waits does no
        work: what pays for that is the fixed cost, so `r` counts as that at most, and less where items take
        most of the time.
        """
        cost = self._cost
        rate = self._bursts.rate * (1.0 - 2.0 * self._overlapping.returning)
        if not (rate > 0.0 and self.running):
            return -inf
        ends, most = inf, 0
        for batch, since in self.running.items():
            ends = min(ends, since + cost.fixed + cost.each * batch.size)
            most = max(most, batch.size)
        left = min(ends - now, cost.fixed * cost.fixed / (cost.fixed + cost.each * most + TOO_SHORT_S))
        return now + (left - items / self._items_per_call / rate) / 2

    def let_go(self, started: float) -> None:
        """Learn that a batch has started."""
        if self.came:
            self._catch_up()
        self._started = started
        self._note_start(started)

    def _note_start(self, started: float) -> None:
        """Learn, once, how long the batch that started then was held back."""
        if started > self._noted:
            self._noted = started
            self._held.let_go(started)

    def done(  # noqa: PLR0913, PLR0917
        self,
        size: int,
        calls: int,
        answered: int,
        started: float,
        now: float,
        has_worked: bool,  # noqa: FBT001
    ) -> None:
        """Learn that a batch of `size` items, of `calls` calls, has ended and `answered` of them with it."""
        if len(self.running) >= self.workers - 1:
            self._one_free_since = now
        self.is_holding = False  # the worker that holds a batch back looks anew
        super().done(size, calls, answered, started, now, has_worked)
        if answered:
            self._begin_cohort()  # calls that came before, and are reported later, have nothing to do with it
