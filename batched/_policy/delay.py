"""How long waiting for company pays.

A batch of n items takes about `fixed + each * n` seconds, so whoever shares a batch saves its fixed cost. Yet
for independent arrivals it is as good as optimal to start whenever the function is free: the optimum is a
control limit (Deb and Serfozo, "Optimal control of batch service queues", 1973), and when a batch ends more
calls than that are there already. Waiting pays in two cases, and both show without anybody waiting: callers
that were just answered and come straight back, and bursts that hit a function that is idle.
"""

# ruff: noqa: FURB136, PLR1730  calling min and max would cost as much as all else here

from __future__ import annotations

from math import ceil, inf
from typing import TYPE_CHECKING

from batched._core.stats import Learned
from batched._policy.batch_cost import TOO_SHORT_S, Service

if TYPE_CHECKING:
    from collections.abc import Sequence

    from batched._core.call import Call
    from batched._core.options import Options

__all__ = ["Profile", "Regroup", "Window", "new_patience"]

_ANY_NUMBER = 1 << 60


class Window:
    """The plain window: a batch that is not full starts when its oldest item is `timeout_s` old."""

    __slots__ = ("awaited", "reason", "timeout_s")

    learns = False
    """Whether it has to be told what happens; if not, only `start` is called."""
    rests = False
    """Whether a wait can save nothing, so that neither need be done until a batch `is_unusual`."""
    cohorts = 0
    """From how many batches that have answered callers it has learned."""

    def __init__(self, timeout_s: float) -> None:
        self.timeout_s = timeout_s
        self.awaited = _ANY_NUMBER
        """How many more calls end the wait that `start` asked for: nobody looks at fewer."""
        self.reason = "window"
        """Why the batch starts now that `start` let go."""

    def start(self, oldest: float, items: int, now: float) -> float:  # noqa: ARG002  it learns nothing
        """Return when to start a batch that is not full: `items` wait, the first since `oldest`."""
        return oldest + self.timeout_s

    def arrived(self, calls: Sequence[Call]) -> None:
        """Learn that `calls`, one at least, have come, in about this order."""

    def popped(self, now: float) -> None:
        """Learn that a batch starts."""

    def ran(self, size: int, duration: float) -> None:
        """Learn that a batch of `size` items took so long; it was of a list that goes on, and nobody came."""

    def done(self, size: int, calls: int, answered: int, now: float, started: float | None) -> None:
        """Learn that a batch of `size` items, of `calls` calls, has ended and `answered` of them with it.

        `now` is before the first of them could call again. `started` is None if the batch failed.
        """

    def is_unusual(self, size: int, duration: float) -> bool:  # noqa: ARG002  it never rests
        """Whether a batch took much longer than others, though it `rests`; from now on it does not."""
        return False

    def chunk(self) -> int | None:
        """Return how many items of large calls may share a batch while small ones come; None: all."""
        return None

    def learned(self) -> Learned | None:
        """Return what there is to say of it in the stats."""
        return None


# Chosen by simulation, where the results are flat around all of them. Edges and gaps are in fixed costs.
_COLD = 2  # so many cohorts meet the plain window, ...
_WARM = 6  # ... and until so many, no window at all: batches must differ to tell the fixed cost from the rest
_KEEP = 0.95  # of a cohort's weight, with every new one
_HEAVY = 1e100  # then weights are scaled down
_FIRST_EDGE = 1 / 8
_EDGES = tuple(_FIRST_EDGE * 2**power for power in range(4))  # who comes back after the last is not awaited
_LAST = len(_EDGES)
_NEVER = 1e-6  # of all: fewer never come
_CYCLE = 1.4  # fixed costs that one more in a batch saves: a cohort that is together stays together
_SOME = 0.05  # calls: fewer are none
_SURE = 8  # answers alike in a row; then so many more are taken for granted:
_GRANTED = 3
_CLOSE = 1 / 16  # calls at most so far apart are of one burst, ...
_QUIET = 3.0  # ... which is over when nobody has come for so many of its mean gaps
_ALONE = 4  # calls in a row that were not close to the one before: no bursts any more
_LONGEST = 8.0  # a night without calls is a gap like any other
_GAPS = 32  # so many at a time are learned from, ...
_OLD_GAPS = 1 / 2  # ... and so much counts what earlier ones told
_LATE_S = 100e-6  # how late a sleeper wakes up, until it is measured
_CHUNK = 5.0  # fixed costs that a chunk of a large call may take
_OVERHEAD_S = 100e-6  # what a batch costs besides
_NOT_FELT_S = 20e-6  # a fixed cost; to save it would take as long as to wake somebody up
_OFTEN = 16  # batches
_SAMPLE = 8  # one in so many batches of lists is learned from, after the first


class Regroup(Window):
    """Waits for those who are expected, while sharing the batch saves more than waiting costs all in it.

    Those answered by one batch are a cohort. How fast earlier cohorts were back, each counted by the share of
    it that was, tells how many of the last one are to come, and when; what would have come anyway is
    subtracted. A wait of `w` that brings `j` more saves `j` fixed costs, and delays by `w` both who waits and
    who is still to come. The wait with the largest gain is chosen; it ends when all of the cohort are back,
    and is at most `timeout_s` from when the function was free or, if that was later, the first item came.
    While it is always the same one, it is worked out one time in four.

    A call that finds the function idle may be the first of a burst: then what counts is how likely another
    one follows closely, and how soon.

    Until it has seen some cohorts, this is the plain window. What is learned fades within tens of batches. It
    costs O(1) for each call and batch, on the worker's side, after the callers have been released. Where the
    fixed cost is too small for anybody to be waited for, it rests.
    """

    __slots__ = (
        "_alone",
        "_answered",
        "_anyway",
        "_anyway_s",
        "_back",
        "_batch_size",
        "_burst",
        "_close",
        "_close_s",
        "_due",
        "_ended",
        "_ended_answered",
        "_free",
        "_gaps",
        "_gaps_s",
        "_gaps_since",
        "_granted",
        "_held_s",
        "_held_since",
        "_in_a_row",
        "_items_per_call",
        "_last",
        "_late",
        "_late_s",
        "_near",
        "_new_gaps",
        "_next_weight",
        "_of_lists",
        "_popped",
        "_profile",
        "_profiles",
        "_quiet_s",
        "_step",
        "_unit",
        "_until",
        "_weight",
        "cohorts",
        "rests",
        "service",
    )

    learns = True

    def __init__(self, timeout_s: float, batch_size: int) -> None:
        super().__init__(timeout_s)
        self._batch_size = batch_size
        self.service = Service()
        # The fixed cost as it was when the cohort was answered: the scale of all its times. 0.0 if unknown.
        self._unit = 0.0
        self._step = inf  # a part of it: to the first edge
        self._near = 0.0  # and another: calls no farther apart are of one burst
        # The batch that ended last. The first call that came after it opens its cohort, because of those that
        # came before some are told only then.
        self._ended = inf
        self._ended_answered = 0
        # The cohort
        self._free = 0.0  # when it was answered
        self._answered = 0
        self._back = 0  # within a fixed cost
        self._late = 0  # calls that came when it was too late to be one of it
        # All cohorts, those that found nobody waiting apart from those that did: calls that come by the clock
        # look like returning ones, but not to both. Instead of old ones fading, new ones weigh more and more.
        self.cohorts = 0
        self._profiles = (Profile(), Profile())
        self._profile = self._profiles[0]  # that the cohort belongs to
        self._weight = 0.0  # of one of the cohort
        self._next_weight = 1.0  # of the next cohort together
        self._anyway = 0.0  # calls that came when it was too late to be one of a cohort ...
        self._anyway_s = 0.0  # ... and the seconds in which they did
        self._items_per_call = 1.0
        # The gaps between calls, and those of them within a burst
        self._last = 0.0
        self._new_gaps = 0  # that have not been learned from
        self._gaps_since = 0.0
        self._gaps = 0.0
        self._gaps_s = 0.0
        self._close = 0.0
        self._close_s = 0.0
        self._alone = 0
        self._burst = 0.0  # items: fewer wait for the next call of a burst, ...
        self._quiet_s = 0.0  # ... so long after the last one
        # The wait: what was said last of those who are to come back, in fixed costs from when the cohort was
        # answered, 0.0 if nothing; how often in a row; and how often more it is taken for granted.
        self._until = 0.0
        self._in_a_row = 0
        self._granted = 0
        self._popped = 0.0
        self._due: float | None = None
        self._late_s = _LATE_S
        self._held_since: float | None = None
        self._held_s = 0.0
        self._of_lists = 0  # batches
        self.rests = False

    def configure(self, timeout_s: float, batch_size: int) -> None:
        """Go on with other options."""
        self.timeout_s = timeout_s
        self._batch_size = batch_size

    def arrived(self, calls: Sequence[Call]) -> None:
        """Learn that `calls` have come, in about this order."""
        if calls[0].arrived >= self._ended:  # most often; else one of the others may be the first after it
            self._open_cohort()
        last = self._last
        ended, free, unit, step, near = self._ended, self._free, self._unit, self._step, self._near
        back, late, alone = self._back, self._late, self._alone
        answered, weight, returns = self._answered, self._weight, self._profile.returns
        close = 0
        close_s = 0.0
        for call in calls:
            at = call.arrived
            if at >= ended:
                self._last, self._back, self._late = last, back, late
                self._open_cohort()
                ended, free, unit, step, near = inf, self._free, self._unit, self._step, self._near
                back = late = 0
                answered, weight, returns = self._answered, self._weight, self._profile.returns
            gap = at - last
            if gap > 0.0:
                last = at
            else:
                gap = 0.0  # two threads; the later one was faster
            if gap < near:
                close += 1
                close_s += gap
                alone = 0
            else:
                alone += 1
            since = at - free
            if since >= unit:
                late += 1
            elif since >= 0.0 and back < answered:
                back += 1
                returns[int(since / step).bit_length()] += weight
        self._last, self._back, self._late, self._alone = last, back, late, alone
        if close:
            self._close += close
            self._close_s += close_s
        self._new_gaps += len(calls)

    def start(self, oldest: float, items: int, now: float) -> float:
        """Return when to start a batch that is not full: `items` wait, the first since `oldest`."""
        if self._ended <= now:
            self._open_cohort()
        if self.cohorts < _WARM:
            cold = self.cohorts < _COLD
            self.reason = "window" if cold else "trial"
            return oldest + self.timeout_s if cold else now
        missing = self._answered - self._back
        if not missing:
            self.reason = "callers back"
            return now
        due = self._worth(oldest, items, missing, now)
        if due > now:
            if self._held_since is None:
                self._held_since = now
            self._due = due
            return due
        if self._held_since is None:
            self.reason = "nobody expected"
        else:
            self.reason = "waited"
            self._granted = self._in_a_row = 0  # somebody has not come as ever
            if self._due is not None and now >= self._due:
                # Step by step: one pause of the machine is not worth more than any other late wake-up.
                self._late_s *= 1.1 if now - self._due > self._late_s else 0.9
        self._due = None
        return now

    def popped(self, now: float) -> None:
        """Learn that a batch starts."""
        if self._ended <= now:
            self._open_cohort()
        self._popped = now
        since = self._held_since
        if since is None:
            self._held_s *= 0.9
        else:
            self._held_s += 0.1 * (now - since - self._held_s)
            self._held_since = self._due = None
            self._late_s += 0.01 * (_LATE_S - self._late_s)  # nobody is late for ever

    def ran(self, size: int, duration: float) -> None:
        """Learn that a batch of `size` items took so long; it was of a list that goes on, and nobody came."""
        self._of_lists += 1
        if self._of_lists < _OFTEN or not self._of_lists % _SAMPLE:  # they are alike
            self.service.add(size, duration)

    def done(self, size: int, calls: int, answered: int, now: float, started: float | None) -> None:
        """Learn that a batch of `size` items, of `calls` calls, has ended and `answered` of them with it."""
        if self._ended <= now:
            self._open_cohort()
        self._ended = now
        self._ended_answered = answered
        self._items_per_call += 0.1 * (size / calls - self._items_per_call)
        if started is not None:
            self.service.add(size, now - started)
        if self._new_gaps >= _GAPS:
            self._learn_bursts()
            self.rests = self.service.fixed < _NOT_FELT_S and self.cohorts >= _WARM

    def is_unusual(self, size: int, duration: float) -> bool:
        """Whether a batch took much longer than others, though it `rests`; from now on it does not."""
        service = self.service
        if duration <= 2.0 * (service.fixed + service.each * size) + _NOT_FELT_S:
            return False
        self.rests = False
        # Of what came meanwhile nothing is known.
        self._ended = inf
        self._answered = self._back = self._late = self._new_gaps = 0
        self._gaps_since = self._last
        return True

    def chunk(self) -> int | None:
        """Return how many items take a few times the fixed cost, if a full batch takes longer."""
        if self.cohorts < _WARM:
            return None
        longest = _CHUNK * (self.service.fixed + _OVERHEAD_S)
        each = self.service.each
        return ceil(longest / each) if each * self._batch_size > longest else None

    def learned(self) -> Learned | None:
        """Return the fitted costs, and how long the last batches were held back."""
        if self.cohorts < _COLD:
            return None
        fixed, each = self.service.fixed, self.service.each
        return Learned(
            batch_ms=fixed * 1000,
            item_ms=each * 1000,
            wait_ms=self._held_s * 1000,
            capacity=self._batch_size / max(fixed + each * self._batch_size, TOO_SHORT_S),
        )

    def _open_cohort(self) -> None:
        """Close the cohort, and open that of the batch which ended last."""
        if self._answered:
            self.cohorts += 1
            beyond = self._ended - self._free - self._unit
            if beyond > 0.0:
                self._anyway = _KEEP * self._anyway + self._late
                self._anyway_s = _KEEP * self._anyway_s + beyond
        self._unit = unit = self.service.fixed
        self._step = unit * _FIRST_EDGE
        self._near = unit * _CLOSE
        self._free = self._ended
        self._ended = inf
        self._back = self._late = 0
        self._answered = answered = self._ended_answered if unit else 0
        if answered:
            weight = self._next_weight
            if weight > _HEAVY:
                for profile in self._profiles:
                    profile.scale_down(weight)
                weight = 1.0
            self._profile = profile = self._profiles[self._last > self._popped]
            profile.weight += weight
            self._weight = weight / answered
            self._next_weight = weight / _KEEP

    def _worth(self, oldest: float, items: int, missing: int, now: float) -> float:
        """Return until when a wait pays: if none does, a time that has passed."""
        idle = oldest > self._free
        limit = (oldest if idle else self._free) + self.timeout_s
        due = 0.0
        self.awaited = _ANY_NUMBER
        unit = self._unit
        if now - self._free < unit:
            if self._granted:
                self._granted -= 1
            else:
                self._ask_returns(items, missing, now, limit)
            if self._until:
                due = self._free + self._until * unit
                self.awaited = missing
        if idle and items < self._burst and self._alone < _ALONE:
            quiet = self._last + self._quiet_s
            if quiet > due:
                due = quiet
                self.awaited = _ANY_NUMBER
        return due if due < limit else limit

    def _ask_returns(self, items: int, missing: int, now: float, limit: float) -> None:
        """Find out until when to wait for the `missing` ones of the cohort, and whether it is always so."""
        unit = self._unit
        until = self._worth_returns(items, missing, (now - self._free) / unit, (limit - self._free) / unit)
        if until != self._until:
            self._until = until
            self._in_a_row = 0
        elif self._in_a_row < _SURE:
            self._in_a_row += 1
        else:
            self._granted = _GRANTED

    def _worth_returns(self, items: int, missing: int, begin: float, latest: float) -> float:
        """Return until when to wait, from `begin` to `latest`, all in fixed costs; 0.0 if not at all."""
        if latest <= begin:
            return 0.0
        returns = self._profile.returns
        index = int(begin / _FIRST_EDGE).bit_length()
        edge = _EDGES[index]
        share = returns[index] * (edge - begin) / (edge - _EDGES[index - 1] if index else edge)
        later = share + sum(returns[index + 1 :])
        weight = self._profile.weight
        if later <= _NEVER * weight:
            return 0.0
        # Of earlier cohorts, so much was missing by now, and some of it never came.
        not_yet = weight - self._weight * missing - sum(returns) + later
        each = missing / not_yet
        late = self._late_s / self._unit
        anyway = self._anyway / self._anyway_s * self._unit if self._anyway_s else 0.0
        per_call = self._items_per_call
        concerned = items / per_call + each * later
        room = (self._batch_size - items) / per_call
        before: float = missing
        wait = best = due = 0.0
        while True:
            if edge > latest:
                share *= (latest - begin) / (edge - begin)
                edge = latest
            after = before - share * each
            middle = (before + after) / 2
            wait += (edge - begin) * (middle if middle < 1.0 else 1.0)  # it ends when all are back
            joiners = missing - after - anyway * wait
            if joiners > room:
                joiners = room
            if joiners > _SOME:
                gain = _CYCLE * joiners - concerned * (wait + late * (after if after < 1.0 else 1.0))
                if gain > best:
                    best, due = gain, edge
            index += 1
            if after < _SOME or edge >= latest or index == _LAST:
                return due
            begin, before = edge, after
            edge, share = _EDGES[index], returns[index]

    def _learn_bursts(self) -> None:
        """Find out how many items should wait for the next call of a burst, and how long."""
        new, passed = self._new_gaps, self._last - self._gaps_since
        self._gaps += new
        self._gaps_s += min(passed, _LONGEST * self._unit * new)
        self._gaps_since = self._last
        self._new_gaps = 0
        self._burst = 0.0
        if self._close > _SOME and self._close_s:
            gap = self._close_s / self._close
            likely = self._close / self._gaps - gap * self._gaps / self._gaps_s  # more than would come anyway
            self._quiet_s = _QUIET * gap
            wait = likely * gap + (1.0 - likely) * (self._quiet_s + self._late_s)
            self._burst = likely * (self._unit / wait - 1.0) * self._items_per_call
        self._gaps *= _OLD_GAPS
        self._gaps_s *= _OLD_GAPS
        self._close *= _OLD_GAPS
        self._close_s *= _OLD_GAPS


def new_patience(options: Options, old: Window | None = None) -> Window:
    """Return the rule that `options` ask for, with what the `old` one has learned if that is still of use."""
    timeout_s = options.timeout_ms / 1000
    alone = options.max_concurrent_batches == 1  # else who comes back does not say to which batch
    if not (options.adaptive and alone and timeout_s and options.batch_size > 1):
        return Window(timeout_s)
    if isinstance(old, Regroup):
        old.configure(timeout_s, options.batch_size)
        return old
    return Regroup(timeout_s, options.batch_size)


class Profile:
    """How soon cohorts were back."""

    __slots__ = ("returns", "weight")

    def __init__(self) -> None:
        self.weight = 0.0  # of all that were answered
        self.returns = [0.0] * _LAST  # of those that were back by an edge, but not by the one before

    def scale_down(self, factor: float) -> None:
        """Keep the numbers small; only their ratios matter."""
        self.weight /= factor
        self.returns[:] = [back / factor for back in self.returns]
