"""The running totals of a batcher, from which snapshots are made."""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Sequence
from dataclasses import replace
from operator import sub
from typing import TypeAlias

from batched._core.batch import Batch
from batched._core.call import Call, Slice
from batched._core.histograms import Sizes, Times
from batched._core.lessons import NOTHING, Lessons
from batched._core.stats import Padding, Stats
from batched._policy.lengths import Choice
from batched._policy.window import StartReason

_RUNS = 256  # counted at once, ...
_WAITS = 512  # ... as are the waits of slices: together they take a fraction of the time

_Run: TypeAlias = tuple[str, int, int, float, float, bool]
"""Why a batch started, its items and slices, when it started and ended, and whether it worked."""


class Counters:
    """The running totals behind `Stats`."""

    # With these in it, its `__dict__` would be too large for Python to remember where its methods are.
    __slots__ = ("__dict__", "accepted", "cancelled", "expired", "failed", "processed")

    def __init__(self) -> None:
        self.processed: int = 0
        self.accepted: int = 0
        self.failed: int = 0
        self.divided = 0
        self.batch_error: str | None = None
        self.told: set[str] = set()
        """The types of errors of which the log has a line, as no item was to blame."""
        self.rejected: int = 0
        self.refused = 0
        self.cached: int = 0
        self.cancelled: int = 0
        self.expired: int = 0
        self.given_up: int = 0
        self.late: int = 0
        self.copies: int = 0
        self.joined: int = 0
        self._has_steps = False
        self._places = 0  # of steps of batches that are refilled, while calls waited, ...
        self._taken = 0  # ... and how many of these had an item
        self.real: int = 0
        self.padded: int = 0
        self._looked = 0  # batches of several items, of which `real` and `padded` are
        self._apart_s = 0.0
        self.chosen: dict[Choice, int] = dict.fromkeys(Choice, 0)
        self._closed = dict.fromkeys(StartReason, 0)
        self._batch_size = Sizes()
        self._processing_time = Times()
        self._wait = Times()
        self._stages: dict[str, Times] = {}  # how long batches were in each, if they pass any
        self._passed: list[tuple[float, ...]] = []  # not counted yet
        self._runs: list[_Run] = []  # not counted yet
        self._last_runs: list[_Run] = []  # counted
        self._waits: defaultdict[int, list[float]] = defaultdict(list)  # of slices, by their size
        self._waited = 0  # slices of batches that had several
        self._configured: Stats | None = None

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

    def ran(
        self,
        batch: Batch,
        started: float,
        now: float,
        again: bool = False,  # noqa: FBT001, FBT002  a keyword only would cost
    ) -> None:
        """Count a run of `batch`, and its items, unless these run `again`."""
        if batch.padded:
            self.real += batch.real
            self.padded += batch.padded
            self._looked += batch.size > 1
        if batch.is_apart:
            self._apart_s += now - started
        slices = batch.slices
        failed = batch.failed
        runs = self._runs
        runs.append((batch.reason, batch.size, len(slices), started, now, not (again or failed)))
        if len(runs) == _RUNS:
            self._count_runs()
        if len(slices) == 1 and not again:
            self.processed += batch.size
            self.failed += failed
            self._waits[batch.size].append(started - slices[0][0].arrived)
        elif not again:
            self.left(slices, batch.size, started, failed)

    def stepped(self, batch: Batch, started: float, now: float, places: int | None) -> None:
        """Count a step of a batch that is refilled, of which the items are counted when they leave it.

        It has had so many `places`, or None if no call waited for one.
        """
        slices = batch.slices
        self._has_steps = True
        self._runs.append((batch.reason, batch.size, len(slices), started, now, not batch.failed))
        if len(self._runs) == _RUNS:
            self._count_runs()
        if places is not None:
            self._places += places
            self._taken += batch.size

    def passed(self, stage_s: tuple[float, ...]) -> None:
        """Count how long a batch was prepared, in the function, and finished, as far as it got."""
        self._passed.append(stage_s)
        if len(self._passed) == _RUNS:
            self._count_stages()

    def _count_stages(self) -> None:
        passed, self._passed = self._passed, []
        for at, name in enumerate(("prepare", "function", "finish")):
            seconds = [stage_s[at] for stage_s in passed if len(stage_s) > at]
            self._stages.setdefault(name, Times()).add(seconds)

    def last_runs(self) -> list[tuple[int, int, float, float]]:
        """Return of the last runs that worked the items and slices, and when they started and ended."""
        runs = [*self._last_runs, *self._runs]
        return [run[1:5] for run in runs if run[5]]

    def dropped(self, call: Call, items: int) -> None:
        """Count `items` of `call` that were in the queue and will not run."""
        if call.left == "expired":
            self.expired += items
            return
        self.cancelled += items
        if call.left == "rejected":  # it had been accepted, and totals never go down
            self.rejected += items

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
        if runs := self._runs:
            self._runs = []
            self._last_runs = [*self._last_runs, *runs][-_RUNS:]
            reasons, sizes, _, starts, ends, _ = zip(*runs, strict=True)
            for reason, times in Counter(reasons).items():
                self._closed[StartReason(reason)] += times
            for size, times in Counter(sizes).items():
                self._batch_size.add(size, times)
            self._processing_time.add(list(map(sub, ends, starts)))
        self._count_waits()

    def configured(self) -> None:
        """Note that options change; a batch that runs is counted when it ends, with the new ones."""
        self._configured = replace(self.snapshot(), configured=None)

    def snapshot(
        self,
        *,
        waiting: int = 0,
        running: Sequence[tuple[int, float]] = (),
        again: int = 0,
        paused: bool = False,
        lessons: Lessons = NOTHING,
    ) -> Stats:
        """Return the totals so far, and what batchers know.

        `running` are the batches that run: the items of each, and the seconds since its start. `again` is the
        number of items in batches that are about to run again, in parts; `paused` says that none will be.
        """
        self._count_runs()
        if self._passed:
            self._count_stages()
        batch_size, processing_time = self._batch_size.snapshot(), self._processing_time.snapshot()
        return Stats(
            queue_size=waiting,
            running_items=sum(items for items, _ in running) + again,
            running=tuple(age for _, age in running),
            total_accepted=self.accepted,
            total_processed=self.processed,
            total_failed=self.failed,
            total_cancelled=self.cancelled,
            total_expired=self.expired,
            total_given_up=self.given_up,
            total_late=self.late,
            total_rejected=self.rejected,
            total_refused=self.refused,
            total_cached=self.cached,
            total_divided=self.divided,
            total_copies=self.copies,
            total_joined=self.joined,
            occupancy=self._taken / self._places if self._places else None,
            total_places=self._places,
            total_batches=batch_size.count,
            batch_size=batch_size,
            avg_batch_size=batch_size.mean if self._has_steps else self.processed / (batch_size.count or 1),
            processing_time=processing_time,
            avg_processing_time=processing_time.mean,
            closed={reason.value: count for reason, count in self._closed.items() if count},
            chosen={how.value: count for how, count in self.chosen.items() if count},
            learned=lessons.learned,
            wait=self._wait.snapshot(),
            stages={name: times.snapshot() for name, times in self._stages.items()},
            apart_time=self._apart_s,
            padding=Padding(self.real, self.padded, self._looked),
            isolation_paused=paused,
            batch_error=self.batch_error,
            fits_memory=lessons.fits,
            best_batch_size=lessons.best,
            configured=self._configured,
        )
