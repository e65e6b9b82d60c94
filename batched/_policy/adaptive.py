"""The learned window: how long it pays to hold back a batch that is not full.

A batch of n items takes about `fixed + each * n` seconds, so every call that shares a batch saves its fixed
cost. Yet for independent arrivals it is as good as optimal to start whenever the function is free: the
optimum is a control limit (Deb and Serfozo, "Optimal control of batch service queues", 1973), and when a
batch ends more calls than that are there already. Waiting pays in two cases, and both show without any wait:
callers that were just answered and call again at once (`cohorts`), and bursts that hit a function that is
idle (`bursts`).
"""

from __future__ import annotations

from dataclasses import replace
from math import ceil, inf

from batched._policy.batch_cost import OVERHEAD_S, TOO_SHORT_S, BatchCost
from batched._policy.bursts import Bursts
from batched._policy.cohorts import Cohorts
from batched._policy.length_cost import LengthCost
from batched._policy.overlapping import OverlappingCohorts
from batched._policy.window import ANY_NUMBER, Learned, StartReason, Window

# Chosen by simulation, where the results are flat around all of them.
_COLD = 2  # cohorts: until then the plain window holds, ...
_WARM = 6  # ... and until then no batch waits: sizes must differ to tell the fixed cost from that of an item
_LATE_S = 100e-6  # how late a sleeper wakes up, until it is measured
_LARGE = 5.0  # fixed costs that a chunk of a large call may take
_LONE = 32  # batches in a row of one call each, while no other call came: a lone caller
_TOLD = 8  # batches of another size than the one before: fewer leave much to chance, ...
_SOME = 3  # ... and fewer than that tell nothing
_UNLIKE = 0.1  # of the size: a smaller change tells little
_NEAR_FULL = 0.5  # of a full batch: where none was so large, what full ones take is not known, ...
_USUAL = 0.9  # ... nor where only batches of one size tell, and that is smaller
_NO_MORE = 44  # batches in a row that were not held back: a hundredth is left of the mean before them
_NOT_FELT_S = 20e-6  # waking a worker takes as long, so a lower fixed cost is not worth a wait


class AdaptiveWindow(Window):
    """Waits for calls that are expected, while sharing the batch saves more than the wait costs.

    Of all waits the one with the largest gain is chosen. It ends when all of the cohort are back, and at the
    latest `timeout_s` after the function was free or, if that was later, after the first item came. Where no
    timeout is set, that is the fixed cost of a batch, as it is known.

    Until it has seen some cohorts, this is the plain window. What is learned fades within tens of batches. It
    costs O(1) for each call and batch, on the worker's side, after the callers have been released. Where the
    fixed cost is so small that no wait pays, or calls come one at a time, it is suspended: it holds back
    nothing, and of what batches cost it learns in samples.
    """

    learns = True

    def __init__(self, timeout_s: float | None, batch_size: int, cost: LengthCost | None = None) -> None:
        """Learn the cost of batches, unless a `cost` is given that is learned elsewhere."""
        super().__init__(timeout_s)
        self._batch_size = batch_size
        self._own_cost = BatchCost()
        self.follow(cost)
        self._cohorts: Cohorts | OverlappingCohorts = Cohorts()
        self._bursts = Bursts()
        self._held = _Held()
        self._items_per_call = 1.0
        # The batch that ended last, if its cohort has not begun. That begins with the first call that came
        # after the answers, because some of the calls that came before are reported only then.
        self._ended = inf
        self._ended_answered = 0
        self.came: list[float] = []
        """When calls came of which it has yet to learn, one after the other; to be added to."""
        self._started = 0.0  # when the last batch that has ended started
        self._lone = 0  # batches in a row of one call, while no other call came
        self._last_size = 0  # of the batches that worked
        self._changes = 0  # of that size
        self._largest = 0  # of these sizes
        self.large_limit: int | None = None
        """So many items of large calls may share a batch while small ones come; None: all."""
        self.is_suspended = False

    def configure(self, timeout_s: float | None, batch_size: int) -> None:
        """Go on with other options."""
        super().configure(timeout_s, batch_size)
        self._batch_size = batch_size

    def follow(self, cost: LengthCost | None) -> None:
        """Take what batches cost from `cost`, which is learned elsewhere; if that is None, from its own."""
        self._cost = self._own_cost if cost is None else cost

    def _catch_up(self) -> None:
        """Learn that calls, one at least, have come, in about this order."""
        times, self.came = self.came, []
        ended = self._ended
        if times[0] >= ended:  # the usual case; else a later call may be the first one after the answers
            self._begin_cohort()
        elif ended != inf and max(times) >= ended:
            first = next(at for at, time in enumerate(times) if time >= ended)
            self._note(times[:first])
            self._begin_cohort()
            times = times[first:]
        self._note(times)

    def _note(self, times: list[float]) -> None:
        self._cohorts.arrived(times)
        self._bursts.arrived(times, self._cohorts.unit)

    def start_at(self, oldest: float, items: int, now: float) -> float:
        """Return when to start a batch that is not full: `items` wait, the first of them since `oldest`."""
        if self.came:
            self._catch_up()
        if self._ended <= now:
            self._begin_cohort()
        cohorts = self._cohorts
        if cohorts.count < _COLD:
            self.reason = StartReason.WINDOW
            return oldest + self.timeout_s
        if cohorts.count < _WARM:
            self.reason = StartReason.TRIAL
            return now
        if not cohorts.missing:
            self.reason = StartReason.CALLERS_BACK
            return now
        due = self._due(oldest, items, now)
        if due > now:
            self._held.hold(now, due)
            return due
        self.reason = StartReason.WAITED if self._held.is_over(now) else StartReason.NO_GAIN
        return now

    def _due(self, oldest: float, items: int, now: float) -> float:
        """Return until when a wait pays: if none does, a time that has passed."""
        cohorts = self._cohorts
        free = max(self._free_since(), self.free_at)
        was_idle = oldest > free
        limit = (oldest if was_idle else free) + self._longest_s()
        waiting, room = items / self._items_per_call, (self._batch_size - items) / self._items_per_call
        due = cohorts.due(waiting, room, now, limit, self._held.late_s)
        self.awaited = cohorts.missing if due else ANY_NUMBER
        if was_idle:
            quiet = self._bursts.due(items)
            if quiet > due:
                due = quiet
                self.awaited = ANY_NUMBER
        return min(due, limit)

    def _longest_s(self) -> float:
        return self._cohorts.unit if self.is_auto else self.timeout_s

    def _free_since(self) -> float:
        """Return when the function became free."""
        return self._cohorts.answered_at

    def let_go(self, started: float) -> None:
        """Learn that a batch has started; of one that runs again in parts this is all to be learned."""
        if self.came:
            self._catch_up()
        if self._ended <= started:
            self._begin_cohort()
        self._started = started
        self._held.let_go(started)

    def done(  # noqa: PLR0913, PLR0917  flat and positional: it is told of each batch
        self,
        size: int,
        calls: int,
        answered: int,
        started: float,
        now: float,
        has_worked: bool,  # noqa: FBT001
    ) -> None:
        """Learn that a batch of `size` items, of `calls` calls, has ended and `answered` of them with it.

        `now` is before the first of their callers could call again. Batches in the midst of a list answer no
        call, so they begin no cohort. They are alike, and it need be told of some of them only.
        """
        self.let_go(started)
        if not answered:
            if has_worked:
                self._learn_cost(size, now - started)
            return
        self._ended = now
        self._ended_answered = answered
        self._items_per_call += 0.1 * (size / calls - self._items_per_call)
        if has_worked:
            self._learn_cost(size, now - started)
        if self._bursts.has_news:
            self._bursts.learn(self._cohorts.unit, self._held.late_s, self._items_per_call)
            is_in_vain = self._cost.fixed < _NOT_FELT_S or self._lone >= _LONE
            self.is_suspended = is_in_vain and self._cohorts.count >= _WARM

    def ran_suspended(self, size: int, duration: float, *, has_company: bool) -> None:
        """Learn that a batch has ended while this was suspended; go on if waits may pay again.

        They may if its call `has_company`, others in the batch or in the one that ran as it came, and there
        is a cost to be shared: it is known, or the batch took longer than was known.
        """
        cost = self._cost
        is_slow = duration > 2.0 * (cost.fixed + cost.each * size) + _NOT_FELT_S
        if not (has_company and (is_slow or cost.fixed >= _NOT_FELT_S)):
            self._learn_cost(size, duration)
            return
        self.is_suspended = False
        self._lone = 0
        # The calls that came while it was suspended have not been reported.
        self._ended = inf
        self._cohorts.forget()
        self._bursts.forget()

    def _learn_cost(self, size: int, duration: float) -> None:
        """Learn what a batch costs, and so how many items of large calls take a few times the fixed cost."""
        cost = self._cost
        if isinstance(cost, BatchCost):
            cost.add(size, duration)
        if abs(size - self._last_size) > _UNLIKE * self._last_size:
            self._changes += 1
            self._last_size = size
            self._largest = max(self._largest, size)
        if self._cohorts.count >= _WARM:
            longest = _LARGE * (cost.fixed + OVERHEAD_S)
            is_long = cost.each * self._batch_size > longest
            self.large_limit = ceil(longest / cost.each) if is_long else None

    @property
    def cohorts(self) -> int:
        """The number of batches of which it has seen what their callers did next."""
        return self._cohorts.count

    def learned(self) -> Learned | None:
        """Return the costs of batches, as far as they are known, and how long the last were held back."""
        if self._cohorts.count < _COLD:
            return None
        costs = self._cost
        nothing = Learned(
            batch_ms=None,
            item_ms=None,
            wait_ms=0.0 if self.is_suspended else self._held.mean_s * 1000,
            sizes_differ=self._changes >= _TOLD,
            uses_lengths=isinstance(costs, LengthCost),
            capacity=None,
        )
        if self._changes < _SOME or not costs.is_known:
            is_usual = costs.usual_size >= _USUAL * self._batch_size
            return replace(nothing, capacity=self._capacity) if is_usual else nothing
        known = replace(nothing, batch_ms=costs.fixed * 1000, item_ms=costs.each * 1000)
        if isinstance(costs, LengthCost) and costs.tells_lengths:
            item, of_length = costs.each_alone, costs.per_length
            length = (costs.each - item) / of_length if of_length else 0.0
            known = replace(known, item_ms=item * 1000, length_ms=of_length * 1000, mean_length=length)
        if self._largest < _NEAR_FULL * self._batch_size:  # of such batches, costs may be others
            return known
        return replace(known, capacity=self._capacity)

    @property
    def _capacity(self) -> float:
        """The items a second of full batches."""
        size = self._batch_size
        return size / max(self._cost.fixed + self._cost.each * size, TOO_SHORT_S)

    def _begin_cohort(self) -> None:
        """Begin with the cohort of the batch that ended last."""
        others_waited = self._bursts.last > self._started
        self._lone = self._lone + 1 if self._ended_answered == 1 and not others_waited else 0
        self._cohorts.begin(self._ended, self._ended_answered, self._cost.fixed, others_waited=others_waited)
        self._ended = inf


class _Held:
    """How long batches are held back, and how late the worker wakes up from that."""

    def __init__(self) -> None:
        self.mean_s = 0.0
        self.late_s = _LATE_S
        self._not_held = 0  # batches in a row
        self._since: float | None = None
        self._due: float | None = None

    def hold(self, now: float, due: float) -> None:
        """Hold the next batch back until `due`, if it is not held back already."""
        if self._since is None:
            self._since = now
        self._due = due

    def is_over(self, now: float) -> bool:
        """Whether the next batch was held back, and may start now."""
        due, self._due = self._due, None
        if self._since is None:
            return False
        if due is not None and now >= due:
            # In steps: a long pause of the machine must not count more than any other late wake-up.
            self.late_s *= 1.1 if now - due > self.late_s else 0.9
        return True

    def let_go(self, now: float) -> None:
        """Learn that a batch started; one that started before may have run while the next is held back."""
        if self._since is None or now < self._since:
            self._not_held += 1
            self.mean_s = 0.0 if self._not_held >= _NO_MORE else 0.9 * self.mean_s
            return
        self._not_held = 0
        self.mean_s += 0.1 * (now - self._since - self.mean_s)
        self._since = self._due = None
        # One very late wake-up is forgotten, even if no other wait runs out.
        self.late_s += 0.01 * (_LATE_S - self.late_s)
