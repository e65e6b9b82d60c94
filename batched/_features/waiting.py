"""When a batch that is not full starts, and what it leaves to the next worker: the window learns both."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from types import MappingProxyType
from typing import Any

from batched._core.call import Call
from batched._core.hooks import Feature, Run
from batched._core.options import Options
from batched._core.river import River
from batched._policy.adaptive import AdaptiveWindow
from batched._policy.length_cost import LengthCost
from batched._policy.several import SeveralWindow
from batched._policy.window import AtOnce, StartReason, Window


class Waiting(Feature):
    """Has the window of a batcher learn. While that is suspended, batches start at once.

    Where several batches run at once, it knows the share of one worker. That is not asked where sizes are
    fixed: a share would be filled up with copies.
    """

    window: Any
    """A `Window`, or what stands for one in a simulation."""

    def __init__(self) -> None:
        self.window = Window(0.0)  # lengths tell it of costs, also where it takes no part

    def begin(self, river: River, options: Options) -> None:
        """Begin with a new window."""
        self._ended = 0.0  # when the last run ended
        self._cost: LengthCost | None = None
        self.window = Window(0.0)
        super().begin(river, options)

    def configure(self, options: Options) -> None:
        """Go on with the present window if it still fits."""
        self._may_share = options.batch_sizes is None
        self.use(new_window(options, self.river.running, self._cost, self.window))

    def resized(self, options: Options, size: int) -> None:
        """Have the window know how many items fill a batch."""
        self.window.configure(_timeout_s(options), size)

    def follow_cost(self, cost: LengthCost | None) -> None:
        """Take what batches cost from `cost`, where lengths are used; else learn it."""
        self._cost = cost
        self.window.follow(cost)

    def use(self, window: Any) -> None:
        """Hold batches back as long as `window` says."""
        self.window = window
        self._follow()

    def _follow(self) -> None:
        """Have the batcher ask the window if it may hold batches back."""
        window = self.window
        if window.is_suspended or not window.timeout_s:
            reason = StartReason.NO_GAIN if window.timeout_s else StartReason.WINDOW
            self.river.use_window(AtOnce(reason))
        else:
            self.river.use_window(window)
        if not window.learns:
            self.have()
        elif window.is_suspended:
            window.came.clear()
            self.have("lesson")
        elif self._may_share and isinstance(window, SeveralWindow):
            self.have("queued", "answered", "room")
        else:
            self.have("queued", "answered")

    def queued(self, calls: list[Call]) -> None:
        """Note when they came; not the calls: an idle batcher keeps none."""
        self.window.came += [call.arrived for call in calls]

    def room(self, queue: Any, room: int, now: float) -> int:  # noqa: ARG002  of all keys
        """Return the share of one worker, if that is less: the next has what is more."""
        share = self.window.share(self.river.queue.items)
        return room if share is None or share > room else share

    def answered(self, run: Run) -> None:
        """Tell the window of a run, and how many calls it has answered."""
        window, batch = self.window, run.batch
        if run.is_divided:
            window.let_go(run.started)
            return
        has_worked = batch.failed < batch.size
        window.done(batch.size, len(batch.slices), run.answered, run.started, run.now, has_worked)
        self.river.queue.large_limit = window.large_limit
        self._ended = run.now
        if window.is_suspended:
            self._follow()

    def lesson(self, run: Run) -> None:
        """Have the window look whether waits may pay again."""
        batch = run.batch
        if batch.failed < batch.size:
            call, start, _ = batch.slices[0]
            has_company = len(batch.slices) > 1 or (not start and call.arrived < self._ended)
            self.window.ran_suspended(batch.size, run.now - run.started, has_company=has_company)
        self._ended = run.now
        if not self.window.is_suspended:
            self._follow()

    def lessons(self) -> Mapping[str, Any]:
        """Return the costs, and after how many cohorts they were known."""
        learned = self.window.learned()
        if learned is not None and learned.capacity is not None:
            has_budget = (
                self.river.options.max_batch_length is not None
            )  # it may fill a batch with any number
            capacity = None if has_budget else learned.capacity * self.river.slots
            learned = replace(learned, capacity=capacity)
        return {"cohorts": self.window.cohorts, "learned": learned}


def new_window(
    options: Options,
    running: Mapping[Any, float] = MappingProxyType({}),
    cost: LengthCost | None = None,
    old: Window | None = None,
) -> Window:
    """Return the window that `options` ask for: the `old` one, with all it has learned, if it still fits.

    The batches that are `running` tell how many workers are busy. The `cost` of batches is given where it is
    learned elsewhere.
    """
    timeout_s = _timeout_s(options)
    if not (options.adaptive and timeout_s != 0.0 and options.batch_size > 1):
        return Window(timeout_s)
    workers = options.max_concurrent_batches
    kind = AdaptiveWindow if workers == 1 else SeveralWindow
    if isinstance(old, AdaptiveWindow) and type(old) is kind:
        old.configure(timeout_s, options.batch_size)
        if isinstance(old, SeveralWindow):
            old.workers = workers
        return old
    if workers == 1:
        return AdaptiveWindow(timeout_s, options.batch_size, cost)
    return SeveralWindow(timeout_s, options.batch_size, cost, workers=workers, running=running)


def _timeout_s(options: Options) -> float | None:
    if options.continuous:  # later calls join
        return 0.0
    return None if options.timeout_ms == "auto" else options.timeout_ms / 1000
