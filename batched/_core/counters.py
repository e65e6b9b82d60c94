"""The running totals of a batcher, from which snapshots are made."""

from __future__ import annotations

from collections import Counter, defaultdict

from batched._core.batch import Batch
from batched._core.call import Slice
from batched._core.stats import Padding, Sizes, Stats, Times
from batched._policy.lengths import Choice
from batched._policy.window import Learned, StartReason

_RUNS = 256  # counted at once, ...
_WAITS = 512  # ... as are the waits of slices: together they take a fraction of the time


class Counters:
    """The running totals behind `Stats`."""

    def __init__(self) -> None:
        self.processed: int = 0
        self.accepted: int = 0
        self.failed: int = 0
        self.divided = 0
        self.rejected = 0
        self.refused = 0
        self.cached: int = 0
        self.cancelled = 0
        self.expired: int = 0
        self.real: int = 0
        self.padded: int = 0
        self._apart_s = 0.0
        self.chosen: dict[Choice, int] = dict.fromkeys(Choice, 0)
        self._closed = dict.fromkeys(StartReason, 0)
        self._batch_size = Sizes()
        self._processing_time = Times()
        self._wait = Times()
        self._runs: list[tuple[str, int, float]] = []
        self._waits: defaultdict[int, list[float]] = defaultdict(list)  # of slices, by their size
        self._waited = 0  # slices

    def unqueued(self, cached: int, expired: int) -> None:
        """Count the items of a call that was answered before anything of it was queued."""
        self.cached += cached
        self.accepted += expired
        self.expired += expired

    def balance(self, unfinished: int) -> None:
        """Count what was lost sight of, besides the `unfinished` items, after a step that was broken off.

        It counts as cancelled, and what was not counted as it came as accepted.
        """
        lost = self.accepted - self.processed - self.cancelled - self.expired - unfinished
        self.cancelled += max(lost, 0)
        self.accepted += max(-lost, 0)

    def ran(self, batch: Batch, duration: float) -> None:
        """Count a run of `batch`, whatever came of it."""
        if batch.padded:
            self.real += batch.real
            self.padded += batch.padded
        if batch.is_apart:
            self._apart_s += duration
        runs = self._runs
        runs.append((batch.reason, batch.size, duration))
        if len(runs) == _RUNS:
            self._count_runs()

    def last_runs(self) -> list[tuple[int, float]]:
        """Return the items and the seconds of the last runs."""
        return [(size, duration) for _, size, duration in self._runs]

    def left(self, slices: list[Slice], items: int, started: float, failed: int = 0) -> None:
        """Count `items` of a batch that has `started`, which will not run again, and how long they waited."""
        self.processed += items
        self.failed += failed
        if len(slices) == items:
            self._waits[1] += [started - call.arrived for call, _, _ in slices]
        else:
            for call, start, stop in slices:
                self._waits[stop - start].append(started - call.arrived)
        self._waited += len(slices)
        if self._waited >= _WAITS:
            self._count_waits()

    def _count_waits(self) -> None:
        for items, seconds in self._waits.items():
            self._wait.add(seconds, items)
        self._waits.clear()
        self._waited = 0

    def _count_runs(self) -> None:
        runs, self._runs = self._runs, []
        if not runs:
            return
        reasons, sizes, durations = zip(*runs, strict=True)
        for reason, times in Counter(reasons).items():
            self._closed[StartReason(reason)] += times
        for size, times in Counter(sizes).items():
            self._batch_size.add(size, times)
        self._processing_time.add(list(durations))

    def snapshot(  # noqa: PLR0913
        self,
        *,
        waiting: int,
        running: list[tuple[int, float]],
        again: int,
        refused: int = 0,
        paused: bool = False,
        fits: int | None,
        best: int | None,
        learned: Learned | None,
    ) -> Stats:
        """Return the totals so far.

        `fits` and `best` are the most items of a batch, as far as they are known: by memory, and by time.
        `refused` are the items of calls that were refused and are not counted yet.
        `running` are the batches that run: the items of each, and the seconds since its start. `again` is the
        number of items in batches that are about to run again, in parts; `paused` says that none will be.
        """
        self._count_runs()
        self._count_waits()
        batch_size = self._batch_size.snapshot()
        processing_time = self._processing_time.snapshot()
        return Stats(
            queue_size=waiting,
            running_items=sum(items for items, _ in running) + again,
            running=tuple(age for _, age in running),
            total_accepted=self.accepted,
            total_processed=self.processed,
            total_failed=self.failed,
            total_cancelled=self.cancelled,
            total_expired=self.expired,
            total_rejected=self.rejected,
            total_refused=self.refused + refused,
            total_cached=self.cached,
            total_batches=batch_size.count,
            total_divided=self.divided,
            avg_batch_size=self.processed / batch_size.count if batch_size.count else 0.0,
            avg_processing_time=processing_time.mean,
            closed={reason.value: count for reason, count in self._closed.items() if count},
            chosen={how.value: count for how, count in self.chosen.items() if count},
            learned=learned,
            wait=self._wait.snapshot(),
            processing_time=processing_time,
            batch_size=batch_size,
            apart_time=self._apart_s,
            padding=Padding(self.real, self.padded),
            isolation_paused=paused,
            fits_memory=fits,
            best_batch_size=best,
        )
